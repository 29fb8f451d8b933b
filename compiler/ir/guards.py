"""Nodes on which onnx's own inference (1.23) crashes the process instead of refusing them: found by fuzzing it."""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto
from onnx.defs import OpSchema


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


_GUARDS: dict[str, Callable[[NodeProto], str]] = {"GatherND": _gather_nd, "Split": _split}
