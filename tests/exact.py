"""Ops that onnx.reference does not evaluate well enough to be differentiated numerically, evaluated with numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

import compiler.ir.definitions  # noqa: F401  (fills the definitions)
from compiler.ir.bodies import expand
from compiler.ir.builder import Builder
from compiler.ir.graph import Node
from compiler.ir.infer import STATIC_OPERANDS
from compiler.ir.interpret import interpret
from compiler.ir.types import TensorType, dtype_of
from compiler.ir.windows import transposed_windows, windows

Array = npt.NDArray[np.generic]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    if node.attr("approximate") == "tanh":
        return [0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))]
    return [0.5 * x * (1 + _erf(x / math.sqrt(2)))]


def _max_pool(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    axes = windows(node, x.shape[2:], node.attr("kernel_shape"))
    rank, flat = len(axes), np.arange(x.size).reshape(x.shape)
    best = where = None
    for tap in np.ndindex(*(a.kernel for a in axes)):  # the first maximum in order of the taps
        at = [k * a.dilation - a.before + np.arange(a.out) * a.stride for k, a in zip(tap, axes, strict=True)]
        outside = np.zeros([len(i) for i in at], bool)
        for d, (i, a) in enumerate(zip(at, axes, strict=True)):
            outside |= ((i < 0) | (i >= a.size)).reshape([-1 if n == d else 1 for n in range(rank)])
        grid = (slice(None), slice(None), *np.ix_(*(i.clip(0, a.size - 1) for i, a in zip(at, axes, strict=True))))
        value = np.where(outside, -np.inf, x[grid])
        if best is None:
            best, where = value, flat[grid]
        else:
            where = np.where(value > best, flat[grid], where)
            best = np.where(value > best, value, best)
    return [best, where][: len(node.outputs)]


def _average_pool(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    axes = windows(node, x.shape[2:], node.attr("kernel_shape"))
    total, count = 0.0, 0.0
    for tap in np.ndindex(*(a.kernel for a in axes)):
        inside, counted, grid = 1.0, 1.0, [slice(None), slice(None)]
        at = [k * a.dilation - a.before + np.arange(a.out) * a.stride for k, a in zip(tap, axes, strict=True)]
        for i, a in zip(at, axes, strict=True):
            padding = (a.before, a.after) if node.attr("count_include_pad", 0) else (0, 0)
            inside = np.multiply.outer(inside, (i >= 0) & (i < a.size))
            counted = np.multiply.outer(counted, (i >= -padding[0]) & (i < a.size + padding[1]))
        grid += np.ix_(*(i.clip(0, a.size - 1) for i, a in zip(at, axes, strict=True)))
        total, count = total + x[tuple(grid)] * inside, count + counted
    return [total / count]


def _gather_elements(node: Node, args: Sequence[Array | None]) -> list[Array]:
    x, indices = args
    return [np.take_along_axis(x, indices, node.attr("axis", 0))]


def _global_max_pool(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    return [x.max(tuple(range(2, x.ndim)), keepdims=True)]


def _conv_transpose(node: Node, args: Sequence[Array | None]) -> list[Array]:
    x, w, bias = (*args, None)[:3]
    group = node.attr("group", 1)
    axes = transposed_windows(node, x.shape[2:], w.shape[2:])
    xs, ws = np.split(x, group, axis=1), np.split(w, group, axis=0)
    room = [(a.size - 1) * a.stride + a.extent for a in axes]
    room = [max(r, a.before + a.out) for r, a in zip(room, axes, strict=True)]
    y = np.zeros((x.shape[0], w.shape[1] * group, *room))
    for tap in np.ndindex(*w.shape[2:]):
        at = [
            slice(k * a.dilation, k * a.dilation + (a.size - 1) * a.stride + 1, a.stride)
            for k, a in zip(tap, axes, strict=True)
        ]
        parts = [np.einsum("nc...,cm->nm...", p, q[(..., *tap)]) for p, q in zip(xs, ws, strict=True)]
        y[(slice(None), slice(None), *at)] += np.concatenate(parts, axis=1)
    y = y[(slice(None), slice(None), *(slice(a.before, a.before + a.out) for a in axes))]
    return [y if bias is None else y + bias.reshape(-1, *(1 for _ in axes))]


def _pad(node: Node, args: Sequence[Array | None]) -> list[Array]:
    x, pads, value, axes = (*args, None, None)[:4]
    axes = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    mode = node.attr("mode", "constant")
    more = {"constant_values": 0 if value is None else value} if mode == "constant" else {}
    for i, axis in enumerate(axes):
        before, after = int(pads[i]), int(pads[len(axes) + i])
        x = np.take(x, range(max(-before, 0), x.shape[axis] - max(-after, 0)), axis)
        width = [(max(before, 0), max(after, 0)) if d == axis else (0, 0) for d in range(x.ndim)]
        x = np.pad(x, width, mode, **more)
    return [x]


def _nll(node: Node, log_prob: Array, labels: Array, weights: Array | None) -> Array:
    ignored = (
        labels == node.attr("ignore_index") if node.attr("ignore_index") is not None else np.zeros_like(labels, bool)
    )
    safe = np.where(ignored, 0, labels)
    share = np.where(ignored, 0.0, 1.0 if weights is None else weights[safe])
    loss = -share * np.take_along_axis(log_prob, np.expand_dims(safe, 1), 1).squeeze(1)
    if (mode := node.attr("reduction", "mean")) == "none":
        return loss
    return np.asarray(loss.sum() if mode == "sum" else loss.sum() / share.sum())


def _negative_log_likelihood_loss(node: Node, args: Sequence[Array | None]) -> list[Array]:
    x, labels, weights = (*args, None)[:3]
    return [_nll(node, x, labels, weights)]


def _softmax_cross_entropy_loss(node: Node, args: Sequence[Array | None]) -> list[Array]:
    x, labels, weights = (*args, None)[:3]
    shifted = x - x.max(1, keepdims=True)
    log_prob = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return [_nll(node, log_prob, labels, weights), log_prob][: len(node.outputs)]


def _rms_normalization(node: Node, args: Sequence[Array | None]) -> list[Array]:
    x, scale = args
    axes = tuple(range(node.attr("axis", -1) % x.ndim, x.ndim))
    return [x / np.sqrt((x * x).mean(axes, keepdims=True) + node.attr("epsilon", 1e-5)) * scale]


def _mean_variance_normalization(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    axes = node.attr("axes", (0, 2, 3))
    return [(x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)]


def _lp_normalization(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    axis, p = node.attr("axis", -1), node.attr("p", 2)
    norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
    return [np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))]


def _lrn(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    size = node.attr("size")
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    first, last = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = [(x[:, max(c - first, 0) : c + last + 1] ** 2).sum(1) for c in range(x.shape[1])]
    return [x / (bias + alpha / size * np.stack(squares, 1)) ** beta]


def _lp_pool(node: Node, args: Sequence[Array | None]) -> list[Array]:
    (x,) = args
    axes = windows(node, x.shape[2:], node.attr("kernel_shape"))
    p, total = node.attr("p", 2), 0.0
    for tap in np.ndindex(*(a.kernel for a in axes)):
        inside, grid = 1.0, [slice(None), slice(None)]
        at = [k * a.dilation - a.before + np.arange(a.out) * a.stride for k, a in zip(tap, axes, strict=True)]
        for i, a in zip(at, axes, strict=True):
            inside = np.multiply.outer(inside, (i >= 0) & (i < a.size))
        grid += np.ix_(*(i.clip(0, a.size - 1) for i, a in zip(at, axes, strict=True)))
        total = total + np.abs(x[tuple(grid)]) ** p * inside
    return [total ** (1 / p)]


def _global_lp_pool(node: Node, args: Sequence[Array | None]) -> list[Array]:
    whole = {"kernel_shape": args[0].shape[2:], "p": node.attr("p", 2)}
    return _lp_pool(Node("LpPool", node.inputs, node.outputs, whole), args)


def by_definition(node: Node, args: Sequence[Array | None]) -> list[Array]:
    """Evaluate our own definition: test_exact compares it with onnxruntime, against_torch.test_images with PyTorch."""
    types = [None if a is None else TensorType(dtype_of(a), a.shape) for a in args]
    b = Builder(node.op_type)
    feeds = {f"in{i}": a for i, a in enumerate(args) if a is not None}
    static = STATIC_OPERANDS.get(node.op, ())
    inputs = [
        "" if t is None else b.const(args[i], f"in{i}") if i in static else b.input(f"in{i}", t)
        for i, t in enumerate(types)
    ]
    for i, v in enumerate(expand(b, node, inputs)):
        b.output(f"out{i}", v)
    graph = b.build()
    values = interpret(graph, {v: a for v, a in feeds.items() if v in graph.inputs})
    return [values[v] for v in graph.outputs.values()]


EXACT: dict[str, Callable[[Node, Sequence[Array | None]], Sequence[Array]]] = {
    "Erf": lambda node, args: [_erf(args[0])],  # float32 inside
    "Gelu": _gelu,  # float32 inside
    "MaxPool": _max_pool,  # wrong indices where strides and dilations are 1; slow
    "AveragePool": _average_pool,  # slow
    "MeanVarianceNormalization": _mean_variance_normalization,  # takes no float64
    "RMSNormalization": _rms_normalization,  # float32 inside
    "GatherElements": _gather_elements,  # refuses more than 64 elements along the axis
    "GlobalMaxPool": _global_max_pool,  # wrong for 3-D
    "ConvTranspose": _conv_transpose,  # wrong or refused with groups, output_shape, large output_padding, empty batches
    "Pad": _pad,  # refuses negative pads
    "NegativeLogLikelihoodLoss": _negative_log_likelihood_loss,  # wrong mean with ignore_index -1
    "SoftmaxCrossEntropyLoss": _softmax_cross_entropy_loss,  # the same
    "LRN": _lrn,  # takes the size of the batch for the number of channels
    "LpPool": _lp_pool,  # wrong where windows reach into the padding
    "GlobalLpPool": _global_lp_pool,  # there is none
    "LpNormalization": _lp_normalization,  # wrong for p = 1 and negative numbers
    "Resize": by_definition,  # cubic weights in float32
    "MaxRoiPool": by_definition,  # there is none
    **dict.fromkeys(("AffineGrid", "DeformConv", "GridSample", "GroupNormalization"), by_definition),  # float32 inside
}
"""Ops that onnx.reference computes in float32 though x is float64, or wrongly, or too slowly for tests."""
