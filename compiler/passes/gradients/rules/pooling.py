"""Pools. The first of equal maxima gets the gradient: docs/ties.md."""

from __future__ import annotations

from math import prod
from typing import Any

from compiler.ir.windows import windows
from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.rules.convolution import window_attrs


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
