"""Run a whole graph with onnx's reference implementation, node by node: the slow, obvious meaning of the IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.bodies import body_graph
from compiler.ir.evaluate import evaluate
from compiler.ir.graph import Graph
from compiler.ir.proto import INTERNAL_DOMAIN
from compiler.ir.types import AnyArray, numpy_dtype


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
        if node.op == "If":
            branch = node.attrs["then_branch" if bool(np.all(args[0])) else "else_branch"]
            inner = interpret(branch, dict(zip(branch.captures, (values[v] for v in node.captures), strict=True)))
            outs = [inner[v] for v in branch.outputs.values()]
        elif node.domain == INTERNAL_DOMAIN:
            body = body_graph(node, [graph.type(v) if v else None for v in node.inputs])
            inner = interpret(body, {f"in{i}": a for i, a in enumerate(args) if a is not None})
            outs = [inner[v] for v in body.outputs.values()]
        else:
            outs = evaluate(node, args)
        for name, array in zip(node.outputs, outs, strict=False):
            if name and array is not None:
                values[name] = np.asarray(array).astype(numpy_dtype(graph.type(name).dtype), copy=False)
    return values
