"""Units of work, what a schedule is a list of; and statements, what a plan is a list of."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.codegen.calls import Call, In, Listing, Out
from compiler.codegen.fuse import Group
from compiler.codegen.kernels.strided import copy_bytes
from compiler.codegen.native import ITEMSIZE
from compiler.ir.graph import Node
from compiler.ir.types import Tensor, TensorType

VIEWS = frozenset({"BitCast", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Ops whose output is the memory of their first input."""


OVER = {"onnxc.AddProduct": 2}
"""Ops whose kernel may write its result over an operand -> which one."""


@dataclass(frozen=True)
class Join:
    """Of a unit whose group a node's kernel computes: the value between the two, and whether that has memory.

    result: the one of the node that is computed element by element as well, if there is one.
    """

    node: Node
    value: str
    stored: bool
    result: str = ""


@dataclass(eq=False)
class Unit:
    """What runs as one piece: a fused loop, an optimizer step, the calls of one node, or a node with bodies.

    group, step: their calls are made when it is known which results take over the memory of an operand. join: so are
    those of a node with a group; until then its calls are as if there were no such results.
    held: of the values it reads, those that units of its bodies may read at any time, until it ends.
    """

    nodes: list[Node]
    reads: list[str]
    writes: list[str]
    group: Group | None = None
    step: Node | None = None
    calls: list[Call] = field(default_factory=list)
    branches: tuple[list[Unit], list[Unit]] | None = None
    cycle: Cycle | None = None
    held: list[str] = field(default_factory=list)
    join: Join | None = None

    def over(self, v: str) -> list[str]:
        """The operands in whose memory it may write `v`: each of their elements is read once, just before."""
        if self.group is None:
            own = [n.inputs[OVER[n.op]] for n in self.nodes if n.op in OVER]
            read = [r for n in self.nodes for r in n.inputs]
            return [*(r for r in own if read.count(r) == 1), *self._copied(v)]
        if self.join is None:
            return self.reads
        node, value = self.join.node, self.join.value
        if v in node.outputs and v != self.join.result:
            return []
        return [r for r in self.group.inputs if r != value and r not in node.inputs]

    def _copied(self, v: str) -> list[str]:
        """The operand that its first call copies to `v`, if no other call reads it: to its own place is no call."""
        match self.calls[:1]:
            case [Call(kernel=kernel, args=(In(r, 0), Out(to, 0), _))] if kernel is copy_bytes and to == v:
                return [] if any(r in reads(call) for call in self.calls[1:]) else [r]
        return []

    @property
    def inner(self) -> tuple[list[Unit], ...]:
        """The lists of units of its bodies, in the order in which they are written down."""
        return (self.cycle.before, self.cycle.body) if self.cycle else self.branches or ()

    @property
    def in_pieces(self) -> bool:
        """Whether it works piece by piece: see `In`."""
        args = (a for c in self.calls for a in c.args)
        return self.group is not None or self.step is not None or any(isinstance(a, In | Out) and a.piece for a in args)

    @property
    def checks(self) -> bool:
        """Whether it, or a unit in it, may set the status word."""
        return any(u.checks for b in self.inner for u in b) or any(c.check for c in self.calls)


@dataclass(eq=False)
class Cycle:
    """How a Loop or Scan runs: `before` once, then `body` as long as the flag in the value `go` is set.

    carried: new value of each carried one, and the value in whose memory it lies from iteration to iteration. The
    body ends with copies from the first to the second, which the plan leaves out where both have the same place.
    """

    before: list[Unit]
    body: list[Unit]
    go: str
    carried: list[tuple[str, str]]


@dataclass(frozen=True)
class Window:
    """A slice of a value that moves: `first` bytes behind its start at first, `step` more after each iteration.

    cycle: which loop moves it, by the name of its flag.
    """

    cycle: str
    first: int
    step: int


@dataclass(frozen=True)
class Strided:
    """Where the elements of a view lie in `parent`: the first `offset` elements in, others by strides (in elements)."""

    parent: str
    offset: int
    strides: tuple[int, ...]


@dataclass
class Schedule:
    """All units of a graph in order, and facts of the values in them (those of bodies under unique names)."""

    units: list[Unit]
    types: dict[str, TensorType]
    consts: dict[str, Tensor]
    views: dict[str, str]
    """View -> the value whose memory it is, or a part of whose memory."""
    windows: dict[str, Window] = field(default_factory=dict)
    """Views that are another slice in each iteration of a loop."""
    strided: dict[str, Strided] = field(default_factory=dict)
    """Views that are a part of another value, or lie in it with other strides."""
    parts: dict[str, int] = field(default_factory=dict)
    """Views that a unit writes, and how many bytes behind the start of the other value: operands of a Concat."""

    def root(self, value: str) -> str:
        """The value whose memory this one is: itself unless it is a view."""
        while value in self.views:
            value = self.views[value]
        return value

    def windows_of(self, value: str) -> list[Window]:
        """The windows through which a value is seen in the memory of its root."""
        found = []
        while value in self.views:
            found += [self.windows[value]] if value in self.windows else []
            value = self.views[value]
        return found

    def is_whole(self, value: str) -> bool:
        """Whether a value is all of the memory of its root, in its order."""
        while value in self.views:
            if value in self.windows or value in self.strided or value in self.parts:
                return False
            value = self.views[value]
        return True

    def reach(self, value: str) -> str:
        """The value whose bytes are all that may be touched through this one: itself if its own place is fixed."""
        found = value
        while value in self.views:
            if value in self.windows or value in self.strided:
                found = self.views[value]
            value = self.views[value]
        return found

    def start(self, value: str) -> int:
        """Bytes from the start of its root's memory to that of a value, in the first iterations of the loops around."""
        at = 0
        while value in self.views:
            at += self.windows[value].first if value in self.windows else 0
            at += self.parts.get(value, 0)
            at += self.strided[value].offset * ITEMSIZE[self.types[value].dtype] if value in self.strided else 0
            value = self.views[value]
        return at


@dataclass(frozen=True)
class Statement:
    """One line of the step.

    kind: node (a comment), call, barrier, check (leave if the status is set), if, else, while, end; blocks (what
    follows up to its end runs for each block of a strip) and part (a call on a block).
    word: index in the table of the call's record, of the address of the flag of an if or while, of how many blocks.
    """

    kind: str
    node: Node | None = None
    call: Call | None = None
    word: int = 0


def reads(call: Call) -> list[str]:
    """Values that a call's arguments read."""
    items = [i for a in call.args for i in (a.items if isinstance(a, Listing) else (a,))]
    return [a.value for a in items if isinstance(a, In)]


def writes(call: Call) -> list[str]:
    """Values that a call's arguments write."""
    items = [i for a in call.args for i in (a.items if isinstance(a, Listing) else (a,))]
    return [a.value for a in items if isinstance(a, Out)]
