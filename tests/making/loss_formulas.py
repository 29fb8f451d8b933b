"""The losses in numpy, from their definitions; float64. `x` are logits, unless the name says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def cross_entropy(
    log: Array,
    labels: Array,
    axis: int = -1,
    weight: Sequence[float] | None = None,
    smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> float:
    """Position by position, of log-probabilities."""
    log = np.moveaxis(log, axis, -1)
    classes = log.shape[-1]
    w = np.ones(classes) if weight is None else np.asarray(weight)
    total = count = 0.0
    for position in np.ndindex(labels.shape):
        label = labels[position]
        if label == ignore:
            continue
        row = log[position]
        total += (1 - smoothing) * w[label] * -row[label] + smoothing / classes * float((w * -row).sum())
        count += w[label]
    return total / count if reduction == "mean" else total


def bce(x: Array, target: Array, pos_weight: Any = 1.0, weight: Any = 1.0, smoothing: float = 0.0) -> Array:
    t = target * (1 - smoothing) + smoothing / 2
    p = 1 / (1 + np.exp(-x))
    return np.asarray(weight) * -(np.asarray(pos_weight) * t * np.log(p) + (1 - t) * np.log(1 - p))


def huber(x: Array, target: Array, delta: float) -> Array:
    e = np.abs(x - target)
    return np.where(e <= delta, e**2 / 2, delta * (e - delta / 2))


def smooth_l1(x: Array, target: Array, beta: float) -> Array:
    e = np.abs(x - target)
    return np.where(e < beta, e**2 / (2 * beta), e - beta / 2)


def kl(log: Array, target: Array, axis: int = -1) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(target > 0, target * (np.log(target) - log), 0.0)
    return each.sum(axis)


def cosine(a: Array, b: Array, axis: int = -1) -> Array:
    return (a * b).sum(axis) / np.sqrt(((a * a).sum(axis) + 1e-12) * ((b * b).sum(axis) + 1e-12))


def ctc(log: Array, target: Sequence[int], blank: int = 0) -> float:
    """Of one list: log is [T, C]; the sum over all paths that are the target once repeats and blanks are gone."""
    total = 0.0
    for path in np.ndindex(*(log.shape[1],) * len(log)):
        kept = [c for i, c in enumerate(path) if (i == 0 or path[i - 1] != c) and c != blank]
        if kept == list(target):
            total += np.exp(sum(log[t, c] for t, c in enumerate(path)))
    return -float(np.log(total))
