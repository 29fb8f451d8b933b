"""What a loss reads of an output: a Softmax, LogSoftmax or Sigmoid at its end is looked through.

Behind operators that move numbers (Reshape, Squeeze, Cast, ...) what they give is read as it is: as probabilities.
"""

from __future__ import annotations

from onnx import NodeProto

from compiler.errors import InputError, ModelError, Problem
from compiler.frontend.making.facts import Facts, int_attribute
from compiler.frontend.making.loss_options import Loss
from compiler.frontend.making.losses import FLOATS, Read
from compiler.ir.proto import element_type_name

_OF_CLASSES = {"cross_entropy", "nll", "kl", "ctc"}

_MOVES = frozenset(
    {"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Clip", "Split"}
)
"""Operators that leave probabilities what they are."""

_SIGMOIDS = frozenset({"Sigmoid", "HardSigmoid"})


def read_output(facts: Facts, loss: Loss, name: str) -> Read:
    """The value to compute a loss from, at or before an output.

    InputError: a loss that makes no sense on this output. ModelError: an output whose rank is not known.
    """
    elem_type, dims = facts.elem_type(name), facts.dims(name)
    if elem_type not in FLOATS:
        kind = element_type_name(elem_type)
        more = (
            ": convert the model to float32" if kind in ("FLOAT16", "BFLOAT16") else ", a loss needs float32 or float64"
        )
        raise InputError(f"a loss cannot be on output {name!r}, which is {kind}{more}")
    if dims is None:
        what = f"the rank of output {name!r} cannot be inferred"
        raise ModelError(Problem(what, "the graph", "export the model with known ranks"))
    plain = Read(name, name, "plain", dims, elem_type)
    source = facts.producer.get(name)
    while source is not None and source.op_type == "Identity":
        name = source.input[0]
        source = facts.producer.get(name)
    if loss.name in _OF_CLASSES:
        return _of_classes(facts, loss, plain, source)
    return _of_logits(facts, loss, plain, source) if loss.name == "bce" else plain


def _of_classes(facts: Facts, loss: Loss, plain: Read, source: NodeProto | None) -> Read:
    axis = plain.axis(-1 if loss.name == "ctc" else loss.axis)
    if plain.dims[axis] == 1:
        raise InputError(
            f"output {plain.name!r} has one class on axis {axis}, of which there is nothing to learn by {loss.name}: "
            "did you mean bce, for a yes-or-no question? Another axis is given by axis="
        )
    op = source.op_type if source is not None else ""
    if source is not None and op in ("Softmax", "LogSoftmax"):
        along = _softmax_axis(facts, source, plain)
        if along != axis:
            raise InputError(
                f"output {plain.name!r} is a {op} over axis {along}, but the classes of the loss are on axis {axis}: "
                f"give axis={along}"
            )
        if loss.name == "nll" and op == "Softmax":
            raise InputError(
                f"nll takes log-probabilities, but output {plain.name!r} is a Softmax: use cross_entropy, which sees it"
            )
        _not_called_logits(loss, plain, op)
        return _form(plain, "logits", source.input[0])
    if loss.name == "nll":
        return _form(plain, "log")
    if loss.from_logits is not None:
        return _form(plain, "logits" if loss.from_logits else "probabilities")
    made = _probabilities(facts, plain.name)
    if made in _SIGMOIDS:
        raise InputError(
            f"output {plain.name!r} comes from a {made}, so its numbers are no distribution, as {loss.name} needs: did "
            "you mean bce? Else say by from_logits whether they are to be taken as logits or as probabilities"
        )
    return _form(plain, "probabilities" if made else "logits")


def _probabilities(facts: Facts, value: str) -> str:
    """The operator that made probabilities of a value; '' if it is not known that they are.

    "Concat": of p and 1 - p, as scikit-learn's models of two classes end.
    """
    node = facts.producer.get(value)
    while node is not None and node.op_type in _MOVES:
        value = node.input[0]
        node = facts.producer.get(value)
    if node is None:
        return ""
    if node.op_type in _SIGMOIDS | {"Softmax"}:
        return node.op_type
    if node.op_type == "Concat" and len(node.input) == 2:
        p, q = node.input
        return "Concat" if _complement(facts, p, q) or _complement(facts, q, p) else ""
    return ""


def _complement(facts: Facts, value: str, p: str) -> bool:
    """Whether a value is 1 - p."""
    node = facts.producer.get(value)
    if node is None or node.op_type != "Sub" or node.input[1] != p:
        return False
    one = facts.constant(node.input[0])
    return one is not None and bool((one == 1).all())


def _of_logits(facts: Facts, loss: Loss, plain: Read, source: NodeProto | None) -> Read:
    if source is not None and source.op_type == "Sigmoid":
        _not_called_logits(loss, plain, "Sigmoid")
        return _form(plain, "logits", source.input[0])
    if source is not None and source.op_type == "Softmax":
        _not_called_logits(loss, plain, "Softmax")
        return _form(plain, "probabilities")
    if loss.from_logits is not None:
        return _form(plain, "logits" if loss.from_logits else "probabilities")
    return _form(plain, "probabilities" if _probabilities(facts, plain.name) else "logits")


def _not_called_logits(loss: Loss, plain: Read, op: str) -> None:
    if loss.from_logits:
        raise InputError(
            f"output {plain.name!r} is a {op}, not logits: leave out from_logits and the loss reads what is before it"
        )


def _form(plain: Read, form: str, value: str | None = None) -> Read:
    return Read(plain.name, plain.value if value is None else value, form, plain.dims, plain.elem_type)


def _softmax_axis(facts: Facts, node: NodeProto, read: Read) -> int:
    """The one axis that a Softmax is over. Below opset 13 it is over all from an axis on. ModelError: more than one."""
    if facts.opset >= 13:
        return int_attribute(node, "axis", -1) % read.rank
    axis = int_attribute(node, "axis", 1) % read.rank
    over = [i for i in range(axis, read.rank) if read.dims[i] != 1]
    if len(over) > 1:
        what = f"a {node.op_type} over the axes {over} gives output {read.name!r}"
        raise ModelError(Problem(what, "the graph", "export the model at opset 13 or more, where it is over one axis"))
    return over[0] if over else axis
