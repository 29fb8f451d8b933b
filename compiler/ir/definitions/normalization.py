"""Definitions of standard normalizations that have none in ONNX, or one that is numerically unsafe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.proto import default
from compiler.ir.types import onnx_dtype

Attrs = Mapping[str, Attr]


def _column(b: Builder, v: str, x: str) -> str:
    """A vector over channels in the dtype of x [N,C,d..], as it broadcasts against it."""
    if b.type(v).dtype != b.type(x).dtype:
        v = b.op("Cast", v, to=onnx_dtype(b.type(x).dtype))
    trailing = [1] * (len(b.shape(x)) - 2)
    return b.op("Reshape", v, b.ints([b.shape(v)[0], *trailing])) if trailing else v


def _mixed(b: Builder, old: str, new: str, momentum: float) -> str:
    """The running statistic after a batch, in its own dtype."""
    if b.type(old).dtype != b.type(new).dtype:
        new = b.op("Cast", new, to=onnx_dtype(b.type(old).dtype))
    kept = b.op("Mul", old, b.scalar(momentum, old))
    return b.op("Add", kept, b.op("Mul", new, b.scalar(1 - momentum, old)))


def batch_normalization(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """BatchNormalization in both modes: (x, scale, bias, mean, variance) -> y, running mean, running variance.

    In training mode y comes from `onnxc.BatchNorm`, whose batch statistics the backward pass uses again.
    """
    x, scale, bias, mean, variance = inputs
    epsilon = attrs.get("epsilon", default("BatchNormalization", "epsilon"))
    if attrs.get("training_mode", 0):
        momentum = attrs.get("momentum", default("BatchNormalization", "momentum"))
        dtype = b.type(x).dtype
        scale, bias = (v if b.type(v).dtype == dtype else b.op("Cast", v, to=onnx_dtype(dtype)) for v in (scale, bias))
        y, batch_mean, batch_variance = b.add("onnxc.BatchNorm", [x, scale, bias], {"epsilon": epsilon}, 3)
        return [y, _mixed(b, mean, batch_mean, momentum), _mixed(b, variance, batch_variance, momentum)]
    std = b.op("Sqrt", b.op("Add", variance, b.scalar(epsilon, variance)))
    wide = std if b.type(std).dtype == b.type(scale).dtype else b.op("Cast", std, to=onnx_dtype(b.type(scale).dtype))
    factor = _column(b, b.op("Div", scale, wide), x)
    centered = b.op("Sub", x, _column(b, mean, x))
    return [b.op("Add", b.op("Mul", centered, factor), _column(b, bias, x))]


def mean_variance_normalization(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x - mean) / (std + 1e-9) along `axes`. ONNX's own body takes the root of E[x^2] - E[x]^2, which cancels."""
    (x,) = inputs
    axes = b.ints(attrs.get("axes", default("MeanVarianceNormalization", "axes")))
    centered = b.op("Sub", x, b.op("ReduceMean", x, axes, keepdims=1))
    variance = b.op("ReduceMean", b.op("Mul", centered, centered), axes, keepdims=1)
    return [b.op("Div", centered, b.op("Add", b.op("Sqrt", variance), b.scalar(1e-9, x)))]


INTERNAL_OPS["BatchNormalization"] = batch_normalization
INTERNAL_OPS["MeanVarianceNormalization"] = mean_variance_normalization
