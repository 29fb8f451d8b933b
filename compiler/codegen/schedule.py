"""From a graph to units of work in the order in which they run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from compiler.codegen.calls import LOWERINGS, In, Out, Site
from compiler.codegen.grouping import group_elementwise
from compiler.codegen.join import join
from compiler.codegen.kernels.loop import counting_calls, slice_call
from compiler.codegen.kernels.strided import copy_call
from compiler.codegen.prepare import prepare
from compiler.codegen.strides import strided_views
from compiler.codegen.units import VIEWS, Cycle, Schedule, Unit, Window, reads, writes
from compiler.errors import Problem, UnsupportedError
from compiler.ir.builder import where
from compiler.ir.control import BRANCHES, NESTING, Iterated, always_goes_on, iterated, scan_length, trip_count
from compiler.ir.definitions.optimizers import STEPS
from compiler.ir.graph import Graph, Node
from compiler.ir.types import TensorType


def schedule(graph: Graph) -> Schedule:
    """Order a graph whose nodes all have kernels, formulas or are views. UnsupportedError names the others."""
    s = Schedule([], dict(graph.types), dict(graph.consts), {})
    s.units = _units(graph, s, set(graph.results))
    return s


def _units(graph: Graph, s: Schedule, keep: set[str], fixed: Collection[str] = ()) -> list[Unit]:
    """Units of a graph. keep: values that must exist in memory; fixed: those that do not change in the loop around."""
    units: list[tuple[int, Unit]] = []
    problems: list[Problem] = []
    grouped: set[int] = set()
    strided = strided_views(graph, keep)
    s.strided.update(strided)
    s.views.update((v, view.parent) for v, view in strided.items())
    for group in group_elementwise(graph, keep):
        grouped.update(id(n) for n in group.nodes)
        unit = Unit(group.nodes, list(group.inputs), list(group.outputs), group)
        if group.outputs:
            units.append((group.at, unit))
    for i, node in enumerate(graph.nodes):
        if id(node) in grouped or all(v in strided for v in node.results):
            continue
        if node.op in VIEWS:
            s.views[node.outputs[0]] = node.inputs[0]
        elif node.op == "If":
            units.append((i, _branch_unit(node, s)))
        elif node.op in NESTING:
            units.append((i, _cycle_unit(node, s)))
        elif node.op in STEPS:
            units.append((i, Unit([node], list(dict.fromkeys(node.reads)), list(node.results), step=node)))
        elif node.op in LOWERINGS:
            try:
                units += [(i, u) for u in _node_units(node, s, fixed)]
            except UnsupportedError as e:  # a kernel for some types or attributes only
                problems += [replace(p, where=p.where or where(node)) for p in e.problems]
        else:
            types = ", ".join(graph.type(v).dtype if v else "-" for v in node.inputs)
            remedy = "replace it in the model by supported operators, or feed its result as an input"
            problems.append(Problem(f"operator {node.op}({types}) is not supported", where(node), remedy))
    if problems:
        raise UnsupportedError(problems)
    return _order(join(units, s, keep), s)


def _node_units(node: Node, s: Schedule, fixed: Collection[str]) -> list[Unit]:
    """The unit of a node; checks of its inputs come apart, so that they can run as soon as those are there."""
    if any(v in s.strided for v in node.outputs):  # of a Split only the rest is copied
        node = replace(node, outputs=tuple("" if v in s.strided else v for v in node.outputs))
    strides = {v: s.strided[v].strides for v in node.reads if v in s.strided}
    still = frozenset(v for v in node.reads if s.root(v) in fixed)
    calls = LOWERINGS[node.op](Site(node, s.types, s.consts, still, strides))
    checks = [c for c in calls if c.check]
    work = [c for c in calls if not c.check]
    units = [Unit([node], list(dict.fromkeys(reads(c))), [], calls=[c]) for c in checks]
    read = list(dict.fromkeys(v for c in work for v in reads(c) if v not in node.outputs))
    return [*units, Unit([node], read, list(node.results), calls=work)]


def _branch_unit(node: Node, s: Schedule) -> Unit:
    """An If: the branches' values get unique names; results lie in its outputs, or are copied there in the end."""
    branches = []
    for which in BRANCHES:
        body: Graph = node.attrs[which]
        names = _names(body, f"{node.results[0]}/{which.partition('_')[0]}/", node)
        units = _nested_units(body, names, s)
        computed = {v for u in units if u.step is None for v in u.writes}
        for out, v in zip(node.outputs, body.outputs.values(), strict=True):
            if out and (root := s.root(names[v])) in computed:
                s.views[root] = out
            elif out:
                units.append(_copy_unit(node, names[v], out, s))
        branches.append(units)
    held = [node.inputs[0], *dict.fromkeys(node.captures)]
    return Unit([node], held, list(node.results), branches=(branches[0], branches[1]), held=held)


