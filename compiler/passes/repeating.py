"""Parts of a graph that can be computed a second time, just before a later reader, and what that takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from compiler.ir.evaluate import is_random
from compiler.ir.graph import Graph, Node, Origin
from compiler.ir.types import TensorType
from compiler.passes.dce import dce

EXPENSIVE = frozenset(
    {"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul", "onnxc.Attention", "onnxc.AttentionGrad"}
    | {"onnxc.AddProduct", "onnxc.ConvWeightGrad", "TopK", "Unique"}
)
"""Operators that take far more time than to read their operands: repeated only if nothing else helps."""

COSTLY = frozenset(
    {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu", "Log", "Mish"}
    | {"LogSoftmax", "Pow", "Selu", "Sigmoid", "Sin", "Sinh", "Softmax", "Softplus", "Swish", "Tan", "Tanh"}
    | {"onnxc.RandomBits"}
)
"""Operators of some ten operations for each element; others have one or two."""

LONGEST = 64
"""Nodes that are repeated together, at most."""

SMALL = 16
"""A value is kept, rather than repeated, for a value at least so many times as large."""

NEGLIGIBLE = 4096
"""Bytes of a state of which a second copy, for a reader after its update, does not matter."""

RULE = "recompute"
"""Second part of the origin of a repeated node."""


class Plan(Protocol):
    """What the planner of memory tells about a graph; positions count pieces of work in the order of execution."""

    @property
    def total(self) -> int:
        """Bytes that are allocated for it."""
        ...

    @property
    def position(self) -> Mapping[str, int]:
        """Where each value is computed; views are not."""
        ...

    @property
    def lives(self) -> Sequence[tuple[str, int, int, int]]:
        """(value or "", bytes, start, end): in memory of its own from position `start` to before `end`."""
        ...

    @property
    def roots(self) -> Mapping[str, str]:
        """Each value -> the value in whose memory it is: itself, unless it is a view."""
        ...

    @property
    def fixed(self) -> frozenset[str]:
        """Values that must be computed once: of optimizer steps, loops, and what checks its operands."""
        ...


@dataclass(frozen=True)
class Repeat:
    """Computing `value` a second time before position `first`, for all readers from there on.

    nodes: that are repeated, in order. kept: value -> (bytes, position to which it lives anyway) of operands that have
    to be kept for it. before: the last reader before. cost: estimated nanoseconds.
    """

    value: str
    nbytes: int
    before: int
    first: int
    nodes: tuple[Node, ...]
    kept: Mapping[str, tuple[int, int]]
    cost: float

    def gain(self, at: int) -> int:
        """Bytes that it frees at a position."""
        extra = sum(nbytes for nbytes, end in self.kept.values() if end <= at <= self.first)
        return (self.nbytes if self.before < at < self.first else 0) - extra


@dataclass
class Repeats:
    """The repeats that a graph offers."""

    graph: Graph
    plan: Plan
    _needs: dict[tuple[str, int, bool], tuple[tuple[Node, ...], Mapping[str, tuple[int, int]]] | None] = field(
        default_factory=dict
    )

    @cached_property
    def lives(self) -> dict[str, tuple[int, int, int]]:
        """Value -> bytes, start, end of its memory."""
        return {v: (nbytes, start, end) for v, nbytes, start, end in self.plan.lives if v in self.graph.types}

    @cached_property
    def uses(self) -> dict[str, set[int]]:
        """Positions at which the memory of a value is read."""
        found: dict[str, set[int]] = {}
        for node in self.graph.nodes:
            if not is_view(node, self.plan):
                at = place(node, self.plan)
                for v in node.reads:
                    found.setdefault(self.plan.roots[v], set()).add(at)
        return found

    @cached_property
    def needed(self) -> set[str]:
        """Values that must be there in the end."""
        return {self.plan.roots[v] for v in self.graph.results}

    def at(self, peak: int, least: int, *, expensive: bool) -> list[Repeat]:
        """All that free memory at a position, of values of at least so many bytes."""
        found = []
        for v, (nbytes, start, end) in self.lives.items():
            uses = self.uses.get(v, set())
            done = self.plan.position.get(v, start)  # (the parts of a Concat may be there, and be read, before it)
            if (
                nbytes < least
                or done > peak
                or end <= peak
                or peak in uses
                or v in self.needed
                or self.graph.producer(v) is None
            ):
                continue
            later = [p for p in uses if p > peak]
            if not later:
                continue
            first, before = min(later), max((p for p in uses if p < peak), default=done)
            need = self._need(v, first, expensive, top=nbytes)
            if need is None:
                continue
            nodes, kept = need
            cost = sum(cost_of(node, self.graph) for node in nodes)
            repeat = Repeat(v, nbytes, max(before, done), first, nodes, kept, cost)
            if 4 * repeat.gain(peak) >= nbytes:
                found.append(repeat)
        return found

    def _need(
        self, v: str, first: int, expensive: bool, top: int
    ) -> tuple[tuple[Node, ...], Mapping[str, tuple[int, int]]] | None:
        """What to repeat and what to keep, so that `v` can be computed again at `first`. None: it cannot."""
        key = (v, first, expensive)
        if key not in self._needs:
            self._needs[key] = None  # (for the time being: there are no circles)
            self._needs[key] = self._found(v, first, expensive, top)
        return self._needs[key]

    def _found(
        self, v: str, first: int, expensive: bool, top: int
    ) -> tuple[tuple[Node, ...], Mapping[str, tuple[int, int]]] | None:
        node = self.graph.producer(v)
        if node is None or not self._repeatable(node, expensive):
            return None
        nodes: dict[int, Node] = {}
        kept: dict[str, tuple[int, int]] = {}
        for operand in dict.fromkeys(node.reads):
            root = self.plan.roots[operand]
            inside = root == v  # (a part of it, which goes where it goes)
            if not inside and self._there(operand, first):
                continue
            nbytes, _, end = self.lives.get(root, (0, 0, 0))
            need = None if nbytes and nbytes * SMALL <= top else self._need(operand, first, expensive, top)
            if need is not None and (inside or not nbytes or sum(n for n, _ in need[1].values()) < nbytes):
                nodes.update((id(n), n) for n in need[0])
                kept.update(need[1])
            elif nbytes and not inside:
                kept[root] = nbytes, end
            else:
                return None
        nodes[id(node)] = node
        return (tuple(nodes.values()), kept) if len(nodes) <= LONGEST else None

    def _repeatable(self, node: Node, expensive: bool) -> bool:
        if node.bodies or is_random(node) or any(v in self.plan.fixed for v in node.results):
            return False
        return expensive or node.op not in EXPENSIVE

    def _there(self, v: str, first: int) -> bool:
        """Whether a value is in memory at a position anyway."""
        root = self.plan.roots[v]
        if root in self.graph.consts:
            return True
        if root in self.graph.states:
            new = self.graph.updates.get(root, root)
            done = self.plan.position.get(new, first)
            return new == root or done >= first or self.graph.type(root).nbytes <= NEGLIGIBLE
        _, start, end = self.lives.get(root, (0, first, 0))
        return start < first < end


def is_view(node: Node, plan: Plan) -> bool:
    """Whether a node takes no work: its results lie in the memory of an operand."""
    return all(v not in plan.position for v in node.results)


def place(node: Node, plan: Plan) -> int:
    """The position of a node that is no view."""
    return max((plan.position.get(v, -1) for v in node.results), default=-1)


def cost_of(node: Node, graph: Graph) -> float:
    """Estimated nanoseconds of a node on one core: 10 bytes each, or 20 operations."""
    types = [graph.type(v) for v in node.reads]
    results = [graph.type(v) for v in node.results]
    moved = sum(t.nbytes for t in (*types, *results))
    largest = max((t.size for t in (*types, *results)), default=1)
    work = float(largest * (10 if node.op in COSTLY else 2))
    if node.op in EXPENSIVE and len(types) > 1:
        a, b, out = types[0], types[1], results[0]
        match node.op:
            case "Conv":
                work = 2.0 * out.size * b.size / max(1, b.shape[0])
            case "ConvTranspose":
                work = 2.0 * a.size * b.size / max(1, b.shape[0])
            case _:  # a product of matrices: the square of the extent that is summed over is |a| |b| / |out|
                work = 2.0 * out.size * (a.size * b.size / max(1, out.size)) ** 0.5
    return moved / 10 + work / 20


def in_order(graph: Graph, plan: Plan) -> list[tuple[int, Node]]:
    """The nodes in the order of execution, with their positions: of a view, that of what it is a view of.

    (Not of the value in whose memory that is: a part of a Concat is computed before it.)
    """
    placed = []
    at: dict[str, int] = {}
    for node in graph.nodes:
        own = at.get(node.inputs[0], -1) if is_view(node, plan) else place(node, plan)
        at.update(dict.fromkeys(node.results, own))
        placed.append((own, node))
    return sorted(placed, key=lambda pair: pair[0])  # stable: a view stays behind what it is of


def repeated(graph: Graph, plan: Plan, repeats: Iterable[Repeat]) -> tuple[Graph, dict[str, str]]:
    """The graph in the order of execution with these repeats in it, and new value -> the one that it repeats."""
    types, copies = dict(graph.types), dict[str, str]()
    starting: dict[int, list[Repeat]] = {}
    for r in repeats:
        starting.setdefault(r.first, []).append(r)
    names: dict[str, str] = {}  # of what readers from here on read
    nodes: list[Node] = []
    views = [node for node in graph.nodes if is_view(node, plan)]

    def again(node: Node, own: dict[str, str]) -> None:
        outputs = tuple(_free(v, types) if v else "" for v in node.outputs)
        for old, new in zip(node.outputs, outputs, strict=True):
            if old:
                types[new], own[old], copies[new] = types[old], new, old
        nodes.append(_reading(Node(node.op, node.inputs, outputs, node.attrs, node.captures, node.origin), own, RULE))

    for at, node in in_order(graph, plan):
        for r in starting.pop(at, ()):
            own = dict(names)
            for part in r.nodes:
                again(part, own)
            new = {v: w for v, w in own.items() if plan.roots[v] == r.value}
            for view in views:
                if plan.roots[view.results[0]] == r.value and view.inputs[0] in new and view.results[0] not in new:
                    again(view, new)
            names |= new
        nodes.append(_reading(node, names) if not is_view(node, plan) else node)
    for r in (r for left in starting.values() for r in left):
        raise AssertionError(f"nobody reads {r.value} at {r.first}")
    return dce(_with(graph, types, nodes)), copies


def merged(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with readers of some values reading others, which are equal and come before them."""
    return dce(_with(graph, graph.types, [_reading(node, names) for node in graph.nodes]))


def _reading(node: Node, names: Mapping[str, str], rule: str = "") -> Node:
    inputs = tuple(names.get(v, v) for v in node.inputs)
    captures = tuple(names.get(v, v) for v in node.captures)
    if not rule and inputs == node.inputs and captures == node.captures:
        return node
    origin = Origin(node.origin.node, rule) if rule else node.origin
    return Node(node.op, inputs, node.outputs, node.attrs, captures, origin)


def _free(v: str, types: Mapping[str, TensorType]) -> str:
    name, n = f"{v}/again", 1
    while name in types:
        n += 1
        name = f"{v}/again{n}"
    return name


def _with(g: Graph, types: Mapping[str, TensorType], nodes: Sequence[Node]) -> Graph:
    return Graph(g.name, types, g.inputs, g.states, g.consts, g.captures, tuple(nodes), g.outputs, g.updates)
