"""Fusing elementwise nodes: which ones share a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.codegen.fuse import Group, inline_constant, is_fusable
from compiler.codegen.units import VIEWS
from compiler.ir.graph import Graph

MAX_NODES, MAX_POINTERS = 48, 16
"""Limits of one kernel: long ones compile slowly and spill registers."""


def group_elementwise(graph: Graph, keep: set[str]) -> list[Group]:
    """Partition the elementwise nodes of a graph into loops. keep: values that must exist in memory.

    A node may join the loop of its readers if nothing in between has to run as a kernel of its own. `late[v]` is how
    many kernel boundaries lie between v and the end of the graph, at least: nodes of equal number, shape and
    connection form one loop. Every path that leaves a loop crosses a boundary, so that no loop waits for itself; and
    each node runs as late as it can, next to what needs it (the mask of a Relu with its gradient, not with the Relu).
    Then some loops take in others: see `_Loops`.
    """
    late: dict[str, int] = {}
    level: dict[int, int] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        elementwise = is_fusable(graph, node)
        mine = max((late.get(v, 0) for v in node.results), default=0)
        level[i] = mine
        if elementwise:
            shapes[i] = graph.type(node.outputs[0]).shape
        for v in node.reads:
            producer = graph.producer(v)
            same = (
                elementwise
                and producer is not None
                and graph.type(v).shape == shapes[i]
                and is_fusable(graph, producer)
            )
            late[v] = max(late.get(v, 0), mine if same else mine + 1)
    loops = _Loops(graph, keep, level, shapes)
    loops.connect()
    loops.join_operands()
    loops.draw_in()
    return loops.groups()


class _Part:
    """Nodes of one level and shape, by their numbers. at: the number of the one in whose place the loop runs.

    closed: a part that had to refuse a reader takes no further nodes: a later one could close a circle through that
    reader. So all that waits for a part that is not closed is of a lower level.
    """

    def __init__(self, nodes: list[int], level: int, at: int) -> None:
        self.nodes, self.level, self.at = nodes, level, at
        self.closed = False


class _Loops:
    """The loops of a graph as they grow, up to the limits of a kernel."""

    def __init__(self, graph: Graph, keep: set[str], level: dict[int, int], shapes: dict[int, tuple[int, ...]]) -> None:
        self.graph, self.keep, self.shapes = graph, keep, shapes
        self.of = {i: _Part([i], level[i], i) for i in sorted(shapes)}
        self.number = {id(graph.nodes[i]): i for i in self.of}
        self.kernels = [i not in shapes and n.op not in VIEWS for i, n in enumerate(graph.nodes)]

    def groups(self) -> list[Group]:
        """One for each loop, in program order."""
        return [self._group(p.nodes, self.keep, p.at) for p in self._parts()]

    def connect(self) -> None:
        """Nodes of one level and shape that an edge joins share a loop."""
        for i, mine in self.of.items():
            for v in dict.fromkeys(self.graph.nodes[i].reads):
                p, mine = self._producer(v), self.of[i]
                if p is None or p is mine or not self._alike(p, mine):
                    continue
                if p.closed or mine.closed or not self._fits(p, mine):
                    p.closed = True
                    continue
                self._merge(p, mine)

    def join_operands(self) -> None:
        """So do those whose results a Concat joins, if they read the same: all these results have to wait for it."""
        for node in self.graph.nodes:
            if node.op == "Concat":
                parts = [p for v in node.reads if (p := self._producer(v)) is not None]
                for p in parts:
                    p = self.of[p.nodes[0]]
                    for q in dict.fromkeys(self.of[q.nodes[0]] for q in parts):
                        if p is not q and self._alike(p, q) and self._shared(p, q) and self._may(p, q):
                            p = self._merge(p, q)

    def draw_in(self) -> None:
        """A loop takes in another one that reads nothing but what it reads or makes, where that takes no memory.

        Only one all of whose results are results of the graph, which have to exist anyway. (Others may be repeated
        there to run late, or be computed by the kernel that reads them.)
        """
        for c in self._parts():
            for b in self._near(c) if self.of[c.nodes[0]] is c else ():
                if b.level >= c.level and self._may(b, c) and self._costs_nothing(b, c):
                    self._merge(b, c, b.at)
                    break

    def _near(self, c: _Part) -> Iterator[_Part]:
        """The parts of the same shape that make or read all that a part reads."""
        group = self._group(c.nodes, set())
        whole = [v for v in group.inputs if self.graph.type(v).shape == group.shape]
        found = [self._producer(v) for v in whole]
        found += [self.of.get(self.number.get(id(n), -1)) for n in self.graph.readers(whole[0])] if whole else []
        for b in dict.fromkeys(p for p in found if p is not None and p is not c):
            if self.shapes[b.nodes[0]] == group.shape:
                at_hand = {v for i in b.nodes for v in (*self.graph.nodes[i].reads, *self.graph.nodes[i].outputs)}
                if at_hand.issuperset(group.inputs):
                    yield b

    def _costs_nothing(self, b: _Part, c: _Part) -> bool:
        """Whether memory is enough if c runs with b: at about the same time, or later, or sparing as much of b's."""
        group = self._group(c.nodes, self.keep)
        if not self.keep.issuperset(group.outputs):
            return False
        if not any(self._producer(v) is b for v in group.inputs):
            return c.at < b.at and not any(self.graph.readers(v) for v in group.outputs)
        if not any(self.kernels[b.at : c.at]):
            return True
        before, after = self._group(b.nodes, self.keep), self._group(sorted(b.nodes + c.nodes), self.keep)
        return self._nbytes(group.outputs) <= self._nbytes([v for v in before.outputs if v not in after.outputs])

    def _nbytes(self, values: Sequence[str]) -> int:
        return sum(self.graph.type(v).nbytes for v in values)

    def _parts(self) -> list[_Part]:
        return list(dict.fromkeys(self.of.values()))

    def _producer(self, v: str) -> _Part | None:
        node = self.graph.producer(v)
        return self.of.get(self.number.get(id(node), -1)) if node is not None else None

    def _alike(self, p: _Part, q: _Part) -> bool:
        return p.level == q.level and self.shapes[p.nodes[0]] == self.shapes[q.nodes[0]]

    def _shared(self, p: _Part, q: _Part) -> bool:
        """Whether both read a value of their shape."""
        a, b = (self._group(part.nodes, self.keep) for part in (p, q))
        return any(self.graph.type(v).shape == a.shape for v in {*a.inputs} & {*b.inputs})

    def _may(self, p: _Part, q: _Part) -> bool:
        return not p.closed and not q.closed and self._fits(p, q)

    def _fits(self, p: _Part, q: _Part) -> bool:
        nodes = sorted(p.nodes + q.nodes)
        group = self._group(nodes, set()) if len(nodes) <= MAX_NODES else None
        return group is not None and len(group.inputs) + len(group.outputs) <= MAX_POINTERS

    def _merge(self, p: _Part, q: _Part, at: int = -1) -> _Part:
        merged = _Part(sorted(p.nodes + q.nodes), p.level, max(p.at, q.at) if at < 0 else at)
        self.of.update((i, merged) for i in merged.nodes)
        return merged

    def _group(self, numbers: Sequence[int], keep: set[str], at: int = 0) -> Group:
        nodes = [self.graph.nodes[i] for i in numbers]
        group = Group(nodes, self.shapes[numbers[0]], at=at)
        inside, computed = {id(n) for n in nodes}, {n.outputs[0] for n in nodes}
        for node in nodes:
            for v in node.reads:
                if v not in computed and v not in group.inputs and inline_constant(self.graph.consts, v) is None:
                    group.inputs.append(v)
            out = node.outputs[0]
            if out in keep or any(id(r) not in inside for r in self.graph.readers(out)):
                group.outputs.append(out)
        return group
