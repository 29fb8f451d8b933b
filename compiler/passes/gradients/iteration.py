"""The gradient of a Loop or Scan: a Scan from the last iteration to the first.

It carries the gradients of the states, and the sums over the iterations of the gradients of captured values. What it
reads of the forward iterations is further output of the forward node, a row from each iteration (`keeping`). Sums that
follow from rows are not carried: they are one operation on all rows, behind the loop (`totals`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.control import Iterated
from compiler.ir.types import TensorType
from compiler.passes.gradients.keeping import Keeping, Slices, give_all
from compiler.passes.gradients.nested import Pulled, influences, pulled
from compiler.passes.gradients.rule import Call
from compiler.passes.gradients.totals import Total, Totals
from compiler.passes.gradients.value import Value


def differentiate(r: Call, parts: Iterated, count: int) -> None:
    """Give the gradients of a Loop or Scan that makes `count` iterations."""
    task = _Task(r, parts)
    if count == 0:
        for i, dy in enumerate(task.final):
            if dy is not None:
                r.give(task.first + i, dy)
        return
    p = task.pull()
    if p.gradients:
        _Backward(task, p, count).emit()


class _Task:
    """What to differentiate: which states have gradients, which outputs get one, with respect to what.

    first: position of the first initial value among the operands. final, stacked: the gradients that arrive. carried,
    rows: numbers of the states that have a gradient, and of the stacked outputs whose gradient is passed on. elements,
    captures: sources of the body whose gradients are wanted, with their numbers.
    """

    def __init__(self, r: Call, parts: Iterated):
        self.r, self.parts = r, parts
        body, n = parts.body, len(parts.state)
        self.first = 2 if r.node.op == "Loop" else 0
        arrived = [*r.gradients, *[None] * (n + len(parts.rows) - len(r.gradients))]
        self.final, self.stacked = arrived[:n], arrived[n:]
        self.elements = {v: i for i, v in enumerate(parts.elements) if r.wants(self.first + n + i)}
        self.captures = {v: i for i, v in enumerate(body.captures) if r.wants(len(r.node.inputs) + i)}
        self._shift = 1 if parts.new_go else 0  # the outputs of a Loop's body begin with the condition
        reach = influences(body)[self._shift :]
        into, of_row = dict(zip(parts.state, reach, strict=False)), reach[n:]
        varied = {v for i, v in enumerate(parts.state) if r.wants(self.first + i)} | {*self.elements, *self.captures}
        useful = {v for v, d in zip(parts.state, self.final, strict=True) if d is not None}
        useful.update(*(d for d, dy in zip(of_row, self.stacked, strict=True) if dy is not None))
        for _ in parts.state:  # after so many iterations everything has got everywhere
            varied.update(v for v, d in into.items() if varied & d)
            useful.update(*(d for v, d in into.items() if v in useful))
        self.carried = [i for i, v in enumerate(parts.state) if v in varied & useful and body.type(v).is_float]
        self.rows = [i for i, d in enumerate(of_row) if self.stacked[i] is not None and d & varied]

    def pull(self) -> Pulled:
        """The body with its derivative; the seeds of the carried states come before those of the rows."""
        first = self._shift + len(self.parts.state)
        seeded = [*(self._shift + i for i in self.carried), *(first + i for i in self.rows)]
        return pulled(self.parts.body, seeded, [*self.states, *self.elements, *self.captures])

    @property
    def states(self) -> list[str]:
        """The carried states."""
        return [self.parts.state[i] for i in self.carried]


class _Backward:
    """The backward Scan of one task under construction. names: values of the pulled graph -> of the Scan's body."""

    def __init__(self, task: _Task, p: Pulled, count: int):
        self.task, self.p, self.count, self.r, self.parts = task, p, count, task.r, task.parts
        self.b, self.graph = task.r.b, p.graph
        self.body = Builder(f"{self.parts.body.name}.gradient")
        self.names: dict[str, str] = {}
        self.keeping = Keeping(self.r, self.parts, p, self._given())

    def _given(self) -> dict[str, Slices]:
        """What there is of all iterations: what is scanned, and the gradients of the stacked outputs."""
        parts, task = self.parts, self.task
        scanned = zip(parts.sequences, parts.sequence_axes, parts.sequence_reversed, strict=True)
        given = {v: Slices(*s) for v, s in zip(parts.elements, scanned, strict=True)}
        for seed, i in zip(list(self.p.seeds.values())[len(task.carried) :], task.rows, strict=True):
            dy = task.stacked[i]
            assert dy is not None
            given[seed] = Slices(dy.name, parts.stacked_axes[i], parts.stacked_reversed[i])
        return given

    def emit(self) -> None:
        """Add the Scan and give its results."""
        task, found, keeping = self.task, self.p.gradients, self.keeping
        elements = {v: i for v, i in task.elements.items() if v in found}
        outputs = [
            Slices(found[v], self.parts.sequence_axes[i], self.parts.sequence_reversed[i]) for v, i in elements.items()
        ]
        same = {s.values for s in outputs if s[1:] == (0, keeping.way)}  # whose rows are gradients of what is scanned
        totals = Totals(keeping, self.count, [found[x] for x in task.captures if x in found], same)
        sums: dict[str, Total] = {}
        for x in task.captures:
            if x in found and (total := totals.of(found[x])) is not None:
                sums[x] = total
        summed = [x for x in task.captures if x in found and x not in sums]
        own = [d for x, d in found.items() if x not in sums]
        nodes = keeping.divide([*own, *totals.rows])
        keeping.widen()
        rows = [v for v in totals.rows if keeping.rows(v) is None and v not in same]
        outputs += [Slices(v, 0, keeping.way) for v in rows]

        initial, sums_before = self._carry(summed)
        read = dict.fromkeys([*(v for n in nodes for v in n.reads), *own, *rows])
        sequences, captures = self._scan(read), self._capture(read)
        for node in nodes:
            self.body.copy(node, self.names, self.graph)
        results = [self._before(v) for v in task.states]
        results += [self.body.op("Add", t, self.names[found[x]]) for t, x in zip(sums_before, summed, strict=True)]
        results += [self.names[s.values] for s in outputs]
        give_all(self.body, results)
        out = iter(self._add(initial, sequences, outputs, len(results), captures))
        for i in task.carried:
            self.r.give(task.first + i, Value(self.b, next(out)))
        for x in summed:
            self._give_capture(x, Value(self.b, next(out)))
        stacked = list(out)
        for v, s in zip(stacked, outputs, strict=True):
            if keeping.rows(s.values) is None:
                keeping.whole[s.values] = Slices(v, s.axis, s.backward)
        for i, v in zip(elements.values(), stacked, strict=False):
            self.r.give(task.first + len(self.parts.state) + i, Value(self.b, v))
        for x, total in sums.items():
            self._give_capture(x, total())

    def _give_capture(self, x: str, value: Value) -> None:
        self.r.give(len(self.r.node.inputs) + self.task.captures[x], value)

    def _add(
        self, initial: list[str], sequences: list[Slices], outputs: list[Slices], count: int, captures: list[str]
    ) -> tuple[str, ...]:
        """The Scan: it reads and writes all slices in the direction against the forward one."""
        attrs = {
            "body": self.body.build(),
            "num_scan_inputs": len(sequences),
            "scan_input_axes": [s.axis for s in sequences],
            "scan_input_directions": [1 - s.backward for s in sequences],
        }
        if outputs:
            attrs["scan_output_axes"] = [s.axis for s in outputs]
            attrs["scan_output_directions"] = [1 - s.backward for s in outputs]
        return self.b.add("Scan", [*initial, *(s.values for s in sequences)], attrs, count, captures)

    # --- the body's sources ----------------------------------------------------------------------------------
    def _carry(self, summed: list[str]) -> tuple[list[str], list[str]]:
        """What is carried: the gradients of the states, and sums. First values, and the sums before an iteration."""
        initial = []
        for i, seed in zip(self.task.carried, self.p.seeds.values(), strict=False):
            dy, t = self.task.final[i], self.graph.type(seed)
            self.names[seed] = self.body.input(seed, t)
            initial.append(dy.name if dy is not None else self.b.full(0, t))
        initial += [self.b.full(0, self.graph.type(x).slope) for x in summed]
        return initial, [self.body.input(f"d_{x}", self.graph.type(x).slope) for x in summed]

    def _scan(self, read: Iterable[str]) -> list[Slices]:
        """What the Scan reads slice by slice, of the values that its body reads."""
        parts, found = self.parts, []
        for v in read:
            if v in self.keeping.whole:
                self.names[v] = self.body.input(v, self.graph.type(v))
                found.append(self.keeping.whole[v])
            elif v == parts.number:
                self.names[v] = self.body.input(v, self.graph.type(v))
                found.append(self._numbers(self.graph.type(v).shape))
            elif v == parts.go:
                self.names[v] = self.body.const(np.ones(self.graph.type(v).shape, np.bool_))
        if not found:  # a Scan has at least one sequence
            self.body.input("number", TensorType("i64"))
            found.append(self._numbers(()))
        return found

    def _numbers(self, shape: tuple[int, ...]) -> Slices:
        return Slices(self.b.const(np.arange(self.count).reshape(self.count, *shape)))

    def _capture(self, read: Iterable[str]) -> list[str]:
        """Of the values that the body reads, those that are the same in each iteration, in the graph around."""
        found = []
        for v in read:
            if v in self.graph.consts:
                self.names[v] = self.body.const(self.graph.consts[v], v)
            elif v in self.keeping.fixed:
                self.names[v] = self.body.capture(v, self.graph.type(v))
                found.append(self.keeping.outside(v))
        return found

    def _before(self, state: str) -> str:
        """The gradient of a state before the iteration; 0 if it has none."""
        d = self.p.gradients.get(state)
        return self.names[d] if d is not None else self.body.full(0, self.graph.type(state).slope)
