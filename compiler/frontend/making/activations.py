"""What a loss reads of an output: a Softmax, LogSoftmax or Sigmoid at its end is looked through."""

from __future__ import annotations

from onnx import NodeProto

from compiler.errors import InputError, ModelError, Problem
from compiler.frontend.making.facts import Facts, int_attribute
from compiler.frontend.making.loss_options import Loss
from compiler.frontend.making.losses import FLOATS, Read
from compiler.ir.proto import element_type_name

_OF_CLASSES = {"cross_entropy", "nll", "kl", "ctc"}


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
    return _of_logits(loss, plain, source) if loss.name == "bce" else plain


def _of_classes(facts: Facts, loss: Loss, plain: Read, source: NodeProto | None) -> Read:
    axis = plain.axis(-1 if loss.name == "ctc" else loss.axis)
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
    return _form(plain, "probabilities" if loss.from_logits is False else "logits")


def _of_logits(loss: Loss, plain: Read, source: NodeProto | None) -> Read:
    if source is not None and source.op_type == "Sigmoid":
        _not_called_logits(loss, plain, "Sigmoid")
        return _form(plain, "logits", source.input[0])
    if source is not None and source.op_type == "Softmax":
        _not_called_logits(loss, plain, "Softmax")
        return _form(plain, "probabilities")
    return _form(plain, "probabilities" if loss.from_logits is False else "logits")


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
