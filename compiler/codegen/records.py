"""Records: what a call's arguments are in memory, as words of the table."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from compiler.codegen.calls import Arg, Call, Data, In, Listing, Moves, Number, Out, Peek, Scratch, Status, Temp, Words
from compiler.codegen.memory import Memory, Place, positions
from compiler.codegen.spans import Placed, Span
from compiler.codegen.units import VIEWS, Schedule, Unit
from compiler.ir.builder import where
from compiler.ir.graph import Graph, Node
from compiler.ir.types import AnyArray
from compiler.runtime.layout import ALIGNMENT, ARENA, CONST, ELEMENTS, TABLE, Message, padded

STATUS, BARRIER = 0, ALIGNMENT
"""Offsets in the arena of the status word and of the barrier's block."""

STATUS_WORD, BARRIER_WORD = 0, 1
"""Indices in the table of their addresses."""


_IN_ORDER = (VIEWS - {"BitCast"}) | {"Cast"}
"""Ops that leave each element where it is in row-major order."""


@dataclass
class Records:
    """The words of the table, and what goes with them: constants, messages, memory of each thread's own."""

    graph: Graph
    s: Schedule
    memory: Memory
    threads: int
    words: list[tuple[int, int]] = field(default_factory=lambda: [(ARENA, STATUS), (ARENA, BARRIER)])
    messages: list[Message] = field(default_factory=list)
    """What checks report, in their order."""
    constants: dict[object, tuple[int, AnyArray]] = field(default_factory=dict)
    """Constants of kernels, with their places."""
    scratch: int = 0
    """Bytes of each thread's own memory, from `scratch_at` on."""
    scratch_at: int = 0
    moves: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Loop -> the words whose address moves with its iterations, and by how many bytes."""
    moving: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        calls = [(u, c) for u in positions(self.s.units) for c in u.calls]
        self.scratch = padded(max([0, *(a.nbytes for _, c in calls for a in c.args if isinstance(a, Scratch))]))
        self.scratch_at = self.memory.arena_bytes
        self.memory.arena_bytes += self.scratch * self.threads
        found = (self._message(a, u) for u, c in calls for a in c.args if isinstance(a, Status))
        self.messages = list(dict.fromkeys(found))

    def call(self, u: Unit, call: Call, nodes: list[Node]) -> Placed:
        """Write the record of a call. u: whose call it is; nodes: as of `Placed`."""
        spans = [s for a in call.args for s in self.spans(a, u)]
        record = [(-1, call.n)]
        moving: list[tuple[int, str]] = []
        before = len(self.words)
        for a in call.args:
            if isinstance(a, In | Out):
                moving.append((len(record), a.value))
            record += self.argument(a, u)
        start, step = len(self.words), 0
        self.words += record
        if any(s.piece for s in spans):
            step = len(self.words)
            self.words.append((-1, 0))
        for at, v in moving:
            self._let_move(start + at, v)
        spans += [Span(TABLE, 8 * w, 8 * w + 8, False) for w in range(before, len(self.words)) if w in self.moving]
        return Placed(call, start, step, spans, nodes)

    def flag(self, value: str) -> int:
        """The word with the address of a value."""
        self.words.append(self._address(In(value)))
        self._let_move(len(self.words) - 1, value)
        return len(self.words) - 1

    def number(self, n: int) -> int:
        """The word with a number."""
        self.words.append((-1, n))
        return len(self.words) - 1

    def place(self, value: str) -> Place:
        """Where a value is, at the first iteration of the loops that move it."""
        p = self.memory.places[self.s.root(value)]
        return Place(p.block, p.offset + self.s.start(value))

    def _address(self, a: In | Out) -> tuple[int, int]:
        p = self.place(a.value)
        return p.block, p.offset + a.offset

    def spans(self, a: Arg, u: Unit) -> list[Span]:
        """The memory behind an argument of a call of a unit."""
        match a:
            case In(v, _) | Out(v, _):
                reached = self.s.reach(v)
                p, nbytes = self.place(reached), self.s.types[reached].nbytes
                piece = a.piece if reached == v and not a.offset else 0
                return [Span(p.block, p.offset, p.offset + max(1, nbytes), isinstance(a, Out), piece)]
            case Temp(key, nbytes, writes):
                p = self.memory.temps[id(u), key]
                return [Span(p.block, p.offset, p.offset + max(1, nbytes), writes)]
            case Moves(cycle):
                return [Span(TABLE, 8 * word, 8 * word + 8, True) for word, _ in self.moves.get(cycle, ())]
            case Listing(items):
                return [s for i in items if not isinstance(i, int) for s in self.spans(i, u)]
        return []

    def argument(self, a: Arg, u: Unit) -> list[tuple[int, int]]:
        """The words for an argument of a call of a unit."""
        match a:
            case int():
                return [(-1, a)]
            case In() | Out():
                return [self._address(a)]
            case Temp(key, _, _):
                p = self.memory.temps[id(u), key]
                return [(p.block, p.offset)]
            case Scratch():
                return [(ARENA, self.scratch_at), (-1, self.scratch)]
            case Words(values):
                return [(CONST, self._constant(values, np.array(values, np.int64)))]
            case Data(tensor):
                return [(CONST, self._constant(tensor, tensor.array))]
            case Number(value):
                return [(-1, struct.unpack("<q", struct.pack("<d", value))[0])]
            case Status():  # of checks that fail the first one has the largest number
                number = len(self.messages) - self.messages.index(self._message(a, u))
                return [(ARENA, STATUS), (-1, number * ELEMENTS)]
            case Peek():  # (where nothing is checked nobody looks at the word, and it may be that of an earlier run)
                return [(ARENA, STATUS) if self.messages else (-1, 0)]
            case Listing(items):
                start = len(self.words)
                self.words += [(-1, i) if isinstance(i, int) else self._address(i) for i in items]
                for k, i in enumerate(items):
                    if not isinstance(i, int):
                        self._let_move(start + k, i.value)
                return [(TABLE, 8 * start)]
            case Moves(cycle):
                start, moves = len(self.words), self.moves.get(cycle, [])
                self.words += [w for word, step in moves for w in ((TABLE, 8 * word), (-1, step))]
                return [(TABLE, 8 * start), (-1, len(moves))]
        raise AssertionError(a)

    def _let_move(self, word: int, value: str) -> None:
        """Remember a word with the address of a value that is another one in each iteration of a loop."""
        for window in self.s.windows_of(value):
            self.moves.setdefault(window.cycle, []).append((word, window.step))
            self.moving.add(word)

    def _message(self, a: Status, u: Unit) -> Message:
        """What a check of a unit reports."""
        return Message(a.what, a.value, self._checked(a, u), where(u.nodes[0]))

    def _checked(self, a: Status, u: Unit) -> str:
        """The input of the graph whose elements a check is about, or ''."""
        value = a.value
        if u not in self.s.units:  # in a body: what comes from outside, and is the same in all iterations
            value = self.s.root(value) if self.s.is_whole(value) else ""
        return self._fed(value)

    def _fed(self, value: str) -> str:
        """The input of the graph whose elements are those of a value, in the same order; '' if there is none."""
        while value and (node := self.graph.producer(value)) is not None and (given := self._in_order(node)):
            value = given
        return value if value in self.graph.inputs else ""

    def _in_order(self, node: Node) -> str:
        """The operand whose elements are those of the node's result, in the same order, or some of them, or ''.

        Of Where that is the one that has 0 for those it leaves out, which is no number to tell of: 0 is in any range.
        """
        if node.op in _IN_ORDER:
            return node.inputs[0]
        if node.op != "Where":
            return ""
        zero, given = node.inputs[1:] if self._is_zero(node.inputs[1]) else node.inputs[:0:-1]
        same = self.s.types[given].shape == self.s.types[node.outputs[0]].shape
        return given if same and self._is_zero(zero) else ""

    def _is_zero(self, value: str) -> bool:
        constant = self.graph.constant(value)
        return constant is not None and not constant.any()

    def _constant(self, key: object, array: AnyArray) -> int:
        if key not in self.constants:
            self.constants[key] = (self.memory.const_bytes, array)
            self.memory.const_bytes += padded(array.nbytes)
        return self.constants[key][0]

    def const_block(self) -> AnyArray:
        """Contents of the const block, uint8."""
        block = np.zeros(self.memory.const_bytes, np.uint8)
        for v, t in self.s.consts.items():
            _store(block, self.memory.places[v].offset, t.array)
        for offset, array in self.constants.values():
            _store(block, offset, array)
        return block


def _store(block: AnyArray, offset: int, array: AnyArray) -> None:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    block[offset : offset + data.size] = data
