"""fuse_attention: products around a Softmax become onnxc.Attention, which never holds the matrix of scores.

What is found: `MatMul(Softmax(mask(scale * MatMul(q, k'))), v)`, the softmax along the last axis, all of the same batch
axes, in float32 or float64. The scale: any Mul or Div by a constant, of the scores, of q or of k. The mask: any Add of
what has no gradient, and Where with a very negative constant. ONNX's Attention, too, unless it has a softcap, another
precision of the softmax, or gives its scores. It is done where that pays: see `pays` of attention_spelling.

What stays as it is: what has a value between the products that something else reads, or that a derivative is taken at;
weights with Dropout (its mask would be as large); masks with a gradient; keys that are broadcast along batch axes.
"""

from __future__ import annotations

import numpy as np

from compiler.ir.definitions.attention import fused
from compiler.ir.definitions.fused_attention import without_scores
from compiler.ir.graph import Graph, Node, Origin
from compiler.ir.types import AnyArray, Tensor, numpy_dtype
from compiler.passes.attention_spelling import Finder, Scores, Term
from compiler.passes.rewrite import Rewrite, reshaped, with_bodies


def fuse_attention(graph: Graph) -> Graph:
    """Make one node of each attention with large scores, also in bodies. A graph without any is given back as it is.

    A constant mask by a finite number of at most HIDING counts as one by -inf if it hides no row whole: the weights are
    zeros then, unless all scores of a row lie below that number. A key that a mask hides from a query must have finite
    numbers: they are multiplied by 0.
    """
    return _fused(graph, frozenset())


def _fused(graph: Graph, outside: frozenset[str]) -> Graph:
    """outside: the values that may depend on what a derivative is taken by, though no Gradient here names it."""
    if reshaped(graph) or not any(n.op in ("Softmax", "Attention") or n.bodies for n in graph.nodes):
        return graph
    finder, emitter = Finder(graph, outside), _Emitter(graph)
    found = {node.outputs[0]: s for node in graph.nodes if (s := finder.attention(node)) is not None}
    inner = {v for s in found.values() for v in s.inner}
    changed = bool(found)
    for node in graph.nodes:
        if node.results and node.results[0] in found:
            emitter.emit(node, found[node.results[0]])
        elif finder.is_attention(node) and emitter.replaced(node):
            changed = True
        elif inner.isdisjoint(node.results):
            new = with_bodies(node, lambda body: _fused(body, frozenset((*body.inputs, *body.captures))))
            changed |= any(new.attrs[name] is not body for name, body in node.bodies.items())
            emitter.rewrite.keep(new)
    return emitter.rewrite.build() if changed else graph


class _Emitter:
    """Rebuilds a graph with nodes of attention; equal masks are one constant."""

    def __init__(self, graph: Graph):
        self.graph, self.rewrite = graph, Rewrite(graph)
        self._masks: dict[Tensor, str] = {}

    def emit(self, node: Node, scores: Scores) -> None:
        """The node in place of a last product."""
        b, names = self.rewrite.b, self.rewrite.names
        b.origin = Origin(node.origin.node, "fuse_attention")
        q, k, v = names[scores.left], self._keys(scores.right), names[node.inputs[1]]
        fixed = [term.array for term in scores.terms if term.array is not None]
        bias = self._mask(sum(fixed[1:], fixed[0])) if fixed else ""
        for term in scores.terms:
            if term.array is None:
                value = self._value(term, b.type(q).dtype)
                bias = b.op("Add", bias, value) if bias else value
        self.rewrite.replace(node, [without_scores(b, q, k, v, bias, scores.scale, scores.zeros)])

    def replaced(self, node: Node) -> bool:
        """Put onnxc.Attention in place of ONNX's Attention, if it has the means."""
        self.rewrite.b.origin = Origin(node.origin.node, "fuse_attention")
        values = fused(self.rewrite.b, self.rewrite.operands(node), node.attrs)
        if values is not None:
            self.rewrite.replace(node, values)
        return values is not None

    def _keys(self, right: str) -> str:
        """The transpose of the right operand of the first product: what that is the transpose of, if it is one."""
        b, rank = self.rewrite.b, self.graph.type(right).rank
        order = [*range(rank - 2), rank - 1, rank - 2]
        node = None if right in self.rewrite.points else self.graph.producer(right)
        if node is not None and node.op == "Transpose":
            perm = node.attr("perm") or tuple(reversed(range(rank)))
            right, order = node.inputs[0], [perm[i] for i in order]
        x = self.rewrite.names[right]
        return x if order == list(range(rank)) else b.op("Transpose", x, name=b.fresh("keys"), perm=tuple(order))

    def _mask(self, array: AnyArray) -> str:
        tensor = Tensor(array)
        if tensor not in self._masks:
            self._masks[tensor] = self.rewrite.b.const(tensor, "bias")
        return self._masks[tensor]

    def _value(self, term: Term, dtype: str) -> str:
        if not term.where:
            return self.rewrite.names[term.value]
        b, number = self.rewrite.b, numpy_dtype(dtype).type
        shown, hidden = b.const(number(0)), b.const(number(-np.inf))
        branches = (shown, hidden) if term.shown else (hidden, shown)
        return b.op("Where", self.rewrite.names[term.where], *branches)
