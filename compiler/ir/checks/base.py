"""The registry of preconditions, what they are given, and what many of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from compiler.ir.graph import Attr, Node
from compiler.ir.known import Values
from compiler.ir.proto import default
from compiler.ir.types import AnyArray, TensorType

MAX_ELEMENTS = 2**40
"""Elements a tensor may have: sizes and offsets in bytes then fit into int64 with much to spare."""


@dataclass(frozen=True)
class NodeFacts:
    """A node, the types of its inputs and outputs (None where absent), and what is known of values."""

    node: Node
    ins: tuple[TensorType | None, ...]
    outs: tuple[TensorType | None, ...]
    values: Values

    def has(self, i: int) -> bool:
        """Whether the i-th input is present."""
        return i < len(self.ins) and self.ins[i] is not None

    def type(self, i: int) -> TensorType:
        """Type of the i-th input, which must be present."""
        t = self.ins[i]
        assert t is not None
        return t

    def shape(self, i: int) -> tuple[int, ...]:
        """Shape of the i-th input, which must be present."""
        return self.type(i).shape

    def out(self, i: int = 0) -> tuple[int, ...] | None:
        """Shape of the i-th output; None if that is absent."""
        t = self.outs[i] if i < len(self.outs) else None
        return None if t is None else t.shape

    def known(self, i: int) -> AnyArray | None:
        """Value of the i-th input if it is present and known at compile time."""
        return self.values(self.node.inputs[i]) if self.has(i) else None

    def ints(self, i: int) -> list[int] | None:
        """The same as a flat list of integers."""
        value = self.known(i)
        return None if value is None else [int(v) for v in value.reshape(-1).tolist()]

    def attr(self, name: str) -> Attr:
        """An attribute, or the schema's default, or None."""
        return self.node.attr(name, default(self.node.op, name))


Precondition = Callable[[NodeFacts], Iterator[str]]

PRECONDITIONS: dict[str, list[Precondition]] = {}
"""op -> functions that say what is wrong with a node of it."""


def precondition(*ops: str) -> Callable[[Precondition], Precondition]:
    """Register a function for these ops."""

    def register(function: Precondition) -> Precondition:
        for op in ops:
            PRECONDITIONS.setdefault(op, []).append(function)
        return function

    return register


def elements_spanned(t: TensorType) -> int:
    """Elements of a tensor if dimensions of 0 are left out: strides go up to this even in an empty tensor."""
    return prod(d for d in t.shape if d)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Unidirectional broadcasting: whether `shape` can be repeated to `target`."""
    if len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))


def shown(shape: Sequence[int]) -> str:
    """A shape for messages: `[2, 3]`."""
    return str(list(shape))


def wrong_shape(f: NodeFacts, expected: Sequence[int], i: int = 0) -> Iterator[str]:
    """Compare an output's shape with the one counted here: onnx's inference is not to be relied on."""
    found = f.out(i)
    if found is not None and found != tuple(expected):
        yield f"output {i} has the shape {shown(expected)}, where {shown(found)} was inferred"


def axes_of(axes: Sequence[int], rank: int) -> list[int]:
    """Axes from 0 on; they must be in range."""
    return [a + rank if a < 0 else a for a in axes]


def bad_axes(axes: Sequence[int], rank: int) -> Iterator[str]:
    """Axes out of range or repeated."""
    for a in axes:
        if not -rank <= a < rank:
            yield f"axis {a} is out of the range of rank {rank}"
    if len(set(axes_of(axes, rank))) < len(axes):
        yield f"the axes {shown(axes)} repeat one"
