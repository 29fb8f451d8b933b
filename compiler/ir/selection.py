"""What Compress, NonZero, Unique and NonMaxSuppression select: shapes and constants follow from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from compiler.ir.types import AnyArray

Indices = npt.NDArray[np.int64]


def selected(condition: AnyArray, length: int) -> list[int]:
    """The positions that Compress takes: a condition that is shorter than the axis ends early."""
    return [int(i) for i in np.flatnonzero(condition.reshape(-1)[:length])]


def nonzero_positions(x: AnyArray) -> Indices:
    """The indices of the elements that are not zero, [rank, count]; a scalar has none."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), np.int64)
    return np.stack(np.nonzero(x)).astype(np.int64)


def unique_parts(x: AnyArray, axis: int | None, in_order: bool) -> tuple[Indices, Indices, Indices]:
    """Of each different part of x along an axis (flattened without one): first position, count, and whose each is.

    in_order: sorted by value, else by first position.
    """
    if x.dtype.kind == "V":  # bfloat16, which numpy does not sort
        x = x.astype(np.float32)
    lines = x.reshape(-1) if axis is None else x
    _, first, inverse, counts = np.unique(
        lines, return_index=True, return_inverse=True, return_counts=True, axis=axis if lines.ndim > 1 else None
    )
    inverse = inverse.reshape(-1)
    if not in_order:
        order = np.argsort(first)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return first.astype(np.int64), counts.astype(np.int64), inverse.astype(np.int64)


def kept_boxes(operands: Sequence[AnyArray | None], centered: bool) -> Indices:
    """`selected_boxes` on the operands of NonMaxSuppression; the last three may be absent. ValueError: their shapes."""
    boxes, scores, most, iou, least = (*operands, None, None, None)[:5]
    if boxes is None or scores is None or boxes.ndim != 3 or scores.ndim != 3:
        raise ValueError("boxes [N,B,4] and scores [N,C,B] are needed")
    (n, _, b), (m, count, width) = scores.shape, boxes.shape
    if (n, b, 4) != (m, count, width) or any(a is not None and a.size != 1 for a in (most, iou, least)):
        raise ValueError(
            f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not fit, or a limit is no scalar"
        )
    limit = None if least is None else float(least.item())
    return selected_boxes(
        boxes,
        scores,
        0 if most is None else int(most.item()),
        0.0 if iou is None else float(iou.item()),
        limit,
        centered,
    )


def selected_boxes(
    boxes: AnyArray, scores: AnyArray, most: int, iou_threshold: float, score_threshold: float | None, centered: bool
) -> Indices:
    """Rows (batch, class, box) of the boxes that NonMaxSuppression keeps: by falling score, ties by position.

    boxes [N,B,4], scores [N,C,B]. most: of each batch and class. A box goes if it covers more than iou_threshold of the
    union with one that was kept, or scores no more than score_threshold.
    """
    rows = []
    for n, c in np.ndindex(scores.shape[:2]):
        score = scores[n, c].astype(np.float64)
        low, high = _corners(boxes[n].astype(np.float64), centered)
        left = [i for i in np.argsort(-score, kind="stable") if score_threshold is None or score[i] > score_threshold]
        kept: list[int] = []
        for i in left:
            if len(kept) == most:
                break
            if all(_overlap(low[[i, k]], high[[i, k]]) <= iou_threshold for k in kept):
                kept.append(int(i))
        rows += [(n, c, i) for i in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


def _corners(boxes: npt.NDArray[np.float64], centered: bool) -> tuple[npt.NDArray[np.float64], ...]:
    """Lower and upper corners of boxes given by two opposite corners, or by center and extent."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centered:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _overlap(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> float:
    """Intersection over union of two boxes; 0 where both are empty."""
    common = float(np.prod(np.clip(high.min(0) - low.max(0), 0, None)))
    union = float(np.prod(high - low, axis=1).sum()) - common
    return common / union if union > 0 else 0.0
