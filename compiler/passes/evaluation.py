"""evaluation: what of a step is done otherwise where nothing is learned.

The graph is a step without its updates (the frontend's role "evaluate"): its gradients and optimizers are there, and
live only if somebody fetches what they compute.
"""

from __future__ import annotations

from compiler.ir.graph import Graph, Node
from compiler.passes.dce import dce
from compiler.passes.rewrite import Rewrite, renamed, with_bodies


def for_evaluation(graph: Graph) -> Graph:
    """BatchNormalization and Dropout in inference form, whatever their training mode is; without dead nodes.

    A BatchNormalization takes the running statistics, and gives them as they are for the next ones. A Dropout gives
    its operand; nothing is drawn. So does one that is written out as (x * 1/(1 - r)) * Cast(Not(Less(random, r))),
    random being RandomUniformLike(x), as `make_training_model` does below opset 12, where Dropout has no training form.
    """
    return dce(_inferring(graph))


def without_idle_inputs(graph: Graph) -> Graph:
    """The graph without the inputs that nothing reads, as the rate of an optimizer that is gone."""
    read = {v for node in graph.nodes for v in node.reads} | set(graph.results)
    idle = {v for v in graph.inputs if v not in read}
    if not idle:
        return graph
    return Graph(
        graph.name,
        {v: t for v, t in graph.types.items() if v not in idle},
        tuple(v for v in graph.inputs if v not in idle),
        graph.states,
        graph.consts,
        graph.captures,
        graph.nodes,
        graph.outputs,
        graph.updates,
    )


def _inferring(graph: Graph) -> Graph:
    written = {node.outputs[0]: x for node in graph.nodes if (x := _written_dropout(graph, node))}
    if not written and not any(_trains(node) for node in graph.nodes):
        return graph
    rewrite = Rewrite(graph)
    for node in graph.nodes:
        inputs = rewrite.operands(node)
        if node.outputs[0] in written:
            rewrite.replace(node, [rewrite.names[written[node.outputs[0]]]])
        elif not _trains(node):
            rewrite.keep(node)
        elif node.op == "BatchNormalization":
            attrs = {name: a for name, a in node.attrs.items() if name != "training_mode"}
            y = rewrite.b.add(node.op, inputs, attrs, ["y"], origin=node.origin)
            rewrite.replace(node, [*y, *inputs[3:5]])
        elif node.op == "Dropout":
            rewrite.replace(node, rewrite.b.add(node.op, inputs[:1], {}, len(node.outputs), origin=node.origin))
        else:
            made = with_bodies(node, _inferring)
            captures = renamed(node.captures, rewrite.names)
            types = [graph.type(v) if v else None for v in node.outputs]
            added = rewrite.b.add(node.op, inputs, made.attrs, node.outputs, captures, node.origin, types)
            rewrite.replace(node, added)
    return rewrite.build()


def _written_dropout(graph: Graph, node: Node) -> str:
    """What a Dropout drops from whose result is that of this node, a product; '' if it is none."""
    scaled, draw = (_made_by(graph, node, 0, "Mul"), _made_by(graph, node, 1, "Cast", "Not", "Less"))
    if node.op != "Mul" or scaled is None or draw is None:
        return ""
    random = _made_by(graph, draw, 0, "RandomUniformLike")
    ratio, scale = graph.constant(draw.input(1)), graph.constant(scaled.input(1))
    if random is None or random.inputs[0] != scaled.inputs[0] or ratio is None or scale is None:
        return ""
    fits = ratio.size == scale.size == 1 and abs(scale.item() * (1 - ratio.item()) - 1) < 1e-2  # in any float type
    return scaled.inputs[0] if fits and random.attr("low", 0.0) == 0 and random.attr("high", 1.0) == 1 else ""


def _made_by(graph: Graph, node: Node, i: int, *ops: str) -> Node | None:
    """The node behind an operand, if the nodes from there back through first operands are of these operators."""
    for op in ops:
        made = graph.producer(node.input(i)) if node.input(i) else None
        if made is None or made.op != op:
            return None
        node, i = made, 0
    return node


def _trains(node: Node) -> bool:
    """Whether it has, or may have, or has inside of it, a training form."""
    if node.op == "BatchNormalization":
        return bool(node.attr("training_mode", 0))
    if node.op == "Dropout":
        return bool(node.input(2))
    return any(_trains(inner) for body in node.bodies.values() for inner in body.nodes)
