"""Definitions of ops that write or select by position: TensorScatter, and those whose shapes depend on values.

Compress, NonMaxSuppression, NonZero and Unique are of use where what decides their shapes is known at compile time:
their results are constants then, or a Gather of constant indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.definitions.checked import confined
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.selection import kept_boxes, nonzero_positions, selected, unique_parts
from compiler.ir.types import NARROW, NARROW_FLOATS, AnyArray, onnx_dtype

Attrs = Mapping[str, Attr]


def tensor_scatter(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """TensorScatter(past, update, write_indices?): ScatterND, the positions in front of `axis` being constants."""
    past, update, start = (*inputs, "")[:3]
    shape, part = b.shape(past), b.shape(update)
    axis = attrs.get("axis", -2) % len(shape)
    grid = np.moveaxis(np.indices(part[: axis + 1], np.int64), 0, -1)  # [batch, .., n, axis + 1]
    indices = b.const(grid)
    if start:
        linear = attrs.get("mode", "linear") == "linear"
        start = confined(b, start, shape[axis] - part[axis] if linear else 2**62, "write_indices")
        before = b.const(grid[..., :axis])
        at = b.op(
            "Add", b.const(grid[..., axis:]), b.op("Reshape", start, b.ints([-1, *(1 for _ in part[: axis + 1])]))
        )
        if not linear:
            at = b.op("Mod", at, b.const(np.int64(shape[axis])))
        indices = b.op("Concat", before, at, axis=-1)
    dtype = b.type(past).dtype
    if dtype not in NARROW:
        return [b.op("ScatterND", past, indices, update)]
    # ScatterND does not take these types: their bits, or a type that holds their values
    op, other = ("BitCast", "u8") if dtype.startswith("f8") else ("Cast", "f32" if dtype in NARROW_FLOATS else "i8")
    past, update = (b.op(op, v, to=onnx_dtype(other)) for v in (past, update))
    return [b.op(op, b.op("ScatterND", past, indices, update), to=onnx_dtype(dtype))]


def _known(b: Builder, v: str) -> AnyArray:
    value = b.known(v)
    if value is None:
        raise InferenceError(f"{v!r} is not known at compile time")
    return value


def compress(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """Compress(x, condition) {axis}; without an axis of x flattened."""
    x, condition = inputs
    axis = attrs.get("axis")
    if axis is None:
        x, axis = b.op("Reshape", x, b.ints([b.type(x).size]), allowzero=1), 0
    taken = selected(_known(b, condition), b.shape(x)[axis])
    return [b.op("Gather", x, b.ints(taken), axis=axis)]


def nonzero(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """NonZero of a constant: a constant."""
    return [b.const(nonzero_positions(_known(b, inputs[0])))]


def unique(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """Unique of a constant: its different parts are a Gather, the other results constants."""
    (x,) = inputs
    axis = attrs.get("axis")
    first, counts, inverse = unique_parts(_known(b, x), axis, bool(attrs.get("sorted", 1)))
    flat = x if axis is not None else b.op("Reshape", x, b.ints([b.type(x).size]), allowzero=1)
    y = b.op("Gather", flat, b.ints(first.tolist()), axis=axis or 0)
    return [y, *(b.const(a) for a in (first, inverse, counts))]


def non_max_suppression(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """NonMaxSuppression of constants: a constant."""
    operands = [_known(b, v) if v else None for v in inputs]
    return [b.const(kept_boxes(operands, bool(attrs.get("center_point_box", 0))))]


INTERNAL_OPS |= {
    "Compress": compress,
    "NonMaxSuppression": non_max_suppression,
    "NonZero": nonzero,
    "TensorScatter": tensor_scatter,
    "Unique": unique,
}
