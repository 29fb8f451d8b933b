"""The plan of a graph: every call with its addresses, barriers where slices meet, one table of words for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from compiler.codegen.brief import is_brief
from compiler.codegen.calls import Call, In, Out
from compiler.codegen.fuse import fused_call
from compiler.codegen.join import joined_calls
from compiler.codegen.kernels.strided import copy_bytes, copy_call
from compiler.codegen.memory import Memory, lingering, place
from compiler.codegen.native.threads import BARRIER_BYTES
from compiler.codegen.parts import place_parts
from compiler.codegen.records import BARRIER, STATUS, Records
from compiler.codegen.schedule import schedule
from compiler.codegen.spans import Placed, Span, Touched
from compiler.codegen.steps import step_call
from compiler.codegen.strips import Strip, strips
from compiler.codegen.units import VIEWS, Cycle, Schedule, Statement, Unit
from compiler.ir.graph import Graph, Node
from compiler.ir.types import AnyArray, TensorType
from compiler.runtime.layout import TABLE, Layout, Slot, padded


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

    def placed(linger: Mapping[int, int] = MappingProxyType({})) -> Memory:
        return place(graph, s, BARRIER + BARRIER_BYTES, own if states is None else states, linger)

    memory = place_parts(graph, s, placed)
    if (longer := placed(lingering(s, memory))).arena_bytes <= memory.arena_bytes:
        memory = replace(longer, lives=memory.lives)  # what has to live: the rest may give way
    return _Planner(graph, s, memory, Records(graph, s, memory, threads)).plan()


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


@dataclass
class _Planner:
    """Writes the statements, and by `records` the table."""

    graph: Graph
    s: Schedule
    memory: Memory
    records: Records
    statements: list[Statement] = field(default_factory=list)
    line: list[Placed] = field(default_factory=list)
    """Calls that are not in the statements yet."""
    nodes: list[Node] = field(default_factory=list)
    """What the next calls compute."""
    untold: list[Node] = field(default_factory=list)
    """Of these, what no call was said to compute."""
    told: list[Node] = field(default_factory=list)
    """What the last statements say they compute."""
    touched: Touched = field(default_factory=Touched)

    def plan(self) -> Plan:
        units = self.s.units
        last_check = max((i for i, u in enumerate(units) if u.checks), default=-1)
        for i, u in enumerate(units):
            self._unit(u)
            if i == last_check:
                self._barrier()
                self.statements.append(Statement("check"))
        self._commit()
        self._barrier()
        return Plan(self.graph, self.s, self.statements, self._layout(), self.records.const_block(), self.memory)

    # --- statements --------------------------------------------------------------------------------------
    def _unit(self, u: Unit) -> None:
        self.nodes = self.untold = [*self.untold, *u.nodes]
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
        word = self.records.flag(value)
        self.statements.append(Statement(kind, word=word))
        self._see(value, word)

    def _see(self, value: str, word: int) -> None:
        """Count a flag as read, and the word with its address."""
        for span in (*self.records.spans(In(value), Unit([], [], [])), Span(TABLE, 8 * word, 8 * word + 8, False)):
            self.touched.add(span)

    def _cycle(self, c: Cycle) -> None:
        for u in c.before:
            self._unit(u)
        self._test("while", c.go)
        word = self.statements[-1].word
        at = self.records.place
        for u in c.body:
            if not any(u.reads == [v] and u.writes == [to] and at(v) == at(to) for v, to in c.carried):
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
        if call.kernel is copy_bytes and len({tuple(self.records.argument(a, u)) for a in call.args[:2]}) == 1:
            return  # an operand of a Concat that is a part of it already
        self.line.append(self.records.call(u, call, self.nodes))
        self.untold = []

    def _flush(self) -> None:
        """Write down the calls at hand, with barriers where they meet what others touched before."""
        for strip in strips(self.line, self.records.threads):
            spans = [s for c in strip.calls for s in c.spans]
            if any(self.touched.meets(s) for s in spans):
                self.statements.append(Statement("barrier"))
                self.touched = Touched()
            for s in spans:
                self.touched.add(s)
            self._strip(strip)
        self.line = []
        self._tell(self.untold)
        self.untold = []

    def _strip(self, strip: Strip) -> None:
        if not strip.blocks:
            (c,) = strip.calls
            self._tell(c.nodes)
            self.statements.append(Statement("call", call=c.call, word=c.word))
            return
        self.statements.append(Statement("blocks", word=self.records.number(strip.blocks)))
        for c, step in zip(strip.calls, strip.steps, strict=True):
            self._tell(c.nodes)
            self.records.words[c.step] = (-1, step)
            self.statements.append(Statement("part", call=c.call, word=c.word))
        self.statements.append(Statement("end"))

    def _tell(self, nodes: list[Node]) -> None:
        if nodes is not self.told:
            self.statements += [Statement("node", node) for node in nodes]
            self.told = nodes

    def _barrier(self) -> None:
        self._flush()
        if self.touched:
            self.statements.append(Statement("barrier"))
            self.touched = Touched()

    def _commit(self) -> None:
        """Copy new values to their states where they were not computed there."""
        unit = Unit([], [], [])
        for state, v in self.graph.updates.items():
            if state not in self.memory.committed and v != state:
                self.nodes = [Node("onnxc.Copy", (v,), (state,))]
                self._call(unit, copy_call(In(v), Out(state), self.s.types[v].nbytes))

    def _slots(self, values: Mapping[str, str]) -> tuple[Slot, ...]:
        slots = []
        for name, v in values.items():
            p, t = self.records.place(v), self.s.types[v]
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
            messages=tuple(reversed(self.records.messages)),
            threads=self.records.threads,
            table_blocks=tuple(b for b, _ in self.records.words),
            table_values=tuple(v for _, v in self.records.words),
            brief=is_brief(self.statements, self.s.types),
        )
