"""The plan of a graph: every call with its addresses, barriers where slices meet, one table of words for all."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.codegen.brief import is_brief
from compiler.codegen.calls import Arg, Call, Data, In, Listing, Moves, Number, Out, Peek, Scratch, Status, Temp, Words
from compiler.codegen.fuse import fused_call
from compiler.codegen.join import joined_calls
from compiler.codegen.kernels.strided import copy_bytes, copy_call
from compiler.codegen.memory import Memory, Place, place
from compiler.codegen.native.threads import BARRIER_BYTES
from compiler.codegen.parts import place_parts
from compiler.codegen.schedule import schedule
from compiler.codegen.steps import step_call
from compiler.codegen.units import VIEWS, Cycle, Schedule, Statement, Unit
from compiler.ir.builder import where
from compiler.ir.graph import Graph, Node
from compiler.ir.types import AnyArray, TensorType
from compiler.runtime.layout import ALIGNMENT, ARENA, CONST, ELEMENTS, TABLE, Layout, Slot, padded

STATUS, BARRIER = 0, ALIGNMENT
"""Offsets in the arena of the status word and of the barrier's block."""

STATUS_WORD, BARRIER_WORD = 0, 1
"""Indices in the table of their addresses."""


_IN_ORDER = (VIEWS - {"BitCast"}) | {"Cast"}
"""Ops that leave each element where it is in row-major order."""


@dataclass
class Plan:
    """What `emit` writes down and the runtime allocates."""

    graph: Graph
    schedule: Schedule
    statements: list[Statement]
    layout: Layout
    const: AnyArray
    """Contents of the const block, uint8."""
    memory: Memory


def make_plan(graph: Graph, threads: int = 1, states: Mapping[str, TensorType] | None = None) -> Plan:
    """Plan a graph for up to `threads` threads. UnsupportedError: nodes without a kernel.

    states: all states in the block, if other graphs share it; the graph's own by default.
    """
    graph = _separate(graph)
    s = schedule(graph)
    own = {v: t.type for v, t in graph.states.items()}
    memory = place_parts(graph, s, lambda: place(graph, s, BARRIER + BARRIER_BYTES, own if states is None else states))
    return _Planner(graph, s, memory, threads).plan()


