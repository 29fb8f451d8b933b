"""Connectionist temporal classification: Graves et al., 2006, equations 6 to 8, in logarithms, as a Scan over time.

Targets are lists of class numbers, padded to one length S. Between them, before and after there may be blanks: the
2 S + 1 places of a list are blank, first class, blank, second class, ... For each place, alpha is the logarithm of the
probability to have come there; from one time to the next one stays, goes one place on, or two: from a class to the next
one, if that is another. As in PyTorch's CTCLoss, "mean" divides the loss of each list by its length first, and the loss
of a list for which there is not enough time is infinite, or with `zero_infinity` 0. Either is a constant: such a list
has no part in the gradient (where PyTorch without `zero_infinity` makes NaN of it).

Lengths and classes are checked at run time by operators that want the same of theirs: ReverseSequence of lengths from 0
to the size of its axis, NegativeLogLikelihoodLoss of labels that are classes. Both are given zeros, and what they make
of them, zeros again, is added to the numbers, so that these are used only once they are checked. From there on they are
inside their range whatever they were, so that nothing but these checks tells of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from compiler.errors import InputError
from compiler.frontend.making.emit import Algorithm
from compiler.frontend.making.loss_options import Loss
from compiler.frontend.making.losses import Read, log_probabilities
from compiler.frontend.making.scalars import need_opset

IMPOSSIBLE = -1e30
"""The logarithm of 0: so low that nothing is added to it, but finite, so that its derivative is."""

INT = TensorProto.INT64


def ctc(a: Algorithm, loss: Loss, read: Read, target: str, other: str | None) -> str:
    """Nodes of the loss. InputError: an output that is not [T, N, C] or [N, T, C]. UnsupportedError: an old opset."""
    need_opset(a, 15, "the loss ctc", "Shape with start")
    if read.rank != 3 or loss.time_axis not in (0, 1):
        has = f"output {read.name!r} has {read.rank}, time_axis is {loss.time_axis}"
        raise InputError(f"ctc needs an output of 3 axes with the classes last, and time_axis 0 or 1: {has}")
    classes = read.size(2, "ctc needs the number of classes")
    if not 0 <= loss.blank < classes:
        raise InputError(f"blank must be one of the {classes} classes, not {loss.blank}")
    dims = [read.dims[1 - loss.time_axis]]
    input_lengths, target_lengths = (a.input(f"{read.prefix}{name}_lengths", INT, dims) for name in ("input", "target"))
    log = log_probabilities(a, read, 2)
    if loss.time_axis:
        log = a.node("Transpose", [log], "time_first", perm=[1, 0, 2])
    input_length = _length(a, input_lengths, a.node("Shape", [log], "time_batch", start=0, end=2), 0)
    length = _length(a, target_lengths, a.node("Shape", [target], "target.shape"), 1)
    places, skip = _places(a, loss.blank, _classes(a, target, length, loss.blank, classes))
    body = _body(a, places, skip, input_length)
    times = _count(a, a.node("Shape", [log], "times", start=0, end=1), "time")
    alpha = a.node("Scan", [_start(a, places), log, times], "alpha", body=body, num_scan_inputs=2)
    likelihood = _ends(a, alpha, length)
    lost = a.node("Less", [likelihood, a.const(IMPOSSIBLE / 2, "impossible_too")], "is_impossible")
    infinite = a.const(0.0 if loss.zero_infinity else np.inf, "loss_if_impossible")
    each = a.node("Where", [lost, infinite, a.node("Neg", [likelihood], "ctc")], "each")
    if loss.reduction == "sum":
        return a.reduce("ReduceSum", each, "loss")
    length = a.node("Max", [length, a.const(1, "one", INT)], "divisor")
    divided = a.node("Div", [each, a.node("Cast", [length], "divisor_float", to=a.dtype)], "each_divided")
    return a.reduce("ReduceMean", divided, "loss")


def _count(a: Algorithm, size: str, hint: str) -> str:
    """0, 1, ... below the number in a list of one."""
    axes, _ = a.axes([0])
    limit = a.node("Squeeze", [size, *axes], f"{hint}.count")
    return a.node("Range", [a.const(0, "none", INT), limit, a.const(1, "one", INT)], hint)


def _length(a: Algorithm, lengths: str, shape: str, time_axis: int) -> str:
    """The lengths [N] as a column [N, 1], with 0 for what is refused: more than there is of the time axis, or below 0.

    shape: of two axes, the other one being the batch.
    """
    none = a.const(0, "none", INT)
    zeros = a.node("Expand", [none, shape], f"{lengths}.zeros")
    reversed_ = a.node(
        "ReverseSequence", [zeros, lengths], f"{lengths}.check", time_axis=time_axis, batch_axis=1 - time_axis
    )
    checked = a.node("Add", [lengths, a.reduce("ReduceSum", reversed_, f"{lengths}.none", [time_axis])], "checked")
    size = a.node("Gather", [shape, a.const(time_axis, "axis", INT)], f"{lengths}.size", axis=0)
    wrong = [a.node("Less", [checked, none], "is_below"), a.node("Greater", [checked, size], "is_beyond")]
    length = a.node("Where", [a.node("Or", wrong, "is_refused"), none, checked], f"{lengths}.checked")
    return a.unsqueeze(length, [1], f"{lengths}.column")


def _classes(a: Algorithm, target: str, length: str, blank: int, classes: int) -> str:
    """The targets with blanks for padding; they are checked, but the padding is not."""
    none = a.const(0, "none", INT)
    batch, size = (
        a.node("Shape", [target], f"target.{v}", start=i, end=i + 1) for i, v in enumerate(("batch", "size"))
    )
    used = a.node("Less", [_count(a, size, "number"), length], "is_used")
    labels = a.node("Where", [used, target, none], "labels")
    shape = a.node("Concat", [batch, a.const([classes], "classes", INT), size], "labels.shape", axis=0)
    zeros = a.node("Expand", [a.const(0.0, "zero"), shape], "labels.zeros")
    loss = a.node("NegativeLogLikelihoodLoss", [zeros, labels], "labels.check", reduction="none")
    clipped = a.node("Clip", [labels, none, a.const(classes - 1, "last_class", INT)], "labels.inside")
    checked = a.node("Add", [clipped, a.node("Cast", [loss], "labels.none", to=INT)], "labels.checked")
    return a.node("Where", [used, checked, a.const(blank, "blank", INT)], "classes_used")


def _places(a: Algorithm, blank: int, target: str) -> tuple[str, str]:
    """The class of each place [N, 2S+1], and what to add to come there from two places before."""
    number, axis = a.const(blank, "blank", INT), a.const([1], "axis", INT)
    zeros = a.node("Mul", [target, a.const(0, "none", INT)], "no_class")
    blanks = a.node("Add", [zeros, number], "blanks")
    pairs = a.node("Concat", [a.unsqueeze(v, [2], "pair") for v in (blanks, target)], "pairs", axis=2)
    flat = a.node("Reshape", [pairs, a.const([0, -1], "flat", INT)], "blank_class")
    last = a.node("Add", [a.node("ReduceSum", [zeros, axis], "no_classes", keepdims=1), number], "last_blank")
    places = a.node("Concat", [flat, last], "places", axis=1)
    kept = a.node("Slice", [places, a.const([0], "first", INT), a.const([-2], "two_less", INT), axis], "kept")
    earlier = a.node("Concat", [last, last, kept], "two_before", axis=1)
    same = a.node("Equal", [places, earlier], "is_same")  # so are all blanks
    return places, a.node("Where", [same, a.const(IMPOSSIBLE, "impossible"), a.const(0.0, "zero")], "skip")


def _start(a: Algorithm, places: str) -> str:
    """Before the first time: certainly at the first place, from which the first two are reached."""
    number = _count(a, a.node("Shape", [places], "places.size", start=1, end=2), "place")
    first = a.node("Equal", [number, a.const(0, "none", INT)], "is_first")
    row = a.node("Where", [first, a.const(0.0, "zero"), a.const(IMPOSSIBLE, "impossible")], "alpha.row")
    return a.node("Expand", [row, a.node("Shape", [places], "places.shape")], "alpha.start")


def _body(a: Algorithm, places: str, skip: str, limit: str) -> GraphProto:
    """One time: from alpha, the log-probabilities [N, C] and the number of the time to the next alpha."""
    nodes = []

    def node(op: str, inputs: list[str], hint: str, **attributes: Any) -> str:
        name = a.names.fresh(f"ctc.{hint}")
        nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    alpha, log, time = (a.names.fresh(f"ctc.{v}") for v in ("alpha", "log", "time"))
    axis, first = a.const([1], "axis", INT), a.const([0], "first", INT)
    ways = [alpha]
    for distance in (1, 2):
        kept = node("Slice", [alpha, first, a.const([-distance], f"less_{distance}", INT), axis], "kept")
        pads = a.const([0, distance, 0, 0], f"pads_{distance}", INT)
        ways.append(node("Pad", [kept, pads, a.const(IMPOSSIBLE, "impossible")], "moved"))
    ways[2] = node("Add", [ways[2], skip], "skipped")
    # the logarithm of the sum; what is taken out may be anything, so its derivative cancels
    most = node("Max", ways, "most")
    parts = [node("Exp", [node("Sub", [way, most], "rest")], "part") for way in ways]
    total = node("Add", [node("Log", [node("Sum", parts, "parts")], "log_parts"), most], "total")
    found = node("GatherElements", [log, places], "log_place", axis=1)
    impossible = a.const(IMPOSSIBLE, "impossible")
    finite = node("Where", [node("Less", [found, impossible], "is_impossible"), impossible, found], "log_finite")
    new = node("Add", [total, finite], "new")
    result = node("Where", [node("Less", [time, limit], "is_inside"), new, alpha], "next")
    return helper.make_graph(
        nodes,
        "time",
        [
            helper.make_tensor_value_info(alpha, a.dtype, [None, None]),
            helper.make_tensor_value_info(log, a.dtype, [None, None]),
            helper.make_tensor_value_info(time, INT, []),
        ],
        [helper.make_tensor_value_info(result, a.dtype, [None, None])],
    )


def _ends(a: Algorithm, alpha: str, length: str) -> str:
    """The logarithm of the probability to be at the last blank or the last class, which an empty list has not."""
    last = a.node("Add", [length, length], "last_place")
    before = a.node("Sub", [last, a.const(1, "one", INT)], "place_before")
    inside = a.node("Max", [before, a.const(0, "none", INT)], "place_before_inside")
    found = [a.node("GatherElements", [alpha, v], "alpha_end", axis=1) for v in (last, inside)]
    missing = a.node("Less", [before, a.const(0, "none", INT)], "is_empty")
    found[1] = a.node("Where", [missing, a.const(IMPOSSIBLE, "impossible"), found[1]], "alpha_class")
    most = a.node("Max", found, "most")
    parts = [a.node("Exp", [a.node("Sub", [v, most], "rest")], "part") for v in found]
    return a.node("Add", [a.node("Log", [a.node("Sum", parts, "parts")], "log_parts"), most], "log_likelihood")
