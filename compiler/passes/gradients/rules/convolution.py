"""Convolutions, of any rank, stride, pads, dilation and group.

Conv (x, w -> y), ConvTranspose (y, w -> x) and ConvWeightGrad (y, x -> w) are the adjoints of one another: derivatives
of any order stay among the three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compiler.ir.windows import Window, transposed_windows, windows
from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


def window_attrs(axes: Sequence[Window]) -> dict[str, Any]:
    """The attributes of Conv, MaxPool, ... that say where the windows of each spatial axis lie."""
    return {
        "kernel_shape": tuple(a.kernel for a in axes),
        "strides": tuple(a.stride for a in axes),
        "dilations": tuple(a.dilation for a in axes),
        "pads": (*(a.before for a in axes), *(a.after for a in axes)),
    }


def _cropped(x: Value, axes: Sequence[Window]) -> tuple[Value, Sequence[Window]]:
    """X without what negative pads cut off, and the windows on that."""
    if all(a.before >= 0 and a.after >= 0 for a in axes):
        return x, axes
    starts = [max(-a.before, 0) for a in axes]
    ends = [a.size - max(-a.after, 0) for a in axes]
    x = x.op("Slice", x.ints(starts), x.ints(ends), x.ints(range(2, x.rank)))
    cut = [
        replace(a, size=size, before=max(a.before, 0), after=max(a.after, 0))
        for a, size in zip(axes, x.shape[2:], strict=True)
    ]
    return x, cut


def conv(x: Value, w: Value, axes: Sequence[Window], group: int) -> Value:
    """The convolution; negative pads crop x."""
    x, axes = _cropped(x, axes)
    return x.op("Conv", w, group=group, **window_attrs(axes))


def data_gradient(dy: Value, w: Value, axes: Sequence[Window], group: int) -> Value:
    """The adjoint of `conv` by its data."""
    reached = [a.stride * (a.out - 1) + a.extent - a.before - a.after for a in axes]
    beyond = tuple(a.size - r for a, r in zip(axes, reached, strict=True))
    return dy.op("ConvTranspose", w, group=group, output_padding=beyond if any(beyond) else None, **window_attrs(axes))


def weight_gradient(dy: Value, x: Value, axes: Sequence[Window], group: int) -> Value:
    """The adjoint of `conv` by its weights."""
    x, axes = _cropped(x, axes)
    return dy.op("onnxc.ConvWeightGrad", x, group=group, **window_attrs(axes))


def bias_gradient(dy: Value) -> Value:
    """The sum over all but the channels."""
    return dy.sum([0, *range(2, dy.rank)])


@gradient("Conv")
def conv_rule(r: Call) -> None:
    """By data, weights and bias."""
    x, w, dy, group = r.x(0), r.x(1), r.dy, r.attr("group")
    axes = windows(r.node, x.shape[2:], w.shape[2:])
    r.give(0, lambda: data_gradient(dy, w, axes, group))
    r.give(1, lambda: weight_gradient(dy, x, axes, group))
    r.give(2, lambda: bias_gradient(dy))


@gradient("ConvTranspose")
def conv_transpose(r: Call) -> None:
    """It is the data gradient of a Conv that goes from y to x: that Conv, and its weight gradient.

    What output_padding or output_shape add beyond the last window is cut off by a smaller, maybe negative, pad.
    """
    x, w, dy, group = r.x(0), r.x(1), r.dy, r.attr("group")
    extra = r.attr("output_padding") or (0,) * (x.rank - 2)
    axes = [
        replace(a, size=a.out, out=a.size, after=a.after - e)
        for a, e in zip(transposed_windows(r.node, x.shape[2:], w.shape[2:]), extra, strict=True)
    ]
    r.give(0, lambda: conv(dy, w, axes, group))
    r.give(1, lambda: weight_gradient(x, dy, axes, group))
    r.give(2, lambda: bias_gradient(dy))


@gradient("onnxc.ConvWeightGrad")
def conv_weight_grad(r: Call) -> None:
    """Bilinear in dy and x: by dy a Conv, by x the data gradient of that Conv."""
    dy, x, g, group = r.x(0), r.x(1), r.dy, r.attr("group")
    axes = windows(r.node, x.shape[2:], g.shape[2:])
    r.give(0, lambda: conv(x, g, axes, group))
    r.give(1, lambda: data_gradient(dy, g, axes, group))
