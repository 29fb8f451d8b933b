"""`Tracker`: where the axis of samples is, on the way through a graph.

An axis is followed by position. Shapes that are computed are followed by content: arrays of numbers in which `N` is the
number of samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.frontend.making.facts import Facts
from compiler.frontend.names import Names
from compiler.ir.types import AnyArray


class Mixed(Exception):
    """Samples are mixed, or may be."""


_SMALL = 64
"""Elements up to which a tensor may be a shape."""

_FOLDED = {
    "Unsqueeze",
    "Squeeze",
    "Gather",
    "Concat",
    "Slice",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Reshape",
    "Identity",
}

N = "N"
"""The number of samples, in the content of a shape."""


class Tracker:
    """The state of the walk. axis: value -> its axis of samples. content: value -> array of numbers and `N`.

    replaced: operands that were replaced.
    """

    def __init__(self, facts: Facts, names: Names):
        self.facts = facts
        self.names = names
        self.axis: dict[str, int] = {}
        self.content: dict[str, AnyArray] = {}
        self._folded: dict[str, AnyArray] = {}
        self.replaced: set[str] = set()
        self._inputs: dict[int, str] = {}

    def dims(self, value: str) -> list[int | str | None]:
        """Dims at one sample. Mixed: the rank is not known."""
        dims = self.facts.dims(value)
        if dims is None:
            raise Mixed(f"the rank of {value!r} is not known")
        return dims

    def rank(self, value: str) -> int:
        """Number of axes."""
        return len(self.dims(value))

    def known(self, value: str) -> AnyArray | None:
        """The content of a small integer tensor."""
        for values in (self.content, self._folded):
            if value in values:
                return values[value]
        found = self.facts.constant(value)
        return None if found is None else found.astype(object)

    def set(self, node: NodeProto, axis: int) -> None:
        """All outputs have the samples on this axis."""
        self.axis.update((v, axis) for v in node.output if v)

    def put(self, node: NodeProto, content: AnyArray) -> None:
        """The content of the output, which no longer counts samples if there is no `N` in it."""
        array = np.asarray(content, object)
        values = self.content if N in array.reshape(-1).tolist() else self._folded
        values[str(node.output[0])] = array

    def fold(self, node: NodeProto) -> None:
        """Compute a shape that has nothing to do with the samples, if that is what a node does."""
        if node.op_type == "Shape":
            dims = self.facts.dims(node.input[0]) or [None]
            if all(isinstance(d, int) for d in dims) and not node.attribute:
                self.put(node, np.array(dims, object))
            return
        values = [self.known(v) for v in node.input]
        if node.op_type not in _FOLDED or any(v is None or v.size > _SMALL for v in values):
            return
        if any(self.facts.elem_type(v) != TensorProto.INT64 for v in (*node.input, node.output[0])):
            return
        evaluator = ReferenceEvaluator(node, opsets={"": self.facts.opset})
        feeds = {v: a.astype(np.int64) for v, a in zip(node.input, values, strict=True) if a is not None}
        results: Any = evaluator.run(None, feeds)
        self.put(node, np.asarray(results[0]).astype(object))

    def replace(self, node: NodeProto, position: int, array: AnyArray) -> None:
        """Give an operand of the node at hand another constant."""
        name = self.names.fresh(f"{node.input[position]}.batched")
        self.facts.model.graph.initializer.append(numpy_helper.from_array(array, name))
        self._inputs[position] = name

    def drop(self, position: int) -> None:
        """Leave an operand of the node at hand out."""
        self._inputs[position] = ""

    def rewrite(self, node: NodeProto) -> None:
        """Replace the operands of a node that its rule wants replaced."""
        for position, name in self._inputs.items():
            self.replaced.add(node.input[position])
            node.input[position] = name
        self._inputs.clear()


Rule = Callable[[Tracker, NodeProto], None]
"""Sets the axis of a node's outputs, or says that samples are `Mixed`."""


def only_first(t: Tracker, node: NodeProto) -> int:
    """The axis of the first operand, which is the only one with samples."""
    if node.input[0] not in t.axis or any(v in t.axis for v in node.input[1:]):
        raise Mixed("an operand that belongs to all samples depends on them")
    return t.axis[node.input[0]]


def same(t: Tracker, node: NodeProto) -> None:
    """Samples stay where they are."""
    t.set(node, only_first(t, node))
