"""dce: removes what no output and no update needs."""

from __future__ import annotations

from functools import cache

from onnx.defs import OpSchema

from compiler.ir.builder import Builder
from compiler.ir.definitions.optimizers import STEPS
from compiler.ir.graph import Graph, Node
from compiler.ir.proto import INTERNAL_DOMAIN, schema
from compiler.passes.iterations import without_unused
from compiler.passes.rewrite import with_interface

_FIXED_OUTPUTS = frozenset({"BatchNormalization", *STEPS})
"""Operators whose outputs are marked optional though their number follows from an attribute or the operands."""


def dce(graph: Graph) -> Graph:
    """Remove nodes and constants that nothing reads, outputs that are optional, and captures that no body reads.

    Inputs and states stay declared: they are the interface.
    """
    live = set(graph.results)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if live.isdisjoint(node.results):
            continue
        node = _trimmed(node, live)
        live.update(node.reads)
        kept.append(node)
    b, names = Builder(graph.name), {}
    for v in graph.inputs:
        names[v] = b.input(v, graph.type(v))
    for v in graph.captures:
        names[v] = b.capture(v, graph.type(v))
    for v, t in graph.states.items():
        names[v] = b.state(v, t)
    for v, t in graph.consts.items():
        if v in live:
            names[v] = b.const(t, v)
    for node in reversed(kept):
        b.copy(node, names, graph)
    b.bind(graph, names)
    return b.build()


def _trimmed(node: Node, live: set[str]) -> Node:
    """The node without the outputs that it may lack, its bodies without what only these needed."""
    if not node.bodies:
        outputs = tuple(v if v in live or not _optional(node.op, i) else "" for i, v in enumerate(node.outputs))
        return Node(node.op, node.inputs, outputs, node.attrs, node.captures, node.origin)
    if node.op == "If":
        wanted = [i for i, v in enumerate(node.outputs) if v in live]
        bodies = {name: dce(with_interface(body, outputs=wanted)) for name, body in node.bodies.items()}
        node = Node(
            node.op, node.inputs, tuple(node.outputs[i] for i in wanted), node.attrs, node.captures, node.origin
        )
    else:
        node = without_unused(node, live)
        bodies = {name: dce(body) for name, body in node.bodies.items()}
    reads = [{v for inner in body.nodes for v in inner.reads} | set(body.results) for body in bodies.values()]
    slots = [
        i
        for i in range(len(node.captures))
        if any(body.captures[i] in read for body, read in zip(bodies.values(), reads, strict=True))
    ]
    bodies = {name: with_interface(body, captures=[body.captures[i] for i in slots]) for name, body in bodies.items()}
    captures = tuple(node.captures[i] for i in slots)
    return Node(node.op, node.inputs, node.outputs, {**node.attrs, **bodies}, captures, node.origin)


@cache
def _optional(op: str, i: int) -> bool:
    """Whether a node may lack its i-th output. All outputs of an internal op may be absent."""
    s = schema(op)
    if s is None:
        return op.startswith(f"{INTERNAL_DOMAIN}.") and op not in _FIXED_OUTPUTS
    return (
        op not in _FIXED_OUTPUTS
        and i < len(s.outputs)
        and s.outputs[i].option == OpSchema.FormalParameterOption.Optional
    )
