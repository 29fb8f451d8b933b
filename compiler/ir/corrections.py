"""Output types where onnx's inference is wrong or absent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.ir.graph import Node
from compiler.ir.proto import default
from compiler.ir.resizing import resized_axes
from compiler.ir.selection import kept_boxes, nonzero_positions, selected, unique_parts
from compiler.ir.types import AnyArray, TensorType
from compiler.ir.windows import transposed_windows

Types = tuple[TensorType | None, ...]
Known = Mapping[int, AnyArray]
Correction = Callable[[Node, Sequence[TensorType | None], Known], TensorType | Types | None]

CORRECTIONS: dict[str, Correction] = {}
"""op -> (node, input types, known inputs) -> type of the first output, or of all; None where onnx's will do."""


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


@_correction("Compress")
def _compress(node: Node, types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """There is no inference of how much is taken."""
    x, axis = types[0], node.attr("axis")
    if x is None or 1 not in known or not (axis is None or -x.rank <= axis < x.rank):
        return None
    shape = [x.size] if axis is None else list(x.shape)
    at = 0 if axis is None else axis % x.rank
    shape[at] = len(selected(known[1], shape[at]))
    return TensorType(x.dtype, tuple(shape))


@_correction("NonZero")
def _nonzero(_node: Node, _types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """There is no inference of the count."""
    return TensorType("i64", nonzero_positions(known[0]).shape) if 0 in known else None


@_correction("Unique")
def _unique(node: Node, types: Sequence[TensorType | None], known: Known) -> Types | None:
    """There is no inference of the counts."""
    x, axis = types[0], node.attr("axis")
    if x is None or 0 not in known or not (axis is None or -x.rank <= axis < x.rank):
        return None
    first, counts, inverse = (
        TensorType("i64", part.shape) for part in unique_parts(known[0], axis, bool(node.attr("sorted", 1)))
    )
    shape = list(x.shape) if axis is not None else [x.size]
    shape[0 if axis is None else axis] = first.size
    return TensorType(x.dtype, tuple(shape)), first, inverse, counts


@_correction("NonMaxSuppression")
def _non_max_suppression(node: Node, types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """There is no inference of the count."""
    operands = [known.get(i) for i in range(len(types))]
    return TensorType("i64", kept_boxes(operands, bool(node.attr("center_point_box", 0))).shape)


@_correction("RNN", "GRU", "LSTM")
def _recurrent(node: Node, types: Sequence[TensorType | None], _known: Known) -> Types | None:
    """The attribute hidden_size may be absent: R has it."""
    x, w, r = types[:3]
    if x is None or w is None or r is None or x.rank != 3 or w.rank != 3 or r.rank != 3:
        return None
    length, batch, directions, hidden = *x.shape[:2], w.shape[0], r.shape[2]
    if node.attr("layout"):  # X is [N,T,I]
        y, state = (length, batch, directions, hidden), (length, directions, hidden)
    else:
        y, state = (length, directions, batch, hidden), (directions, batch, hidden)
    return TensorType(x.dtype, y), *[TensorType(x.dtype, state)] * 2


@_correction("Attention")
def _attention(node: Node, types: Sequence[TensorType | None], _known: Known) -> Types | None:
    """The present keys and values are left out where there are no past ones: they are then those of the node."""
    if len(types) > 4 and types[4] is not None:
        return None
    heads = node.attr("kv_num_heads") or 1
    present: list[TensorType | None] = []
    for t in types[1:3]:
        if t is None or t.rank not in (3, 4) or (t.rank == 3 and t.shape[2] % heads):
            return None
        packed = (t.shape[0], heads, t.shape[1], t.shape[-1] // heads)
        present.append(TensorType(t.dtype, packed if t.rank == 3 else t.shape))
    return None, *present


@_correction("Resize")
def _resize(node: Node, types: Sequence[TensorType | None], known: Known) -> TensorType | None:
    """An empty tensor has no inference."""
    x = types[0]
    if x is None or x.size:
        return None
    roi, scales, sizes = (known[i] if i in known and known[i].size else None for i in (1, 2, 3))
    axes = node.attr("axes", tuple(range(x.rank)))
    given = scales if scales is not None else sizes
    if given is None or given.size != len(axes) or any(not -x.rank <= a < x.rank for a in axes):
        return None
    if roi is not None and roi.size != 2 * len(axes):
        return None
    shape = list(x.shape)
    for a in resized_axes(x.shape, node.attrs, roi, scales, sizes):
        shape[a.axis] = a.out
    return TensorType(x.dtype, tuple(shape))