def _names(body: Graph, prefix: str, node: Node) -> dict[str, str]:
    """Unique names of the values of a body, all but its captures."""
    return {v: prefix + v for v in body.types} | dict(zip(body.captures, node.captures, strict=True))


def _nested_units(body: Graph, names: Mapping[str, str], s: Schedule, fixed: Collection[str] = ()) -> list[Unit]:
    s.types.update((names[v], t) for v, t in body.types.items())
    s.consts.update((names[v], t) for v, t in body.consts.items())
    inner = _rename(body, names)
    return _units(inner, s, set(inner.outputs.values()), fixed)


def _copy_unit(node: Node, source: str, target: str, s: Schedule) -> Unit:
    call = copy_call(In(source), Out(target), s.types[target].nbytes)
    shown = Node("Identity", (source,), (target,), origin=node.origin)
    return Unit([shown], [source], [target], calls=[call])


def _cycle_unit(node: Node, s: Schedule) -> Unit:
    """A Loop or Scan. What is carried on lies in the memory of its output.

    Slices that are contiguous are windows, which need no copies; others are copied for their iteration. At the end of
    an iteration all its results exist: then the carried values change, and it is decided whether there is another. A
    new value that is another carried one, or the condition if it is one, is saved before: it would change meanwhile.
    """
    parts = iterated(node)
    body, prefix = parts.body, f"{node.results[0]}/"
    names = _names(body, prefix, node)
    carried = [v or f"{prefix}carried {i}" for i, v in enumerate(parts.final)]
    counter, go = f"{prefix}iteration", f"{prefix}go on"
    s.types[counter] = body.types[parts.number] if parts.number else TensorType("i64")
    s.types[go] = body.types[parts.go] if parts.go else TensorType("bool")
    names.update(zip(parts.state, carried, strict=True))
    names.update({parts.number: counter, parts.go: go} if parts.number else {})
    fixed = {s.root(v) for v in (*node.captures, *(names[v] for v in body.consts))}
    units = _nested_units(body, names, s, fixed)
    preparing, prepared = prepare(units, fixed, s)
    slices = _Slices(node, counter, go, s)
    slices.read(parts, names)
    slices.write(parts, names, units)

    pairs: list[tuple[str, str]] = []
    last = slices.last
    for v, to in zip((names[v] for v in parts.new_state), carried, strict=True):
        pairs.append((_saved(node, v, f"{to}/next", {*carried} - {to}, last, s), to))
    most = _most(node, parts, s)
    goes_on = "" if most is not None or always_goes_on(parts) else names[parts.new_go]
    if goes_on:
        moving = {s.root(goes_on)} if s.windows_of(goes_on) else set()
        goes_on = _saved(node, goes_on, f"{go}/next", {*carried} | moving, last, s)
    last += [_copy_unit(node, v, to, s) for v, to in pairs if s.root(v) != to]
    limit, begins = ("", "") if most is not None else (node.inputs[0], node.inputs[1])
    begin, end = counting_calls(counter, go, most, limit, begins, goes_on)
    last.append(Unit([], reads(end), writes(end), calls=[end]))

    before = [_copy_unit(node, v, to, s) for v, to in zip(parts.initial, carried, strict=True)]
    before.append(Unit([], reads(begin), writes(begin), calls=[begin]))
    before += preparing
    held = list(dict.fromkeys(v for v in (*parts.sequences, *node.captures, limit) if v))
    read = list(dict.fromkeys(v for v in (*held, *parts.initial, begins) if v))
    owned = [*carried, *(v for v in parts.stacked if v), counter, go, *prepared]
    return Unit([node], read, owned, cycle=Cycle(before, [*slices.first, *units, *last], go, pairs), held=held)


