"""From opset 6 to opset 7, in which broadcasting became NumPy's and training flags left the inference operators.

In opset 6 the second operand of a binary op is broadcast if its attribute `broadcast` is 1: its shape then is a part of
the first operand's, which begins at `axis` (by default it is the end). The slope of PRelu has one element for each
channel. See the ONNX changelog, Add-6 and PRelu-6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from onnx import NodeProto, helper

_BINARY = frozenset({"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"})

_DROPPED: Mapping[str, frozenset[str]] = {
    "BatchNormalization": frozenset({"is_test"}),  # the number of outputs says whether it trains
    "Dropout": frozenset({"is_test"}),
    "Gemm": frozenset({"broadcast"}),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), frozenset({"output_sequence"})),
    **dict.fromkeys(_BINARY, frozenset({"axis", "broadcast"})),
}


class UnknownRank(ValueError):
    """How an operand is broadcast depends on a rank that the model does not tell."""


class Facts(Protocol):
    """What is asked about operands."""

    def rank(self, value: str) -> int | None:
        """The rank; None if it is not known."""
        ...


def to_opset_7(node: NodeProto, facts: Facts, fresh: Callable[[str], str]) -> list[NodeProto]:
    """Nodes of opset 7 that compute what a node of opset 6 does. UnknownRank."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    new = NodeProto()
    new.CopyFrom(node)
    dropped = _DROPPED.get(node.op_type, frozenset())
    del new.attribute[:]
    new.attribute.extend(a for a in node.attribute if a.name not in dropped)
    if node.op_type == "Upsample" and "height_scale" in attrs:
        return [_upsample(new, attrs["height_scale"], attrs["width_scale"])]
    behind = 0
    if node.op_type in _BINARY and attrs.get("broadcast"):
        x, y = _ranks(node, facts)
        axis = attrs.get("axis", x - y)
        behind = x - y - (axis + x if axis < 0 else axis)
    elif node.op_type == "PRelu" and facts.rank(node.input[1]) == 1:
        behind = max(_ranks(node, facts)[0] - 2, 0)
    if behind <= 0:
        return [new]
    y_rank = _ranks(node, facts)[1]
    new.input[1] = fresh(f"{node.input[1]}/broadcast")
    axes = list(range(y_rank, y_rank + behind))
    return [helper.make_node("Unsqueeze", [node.input[1]], [new.input[1]], node.name, axes=axes), new]


def _ranks(node: NodeProto, facts: Facts) -> tuple[int, int]:
    x, y = facts.rank(node.input[0]), facts.rank(node.input[1])
    if x is None or y is None:
        unknown = node.input[0 if x is None else 1]
        raise UnknownRank(f"how it broadcasts depends on the rank of {unknown!r}, which the model does not tell")
    return x, y


def _upsample(node: NodeProto, height: float, width: float) -> NodeProto:
    kept = [a for a in node.attribute if a.name not in ("height_scale", "width_scale")]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("scales", [1.0, 1.0, height, width])])
    return node
