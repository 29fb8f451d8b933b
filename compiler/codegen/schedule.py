"""From a graph to units of work in the order in which they run."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.codegen.calls import LOWERINGS, Call, In, Listing, Out, Site
from compiler.codegen.fuse import Group, group_elementwise
from compiler.codegen.kernels.strided import copy_call
from compiler.errors import Problem, UnsupportedError
from compiler.ir.definitions.optimizers import STEPS
from compiler.ir.graph import Graph, Node
from compiler.ir.types import Tensor, TensorType

VIEWS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Ops whose output is the memory of their first input."""


@dataclass(eq=False)
class Unit:
    """What runs as one piece: a fused loop, an optimizer step, the calls of one node, or an If with its branches.

    group, step: their calls are made when it is known which results take over the memory of an operand.
    """

    nodes: list[Node]
    reads: list[str]
    writes: list[str]
    group: Group | None = None
    step: Node | None = None
    calls: list[Call] = field(default_factory=list)
    branches: tuple[list[Unit], list[Unit]] | None = None

    @property
    def checks(self) -> bool:
        """Whether it, or a unit in it, may set the status word."""
        inner = any(u.checks for b in self.branches or () for u in b)
        return inner or any(c.check for c in self.calls)


@dataclass
class Schedule:
    """All units of a graph in order, and facts of the values in them (those of branches under unique names)."""

    units: list[Unit]
    types: dict[str, TensorType]
    consts: dict[str, Tensor]
    views: dict[str, str]
    """View -> the value whose memory it is."""

    def root(self, value: str) -> str:
        """The value whose memory this one is: itself unless it is a view."""
        while value in self.views:
            value = self.views[value]
        return value


def schedule(graph: Graph) -> Schedule:
    """Order a graph whose nodes all have kernels, formulas or are views. UnsupportedError names the others."""
    s = Schedule([], dict(graph.types), dict(graph.consts), {})
    s.units = _units(graph, s, set(graph.results))
    return s


def _units(graph: Graph, s: Schedule, keep: set[str]) -> list[Unit]:
    index = {id(n): i for i, n in enumerate(graph.nodes)}
    units: list[tuple[int, Unit]] = []
    problems: list[Problem] = []
    grouped: set[int] = set()
    for group in group_elementwise(graph, keep):
        grouped.update(id(n) for n in group.nodes)
        unit = Unit(group.nodes, list(group.inputs), list(group.outputs), group)
        if group.outputs:
            units.append((max(index[id(n)] for n in group.nodes), unit))
    for i, node in enumerate(graph.nodes):
        if id(node) in grouped:
            continue
        if node.op in VIEWS:
            s.views[node.outputs[0]] = node.inputs[0]
        elif node.op == "If":
            units.append((i, _branch_unit(node, graph, s)))
        elif node.op in STEPS:
            units.append((i, Unit([node], list(dict.fromkeys(node.reads)), list(node.results), step=node)))
        elif node.op in LOWERINGS:
            units += [(i, u) for u in _node_units(node, s)]
        else:
            where = f"node {str(node.origin)!r}" if node.origin.node else f"the node that computes {node.results[0]!r}"
            types = ", ".join(str(graph.type(v)) for v in node.inputs if v)
            problems.append(Problem(f"{node.op}({types}) has no kernel", where))
    if problems:
        raise UnsupportedError(problems)
    return _order(units, s)


def _node_units(node: Node, s: Schedule) -> list[Unit]:
    """The unit of a node; checks of its inputs come apart, so that they can run as soon as those are there."""
    calls = LOWERINGS[node.op](Site(node, s.types, s.consts))
    checks = [c for c in calls if c.check]
    work = [c for c in calls if not c.check]
    units = [Unit([node], list(dict.fromkeys(reads(c))), [], calls=[c]) for c in checks]
    read = list(dict.fromkeys(v for c in work for v in reads(c) if v not in node.outputs))
    return [*units, Unit([node], read, list(node.results), calls=work)]


def reads(call: Call) -> list[str]:
    """Values that a call's arguments read."""
    items = [i for a in call.args for i in (a.items if isinstance(a, Listing) else (a,))]
    return [a.value for a in items if isinstance(a, In)]


def writes(call: Call) -> list[str]:
    """Values that a call's arguments write."""
    items = [i for a in call.args for i in (a.items if isinstance(a, Listing) else (a,))]
    return [a.value for a in items if isinstance(a, Out)]


def _branch_unit(node: Node, graph: Graph, s: Schedule) -> Unit:
    """An If: the branches' values get unique names, and copies at the end bring their results to its outputs."""
    branches = []
    for which in ("then_branch", "else_branch"):
        body: Graph = node.attrs[which]
        prefix = f"{node.results[0]}/{which.partition('_')[0]}/"
        names = {v: prefix + v for v in body.types} | dict(zip(body.captures, node.captures, strict=True))
        s.types.update((names[v], t) for v, t in body.types.items())
        s.consts.update((names[v], t) for v, t in body.consts.items())
        inner = _rename(body, names)
        units = _units(inner, s, set(inner.outputs.values()))
        for out, v in zip(node.outputs, body.outputs.values(), strict=True):
            if out:
                t = s.types[out]
                source = names[v]
                call = copy_call(In(source), Out(out), t.nbytes)
                units.append(
                    Unit([Node("Identity", (source,), (out,), origin=node.origin)], [source], [out], calls=[call])
                )
        branches.append(units)
    return Unit(
        [node], [node.inputs[0], *dict.fromkeys(node.captures)], list(node.results), branches=(branches[0], branches[1])
    )


def _rename(g: Graph, names: Mapping[str, str]) -> Graph:
    def of(vs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names[v] if v else "" for v in vs)

    nodes = tuple(Node(n.op, of(n.inputs), of(n.outputs), n.attrs, of(n.captures), n.origin) for n in g.nodes)
    types = {names[v]: t for v, t in g.types.items()}
    consts = {names[v]: t for v, t in g.consts.items()}
    outputs = {public: names[v] for public, v in g.outputs.items()}
    return Graph(g.name, types, (), {}, consts, of(g.captures), nodes, outputs, {})


def _order(units: list[tuple[int, Unit]], s: Schedule) -> list[Unit]:
    """Stable topological order: by the last node of each unit; checks as soon as what they test is there."""
    producer = {v: k for k, (_, u) in enumerate(units) for v in u.writes}
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    for k, (_, u) in enumerate(units):
        needs = {producer[r] for v in u.reads if (r := s.root(v)) in producer} - {k}
        waiting.append(len(needs))
        for p in needs:
            readers.setdefault(p, []).append(k)

    def key(k: int) -> tuple[bool, int, int]:
        return not (units[k][1].checks and not units[k][1].writes), units[k][0], k

    ready = [key(k) for k, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        k = heapq.heappop(ready)[2]
        ordered.append(units[k][1])
        for reader in readers.get(k, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, key(reader))
    assert len(ordered) == len(units), "fused loops wait for each other"
    return ordered
