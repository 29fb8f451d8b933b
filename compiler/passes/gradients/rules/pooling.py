"""Pools. The first of equal maxima gets the gradient: docs/ties.md."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from compiler.ir.windows import windows
from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.rules.convolution import window_attrs
from compiler.passes.gradients.value import Value


def _attrs(r: Call) -> dict[str, Any]:
    """The attributes of a pool, its pads explicit."""
    return {
        "ceil_mode": r.attr("ceil_mode"),
        **window_attrs(windows(r.node, r.x().shape[2:], r.attr("kernel_shape"))),
    }


@gradient("MaxPool")
def max_pool(r: Call) -> None:
    """The first maximum of each window gets dy; the indices are integers."""
    r.give(0, r.dy.op("onnxc.MaxPoolGrad", r.x(), **_attrs(r)))


@gradient("onnxc.MaxPoolGrad")
def max_pool_grad(r: Call) -> None:
    """Linear in dy: picks what stands where the maxima were found."""
    dy, x, g = r.x(0), r.x(1), r.dy
    if r.wants(0):
        _, indices = r.add("MaxPool", [x], 2, **r.node.attrs)
        flat = g.reshape([g.type.size]).op("Gather", indices.reshape([dy.type.size]), axis=0)
        r.give(0, flat.reshape(dy.shape))


@gradient("AveragePool")
def average_pool(r: Call) -> None:
    """The elements of a window share dy evenly."""
    included = r.attr("count_include_pad")
    r.give(0, r.dy.op("onnxc.AveragePoolGrad", shape=r.x().shape, count_include_pad=included, **_attrs(r)))


@gradient("onnxc.AveragePoolGrad")
def average_pool_grad(r: Call) -> None:
    """Linear in dy: the pool itself."""
    r.give(0, r.dy.op("AveragePool", **{k: v for k, v in r.node.attrs.items() if k != "shape"}))


@gradient("GlobalAveragePool")
def global_average_pool(r: Call) -> None:
    """All elements share dy evenly."""
    r.give(0, r.dy / prod(r.x().shape[2:]))


@gradient("GlobalMaxPool")
def global_max_pool(r: Call) -> None:
    """As a MaxPool whose window is everything."""
    spatial = r.x().shape[2:]
    one, zero = (1,) * len(spatial), (0,) * (2 * len(spatial))
    r.give(
        0,
        r.dy.op("onnxc.MaxPoolGrad", r.x(), kernel_shape=spatial, strides=one, dilations=one, pads=zero, ceil_mode=0),
    )


def _norm_share(x: Value, y: Value, dy: Value, p: int) -> tuple[Value, Value]:
    """The derivative of y = sum(|x|^p)^(1/p), times dy, as a factor for each x and one for each y; 0 where y is 0."""
    if p == 1:
        return x.op("Sign"), dy
    zero = y.equals(0.0)
    norm = zero.where(1.0, y)
    share = zero.where(0.0, dy / (norm if p == 2 else norm.op("Pow", float(p - 1))))
    return (x if p == 2 else x * x.op("Abs").op("Pow", float(p - 2))), share


@gradient("LpPool")
def lp_pool(r: Call) -> None:
    """Every element of a window gets dy (x / y)^(p - 1), with the sign of x."""
    x = r.x()
    factor, share = _norm_share(x, r.y(), r.dy, r.attr("p"))
    axes = windows(r.node, x.shape[2:], r.attr("kernel_shape"))
    # all windows inside of the padding, so that the mean's adjoint divides by the whole kernel
    axes = tuple(replace(a, after=max(a.after, a.start(a.out - 1) + a.extent - a.size)) for a in axes)
    total = share * prod(a.kernel for a in axes)
    spread = total.op("onnxc.AveragePoolGrad", shape=x.shape, count_include_pad=1, ceil_mode=0, **window_attrs(axes))
    r.give(0, factor * spread)


@gradient("GlobalLpPool")
def global_lp_pool(r: Call) -> None:
    """As LpPool with a window of everything."""
    factor, share = _norm_share(r.x(), r.y(), r.dy, r.attr("p"))
    r.give(0, factor * share)
