"""hoist: computes what is the same in each iteration of a loop once, before the loop."""

from __future__ import annotations

from compiler.ir.builder import Builder
from compiler.ir.control import scan_length, trip_count
from compiler.ir.evaluate import is_random
from compiler.ir.graph import Graph, Node
from compiler.passes.rewrite import Rewrite, renamed, with_bodies


def hoist(graph: Graph) -> Graph:
    """Move nodes of the bodies of Loop and Scan that read captured values and constants only in front of the loop.

    Innermost loops first: what they leave may leave the loops around as well. A loop that may make no iteration keeps
    its nodes, as one of them could fail; so do the branches of an If.
    """
    if not any(node.bodies for node in graph.nodes):
        return graph
    rewrite = Rewrite(graph)
    for old in graph.nodes:
        node = with_bodies(old, hoist)
        fixed = _fixed_nodes(node) if _runs(rewrite.b, node, rewrite) else []
        if node == old and not fixed:
            rewrite.keep(old)
        else:
            _add(rewrite, node, fixed)
    return rewrite.build()


def _runs(b: Builder, node: Node, rewrite: Rewrite) -> bool:
    """Whether a node is a loop that makes at least one iteration."""
    if node.op not in ("Loop", "Scan"):
        return False
    there = Node(node.op, tuple(rewrite.operands(node)), node.outputs, node.attrs, node.captures, node.origin)
    count = trip_count(there, b.known) if node.op == "Loop" else scan_length(there, b.type)
    return bool(count)


def _fixed_nodes(node: Node) -> list[Node]:
    """The nodes of a loop's body whose results are the same in each iteration."""
    body: Graph = node.attrs["body"]
    fixed, found = {*body.captures, *body.consts}, []
    for inner in body.nodes:
        if not is_random(inner) and fixed.issuperset(inner.reads):
            fixed.update(inner.results)
            found.append(inner)
    return found


def _add(rewrite: Rewrite, node: Node, fixed: list[Node]) -> None:
    """Add a loop without the nodes `fixed` of its body, behind these."""
    b, captures, attrs = rewrite.b, renamed(node.captures, rewrite.names), dict(node.attrs)
    if fixed:
        body: Graph = node.attrs["body"]
        outer = dict(zip(body.captures, captures, strict=True))
        read = {v for inner in fixed for v in inner.reads}
        outer.update((v, b.const(t)) for v, t in body.consts.items() if v in read)
        for inner in fixed:
            b.copy(inner, outer, body)
        moved = _needed(body, fixed)
        attrs["body"] = _without(body, fixed, moved)
        captures += [outer[v] for v in moved]
    types = [rewrite.graph.type(v) if v else None for v in node.outputs]
    added = b.add(node.op, rewrite.operands(node), attrs, node.outputs, captures, node.origin, types)
    rewrite.names.update((old, new) for old, new in zip(node.outputs, added, strict=False) if old)


def _needed(body: Graph, fixed: list[Node]) -> list[str]:
    """Results of some of a body's nodes that the others, or the one around the body, read."""
    gone = {inner.results[0] for inner in fixed}
    read = {v for inner in body.nodes if inner.results[0] not in gone for v in inner.reads} | {*body.results}
    return [v for inner in fixed for v in inner.results if v in read]


def _without(body: Graph, fixed: list[Node], moved: list[str]) -> Graph:
    """A body that captures the values `moved`, after its other captures, and does not compute them."""
    b, gone = Builder(body.name), {inner.results[0] for inner in fixed}
    names = {v: b.input(v, body.type(v)) for v in body.inputs}
    names.update((v, b.capture(v, body.type(v))) for v in (*body.captures, *moved))
    names.update((v, b.const(t, v)) for v, t in body.consts.items())
    for inner in body.nodes:
        if inner.results[0] not in gone:
            b.copy(inner, names, body)
    b.bind(body, names)
    return b.build()