def _separate(graph: Graph) -> Graph:
    """Give results that are the old value of a state which changes a copy of their own."""
    views = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op in VIEWS}
    changed = {state for state, v in graph.updates.items() if v != state}

    def root(v: str) -> str:
        while v in views:
            v = views[v]
        return v

    copies: dict[str, str] = {}
    nodes, types = list(graph.nodes), dict(graph.types)
    for v in graph.results:
        if root(v) in changed:
            name = f"{v}/old"
            while name in types:
                name += "'"
            copies[v], types[name] = name, types[v]
            nodes.append(Node("onnxc.Copy", (v,), (name,)))
    if not copies:
        return graph
    return Graph(
        graph.name, types, graph.inputs, graph.states, graph.consts, graph.captures, tuple(nodes),
        {public: copies.get(v, v) for public, v in graph.outputs.items()},
        {state: copies.get(v, v) for state, v in graph.updates.items() if v != state},
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Span:
    block: int
    start: int
    end: int
    written: bool


class _Touched:
    """The memory that calls since the last barrier read and wrote, as disjoint ranges in order, for each block."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[int, bool], tuple[list[int], list[int]]] = {}  # (block, written) -> starts, ends

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def meets(self, span: _Span) -> bool:
        """Whether threads could meet in this span: one side writes what the other reads or writes."""
        return any(self._overlaps(span, written) for written in ((True, False) if span.written else (True,)))

    def _overlaps(self, span: _Span, written: bool) -> bool:
        starts, ends = self._ranges.get((span.block, written), ((), ()))
        i = bisect.bisect_right(ends, span.start)  # the first range that ends behind the span's start
        return i < len(starts) and starts[i] < span.end

    def add(self, span: _Span) -> None:
        """Count a span as touched."""
        starts, ends = self._ranges.setdefault((span.block, span.written), ([], []))
        i, j = bisect.bisect_left(ends, span.start), bisect.bisect_right(starts, span.end)
        start, end = (min(span.start, starts[i]), max(span.end, ends[j - 1])) if i < j else (span.start, span.end)
        starts[i:j], ends[i:j] = [start], [end]


@dataclass
class _Planner:
    graph: Graph
    s: Schedule
    memory: Memory
    threads: int
    statements: list[Statement] = field(default_factory=list)
    words: list[tuple[int, int]] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)
    """What checks report, and the input whose elements each is about, or ''."""
    touched: _Touched = field(default_factory=_Touched)
    extra: dict[object, tuple[int, AnyArray]] = field(default_factory=dict)
    scratch: int = 0
    moves: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Loop -> the words whose address moves with its iterations, and by how many bytes."""
    moving: set[int] = field(default_factory=set)

    def plan(self) -> Plan:
        self.scratch = padded(max([0, *self._scratches(self.s.units)]))
        self.scratch_at = self.memory.arena_bytes
        self.memory.arena_bytes += self.scratch * self.threads
        self.words = [(ARENA, STATUS), (ARENA, BARRIER)]
        units = self.s.units
        last_check = max((i for i, u in enumerate(units) if u.checks), default=-1)
        for i, u in enumerate(units):
            self._unit(u)
            if i == last_check:
                self._barrier()
                self.statements.append(Statement("check"))
        self._commit()
        self._barrier()
        return Plan(self.graph, self.s, self.statements, self._layout(), self._const(), self.memory)

    def _scratches(self, units: Sequence[Unit]) -> list[int]:
        found = []
        for u in units:
            found += [a.nbytes for c in u.calls for a in c.args if isinstance(a, Scratch)]
            for nested in u.inner:
                found += self._scratches(nested)
        return found

    # --- statements --------------------------------------------------------------------------------------
    def _unit(self, u: Unit) -> None:
        for node in u.nodes:
            self.statements.append(Statement("node", node))
        if u.branches is not None:
            self._branch(u)
            return
        if u.cycle is not None:
            self._cycle(u.cycle)
            return
        calls = u.calls
        if u.join is not None:
            calls = joined_calls(u, self.s, self.memory.inplace.get(id(u), {}))
        elif u.group is not None:
            strides = {v: self.s.strided[v].strides for v in (*u.reads, *u.writes) if v in self.s.strided}
            calls = [fused_call(u.group, self.s.types, self.s.consts, self.memory.inplace.get(id(u), {}), strides)]
        if u.step is not None:
            calls = [step_call(u.step, self.s.types, bool(self.memory.inplace[id(u)]))]
        for call in calls:
            self._call(u, call)

    def _test(self, kind: str, value: str) -> None:
        """Begin a block: all threads look at a flag, which must not change before all have seen it."""
        self._barrier()
        self.words.append(self._address(In(value)))
        word = len(self.words) - 1
        self._let_move(word, value)
        self.statements.append(Statement(kind, word=word))
        self._see(value, word)

    def _see(self, value: str, word: int) -> None:
        """Count a flag as read, and the word with its address."""
        for span in (*self._spans(In(value), Unit([], [], [])), _Span(TABLE, 8 * word, 8 * word + 8, False)):
            self.touched.add(span)

    def _cycle(self, c: Cycle) -> None:
        for u in c.before:
            self._unit(u)
        self._test("while", c.go)
        word = len(self.words) - 1
        for u in c.body:
            if not any(
                u.reads == [v] and u.writes == [to] and self._place(v) == self._place(to) for v, to in c.carried
            ):
                self._unit(u)  # (else it copies a value to its own place)
        self._barrier()
        self.statements.append(Statement("end"))
        self._see(c.go, word)

    def _branch(self, u: Unit) -> None:
        assert u.branches is not None
        self._test("if", u.nodes[0].inputs[0])
        for which, branch in zip(("else", "end"), u.branches, strict=True):
            for inner in branch:
                self._unit(inner)
            self._barrier()
            self.statements.append(Statement(which))

    def _call(self, u: Unit, call: Call) -> None:
        if call.kernel is copy_bytes and self._arg(call.args[0], u) == self._arg(call.args[1], u):
            return  # an operand of a Concat that is a part of it already
        spans = [s for a in call.args for s in self._spans(a, u)]
        record = [(-1, call.n)]
        moving: list[tuple[int, str]] = []
        before = len(self.words)
        for a in call.args:
            if isinstance(a, In | Out):
                moving.append((len(record), a.value))
            record += self._arg(a, u)
        start = len(self.words)
        self.words += record
        for at, v in moving:
            self._let_move(start + at, v)
        spans += [_Span(TABLE, 8 * w, 8 * w + 8, False) for w in range(before, len(self.words)) if w in self.moving]
        if any(self.touched.meets(span) for span in spans):
            self._barrier()
        for span in spans:
            self.touched.add(span)
        self.statements.append(Statement("call", call=call, word=start))

    def _let_move(self, word: int, value: str) -> None:
        """Remember a word with the address of a value that is another one in each iteration of a loop."""
        for window in self.s.windows_of(value):
            self.moves.setdefault(window.cycle, []).append((word, window.step))
            self.moving.add(word)

    def _barrier(self) -> None:
        if self.touched:
            self.statements.append(Statement("barrier"))
            self.touched = _Touched()

    def _commit(self) -> None:
        """Copy new values to their states where they were not computed there."""
        unit = Unit([], [], [])
        for state, v in self.graph.updates.items():
            if state not in self.memory.committed and v != state:
                self.statements.append(Statement("node", Node("onnxc.Copy", (v,), (state,))))
                self._call(unit, copy_call(In(v), Out(state), self.s.types[v].nbytes))

    # --- addresses ---------------------------------------------------------------------------------------
    def _place(self, value: str) -> Place:
        """Where a value is, at the first iteration of the loops that move it."""
        p = self.memory.places[self.s.root(value)]
        return Place(p.block, p.offset + self.s.start(value))

    def _address(self, a: In | Out) -> tuple[int, int]:
        p = self._place(a.value)
        return p.block, p.offset + a.offset

    def _spans(self, a: Arg, u: Unit) -> list[_Span]:
        match a:
            case In(v, _) | Out(v, _):
                v = self.s.reach(v)
                p = self._place(v)
                return [_Span(p.block, p.offset, p.offset + max(1, self.s.types[v].nbytes), isinstance(a, Out))]
            case Temp(key, nbytes, writes):
                p = self.memory.temps[id(u), key]
                return [_Span(p.block, p.offset, p.offset + max(1, nbytes), writes)]
            case Moves(cycle):
                return [_Span(TABLE, 8 * word, 8 * word + 8, True) for word, _ in self.moves.get(cycle, ())]
            case Listing(items):
                return [s for i in items if not isinstance(i, int) for s in self._spans(i, u)]
        return []

    def _arg(self, a: Arg, u: Unit) -> list[tuple[int, int]]:
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
                return [(CONST, self._extra(values, np.array(values, np.int64)))]
            case Data(tensor):
                return [(CONST, self._extra(tensor, tensor.array))]
            case Number(value):
                return [(-1, struct.unpack("<q", struct.pack("<d", value))[0])]
            case Status(what, value):
                message = f"{what}, in {where(u.nodes[0])}"
                if u not in self.s.units:  # in a body: what comes from outside, and is the same in all iterations
                    value = self.s.root(value) if self.s.is_whole(value) else ""
                self.messages.setdefault(message, self._fed(value))
                return [(ARENA, STATUS), (-1, (list(self.messages).index(message) + 1) * ELEMENTS)]
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

    def _extra(self, key: object, array: AnyArray) -> int:
        if key not in self.extra:
            self.extra[key] = (self.memory.const_bytes, array)
            self.memory.const_bytes += padded(array.nbytes)
        return self.extra[key][0]

    # --- results -----------------------------------------------------------------------------------------
    def _const(self) -> AnyArray:
        block = np.zeros(self.memory.const_bytes, np.uint8)
        for v, t in self.s.consts.items():
            _store(block, self.memory.places[v].offset, t.array)
        for offset, array in self.extra.values():
            _store(block, offset, array)
        return block

    def _slots(self, values: Mapping[str, str]) -> tuple[Slot, ...]:
        slots = []
        for name, v in values.items():
            p, t = self._place(v), self.s.types[v]
            slots.append(Slot(name, t.dtype, t.shape, p.block, p.offset))
        return tuple(slots)

    def _layout(self) -> Layout:
        m, g = self.memory, self.graph
        return Layout(
            inputs=self._slots({v: v for v in g.inputs}),
            outputs=self._slots(g.outputs),
            states=self._slots({v: v for v in g.states}),
            arena_bytes=padded(m.arena_bytes),
            state_bytes=m.state_bytes,
            const_bytes=m.const_bytes,
            status=STATUS,
            messages=tuple(self.messages),
            checked=tuple(self.messages.values()),
            threads=self.threads,
            table_blocks=tuple(b for b, _ in self.words),
            table_values=tuple(v for _, v in self.words),
            brief=is_brief(self.statements, self.s.types),
        )


def _store(block: AnyArray, offset: int, array: AnyArray) -> None:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    block[offset : offset + data.size] = data
