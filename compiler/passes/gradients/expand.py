"""The pass `expand_gradients`: every Gradient node becomes the operators of the backward computation."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping, Sequence

from compiler.errors import Problem, UnsupportedError, VerifyError
from compiler.ir.builder import GRADIENT, Builder, describe, where
from compiler.ir.checks import check_node
from compiler.ir.checks.base import NodeFacts
from compiler.ir.graph import Graph, Node
from compiler.ir.infer import NotStatic
from compiler.ir.types import onnx_dtype
from compiler.passes.gradients.backward import Differentiator
from compiler.passes.gradients.substitute import substituted
from compiler.passes.rewrite import gradient_points, with_bodies
from compiler.passes.straight_through import straight_through

Names = MutableMapping[str, str]
"""Value of the old graph -> value of the new one."""


def expand_gradients(graph: Graph, look_through: bool = False) -> Graph:
    """Replace all Gradient nodes, also those in nested bodies, by explicit backward operators.

    A Gradient `y, xs.., zs.., at.. -> d(sum y)/dx..` is taken at the point `at`: where that is the named tensors, the
    forward computation is reused; else a copy of what lies between them and y is evaluated there. Values that y
    depends on and that are not named count as constants. Unreached xs get zeros. Gradients of gradients work, as do
    absent outputs. UnsupportedError lists every node that stands in the way. look_through: gradients pass Round, and
    quantization that is undone at once, as if nothing were rounded.
    """
    if not _has_gradient(graph):
        return graph
    return _Expansion(straight_through(graph) if look_through else graph).run()


def _has_gradient(graph: Graph) -> bool:
    return any(n.op == GRADIENT or any(map(_has_gradient, n.bodies.values())) for n in graph.nodes)


class _Expansion:
    """Builds the new graph in program order."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.b = Builder(graph.name)
        self.names: dict[str, str] = self.b.sources_of(graph)
        self.differentiator = Differentiator(self.b, gradient_points(graph))
        self.problems: list[Problem] = []
        self.order = {node.results[0]: i for i, node in enumerate(graph.nodes) if node.results}

    def run(self) -> Graph:
        self.b.reserve(v for node in self.graph.nodes for v in node.results)
        for node in self.graph.nodes:
            self._add(node, self.names)
        if problems := [*self.problems, *self.differentiator.problems]:
            raise UnsupportedError(problems)
        self.b.bind(self.graph, self.names)
        return substituted(self.b.build(), self.differentiator.replacements, self.differentiator.labels)

    def _add(self, node: Node, names: Names) -> None:
        """Add an old node, or what it expands to, and record the names of its outputs."""
        if node.op == GRADIENT:
            self._expand(node, names)
            return
        try:
            node = with_bodies(node, expand_gradients)
        except UnsupportedError as e:
            self.problems.extend(e.problems)
        same = all(self.b.type(names[v]) == self.graph.type(v) for v in node.reads)
        if not same and node.bodies:
            raise VerifyError(Problem(f"the bodies of {node.op} are made for other shapes", where(node)))
        added = self.b.add(
            node.op,
            [names[v] if v else "" for v in node.inputs],
            node.attrs,
            node.outputs,
            [names[v] for v in node.captures],
            node.origin,
            [self.graph.type(v) if v else None for v in node.outputs] if same else None,
        )
        if not same:
            self._check(self.b.nodes[-1])
        names.update((old, new) for old, new in zip(node.outputs, added, strict=False) if old)

    def _check(self, node: Node) -> None:
        """VerifyError if a node whose operands have other types than in the old graph breaks a rule of its op."""
        ins = tuple(self.b.type(v) if v else None for v in node.inputs)
        outs = tuple(self.b.type(v) if v else None for v in node.outputs)
        for what in check_node(NodeFacts(node, ins, outs, self.b.known)):
            raise VerifyError(
                Problem(f"{describe(node, {v: self.b.type(v) for v in node.reads})}: {what}", where(node))
            )

    def _expand(self, node: Node, names: Names) -> None:
        n, m = node.attr("xs", 0), node.attr("zs", 0)
        y, named, at = node.inputs[0], node.inputs[1 : 1 + n + m], node.inputs[1 + n + m :]
        wanted = [(v, out) for v, out in zip(named, node.outputs, strict=False) if out]
        # a substituted tensor gets a name of its own: the value given for it may play other roles in y as well
        moved: dict[str, str] = {}
        for v, value in zip(named, at, strict=True):
            if v not in moved and names[v] != names[value]:
                moved[v] = self.b.add("Identity", [names[value]], outputs=[self.b.fresh(v)], origin=node.origin)[0]
        point = ChainMap(moved, names)
        gradients: dict[str, str] = {}
        if self._sound(node, wanted, point) and self._evaluate(node, y, named, point):
            self.b.origin = node.origin
            cut = frozenset(point[v] for v in named)
            gradients = self.differentiator.gradients(point[y], [point[v] for v, _ in wanted], cut)
        for v, out in wanted:
            t = self.b.type(point[v])
            value = gradients.get(point[v]) or self.b.full(0, t)
            if self.b.type(value) != t:
                value = self.b.op("Cast", value, to=onnx_dtype(t.dtype))
            names[out] = self.differentiator.call(value, out)

    def _evaluate(self, node: Node, y: str, named: Sequence[str], point: ChainMap[str, str]) -> bool:
        """Add a copy of what y depends on through the substituted tensors. `point` grows; false if it does not fit."""
        moved, fixed = point.maps[0], dict(point.maps[0])
        if not moved:
            return True
        try:
            for other in self._between(y, frozenset(named)):
                if any(v in moved for v in other.reads):
                    self._add(other, point)
                    for v in other.results:
                        if v in named:  # one of several outputs: the node is copied for the others
                            moved.pop(v, None)
                            moved.update({v: fixed[v]} if v in fixed else {})
        except (VerifyError, NotStatic) as e:
            shapes = ", ".join(
                f"{v!r} is {self.b.type(new)} instead of {self.graph.type(v)}"
                for v, new in fixed.items()
                if self.b.type(new) != self.graph.type(v)
            )
            remedy = "compute shapes from the tensors (with Shape), not by constants"
            what = f"{y!r} cannot be evaluated again where {shapes or 'Gradient is taken'}: {e}"
            self.problems.append(Problem(what, where(node), remedy))
            return False
        return True

    def _between(self, y: str, cut: frozenset[str]) -> list[Node]:
        """The old nodes that y depends on, back to the cut, in program order."""
        found: dict[int, Node] = {}
        pending = [y]
        while pending:
            v = pending.pop()
            producer = None if v in cut else self.graph.producer(v)
            if producer is not None and (i := self.order[producer.results[0]]) not in found:
                found[i] = producer
                pending.extend(producer.reads)
        return [found[i] for i in sorted(found)]

    def _sound(self, node: Node, wanted: Sequence[tuple[str, str]], point: Names) -> bool:
        """Whether the derivatives exist and can be found in this graph; else the reasons are in `problems`."""
        before = len(self.problems)
        for v, _ in wanted:
            if not self.graph.type(v).is_float or self.graph.type(v).dtype == "f8e8m0":  # which has no 0
                what = f"Gradient with respect to {v!r}, which is {self.graph.type(v)}"
                self.problems.append(Problem(what, where(node), "list it in zs, or leave its output out"))
        outside = {self.names[v] for v in self.graph.captures}
        cut = frozenset(point[v] for v in node.inputs[1 : 1 + node.attr("xs", 0) + node.attr("zs", 0)])
        if outside.intersection(point[v] for v, _ in wanted):
            reached = {r for n in self.differentiator.ancestors([point[node.inputs[0]]], cut) for r in n.reads}
            if hidden := sorted((reached | {point[node.inputs[0]]}) & outside - cut):
                what = f"Gradient in a nested graph, where {hidden[0]!r} may depend on xs outside of it"
                self.problems.append(Problem(what, where(node), f"move it out, or list {hidden[0]!r} in zs"))
        return len(self.problems) == before
