"""sgd_rows: a step of plain gradient descent on a table that is read by index touches only the rows that were read."""

from __future__ import annotations

from collections import Counter

from compiler.ir.graph import Graph, Node
from compiler.passes.dce import dce
from compiler.passes.rewrite import Rewrite, with_bodies

ELEMENTS, ROWS = 128, 2
"""How many elements and rows a table has for each index, at least: with fewer, going through all takes no longer."""


def sgd_rows(graph: Graph) -> Graph:
    """Make a step whose gradient is that of a Gather along axis 0 one of rows: there is no gradient of the whole table.

    Only where nothing else reads the gradient, the step is `X - rate*G`, and the indices are few. The results have the
    same bits. It runs behind fuse_optimizer, which decides where a step stands.
    """
    readers = Counter(v for node in graph.nodes for v in node.reads) + Counter(graph.results)
    rewrite, changed = Rewrite(graph), False
    for old in graph.nodes:
        node = with_bodies(old, sgd_rows)
        changed |= node != old
        gradient = _gradient_of_rows(graph, node)
        if gradient is None or readers[gradient.outputs[0]] > 1:
            rewrite.keep(node)
            continue
        rate, _decay, _shrink, _due, x, _g = rewrite.operands(node)
        operands = [rate, x, *rewrite.operands(gradient)]
        rewrite.b.origin = node.origin
        rewrite.replace(node, rewrite.b.add("onnxc.SgdRows", operands, outputs=[rewrite.b.fresh(node.outputs[0])]))
        changed = True
    return dce(rewrite.build()) if changed else graph


def _gradient_of_rows(graph: Graph, node: Node) -> Node | None:
    """The GatherGrad that a step of one variable, without other terms, gets its gradient from; None if it is not so."""
    if node.op != "onnxc.SgdStep" or len(node.inputs) != 6 or any(node.inputs[1:4]):
        return None
    gradient = graph.producer(node.inputs[5])
    if gradient is None or gradient.op != "onnxc.GatherGrad" or gradient.attr("axis") != 0:
        return None
    t, count = graph.type(node.inputs[4]), graph.type(gradient.inputs[1]).size
    few = 0 < count * ELEMENTS <= t.size and count * ROWS <= t.shape[0]
    return gradient if few and t.dtype in ("f32", "f64") else None
