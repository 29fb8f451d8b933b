"""Nodes that onnx's own inference (1.23) must not see.

It crashes the process instead of refusing them, as fuzzing it found, or it refuses them without telling what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto
from onnx.defs import OpSchema

from compiler.ir.equations import malformed
from compiler.ir.proto import TRAINING_DOMAIN


def crash(node: NodeProto, schema: OpSchema) -> str:
    """What is wrong with a node that must not be given to onnx's inference; '' if it may be.

    schema: of the node's operator at its opset.
    """
    for i, (v, formal) in enumerate(zip(node.input, schema.inputs, strict=False)):
        if not v and formal.option != OpSchema.FormalParameterOption.Optional:
            return f"input {i} ({formal.name}) is absent"
    for a in node.attribute:
        if a.name in ("axis", "batch_dims") and not -(2**31) <= a.i < 2**31:
            return f"attribute {a.name!r} is {a.i}"
    if node.domain == TRAINING_DOMAIN and node.op_type in _ROLES:
        return _optimizer(node)
    return _GUARDS[node.op_type](node) if node.op_type in _GUARDS and not node.domain else ""


def _attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _split(node: NodeProto) -> str:
    outputs = len(node.output)
    parts = _attribute(node, "num_outputs", outputs)
    return "" if parts == outputs else f"num_outputs is {parts}, but there are {outputs} outputs"


def _gather_nd(node: NodeProto) -> str:
    batch = _attribute(node, "batch_dims", 0)
    return "" if batch >= 0 else f"batch_dims {batch} is negative"


_ROLES = {
    "Adagrad": ("accumulated squares",),
    "Adam": ("momentums", "accumulated squares"),
    "Momentum": ("momentums",),
}
"""What else an optimizer computes, for each variable."""


def _optimizer(node: NodeProto) -> str:
    """The operands are R, T, the variables, their gradients, and what it computes besides: all are outputs as well."""
    roles = _ROLES[node.op_type]
    count, rest = divmod(len(node.input) - 2, 2 + len(roles))
    needed = count * (1 + len(roles))
    if rest or count < 1:
        n, each = len(node.input) - 2, ", all ".join(("variables", "gradients", *roles))
        what = f"{node.op_type} has {n} operands behind R and T, which is no multiple of {2 + len(roles)}"
        return f"{what}: they are all {each}"
    if len([v for v in node.output if v]) >= needed:
        return ""
    what = ", ".join(f"the new {r}" for r in ("variables", *roles))
    variables = "one variable" if count == 1 else f"{count} variables"
    return f"{node.op_type} of {variables} has {needed} outputs ({what}), of which some are left out or have no name"


def _einsum(node: NodeProto) -> str:
    """A malformed term keeps onnx's inference busy for ever."""
    equation = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "equation"), "")
    return malformed(equation)


_GUARDS: dict[str, Callable[[NodeProto], str]] = {"Einsum": _einsum, "GatherND": _gather_nd, "Split": _split}
