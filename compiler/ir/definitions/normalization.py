"""Definitions of standard normalizations that have none in ONNX, or one that is numerically unsafe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.proto import default
from compiler.ir.types import TensorType, onnx_dtype

Attrs = Mapping[str, Attr]


def _cast(b: Builder, x: str, dtype: str) -> str:
    return x if b.type(x).dtype == dtype else b.op("Cast", x, to=onnx_dtype(dtype))


def _wide(b: Builder, x: str) -> str:
    """The value in at least float32, in which statistics are computed."""
    return _cast(b, x, "f32") if b.type(x).dtype in ("f16", "bf16") else x


def _reshape(b: Builder, x: str, shape: Sequence[int]) -> str:
    if b.shape(x) == tuple(shape):
        return x
    return b.op("Reshape", x, b.ints(shape), allowzero=1 if 0 in shape else None)


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


def instance_normalization(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, d..], scale [C], bias [C]): every channel of every element of the batch is a channel of its own."""
    x, *affine = inputs
    n, c, *spatial = b.shape(x)
    if 0 in (n, c):
        return [b.op("Identity", x)]
    epsilon = attrs.get("epsilon", default("InstanceNormalization", "epsilon"))
    columns = [_reshape(b, b.op("Expand", v, b.ints([n, c])), [n * c]) for v in affine]
    channels = _reshape(b, x, [1, n * c, prod(spatial)])
    y = b.add("onnxc.BatchNorm", [channels, *columns], {"epsilon": epsilon}, 3)[0]
    return [_reshape(b, y, [n, c, *spatial])]


def group_normalization(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, d..], scale [C], bias [C]): groups of channels have common statistics, in float32 at least."""
    if 0 in b.shape(inputs[0]):
        return [b.op("Identity", inputs[0])]
    x, scale, bias = (_wide(b, v) for v in inputs)
    n, c, *spatial = b.shape(x)
    groups = n * attrs["num_groups"]
    epsilon = attrs.get("epsilon", default("GroupNormalization", "epsilon"))
    flat = _reshape(b, x, [1, groups, prod((n, c, *spatial)) // groups])
    one, zero = (b.full(v, TensorType(b.type(x).dtype, (groups,))) for v in (1, 0))
    normal = _reshape(b, b.add("onnxc.BatchNorm", [flat, one, zero], {"epsilon": epsilon}, 3)[0], [n, c, *spatial])
    y = b.op("Add", b.op("Mul", normal, _column(b, scale, x)), _column(b, bias, x))
    return [_cast(b, y, b.type(inputs[0]).dtype)]


def rms_normalization(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x, scale) -> x / sqrt(mean(x^2) + epsilon) * scale; ONNX's body computes in float32 also where x is float64."""
    x = _wide(b, inputs[0])
    rank = len(b.shape(x))
    axis = attrs.get("axis", default("RMSNormalization", "axis"))
    axes = b.ints(range(axis % rank, rank))
    mean = b.op("ReduceMean", b.op("Mul", x, x), axes, keepdims=1)
    epsilon = b.scalar(attrs.get("epsilon", default("RMSNormalization", "epsilon")), x)
    normal = b.op("Mul", x, b.op("Reciprocal", b.op("Sqrt", b.op("Add", mean, epsilon))))
    dtype = b.type(inputs[1]).dtype
    return [b.op("Mul", _cast(b, normal, dtype), inputs[1])]


def lp_normalization(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """X / norm(x) along an axis; where the norm is 0, the result is 0, and so is the gradient."""
    (x,) = inputs
    axis, p = (attrs.get(k, default("LpNormalization", k)) for k in ("axis", "p"))
    norm = b.op(f"ReduceL{p}", x, b.ints([axis]), keepdims=1)
    zero = b.op("Equal", norm, b.scalar(0, x))
    quotient = b.op("Div", x, b.op("Where", zero, b.scalar(1, x), norm))
    return [b.op("Where", zero, b.scalar(0, x), quotient)]


def lrn(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """X [N, C, d..] / (bias + alpha / size * (sum of squares over `size` channels)) ^ beta.

    The window of a channel begins (size - 1) // 2 before it, and is cut to what can lie inside. Its sum comes from the
    mean of an AveragePool that counts what lies outside.
    """
    (x,) = inputs
    n, c, *spatial = b.shape(x)
    if 0 in b.shape(x):
        return [b.op("Identity", x)]
    size = attrs["size"]
    before, after = min((size - 1) // 2, c - 1), min(size // 2, c - 1)
    kernel = before + 1 + after
    alpha = b.scalar(attrs.get("alpha", default("LRN", "alpha")) * kernel / size, x)
    beta, bias = (b.scalar(attrs.get(k, default("LRN", k)), x) for k in ("beta", "bias"))
    squares = _reshape(b, b.op("Mul", x, x), [n, 1, c, prod(spatial)])
    pads = (before, 0, after, 0)
    mean = b.op("AveragePool", squares, kernel_shape=(kernel, 1), strides=(1, 1), pads=pads, count_include_pad=1)
    base = b.op("Add", bias, b.op("Mul", alpha, _reshape(b, mean, b.shape(x))))
    return [b.op("Div", x, b.op("Pow", base, beta))]


INTERNAL_OPS["BatchNormalization"] = batch_normalization
INTERNAL_OPS["GroupNormalization"] = group_normalization
INTERNAL_OPS["InstanceNormalization"] = instance_normalization
INTERNAL_OPS["LRN"] = lrn
INTERNAL_OPS["LpNormalization"] = lp_normalization
INTERNAL_OPS["RMSNormalization"] = rms_normalization
INTERNAL_OPS["MeanVarianceNormalization"] = mean_variance_normalization
