"""Normalizations and dropout."""

from __future__ import annotations

from math import prod

from compiler.ir.builder import Builder
from compiler.ir.graph import Node
from compiler.ir.proto import default
from compiler.ir.types import dtype_from_onnx
from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


def _statistics(b: Builder, node: Node) -> tuple[int, ...]:
    """Mean and InvStdDev are worth saving unless they are narrower than x: for f64, ONNX gives them as f32."""
    stash = dtype_from_onnx(node.attr("stash_type", default(node.op, "stash_type")))
    return () if b.type(node.inputs[0]).dtype == "f64" != stash else (1, 2)


@gradient("LayerNormalization", saves=_statistics)
def layer_normalization(r: Call) -> None:
    """By x, scale, bias; Mean and InvStdDev may have gradients of their own."""
    x, scale = r.x(0), r.x(1)
    axis = r.attr("axis") % x.rank
    axes = list(range(axis, x.rank))
    n = prod(x.shape[axis:])
    if 1 in _statistics(r.b, r.node):
        mean, inv = r.y(1), r.y(2)
    else:
        mean = x.mean(axes, keepdims=True)
        centered = x - mean
        variance = (centered * centered).mean(axes, keepdims=True)
        inv = (variance + r.attr("epsilon")).op("Sqrt").op("Reciprocal")
    dy, dmean, dinv = r.dys(0), r.dys(1), r.dys(2)
    terms: list[Value] = []
    if dy is not None:
        dx, dscale = r.add("onnxc.LayerNormGrad", [dy, x, scale, mean, inv], 2, axis=axis)
        terms.append(dx)
        r.give(1, dscale)
        r.give(2, dy)
    wide = mean.dtype
    if dmean is not None:
        terms.append((dmean.cast(wide) / n).cast(x.dtype))
    if dinv is not None:
        centered = x.cast(wide) - mean
        terms.append((dinv.cast(wide) * inv * inv * inv * centered / -n).cast(x.dtype))
    for term in terms:
        r.give(0, term)


@gradient("onnxc.BatchNorm")
def batch_norm(r: Call) -> None:
    """By x, scale, bias; the batch statistics may have gradients of their own."""
    x, scale = r.x(0), r.x(1)
    y, dmean, dvar = r.dys(0), r.dys(1), r.dys(2)
    n = x.type.size // x.shape[1]
    column = [x.shape[1]] + [1] * (x.rank - 2)
    if y is not None:
        inv = (r.y(2) + r.attr("epsilon")).op("Sqrt").op("Reciprocal")
        dx, dscale, dbias = r.add("onnxc.BatchNormGrad", [y, x, scale, r.y(1), inv], 3)
        r.give(0, dx)
        r.give(1, dscale)
        r.give(2, dbias)
    if dmean is not None:
        r.give(0, (dmean / n).reshape(column))
    if dvar is not None:
        r.give(0, (x - r.y(1).reshape(column)) * (dvar * (2 / n)).reshape(column))


@gradient("Dropout")
def dropout(r: Call) -> None:
    """At inference it is the identity; in training it is lowered to its mask before gradients are expanded."""
    training = r.b.known(r.node.input(2)) if r.has(2) else False
    if training is None or bool(training):
        r.refuse("training mode, not lowered to a mask")
    r.give(0, r.dy)
