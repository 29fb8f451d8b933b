"""Running statistics that are variables of their own.

Exporters make one tensor of equal ones: the zeros of an untrained network are biases and running means, the ones scales
and running variances. Such a tensor cannot do both, as a step has one next value for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from onnx import ModelProto, NodeProto, numpy_helper

from compiler.frontend.making.facts import Facts
from compiler.frontend.making.select import Candidate
from compiler.frontend.names import Names

_KINDS = {3: "running_mean", 4: "running_var"}
"""Operands of BatchNormalization."""


def separate_statistics(
    model: ModelProto,
    facts: Facts,
    known: Mapping[str, Candidate],
    changed: Iterable[NodeProto],
    training: Set[str],
) -> set[str]:
    """Give BatchNormalization copies of statistics that something else reads, too, in place; the names of the copies.

    changed: nodes that get their training form. training: tensors that train. A tensor that is only ever the running
    mean, or only the variance, stays shared: that is a layer that is used several times. What neither trains nor is
    updated stays as it is.
    """
    forms = {node.output[0] for node in changed if node.op_type == "BatchNormalization"}
    moved = training | {facts.origin(v) for node in changed if node.output[0] in forms for v in node.input[3:5]}
    names = Names(model.graph)
    copies: dict[tuple[str, int], str] = {}
    for node in model.graph.node:
        if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
            continue
        for position, kind in _KINDS.items():
            statistic = node.input[position]
            tensor = facts.origin(statistic)
            hidden = tensor != statistic and node.output[0] in forms  # behind an Identity, which no step can update
            if tensor not in known or tensor not in moved or not (hidden or _has_another_role(facts, tensor, position)):
                continue
            key = tensor, position
            if key not in copies:
                copies[key] = names.fresh(f"{tensor}.{kind}")
                model.graph.initializer.append(numpy_helper.from_array(known[tensor].read(), copies[key]))
            node.input[position] = copies[key]
    return set(copies.values())


def _has_another_role(facts: Facts, tensor: str, position: int) -> bool:
    """Whether a tensor is anything else than this operand of BatchNormalization, also behind an Identity."""
    for node, at in facts.readers[tensor]:
        if node.op_type == "Identity":
            if _has_another_role(facts, node.output[0], position):
                return True
        elif node.op_type != "BatchNormalization" or at != position:
            return True
    return tensor in facts.outputs
