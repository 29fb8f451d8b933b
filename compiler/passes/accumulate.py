"""accumulate: sums over steps are added up as soon as their terms are there, products by their own kernel."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.graph import Graph, Node
from compiler.passes.rewrite import Rewrite

_FLOATS = ("f32", "f64")


@dataclass(frozen=True)
class _Sum:
    """A state that is bound to `add`, Where(anew, 0, state) + term; `choice` is the node Where.

    at: position behind which the sum can be computed. product: the Gemm that computes the term, if its kernel can.
    """

    state: str
    anew: str
    choice: Node
    add: Node
    at: int
    product: Node | None


def accumulate(graph: Graph) -> Graph:
    """Move `S' = Where(anew, 0, S) + term` of states S up to the term; a term that is a product becomes AddProduct.

    The training models of `make_training_model` add up the gradients of several steps like this. Where the sum is
    written over the old one, a product has no memory of its own then, and no other gradient has any for long. What
    `anew` depends on, arithmetic on single numbers, moves to the front.
    """
    position = {v: i for i, node in enumerate(graph.nodes) for v in node.results}
    sums: dict[int, list[_Sum]] = {}
    early: set[int] = set()
    moved: set[int] = set()
    for state in graph.updates:
        found = _sum(graph, position, state)
        needed = None if found is None else _scalars(graph, position, found.anew)
        if found is not None and needed is not None and id(found.add) not in moved:  # it may be that of two states
            sums.setdefault(found.at, []).append(found)
            early |= needed
            moved |= {id(found.choice), id(found.add)}
    if not sums:
        return graph
    rewrite = Rewrite(graph)
    for i in sorted(early):
        rewrite.keep(graph.nodes[i])
    for i, node in enumerate(graph.nodes):
        here = sums.get(i, [])
        if i not in early and id(node) not in moved and all(s.product is None for s in here):
            rewrite.keep(node)
        for s in here:
            if s.product is None:
                rewrite.keep(s.choice)
                rewrite.keep(s.add)
            else:
                operands = [*rewrite.operands(s.product)[:2], rewrite.names[s.state], rewrite.names[s.anew]]
                attrs = {k: v for k, v in s.product.attrs.items() if k != "beta"}  # a factor of the C that it lacks
                rewrite.b.origin = s.product.origin
                rewrite.replace(s.add, rewrite.b.add("onnxc.AddProduct", operands, attrs, [s.add.outputs[0]]))
    return rewrite.build()


def _sum(graph: Graph, position: dict[str, int], state: str) -> _Sum | None:
    add = graph.producer(graph.updates[state])
    if add is None or add.op != "Add" or any(graph.type(v) != graph.type(state) for v in add.inputs):
        return None
    for choice, term in zip(map(graph.producer, add.inputs), reversed(add.inputs), strict=True):
        if choice is None or choice.op != "Where" or choice.inputs[2] != state or term not in position:
            continue
        zero, readers = graph.constant(choice.inputs[1]), graph.readers(choice.outputs[0])
        if zero is None or zero.any() or graph.type(choice.inputs[0]).size != 1 or len(readers) != 1:
            continue
        source = graph.producer(term)
        assert source is not None
        alone = graph.readers(term) == (add,) and term not in graph.results and graph.type(term).dtype in _FLOATS
        product = source if alone and source.op == "Gemm" and not source.input(2) else None
        return _Sum(state, choice.inputs[0], choice, add, position[term], product)
    return None


def _scalars(graph: Graph, position: dict[str, int], value: str) -> set[int] | None:
    """Positions of the nodes that a value depends on, all of single numbers; None if others are among them."""
    found: set[int] = set()
    pending = [value]
    while pending:
        at = position.get(pending.pop())
        if at is not None and at not in found:
            node = graph.nodes[at]
            if node.bodies or any(graph.type(v).size != 1 for v in node.results):
                return None
            found.add(at)
            pending.extend(node.reads)
    return found
