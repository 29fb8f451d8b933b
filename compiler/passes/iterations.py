"""Loop and Scan as passes change them: without what nobody needs, and with one more sequence."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.control import Iterated, always_goes_on, iterated, trip_count
from compiler.ir.graph import Attr, Graph, Node
from compiler.ir.types import Tensor, TensorType


def body_like(
    parts: Iterated,
    inputs: Collection[str],
    outputs: Collection[int],
) -> Graph:
    """The body with these of its inputs, and these (by position) of its outputs. Other inputs must have no reader."""
    b, names, body = Builder(parts.body.name), dict[str, str](), parts.body
    for v in body.inputs:
        if v in inputs:
            names[v] = b.input(v, body.type(v))
    for v in body.captures:
        names[v] = b.capture(v, body.type(v))
    for v, t in body.consts.items():
        names[v] = b.const(t, v)
    kept = [v for i, v in enumerate(body.outputs.values()) if i in outputs]
    needed = needed_values(body, kept)
    for node in body.nodes:
        if not needed.isdisjoint(node.results):
            b.copy(node, names, body)
    for i, (public, v) in enumerate(body.outputs.items()):
        if i in outputs:
            b.output(public, names[v])
    return b.build()


def needed_values(graph: Graph, results: Collection[str]) -> set[str]:
    """All values from which these are computed, and these."""
    needed = set(results)
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.results):
            needed.update(node.reads)
    return needed


def without_unused(node: Node, live: Collection[str]) -> Node:
    """A Loop or Scan that computes what is in `live`, without carried values, sequences and rows needed for others.

    A Scan keeps a sequence: it says how many iterations there are.
    """
    parts = iterated(node)
    rows = [i for i, v in enumerate(parts.stacked) if v in live]
    results = [parts.rows[i] for i in rows] + ([parts.new_go] if parts.new_go else [])
    state = {i for i, v in enumerate(parts.final) if v in live}
    while True:
        needed = needed_values(parts.body, [*results, *(parts.new_state[i] for i in state)])
        more = {i for i, v in enumerate(parts.state) if v in needed} - state
        if not more:
            break
        state |= more
    sequences = [i for i, v in enumerate(parts.elements) if v in needed] or list(range(len(parts.elements)))[:1]
    if (len(rows), len(state), len(sequences)) == (len(parts.rows), len(parts.state), len(parts.sequences)):
        return node
    return selected(node, parts, sorted(state), sequences, rows)


def selected(node: Node, parts: Iterated, state: list[int], sequences: list[int], rows: list[int]) -> Node:
    """The node with these of its carried values, sequences and stacked outputs only."""
    first = 1 if parts.new_go else 0
    ins = {parts.number, parts.go, *(parts.state[i] for i in state), *(parts.elements[i] for i in sequences)}
    outs = [*range(first), *(first + i for i in state), *(first + len(parts.state) + i for i in rows)]
    attrs: dict[str, Attr] = {"body": body_like(parts, ins, outs)}
    inputs = [*node.inputs[: 2 * first], *(parts.initial[i] for i in state), *(parts.sequences[i] for i in sequences)]
    if not first:
        attrs["num_scan_inputs"] = len(sequences)
        for name, values, kept in (
            ("scan_input_axes", parts.sequence_axes, sequences),
            ("scan_input_directions", parts.sequence_reversed, sequences),
            ("scan_output_axes", parts.stacked_axes, rows),
            ("scan_output_directions", parts.stacked_reversed, rows),
        ):
            if any(values[i] for i in kept):
                attrs[name] = tuple(values[i] for i in kept)
    outputs = [*(parts.final[i] for i in state), *(parts.stacked[i] for i in rows)]
    return Node(node.op, tuple(inputs), tuple(outputs), attrs, node.captures, node.origin)


def with_fixed_count(b: Builder, node: Node) -> Node:
    """A Loop whose number of iterations is known, with that as its trip count and a condition that stays true."""
    parts = iterated(node)
    if always_goes_on(parts) and not node.inputs[1] and b.producer(node.inputs[0]) is None:
        return node
    count = trip_count(node, b.known)
    if count is None:
        return node
    first = next(iter(parts.body.outputs))
    inner = Builder(parts.body.name)
    names = inner.sources_of(parts.body)
    for n in parts.body.nodes:
        inner.copy(n, names, parts.body)
    for public, v in parts.body.outputs.items():
        inner.output(public, names[parts.go] if public == first else names[v])
    inputs = (b.const(np.array(count, np.int64)), "", *node.inputs[2:])
    return Node(node.op, inputs, node.outputs, {"body": inner.build()}, node.captures, node.origin)


def with_iteration_number(b: Builder, node: Node, length: int) -> tuple[Node, str]:
    """A Scan that also scans 0, 1, 2, .. up to its length, and the body's input of that: i64[].

    The node's operands are values of the builder, which gets the numbers as a constant.
    """
    parts = iterated(node)
    inner = Builder(parts.body.name)
    names = inner.sources_of(parts.body)
    number = inner.input("iteration", TensorType("i64"))
    for v in parts.body.nodes:
        inner.copy(v, names, parts.body)
    inner.bind(parts.body, names)
    attrs = {**node.attrs, "body": inner.build(), "num_scan_inputs": len(parts.sequences) + 1}
    for name in ("scan_input_axes", "scan_input_directions"):
        if node.attr(name):
            attrs[name] = (*node.attr(name), 0)
    numbers = b.const(Tensor(np.arange(length, dtype=np.int64)))
    return Node(node.op, (*node.inputs, numbers), node.outputs, attrs, node.captures, node.origin), number
