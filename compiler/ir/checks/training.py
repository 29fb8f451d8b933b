"""Losses, optimizers and dropout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from compiler.ir.checks.base import NodeFacts, precondition, shown, wrong_shape
from compiler.ir.proto import TRAINING_DOMAIN


@precondition("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _class_loss(f: NodeFacts) -> Iterator[str]:
    scores, labels = f.shape(0), f.shape(1)
    if len(scores) < 2:
        yield f"the scores {shown(scores)} have no axis of classes"
        return
    per_label = (scores[0], *scores[2:])
    classes = scores[1]
    if labels != per_label:
        yield f"the labels have the shape {shown(labels)}, where {shown(per_label)} is expected"
    if f.has(2) and f.shape(2) != (classes,):
        yield f"the weights have the shape {shown(f.shape(2))}, where [{classes}] is expected"
    if classes == 0:
        yield "there are no classes"
    known, ignored = f.known(1), f.node.attr("ignore_index")
    if known is not None:
        counted = known if ignored is None else known[known != ignored]
        if counted.size and not 0 <= int(np.min(counted)) <= int(np.max(counted)) < classes:
            yield f"a label is out of the range of {classes} classes"
    yield from wrong_shape(f, per_label if f.attr("reduction") == "none" else ())
    yield from wrong_shape(f, scores, 1)


_ROLES = {
    "Adagrad": ("variable", "gradient", "accumulated square"),
    "Momentum": ("variable", "gradient", "momentum"),
    "Adam": ("variable", "gradient", "momentum", "accumulated square"),
}


@precondition(*(f"{TRAINING_DOMAIN}.{name}" for name in _ROLES))
def _optimizer(f: NodeFacts) -> Iterator[str]:
    """R, T, then for each role the tensors of all variables; the outputs are those of all roles but the gradient."""
    roles = _ROLES[f.node.op_type]
    tensors = f.ins[2:]
    count, rest = divmod(len(tensors), len(roles))
    if rest or not count:
        yield f"{len(tensors)} tensors cannot be divided into {', '.join(roles)} of each variable"
        return
    if len(f.outs) > count * (len(roles) - 1):
        yield f"{len(f.outs)} outputs for {count} variables"
    for i in range(count):
        variable = tensors[i]
        for role, name in enumerate(roles[1:], start=1):
            if variable is not None and tensors[role * count + i] != variable:
                yield f"the {name} of variable {i} is {tensors[role * count + i]}, but the variable is {variable}"
    scalar = any(t is not None and not t.shape for t in tensors)
    for i, name in enumerate(("learning rate", "iteration count")):
        # one element in a list is taken as well: it broadcasts against all but scalar variables
        if f.shape(i) != () and (f.shape(i) != (1,) or scalar):
            yield f"the {name} is {f.type(i)}, not a scalar"
    for i, out in enumerate(f.outs):
        role, variable_index = divmod(i, count)
        expected = tensors[variable_index]
        if out is not None and out != expected:
            yield f"output {i} is {out}, where {expected} is expected for role {roles[role if role == 0 else role + 1]}"


@precondition(f"{TRAINING_DOMAIN}.Gradient")
def _gradient(f: NodeFacts) -> Iterator[str]:
    """Operands: y, xs, zs, then a value for each of xs and zs, perhaps of another batch."""
    n, m = f.node.attr("xs", 0), f.node.attr("zs", 0)
    for i in range(1 + n):
        if not f.type(i).is_float:
            yield f"operand {i} is {f.type(i)}: only floating point has derivatives"
    for i in range(1, 1 + n + m):
        named, given = f.type(i), f.type(n + m + i)
        if (named.dtype, named.rank) != (given.dtype, given.rank):
            yield f"operand {i} is {named}, but the value given for it is {given}"


@precondition("If")
def _if(f: NodeFacts) -> Iterator[str]:
    if f.type(0).dtype != "bool" or f.type(0).size != 1:
        yield f"the condition is {f.type(0)}, not one bool"
    for name, body in f.node.bodies.items():
        if body.inputs:
            yield f"{name} has the input {body.inputs[0]!r}: it may only capture values"


@precondition("Dropout")
def _dropout(f: NodeFacts) -> Iterator[str]:
    ratio = f.known(1)
    if ratio is not None and not 0 <= float(ratio) < 1:
        yield f"the ratio is {float(ratio):g}, not at least 0 and below 1"


@precondition("Multinomial")
def _multinomial(f: NodeFacts) -> Iterator[str]:
    if f.attr("sample_size") < 1 or 0 in f.shape(0)[1:]:
        yield f"{f.attr('sample_size')} samples of {shown(f.shape(0))} are impossible"