def _saved(node: Node, v: str, name: str, changing: set[str], units: list[Unit], s: Schedule) -> str:
    """A value, or a copy of it that `units` make if it lies where something else will be written."""
    if s.root(v) not in changing:
        return v
    s.types[name] = s.types[v]
    units.append(_copy_unit(node, v, name, s))
    return name


@dataclass
class _Slices:
    """The slices that a loop reads and writes. first, last: units that copy at the start and end of an iteration."""

    node: Node
    counter: str
    go: str
    s: Schedule
    first: list[Unit] = field(default_factory=list)
    last: list[Unit] = field(default_factory=list)

    def read(self, parts: Iterated, names: Mapping[str, str]) -> None:
        """Slices of what is scanned."""
        for whole, e, axis, back in zip(
            parts.sequences, parts.elements, parts.sequence_axes, parts.sequence_reversed, strict=True
        ):
            if not self.window(names[e], whole, axis, back):
                self.first.append(self.copy(whole, names[e], whole, axis, back, into=False))

    def write(self, parts: Iterated, names: Mapping[str, str], units: list[Unit]) -> None:
        """Slices of what is stacked: a value that a unit of the body computes may lie there from the start."""
        computed = {v: u for u in units for v in u.writes}
        for v, out, axis, back in zip(
            parts.rows, parts.stacked, parts.stacked_axes, parts.stacked_reversed, strict=True
        ):
            root = self.s.root(names[v])
            by = computed.get(root)
            if not out or (by and by.step is None and by.cycle is None and self.window(root, out, axis, back)):
                continue
            # what there is from the start is copied then: later it may be overwritten
            copies = self.last if by or root in parts.stacked else self.first
            copies.append(self.copy(names[v], out, out, axis, back, into=True))

    def window(self, v: str, whole: str, axis: int, back: int) -> bool:
        """Let a value be a slice of `whole`, if slices are contiguous."""
        shape, nbytes = self.s.types[whole].shape, self.s.types[v].nbytes
        if prod(shape[:axis]) != 1:
            return False
        self.s.views[v] = whole
        self.s.windows[v] = Window(self.go, nbytes * (shape[axis] - 1) if back else 0, -nbytes if back else nbytes)
        return True

    def copy(self, v: str, to: str, whole: str, axis: int, back: int, *, into: bool) -> Unit:
        """A unit that copies the slice of the iteration."""
        call = slice_call(v, to, self.counter, self.s.types[whole], axis, back, into=into)
        shown = Node("onnxc.PutSlice" if into else "onnxc.Slice", (v, self.counter), (to,), origin=self.node.origin)
        return Unit([shown], reads(call), writes(call), calls=[call])


def _most(node: Node, parts: Iterated, s: Schedule) -> int | None:
    """How many iterations there are, if that is known: as many as there are rows, where rows are stacked."""
    if node.op == "Scan":
        return scan_length(node, s.types.__getitem__)
    stacked = next((v for v in parts.stacked if v), "")
    if stacked:
        return s.types[stacked].shape[0]
    return trip_count(node, lambda v: s.consts[v].array if v in s.consts else None)


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
