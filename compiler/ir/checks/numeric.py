"""Normalizations and quantization."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.checks.base import NodeFacts, axes_of, bad_axes, precondition, shown
from compiler.ir.types import numpy_dtype


@precondition("BatchNormalization")
def _batch_normalization(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    channels = x[1] if len(x) > 1 else 1
    names = ("scale", "bias", "mean", "variance")
    for i, name in enumerate(names, start=1):
        if f.shape(i) != (channels,):
            yield f"the {name} has the shape {shown(f.shape(i))}, where [{channels}] is expected"
    training = f.attr("training_mode")
    if len(f.node.results) not in ((1, 2, 3) if training else (1,)):
        yield f"{len(f.node.results)} outputs with training_mode={training}"
    if training and len(x) > 1 and f.type(0).size == 0:
        yield f"the batch {shown(x)} is empty: it has no mean"


@precondition("LayerNormalization", "RMSNormalization")
def _layer_normalization(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    axis = axes_of([f.attr("axis")], len(x))[0]
    over = x[axis:]
    if 0 in over:
        yield f"the normalized axes {shown(over)} are empty"
    for i, name in ((1, "scale"), (2, "bias")):
        if not f.has(i):
            continue
        shape = f.shape(i)
        leading, rest = shape[: len(shape) - len(over)], shape[max(len(shape) - len(over), 0) :]
        fits = rest == over and all(d == 1 for d in leading)
        if not (fits or f.type(i).size == 1) or len(shape) > len(x):
            yield f"the {name} has the shape {shown(shape)}, where {shown(over)}, the normalized axes, is expected"


@precondition("InstanceNormalization")
def _instance_normalization(f: NodeFacts) -> Iterator[str]:
    x = f.shape(0)
    if len(x) < 3 or 0 in x[2:]:
        yield f"the input {shown(x)} has no spatial elements"
        return
    for i, name in ((1, "scale"), (2, "bias")):
        if f.shape(i) != (x[1],):
            yield f"the {name} has the shape {shown(f.shape(i))}, where [{x[1]}] is expected"


@precondition("GroupNormalization")
def _group_normalization(f: NodeFacts) -> Iterator[str]:
    x, groups = f.shape(0), f.attr("num_groups")
    if len(x) < 2 or groups < 1 or x[1] % groups or 0 in x[1:]:
        yield f"the channels of {shown(x)} cannot be divided into {groups} groups"
        return
    for i, name in ((1, "scale"), (2, "bias")):
        if f.shape(i) != (x[1],):
            yield f"the {name} has the shape {shown(f.shape(i))}, where [{x[1]}] is expected"


@precondition("MeanVarianceNormalization")
def _mean_variance_normalization(f: NodeFacts) -> Iterator[str]:
    yield from bad_axes(f.attr("axes"), len(f.shape(0)))


@precondition("BitCast")
def _bit_cast(f: NodeFacts) -> Iterator[str]:
    result = f.outs[0]
    if result is not None and numpy_dtype(result.dtype).itemsize != numpy_dtype(f.type(0).dtype).itemsize:
        yield f"the bits of {f.type(0).dtype} are not as many as those of {result.dtype}"


@precondition("LRN")
def _lrn(f: NodeFacts) -> Iterator[str]:
    if f.attr("size") < 1 or len(f.shape(0)) < 2:
        yield f"a window of {f.attr('size')} channels on {shown(f.shape(0))} is impossible"


@precondition("QuantizeLinear", "DequantizeLinear")
def _quantize(f: NodeFacts) -> Iterator[str]:
    x, scale, axis, block = f.shape(0), f.shape(1), f.attr("axis"), f.attr("block_size")
    if f.has(2) and f.shape(2) != scale and not {f.shape(2), scale} <= {(), (1,)}:
        yield f"the zero point {shown(f.shape(2))} and the scale {shown(scale)} differ in shape"
    if not scale or (scale == (1,) and block == 0):
        return
    if not -len(x) <= axis < len(x):
        yield f"axis {axis} is out of the range of rank {len(x)}"
        return
    at = axes_of([axis], len(x))[0]
    expected = (*x[:at], -(-x[at] // block), *x[at + 1 :]) if block > 0 else (x[at],)
    if block < 0 or scale != expected:
        yield f"the scale {shown(scale)} does not fit axis {axis} of {shown(x)} with blocks of {block}"
