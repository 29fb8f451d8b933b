"""straight_through: lets gradients look through roundings, as quantization-aware training wants it."""

from __future__ import annotations

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.ir.proto import default
from compiler.ir.types import onnx_dtype
from compiler.passes.rewrite import Rewrite, renamed, with_bodies

ATTRIBUTES = ("axis", "block_size", "output_dtype", "precision", "saturate")
"""Attributes of QuantizeLinear that its result depends on."""


def straight_through(graph: Graph) -> Graph:
    """Replace Round, and each DequantizeLinear right behind a QuantizeLinear of the same parameters, also in bodies.

    They become onnxc.RoundThrough and onnxc.FakeQuantize, which compute the same; gradients pass the rounding as if it
    were not there: by x inside the range of the quantized type, by the scale everywhere.
    """
    rewrite = Rewrite(graph)
    changed = False
    for old in graph.nodes:
        node = with_bodies(old, straight_through)
        rewrite.b.origin = node.origin
        quantized = _quantized(graph, node)
        if node.op == "Round":
            hints = _hints(rewrite, node)
            rewrite.replace(node, rewrite.b.add("onnxc.RoundThrough", rewrite.operands(node), outputs=hints))
        elif quantized is not None:
            attrs = {k: v for k, v in quantized.attrs.items() if k in ATTRIBUTES}
            attrs["dequantized_dtype"] = onnx_dtype(graph.type(node.outputs[0]).dtype)
            operands = rewrite.operands(quantized)
            rewrite.replace(node, rewrite.b.add("onnxc.FakeQuantize", operands, attrs, _hints(rewrite, node)))
        elif node != old:
            inputs, captures = (renamed(values, rewrite.names) for values in (node.inputs, node.captures))
            types = [graph.type(v) if v else None for v in node.outputs]
            added = rewrite.b.add(node.op, inputs, node.attrs, node.outputs, captures, node.origin, types)
            rewrite.replace(node, added)
        else:
            rewrite.keep(node)
            continue
        changed = True
    return rewrite.build() if changed else graph


def _hints(rewrite: Rewrite, node: Node) -> list[str]:
    return [rewrite.b.fresh(v) for v in node.outputs]


def _quantized(graph: Graph, node: Node) -> Node | None:
    """The QuantizeLinear that a DequantizeLinear undoes."""
    before = graph.producer(node.inputs[0]) if node.op == "DequantizeLinear" else None
    if before is None or before.op != "QuantizeLinear":
        return None
    settings = [tuple(n.attr(k, default(n.op, k)) for k in ("axis", "block_size")) for n in (before, node)]
    per_tensor = graph.type(node.inputs[1]).rank == 0
    same = all(_equal(graph, before.input(i), node.input(i)) for i in (1, 2))
    return before if same and (per_tensor or settings[0] == settings[1]) else None


def _equal(graph: Graph, v: str, w: str) -> bool:
    """Whether two values are the same one, or equal constants: exporters write some twice."""
    if v == w:
        return True
    first, second = (graph.constant(u) if u else None for u in (v, w))
    if first is None or second is None:
        # without a zero point it is 0
        rest = first if second is None else second
        return not (v and w) and rest is not None and not rest.any()
    return first.dtype == second.dtype and np.array_equal(first, second)
