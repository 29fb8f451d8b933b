"""Cross-entropy and nll: the target says which class, or how likely each is.

Where the opset has them (12), they are ONNX's SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss, whose class
numbers are checked at run time, and with label smoothing arithmetic around the latter; else all in arithmetic, with a
Gather that makes sure of the check. Formulas: PyTorch's CrossEntropyLoss and NLLLoss, label smoothing with class
weights included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from compiler.errors import InputError
from compiler.frontend.making.emit import Algorithm
from compiler.frontend.making.loss_options import Loss
from compiler.frontend.making.losses import Read, log_probabilities, reduced

FIRST_WITH_LOSSES = 12


@dataclass(frozen=True)
class Rows:
    """Logits or log-probabilities with the classes on `axis`, and class numbers to go with them."""

    value: str
    form: str
    labels: str
    axis: int
    rank: int


def class_loss(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """Nodes of cross_entropy or nll. InputError: weights that are not one for each class."""
    axis = read.axis(loss.axis)
    weights = _weights(loss, read, axis)
    if loss.soft_targets:
        return _soft(a, loss, read, target, axis, weights)
    if read.form == "probabilities":
        read = Read(read.name, log_probabilities(a, read, axis), "log", read.dims, read.elem_type)
    rows = _rows(a, read, target, axis)
    if a.opset < FIRST_WITH_LOSSES:
        return _written(a, loss, read, rows, weights, target)
    return _smoothed(a, loss, read, rows, weights) if loss.label_smoothing else _standard(a, loss, rows, weights)


def _weights(loss: Loss, read: Read, axis: int) -> np.ndarray | None:
    if loss.weight is None:
        return None
    weights = np.asarray(loss.weight, np.float64)
    classes = read.dims[axis]
    if weights.ndim != 1 or (isinstance(classes, int) and len(weights) != classes):
        have = f"{len(weights)} numbers" if weights.ndim == 1 else f"the shape {list(weights.shape)}"
        raise InputError(f"weight has {have}, but output {read.name!r} has {classes} classes on axis {axis}")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InputError("weight must be finite numbers, none below 0")
    return weights


def _rows(a: Algorithm, read: Read, labels: str, axis: int) -> Rows:
    """ONNX wants the classes on axis 1. Where they are last, all other axes become one, which moves nothing."""
    if axis == 1 and (read.rank == 2 or a.opset >= FIRST_WITH_LOSSES):
        return Rows(read.value, read.form, labels, 1, read.rank)
    classes = read.size(axis, "cross-entropy needs the number of classes")
    value = read.value
    if axis != read.rank - 1:
        order = [i for i in range(read.rank) if i != axis] + [axis]
        value = a.node("Transpose", [value], "classes_last", perm=order)
    rows = a.node("Reshape", [value, a.const([-1, classes], "rows.shape", TensorProto.INT64)], "rows")
    flat = a.node("Reshape", [labels, a.const([-1], "flat.shape", TensorProto.INT64)], "row_labels")
    return Rows(rows, read.form, flat, 1, 2)


def _standard(a: Algorithm, loss: Loss, rows: Rows, weights: np.ndarray | None) -> str:
    op = "NegativeLogLikelihoodLoss" if rows.form == "log" else "SoftmaxCrossEntropyLoss"
    return _operator(a, op, loss, rows.value, rows.labels, weights, loss.reduction, "loss")


def _operator(
    a: Algorithm, op: str, loss: Loss, value: str, labels: str, weights: np.ndarray | None, reduction: str, hint: str
) -> str:
    inputs = [value, labels, *([a.const(weights, "class_weights")] if weights is not None else [])]
    ignored: dict[str, Any] = {} if loss.ignore_index is None else {"ignore_index": loss.ignore_index}
    return a.node(op, inputs, hint, reduction=reduction, **ignored)


def _smoothed(a: Algorithm, loss: Loss, read: Read, rows: Rows, weights: np.ndarray | None) -> str:
    """The same as `_written`: nll times 1 - s, and s/C sum of w (-log p), of which a mean is over the sum of w[t]."""
    classes = read.size(read.axis(loss.axis), "label smoothing needs the number of classes")
    form = Read(read.name, rows.value, rows.form, [None] * rows.rank, read.elem_type)
    log = log_probabilities(a, form, rows.axis)
    nll = _operator(a, "NegativeLogLikelihoodLoss", loss, log, rows.labels, weights, loss.reduction, "nll")
    weighted, counted = log, []
    if weights is not None:
        along = [1] * rows.rank
        along[rows.axis] = classes
        weighted = a.node("Mul", [log, a.const(weights.reshape(along), "class_weights")], "weighted_classes")
        bounds = [a.const(n, "bound", TensorProto.INT64) for n in (0, classes - 1)]  # nll refuses others
        bounded = a.node("Clip", [rows.labels, *bounds], "bounded_labels")
        counted.append(a.node("Gather", [a.const(weights, "class_weights"), bounded], "label_weights", axis=0))
    each = a.reduce("ReduceSum", weighted, "log_sum", [rows.axis])
    if loss.ignore_index is not None:
        same = a.node("Equal", [rows.labels, a.const(loss.ignore_index, "ignored", TensorProto.INT64)], "is_ignored")
        kept = a.node("Cast", [a.node("Not", [same], "is_kept")], "kept", to=a.dtype)
        each = a.node("Mul", [each, kept], "log_sum_kept")
        counted = [a.node("Mul", [*counted, kept], "counted_kept") if counted else kept]
    if loss.reduction == "mean" and counted:
        total = a.node("Div", [a.reduce("ReduceSum", v, "total") for v in (each, *counted)], "log_mean")
    else:
        total = reduced(a, loss, each, "log_total")
    parts = [
        a.node("Mul", [nll, a.const(1 - loss.label_smoothing, "kept_share")], "class_loss"),
        a.node("Mul", [total, a.const(-loss.label_smoothing / classes, "spread")], "spread_loss"),
    ]
    return a.node("Add", parts, "loss")


def _written(a: Algorithm, loss: Loss, read: Read, rows: Rows, weights: np.ndarray | None, target: str) -> str:
    """(1 - s) w[t] (-log p[t]) + s/C sum of w (-log p), over the sum of w[t], without positions that are ignored."""
    classes = read.size(read.axis(loss.axis), "label smoothing needs the number of classes")
    given = np.ones(classes) if weights is None else weights
    along = [1] * rows.rank
    along[rows.axis] = classes
    form = Read(read.name, rows.value, rows.form, [None] * rows.rank, read.elem_type)
    log = log_probabilities(a, form, rows.axis)
    kept = None
    labels = rows.labels
    if loss.ignore_index is not None:
        same = a.node("Equal", [labels, a.const(loss.ignore_index, "ignored", TensorProto.INT64)], "is_ignored")
        kept = a.node("Not", [same], "is_kept")
        whole = a.node("Cast", [kept], "kept_number", to=TensorProto.INT64)
        labels = a.node("Mul", [labels, whole], "kept_labels")
        kept = a.node("Cast", [kept], "kept", to=a.dtype)
    column = a.unsqueeze(labels, [rows.axis], "column")
    numbers = a.const(np.arange(classes).reshape(along), "class_numbers", TensorProto.INT64)
    chosen = a.node("Cast", [a.node("Equal", [column, numbers], "is_class")], "chosen", to=a.dtype)
    # target distribution times class weights; constant over positions but for the chosen class
    spread = loss.label_smoothing / classes * given.reshape(along)
    peak = a.const((1 - loss.label_smoothing) * given.reshape(along), "peak")
    mixed = a.node("Mul", [chosen, peak], "weighted_class")
    if loss.label_smoothing:
        mixed = a.node("Add", [mixed, a.const(spread, "spread")], "weighted_classes")
    each = a.node(
        "Neg", [a.reduce("ReduceSum", a.node("Mul", [log, mixed], "log_chosen"), "log_sum", [rows.axis])], "each"
    )
    counted = _weight_of(a, labels, given, target)
    if kept is not None:
        each = a.node("Mul", [each, kept], "each_kept")
        counted = a.node("Mul", [counted, kept], "counted_kept")
    total = a.reduce("ReduceSum", each, "total")
    weight = a.reduce("ReduceSum", counted, "total_weight")
    if loss.reduction == "mean":
        return a.node("Div", [total, weight], "loss")
    # the sum of weights takes no part in it, but its Gather is the test of the class numbers
    zero = a.node("Mul", [weight, a.const(0.0, "zero")], "checked")
    return a.node("Add", [total, zero], "loss")


def _weight_of(a: Algorithm, labels: str, weights: np.ndarray, label: str) -> str:
    """The weight of each position's class. Gather takes negative numbers from the end: they become one too large.

    label: the input, for messages.
    """
    number = a.node("Cast", [labels], "label_number", to=TensorProto.DOUBLE)
    negative = a.node("Less", [number, a.const(0.0, "zero_number", TensorProto.DOUBLE)], "is_negative")
    wrong = a.node("Cast", [negative], "wrong", to=TensorProto.INT64)
    right = a.node("Sub", [a.const(1, "one_number", TensorProto.INT64), wrong], "right")
    beyond = a.node("Mul", [wrong, a.const(len(weights), "classes", TensorProto.INT64)], "beyond")
    name = f"{label}_or_{len(weights)}_if_negative"
    index = a.node("Add", [a.node("Mul", [labels, right], "right_labels"), beyond], name)
    return a.node("Gather", [a.const(weights, "class_weights"), index], "label_weights", axis=0)


def _soft(a: Algorithm, loss: Loss, read: Read, target: str, axis: int, weights: np.ndarray | None) -> str:
    """Minus the sum over the classes of w t log p, where label smoothing makes t (1 - s) + s/C of t."""
    log = log_probabilities(a, read, axis)
    if loss.label_smoothing:
        classes = read.size(axis, "label smoothing needs the number of classes")
        kept = a.node("Mul", [target, a.const(1 - loss.label_smoothing, "kept")], "kept_target")
        target = a.node("Add", [kept, a.const(loss.label_smoothing / classes, "spread")], "smooth_target")
    if weights is not None:
        along = [1] * read.rank
        along[axis] = len(weights)
        target = a.node("Mul", [target, a.const(weights.reshape(along), "class_weights")], "weighted_target")
    each = a.reduce("ReduceSum", a.node("Mul", [target, log], "log_chosen"), "log_sum", [axis])
    return reduced(a, loss, a.node("Neg", [each], "each"))
