"""Run a whole graph with onnx's reference implementation, node by node: the slow, obvious meaning of the IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.bodies import body_graph
from compiler.ir.control import Iterated, iterated
from compiler.ir.evaluate import evaluate
from compiler.ir.graph import Graph, Node
from compiler.ir.proto import INTERNAL_DOMAIN
from compiler.ir.types import AnyArray, numpy_dtype

BY_DEFINITION = frozenset({"RNN", "GRU", "LSTM"})
"""Standard operators of which onnx's reference implementation lacks a part: sequence_lens, activations, directions."""


def interpret(
    graph: Graph, feeds: Mapping[str, AnyArray], states: Mapping[str, AnyArray] | None = None
) -> dict[str, AnyArray]:
    """Every value of a graph, by name. feeds: arrays of inputs and captures; states: in place of the initial ones.

    Gradient nodes have no meaning here: expand them first.
    """
    values: dict[str, AnyArray] = {v: t.array for v, t in (*graph.states.items(), *graph.consts.items())}
    values.update(states or {})
    values.update(feeds)
    for node in graph.nodes:
        args = [values[v] if v else None for v in node.inputs]
        outs: Sequence[AnyArray | None]
        captured = [values[v] for v in node.captures]
        if node.op == "If":
            branch = node.attrs["then_branch" if bool(np.all(args[0])) else "else_branch"]
            inner = interpret(branch, dict(zip(branch.captures, captured, strict=True)))
            outs = [inner[v] for v in branch.outputs.values()]
        elif node.op in ("Loop", "Scan"):
            outs = iterate(node, args, captured)
        elif node.domain == INTERNAL_DOMAIN or node.op in BY_DEFINITION:
            body = body_graph(node, [graph.type(v) if v else None for v in node.inputs])
            inner = interpret(body, {f"in{i}": a for i, a in enumerate(args) if a is not None})
            outs = [inner[v] for v in body.outputs.values()]
        else:
            outs = evaluate(node, args)
        for name, array in zip(node.outputs, outs, strict=False):
            if name and array is not None:
                values[name] = np.asarray(array).astype(numpy_dtype(graph.type(name).dtype), copy=False)
    return values


def iterate(node: Node, args: Sequence[AnyArray | None], captured: Sequence[AnyArray]) -> list[AnyArray]:
    """Results of a Loop or Scan, all of them: final values, then stacked rows. captured: values of its captures."""
    parts = iterated(node)
    body = parts.body
    captures = dict(zip(body.captures, captured, strict=True))
    if node.op == "Loop":
        limit, first = args[0], args[1]
        most = None if limit is None else int(limit.item())
        go, state, sequences = first is None or bool(first.all()), [np.asarray(a) for a in args[2:]], []
    else:
        n = len(parts.initial)
        go, state = True, [np.asarray(a) for a in args[:n]]
        sequences = [
            np.flip(np.moveaxis(np.asarray(a), axis, 0), 0) if back else np.moveaxis(np.asarray(a), axis, 0)
            for a, axis, back in zip(args[n:], parts.sequence_axes, parts.sequence_reversed, strict=True)
        ]
        most = len(sequences[0])
    rows: list[list[AnyArray]] = [[] for _ in parts.rows]
    count = 0
    while go and (most is None or count < most):
        feeds = {**captures, **dict(zip(parts.state, state, strict=True))}
        feeds.update((v, a[count]) for v, a in zip(parts.elements, sequences, strict=True))
        if parts.number:
            feeds[parts.number] = np.full(body.type(parts.number).shape, count, np.int64)
            feeds[parts.go] = np.ones(body.type(parts.go).shape, np.bool_)
        values = interpret(body, feeds)
        state = [values[v] for v in parts.new_state]
        for collected, v in zip(rows, parts.rows, strict=True):
            collected.append(values[v])
        go = not parts.new_go or bool(np.all(values[parts.new_go]))
        count += 1
    return [*state, *(_stacked(parts, i, collected) for i, collected in enumerate(rows))]


def _stacked(parts: Iterated, i: int, collected: list[AnyArray]) -> AnyArray:
    t = parts.body.type(parts.rows[i])
    rows = collected[::-1] if parts.stacked_reversed[i] else collected
    if not rows:
        axis = parts.stacked_axes[i]
        return np.zeros((*t.shape[:axis], 0, *t.shape[axis:]), numpy_dtype(t.dtype))
    return np.stack(rows, parts.stacked_axes[i])
