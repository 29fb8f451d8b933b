"""What several passes need: rebuilding a graph, nested bodies, and the values that Gradient nodes name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph, Node
from compiler.ir.types import AnyArray, Tensor


def gradient_points(graph: Graph) -> frozenset[str]:
    """The values that Gradient nodes of this graph name: y, xs and zs.

    Differentiation cuts the graph at them: a pass must neither replace them by an equal value (for h = k, `f(h) + g(k)`
    has another derivative by h than `f(h) + g(h)`) nor look through them for the constants behind.
    """
    points: set[str] = set()
    for node in graph.nodes:
        if node.op == GRADIENT:
            points.update(node.inputs[: 1 + node.attr("xs", 0) + node.attr("zs", 0)])
    return frozenset(points)


def reshaped(graph: Graph) -> bool:
    """Whether a Gradient node is taken at a point of another shape, so that a part of the graph is evaluated there."""
    for node in graph.nodes:
        if node.op == GRADIENT:
            n = node.attr("xs", 0) + node.attr("zs", 0)
            pairs = zip(node.inputs[1 : 1 + n], node.inputs[1 + n :], strict=False)
            if any(graph.type(v) != graph.type(at) for v, at in pairs):
                return True
    return False


def with_bodies(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """The node with each of its bodies changed; the node itself if it has none."""
    bodies = node.bodies
    if not bodies:
        return node
    attrs = {**node.attrs, **{name: change(body) for name, body in bodies.items()}}
    return Node(node.op, node.inputs, node.outputs, attrs, node.captures, node.origin)


def with_interface(
    body: Graph,
    *,
    outputs: Sequence[int] | None = None,
    captures: Sequence[str] | None = None,
    constants: Mapping[str, AnyArray] | None = None,
) -> Graph:
    """A body with these of its outputs and captures only (by default all), captures in `constants` made constants.

    A capture that is left out must have no reader.
    """
    b, names = Builder(body.name), dict[str, str]()
    known = constants or {}
    for v in body.inputs:
        names[v] = b.input(v, body.type(v))
    for v in body.captures if captures is None else captures:
        names[v] = b.const(Tensor(known[v]), v) if v in known else b.capture(v, body.type(v))
    for v, t in body.consts.items():
        names[v] = b.const(t, v)
    for node in body.nodes:
        b.copy(node, names, body)
    for i, (public, v) in enumerate(body.outputs.items()):
        if outputs is None or i in outputs:
            b.output(public, names[v])
    return b.build()


def renamed(values: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Operands of an old node in the new graph; '' stays."""
    return [names.get(v, v) for v in values]


class Rewrite:
    """A graph being rebuilt node by node: `b` is the new one, `names` leads from old values to new ones.

    A value computed in place of an old one gets the old one's name in the end, so that names last through the passes.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.b = Builder(graph.name)
        self.names = self.b.sources_of(graph)
        self.b.reserve(v for node in graph.nodes for v in node.results)
        self.points = gradient_points(graph)
        self._heirs: dict[str, str] = {}
        self._done = 0

    def operands(self, node: Node) -> list[str]:
        """The inputs of an old node in the new graph."""
        return renamed(node.inputs, self.names)

    def keep(self, node: Node) -> None:
        """Copy an old node."""
        self.b.copy(node, self.names, self.graph)
        self._done = len(self.b.nodes)

    def replace(self, node: Node, values: Sequence[str]) -> None:
        """Let the outputs of an old node be these values of the new graph; copies of them where Gradient names them."""
        added = {v for new in self.b.nodes[self._done :] for v in new.results}
        for old, new in zip(node.outputs, values, strict=False):
            if not old:
                continue
            if old in self.points:
                new = self.b.add("Identity", [new], outputs=[old], origin=node.origin)[0]
            elif new in added:
                self._heirs.setdefault(new, old)
            self.names[old] = new
        self._done = len(self.b.nodes)

    def build(self) -> Graph:
        """The new graph, with the old bindings."""
        self.b.bind(self.graph, self.names)
        graph = self.b.build()
        return with_names(graph, {new: old for new, old in self._heirs.items() if old not in graph.types})


def with_names(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with some of its computed values renamed; the new names must be free, and no two the same."""
    if not names:
        return graph

    def each(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(v, v) for v in values)

    return Graph(
        graph.name,
        {names.get(v, v): t for v, t in graph.types.items()},
        graph.inputs,
        graph.states,
        graph.consts,
        graph.captures,
        tuple(
            Node(node.op, each(node.inputs), each(node.outputs), node.attrs, each(node.captures), node.origin)
            for node in graph.nodes
        ),
        {public: names.get(v, v) for public, v in graph.outputs.items()},
        {state: names.get(v, v) for state, v in graph.updates.items()},
    )
