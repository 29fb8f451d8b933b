"""A Loop whose number of iterations is not known, bounded by a number that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.control import Iterated, iterated
from compiler.ir.graph import Graph, Node
from compiler.ir.types import TensorType


def bounded(b: Builder, node: Node, most: int) -> dict[str, str]:
    """Add a Loop that may make `most` iterations, and that the step refuses to run if they are not enough.

    A trip count that is computed at run time becomes a part of the condition. If rows are collected, there are as many
    as may be; those of iterations that do not take place are 0. Gives the new values of the node's outputs.
    """
    limit, first = (node.input(i) for i in (0, 1))
    known = b.known(limit) if limit else None
    count = most if known is None else min(int(known.item()), most)
    parts = iterated(node)
    captures, body = list(node.captures), parts.body
    if limit and known is None:
        body = _within(parts, b.type(limit))
        captures.append(limit)
        begins = b.op("Greater", limit, b.scalar(0, limit), name="begins")
        first = _both(b, first, begins) if first else begins
    constant, alive = b.const(np.array(count, np.int64)), first or b.const(np.array(True))
    alive = b.op("Reshape", alive, b.ints([]), name="go") if b.shape(alive) else alive
    outputs = (*parts.final, b.fresh("more"), *parts.stacked)
    body = _telling(iterated(Node("Loop", node.inputs, node.outputs, {"body": body}, tuple(captures))))
    made = Node("Loop", (constant, first, *parts.initial, alive), outputs, {"body": body}, tuple(captures), node.origin)
    if any(parts.stacked):
        made = _all_rows(made)
    added = dict(zip(outputs, b.add("Loop", made.inputs, made.attrs, outputs, captures, node.origin), strict=False))
    more = added.pop(outputs[len(parts.final)])
    if known is None or int(known.item()) > most:
        message = f"the Loop makes more than {most} iterations, which max_trip allows: raise it"
        added = {
            v: b.add("onnxc.Checked", [new, more], {"message": message}, [b.fresh(v)], (), node.origin)[0]
            for v, new in added.items()
            if v
        }
    return {v: added[v] for v in node.results}


def complete(b: Builder, node: Node, count: int) -> dict[str, str]:
    """Add a Loop that makes `count` iterations in any case, but computes nothing behind the end of the given one.

    node: a Loop of at most so many iterations, of which no rows are asked for. Gives the new values of its outputs.
    """
    parts, first = iterated(node), node.input(1) or b.const(np.array(True))
    alive = b.op("Reshape", first, b.ints([]), name="go") if b.shape(first) else first
    initial = (b.const(np.array(count, np.int64)), "", *parts.initial, alive)
    body = _telling(parts)
    outputs = (*(b.fresh(v) if v else "" for v in parts.final), "", *parts.stacked)
    made = _all_rows(Node("Loop", initial, outputs, {"body": body}, node.captures))
    added = b.add("Loop", made.inputs, made.attrs, outputs, node.captures, node.origin)
    return {v: new for v, new in zip(parts.final, added, strict=False) if v}


def _both(b: Builder, x: str, y: str) -> str:
    """Two conditions, one or both of which may be lists of one."""
    return b.op("And", *(b.op("Reshape", v, b.ints([])) if b.shape(v) else v for v in (x, y)), name="go")


def _copied(b: Builder, body: Graph, names: dict[str, str]) -> None:
    """Add a body's constants and nodes; `names` has its inputs and captures."""
    for v, t in body.consts.items():
        names[v] = b.const(t, v)
    for node in body.nodes:
        b.copy(node, names, body)


def _within(parts: Iterated, limit: TensorType) -> Graph:
    """The body, whose condition is false as well after as many iterations as its last capture says."""
    b = Builder(parts.body.name)
    names = {v: b.input(v, parts.body.type(v)) for v in parts.body.inputs}
    names.update((v, b.capture(v, parts.body.type(v))) for v in parts.body.captures)
    most = b.capture("limit", limit)
    _copied(b, parts.body, names)
    number = names[parts.number]
    more = b.op("Less", b.op("Add", number, b.scalar(1, number), name="done"), most, name="more")
    results = [_both(b, names[parts.new_go], more), *(names[v] for v in (*parts.new_state, *parts.rows))]
    for public, v in zip(parts.body.outputs, results, strict=True):
        b.output(public, v)
    return b.build()


def _telling(parts: Iterated) -> Graph:
    """The body, which carries on as its last value whether there is to be another iteration."""
    b = Builder(parts.body.name)
    names = {v: b.input(v, parts.body.type(v)) for v in parts.body.inputs}
    b.input("alive", TensorType("bool"))
    names.update((v, b.capture(v, parts.body.type(v))) for v in parts.body.captures)
    _copied(b, parts.body, names)
    go = names[parts.new_go]
    alive = b.op("Reshape", go, b.ints([]), name="alive") if b.shape(go) else go
    _give(b, [go, *(names[v] for v in parts.new_state), alive, *(names[v] for v in parts.rows)])
    return b.build()


def _all_rows(node: Node) -> Node:
    """The Loop that makes all iterations, and computes nothing in those behind the end. Its last state is `alive`."""
    parts = iterated(node)
    body = Builder(parts.body.name)
    number, go = (body.input(v, parts.body.type(v)) for v in (parts.number, parts.go))
    states = [body.input(v, parts.body.type(v)) for v in parts.state]
    captures = [body.capture(v, parts.body.type(v)) for v in parts.body.captures]
    attrs = {"then_branch": _taken(parts), "else_branch": _passed(parts)}
    results = body.add("If", states[-1:], attrs, len(states) + len(parts.rows), [number, *states, *captures])
    _give(body, [go, *results])
    return Node("Loop", (node.inputs[0], "", *parts.initial), node.outputs, {"body": body.build()}, node.captures)


def _branch(parts: Iterated, name: str) -> tuple[Builder, dict[str, str]]:
    b = Builder(name)
    return b, {v: b.capture(v, parts.body.type(v)) for v in (parts.number, *parts.state, *parts.body.captures)}


def _taken(parts: Iterated) -> Graph:
    """An iteration: the new states and the rows."""
    b, names = _branch(parts, "iteration")
    names[parts.go] = b.const(np.ones(parts.body.type(parts.go).shape, np.bool_))
    _copied(b, parts.body, names)
    _give(b, [names[v] for v in parts.new_state + parts.rows])
    return b.build()


def _passed(parts: Iterated) -> Graph:
    """No iteration: the states as they are, and zeros."""
    b, names = _branch(parts, "end")
    _give(b, [*(names[v] for v in parts.state), *(b.full(0, parts.body.type(v)) for v in parts.rows)])
    return b.build()


def _give(b: Builder, results: Sequence[str]) -> None:
    for i, v in enumerate(results):
        b.output(f"y{i}", v)
