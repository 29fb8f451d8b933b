"""Output types where onnx's inference is wrong or absent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.ir.graph import Node
from compiler.ir.proto import default
from compiler.ir.types import AnyArray, TensorType
from compiler.ir.windows import transposed_windows

Types = tuple[TensorType | None, ...]
Known = Mapping[int, AnyArray]
Correction = Callable[[Node, Sequence[TensorType | None], Known], TensorType | None]

CORRECTIONS: dict[str, Correction] = {}
"""op -> (node, input types, known inputs) -> type of the first output; None where onnx's will do."""


def _correction(*ops: str) -> Callable[[Correction], Correction]:
    def register(function: Correction) -> Correction:
        CORRECTIONS.update(dict.fromkeys(ops, function))
        return function

    return register


@_correction("GroupNormalization", "MeanVarianceNormalization")
def _as_input(_node: Node, types: Sequence[TensorType | None], _known: Known) -> TensorType | None:
    """There is no inference; the output is like the input."""
    return types[0]


@_correction("STFT")
def _stft(node: Node, types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """The count of frequencies is for all, also where `onesided` leaves out the second half."""
    signal, window = types[0], types[2] if len(types) > 2 else None
    if signal is None or not node.attr("onesided", default("STFT", "onesided")):
        return None
    if any(known[i].size != 1 for i in (1, 3) if i in known) or signal.rank < 2:
        return None
    length = int(known[3].item()) if 3 in known else window.size if window else 0
    step = int(known[1].item()) if 1 in known else 0
    if length < 1 or step < 1 or signal.shape[1] < length:
        return None
    frames = (signal.shape[1] - length) // step + 1
    return TensorType(signal.dtype, (signal.shape[0], frames, length // 2 + 1, 2))


@_correction("MaxUnpool")
def _max_unpool(_node: Node, types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """There is no inference from a given output shape."""
    if types[0] is None or 2 not in known:
        return None
    return TensorType(types[0].dtype, tuple(int(d) for d in known[2].reshape(-1)))


@_correction("OneHot")
def _one_hot(node: Node, types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """A depth of a floating-point type is not read."""
    indices, values = types[0], types[2]
    axis = node.attr("axis", -1)
    if indices is None or values is None or known[1].size != 1 or not -indices.rank - 1 <= axis <= indices.rank:
        return None
    at = axis if axis >= 0 else axis + indices.rank + 1
    return TensorType(values.dtype, (*indices.shape[:at], int(known[1].item()), *indices.shape[at:]))


@_correction("Range")
def _range(_node: Node, types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """Only four of the element types are read, and large ranges overflow."""
    if types[0] is None or any(known[i].size != 1 for i in range(3)):
        return None
    start, limit, delta = (known[i].item() for i in range(3))
    if isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int):
        count = -((start - limit) // delta) if delta else 0
    else:
        with np.errstate(all="ignore"):
            quotient = float((np.float64(limit) - np.float64(start)) / np.float64(delta))
        count = math.ceil(quotient) if math.isfinite(quotient) else 0
    return TensorType(types[0].dtype, (max(count, 0),))


@_correction("ConvTranspose")
def _conv_transpose(node: Node, types: Sequence[TensorType | None], _known: Known) -> TensorType | None:
    """The spatial axes are left out where output_shape asks for less than the input has."""
    x, w = types[0], types[1]
    if x is None or w is None or x.rank != w.rank or node.attr("output_shape") is None:
        return None
    axes = transposed_windows(node, x.shape[2:], w.shape[2:])
    return TensorType(x.dtype, (x.shape[0], w.shape[1] * node.attr("group", 1), *(a.out for a in axes)))
