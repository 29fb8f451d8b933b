"""Ops of the backward pass that ONNX lacks, each defined by standard ops with the static shapes baked in.

The ops that their bodies use, with f32, f64 and i64 operands, are those that onnxruntime runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from compiler.ir.bodies import internal
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr
from compiler.ir.types import TensorType, numpy_dtype, onnx_dtype

Attrs = Mapping[str, Attr]


def _reshape(b: Builder, x: str, shape: Sequence[int]) -> str:
    if b.shape(x) == tuple(shape):
        return x
    return b.op("Reshape", x, b.ints(shape), allowzero=1 if 0 in shape else None)


@internal("ConvWeightGrad")
def conv_weight_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy [N,M,o..], x [N,C,i..]) -> gradient of the weights [M,C/group,k..] of `y = Conv(x, w)`.

    Attributes: those of the Conv, with explicit pads. dw[m,c,k] = sum over n, o of dy[n,m,o] x[n,c, o s + k d - p]: a
    convolution of x with dy, where the batch plays the channels and strides and dilations trade places.
    """
    dy, x = inputs
    n, c, *spatial = b.shape(x)
    group, kernel = attrs.get("group", 1), attrs["kernel_shape"]
    if 0 in b.shape(dy) or 0 in b.shape(x):  # Conv takes no empty dimension as its channels
        return [b.full(0, TensorType(b.type(x).dtype, (b.shape(dy)[1], c // group, *kernel)))]
    rest = [2 + i for i in range(len(spatial))]
    images = _reshape(b, x, [n, group, c // group, *spatial])
    images = b.op("Transpose", images, perm=(2, 1, 0, *(r + 1 for r in rest)))
    images = _reshape(b, images, [c // group, group * n, *spatial])
    weights = b.op("Transpose", dy, perm=(1, 0, *rest))
    dw = b.op(
        "Conv",
        images,
        weights,
        group=group,
        pads=attrs["pads"],
        strides=attrs["dilations"],
        dilations=attrs["strides"],
        kernel_shape=b.shape(dy)[2:],
    )
    if b.shape(dw)[2:] != tuple(kernel):  # where the last windows do not reach the end of x
        dw = b.op("Slice", dw, b.ints([0] * len(rest)), b.ints(kernel), b.ints(rest))
    return [b.op("Transpose", dw, perm=(1, 0, *rest))]


@internal("MaxPoolGrad")
def max_pool_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy, x) -> gradient of x for `y = MaxPool(x)` with the same attributes; the first of equal maxima gets dy."""
    dy, x = inputs
    t = b.type(x)
    _, indices = b.add("MaxPool", [x], attrs, 2)
    count = b.type(indices).size
    zeros = b.full(0, TensorType(t.dtype, (t.size,)))
    flat = b.op("ScatterND", zeros, _reshape(b, indices, [count, 1]), _reshape(b, dy, [count]), reduction="add")
    return [_reshape(b, flat, t.shape)]


@internal("AveragePoolGrad")
def average_pool_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """Dy -> gradient of x of the given `shape` for `y = AveragePool(x)` with the other attributes."""
    (dy,) = inputs
    t, (n, c, *spatial) = b.type(dy), attrs["shape"]
    axes = len(spatial)
    kernel, strides, dilations, pads = (attrs[k] for k in ("kernel_shape", "strides", "dilations", "pads"))
    counts = np.ones((), np.int64)
    covered = []
    for i in range(axes):
        at = np.arange(t.shape[2 + i])[:, None] * strides[i] + np.arange(kernel[i])[None] * dilations[i]
        low, high = pads[i], pads[i] + spatial[i]
        if attrs.get("count_include_pad", 0):
            low, high = 0, high + pads[axes + i]
        counts = np.multiply.outer(counts, ((at >= low) & (at < high)).sum(1))
        covered.append(int(at.max()) + 1 - pads[i])
    share = b.op("Div", dy, b.const(counts.astype(numpy_dtype(t.dtype))))
    planes = _reshape(b, share, [n * c, 1, *t.shape[2:]])
    ones = b.full(1, TensorType(t.dtype, (1, 1, *kernel)))
    over = [e - i for e, i in zip(covered, spatial, strict=True)]
    missing = [max(-o, 0) for o in over]
    dx = b.op(
        "ConvTranspose",
        planes,
        ones,
        strides=strides,
        dilations=dilations,
        kernel_shape=kernel,
        pads=(*pads[:axes], *(max(o, 0) for o in over)),
        output_padding=tuple(missing) if any(missing) else None,
    )
    return [_reshape(b, dx, attrs["shape"])]


@internal("GatherGrad")
def gather_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy, indices) -> gradient of x of the given `shape` for `y = Gather(x, indices)` along the same `axis`."""
    dy, indices = inputs
    axis, shape, count = attrs["axis"], attrs["shape"], b.type(indices).size
    updates = _reshape(b, dy, [*shape[:axis], count, *shape[axis + 1 :]])
    to_front = (axis, *(i for i in range(len(shape)) if i != axis))
    zeros = b.full(0, TensorType(b.type(dy).dtype, tuple(shape[i] for i in to_front)))
    if axis > 0:
        updates = b.op("Transpose", updates, perm=to_front)
    dx = b.op("ScatterND", zeros, _index_column(b, indices), updates, reduction="add")
    return [b.op("Transpose", dx, perm=(*range(1, axis + 1), 0, *range(axis + 1, len(shape)))) if axis > 0 else dx]


def _index_column(b: Builder, indices: str) -> str:
    """Indices as those of ScatterND: int64 [count, 1]."""
    if b.type(indices).dtype != "i64":
        indices = b.op("Cast", indices, to=onnx_dtype("i64"))
    return _reshape(b, indices, [b.type(indices).size, 1])


@internal("NegativeLogLikelihoodLossGrad")
def negative_log_likelihood_loss_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy, labels [N,d..], weights [C]?) -> gradient by the input [N,C,d..] of NegativeLogLikelihoodLoss.

    Attributes: reduction, ignore_index (maybe absent) of the loss, and `classes` C. dy is a scalar, or has the shape
    of the labels if reduction is "none". "mean" divides by the sum of the weights (1 if absent) of what is not
    ignored. Labels out of range get no gradient.
    """
    dy, labels, *rest = inputs
    weights = rest[0] if rest else ""
    classes, ignored = attrs["classes"], attrs.get("ignore_index")
    t = b.type(dy)
    labels = labels if b.type(labels).dtype == "i64" else b.op("Cast", labels, to=onnx_dtype("i64"))
    n, *spatial = b.shape(labels)
    zero = b.scalar(0, dy)
    valid = ""
    if ignored is not None:
        valid = b.op("Not", b.op("Equal", labels, b.const(np.array(ignored, np.int64))))
    weight = b.scalar(1, dy)
    if weights:
        safe = b.op("Where", valid, labels, b.const(np.array(0, np.int64))) if valid else labels
        weight = b.op("Gather", weights, safe, axis=0)
    if valid:
        weight = b.op("Where", valid, weight, zero)
    scale = b.op("Neg", dy)
    if attrs.get("reduction", "mean") == "mean":
        total = b.op("ReduceSum", weight, keepdims=0) if weights or valid else b.scalar(prod((n, *spatial)), dy)
        scale = b.op("Div", scale, total)
    share = b.op("Mul", scale, weight) if weights or valid else scale
    if valid:  # not 0 * inf where everything is ignored
        share = b.op("Where", valid, share, zero)
    if b.shape(share):
        share = _reshape(b, share, [n, 1, *spatial])
    each = b.const(np.arange(classes, dtype=np.int64).reshape(classes, *(1 for _ in spatial)))
    hit = b.op("Equal", _reshape(b, labels, [n, 1, *spatial]), each)
    return [b.op("Where", hit, share, b.scalar(0, dy)) if t.is_float else share]


@internal("SoftmaxCrossEntropyLossGrad")
def softmax_cross_entropy_loss_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy, log_prob [N,C,d..], labels [N,d..], weights [C]?) -> gradient by the scores of SoftmaxCrossEntropyLoss.

    log_prob: its second output. Attributes: reduction, ignore_index (maybe absent) of the loss.
    """
    dy, log_prob, *rest = inputs
    by_log_prob = b.op("onnxc.NegativeLogLikelihoodLossGrad", dy, *rest, **attrs, classes=b.shape(log_prob)[1])
    sums = b.op("ReduceSum", by_log_prob, b.ints([1]), keepdims=1)
    return [b.op("Sub", by_log_prob, b.op("Mul", b.op("Exp", log_prob), sums))]


@internal("LayerNormGrad")
def layer_norm_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy, x, scale, mean, inv_std) -> gradients of x and scale for `y = LayerNormalization(x, scale)` along `axis`.

    mean and inv_std may have a wider type than x: then the computation is in that.
    """
    narrow, wide = b.type(inputs[1]).dtype, b.type(inputs[3]).dtype
    dy, x, scale, mean, inv = (v if b.type(v).dtype == wide else b.op("Cast", v, to=onnx_dtype(wide)) for v in inputs)
    rank, axis = len(b.shape(x)), attrs["axis"]
    axes = b.ints(range(axis, rank))
    normal = b.op("Mul", b.op("Sub", x, mean), inv)
    g = b.op("Mul", dy, scale)
    along = b.op("ReduceMean", g, axes, keepdims=1)
    across = b.op("Mul", normal, b.op("ReduceMean", b.op("Mul", g, normal), axes, keepdims=1))
    dx = b.op("Mul", inv, b.op("Sub", b.op("Sub", g, along), across))
    dscale = _sum_to(b, b.op("Mul", dy, normal), b.shape(scale))
    return [v if narrow == wide else b.op("Cast", v, to=onnx_dtype(narrow)) for v in (dx, dscale)]


def _sum_to(b: Builder, x: str, shape: tuple[int, ...]) -> str:
    """Undo broadcasting from `shape`."""
    rank = len(b.shape(x))
    padded = (1,) * (rank - len(shape)) + shape
    axes = [i for i in range(rank) if padded[i] != b.shape(x)[i] or i < rank - len(shape)]
    return _reshape(b, b.op("ReduceSum", x, b.ints(axes), keepdims=0), shape) if axes else x


def _column(b: Builder, v: str, rank: int) -> str:
    """A vector over channels as it broadcasts against [N,C,d..]."""
    return _reshape(b, v, [b.shape(v)[0], *(1 for _ in range(rank - 2))])


@internal("BatchNorm")
def batch_norm(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N,C,d..], scale [C], bias [C]) -> y, mean [C], variance [C] of the batch; attribute epsilon."""
    x, scale, bias = inputs
    rank = len(b.shape(x))
    axes = b.ints([0, *range(2, rank)])
    mean = b.op("ReduceMean", x, axes, keepdims=0)
    centered = b.op("Sub", x, _column(b, mean, rank))
    variance = b.op("ReduceMean", b.op("Mul", centered, centered), axes, keepdims=0)
    std = b.op("Sqrt", b.op("Add", variance, b.scalar(attrs["epsilon"], x)))
    factor = b.op("Div", scale, std)
    y = b.op("Add", b.op("Mul", centered, _column(b, factor, rank)), _column(b, bias, rank))
    return [y, mean, variance]


@internal("BatchNormGrad")
def batch_norm_grad(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(dy, x [N,C,d..], scale, mean, inv_std [C]) -> gradients of x, scale and bias of `onnxc.BatchNorm`."""
    dy, x, scale, mean, inv = inputs
    rank = len(b.shape(x))
    axes = b.ints([0, *range(2, rank)])
    count = b.scalar(b.type(x).size // b.shape(x)[1], x)
    normal = b.op("Mul", b.op("Sub", x, _column(b, mean, rank)), _column(b, inv, rank))
    dbias = b.op("ReduceSum", dy, axes, keepdims=0)
    dscale = b.op("ReduceSum", b.op("Mul", dy, normal), axes, keepdims=0)
    along = _column(b, b.op("Div", dbias, count), rank)
    across = b.op("Mul", normal, _column(b, b.op("Div", dscale, count), rank))
    factor = _column(b, b.op("Mul", scale, inv), rank)
    dx = b.op("Mul", factor, b.op("Sub", b.op("Sub", dy, along), across))
    return [dx, dscale, dbias]
