"""Derivatives of bodies: what the rules of If, Loop and Scan are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph, Node
from compiler.passes.gradients.backward import Differentiator
from compiler.passes.gradients.nature import ZERO
from compiler.passes.gradients.rule import NoRule
from compiler.passes.gradients.substitute import substituted


@dataclass(frozen=True)
class Pulled:
    """A body together with its derivative, in one graph.

    forward: the values of the body's outputs. seeds: number of an output -> the input of the graph that takes the
    gradient arriving at it. gradients: source of the body -> its gradient, for those that have one.
    """

    graph: Graph
    forward: tuple[str, ...]
    seeds: Mapping[int, str]
    gradients: Mapping[str, str]

    @property
    def primal(self) -> list[Node]:
        """The nodes that compute the body's outputs, in program order."""
        return ancestors(self.graph, self.forward)


def pulled(body: Graph, seeded: Iterable[int], xs: Sequence[str]) -> Pulled:
    """Differentiate the outputs `seeded` of a body with respect to its sources xs, whose names the graph keeps.

    NoRule with all problems of the nodes in it.
    """
    b = Builder(body.name)
    names = b.sources_of(body)
    for node in body.nodes:
        b.copy(node, names, body)
    forward = [names[v] for v in body.outputs.values()]
    seeds = {i: b.input(b.fresh(f"d_{forward[i]}"), b.type(forward[i]).slope) for i in seeded}
    differentiator = Differentiator(b)
    arriving = [(forward[i], partial(str, v)) for i, v in seeds.items()]
    found = differentiator.pullback(arriving, xs, frozenset(xs))
    if differentiator.problems:
        raise NoRule("a node in its body has none", problems=differentiator.problems)
    for i, v in enumerate(forward):
        b.output(f"y{i}", v)
    for i, v in enumerate(found.values()):
        b.output(f"d{i}", v)
    graph = substituted(b.build(), differentiator.replacements, differentiator.labels)
    gradients = {x: graph.outputs[f"d{i}"] for i, x in enumerate(found)}
    return Pulled(graph, tuple(graph.outputs[f"y{i}"] for i in range(len(forward))), seeds, gradients)


def ancestors(graph: Graph, values: Iterable[str]) -> list[Node]:
    """The nodes that some values are computed by, in program order."""
    needed = set(values)
    found = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.results):
            needed.update(node.reads)
            found.append(node)
    return found[::-1]


def influences(body: Graph) -> list[frozenset[str]]:
    """For each output of a body, the sources that it may have a derivative with respect to."""
    of: dict[str, frozenset[str]] = {v: frozenset({v}) for v in (*body.inputs, *body.captures) if body.type(v).is_float}
    for node in body.nodes:
        read: list[frozenset[str]] = [] if node.op in ZERO else [of[v] for v in node.reads if v in of]
        total = frozenset[str]().union(*read)
        of.update((v, total) for v in node.results if body.type(v).is_float)
    return [of.get(v, frozenset()) for v in body.outputs.values()]
