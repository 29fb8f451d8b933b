"""Sums over the iterations of a loop that need not be carried from iteration to iteration.

The gradient of a weight is a sum of products A' B, one from each iteration. With the A of all iterations below each
other in one tall matrix, and the B as well, it is a single product, which runs much faster than many small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce

from compiler.ir.graph import Node
from compiler.passes.gradients.keeping import Keeping
from compiler.passes.gradients.value import Value

Total = Callable[[], Value]
"""Adds the nodes that compute a sum, once the rows of all iterations exist."""


class Totals:
    """Finds such sums. rows: the values of the iterations of which they need all rows.

    values: all that are to be summed. given: values of which the rows will be there in any case.
    """

    def __init__(self, keeping: Keeping, count: int, values: Iterable[str], given: Iterable[str]):
        self.keeping, self.count, self.graph, self.b = keeping, count, keeping.graph, keeping.b
        self.rows: dict[str, None] = {}
        # a sum along axes pays only where the rows are there anyway: they are larger than the sum
        self._given = {*given}
        for v in values:
            self._given.update(x for node in self._terms(v) if _is_product(node) for x in node.inputs)

    def of(self, v: str) -> Total | None:
        """The sum of a value over the iterations; None if it has to be carried."""
        rows: list[str] = []
        terms = [self._term(node, rows) for node in self._terms(v)]
        found = [t for t in terms if t is not None]
        if not found or len(found) < len(terms):
            return None
        self.rows.update(dict.fromkeys(rows))
        return lambda: reduce(lambda total, term: total + term(), found[1:], found[0]())

    def _terms(self, v: str) -> list[Node]:
        """The nodes that compute the terms of a sum; none for one that has a term which no node computes."""
        found, pending = [], [v]
        while pending:
            term = pending.pop()
            node = self.graph.producer(term)
            if node is None or term in self.keeping.fixed:
                return []
            if node.op == "Add" and all(self.graph.type(x) == self.graph.type(term) for x in node.inputs):
                pending.extend(reversed(node.inputs))
            else:
                found.append(node)
        return found

    def _term(self, node: Node, rows: list[str]) -> Total | None:
        """The sum of what a node computes; `rows` grows by what it needs."""
        steps: list[Callable[[Value], Value]] = []
        while (step := self._linear(node)) is not None:
            operand, function = step
            steps.append(function)
            inner = self.graph.producer(operand)
            if inner is None:
                return None
            node = inner
        total: Total
        if _is_product(node):
            rows.extend(node.inputs)
            total = partial(self._product, node)
        elif node.op == "ReduceSum" and node.inputs[0] in self._given and (axes := self._axes(node)):
            rows.append(node.inputs[0])
            total = partial(self._reduction, node, axes)
        else:
            return None
        return lambda: reduce(lambda value, function: function(value), reversed(steps), total())

    def _linear(self, node: Node) -> tuple[str, Callable[[Value], Value]] | None:
        """The operand of a linear function that is the same in each iteration, and how to apply it to a sum."""
        ins, shape = node.inputs, self.graph.type(node.outputs[0]).shape
        match node.op:
            case "Transpose" | "Neg" | "Identity":
                return ins[0], lambda x: x.op(node.op, **node.attrs)
            case "Reshape":
                return ins[0], lambda x: x.reshape(shape)
            case "Mul" | "Div":
                for x, factor in ((ins[0], ins[1]), (ins[1], ins[0]))[: 2 if node.op == "Mul" else 1]:
                    if factor in self.keeping.fixed and self.graph.type(x).shape == shape:
                        return x, lambda total, factor=factor: total.op(node.op, self._outside(factor))
        return None

    def _outside(self, v: str) -> Value:
        return Value(self.b, self.keeping.outside(v))

    def _axes(self, node: Node) -> list[int]:
        axes = self.graph.consts.get(node.input(1))
        rank = self.graph.type(node.inputs[0]).rank
        return [] if axes is None else [a % rank for a in axes.array.reshape(-1).tolist()]

    def _reduction(self, node: Node, axes: list[int]) -> Value:
        shape = self.graph.type(node.outputs[0]).shape
        return self._all_rows(node.inputs[0]).sum([0, *(1 + a for a in axes)]).reshape(shape)

    def _product(self, node: Node) -> Value:
        a, b = (self._tall(v) for v in node.inputs)
        return a.op("Gemm", b, transA=1, alpha=node.attr("alpha"))

    def _tall(self, v: str) -> Value:
        """The matrices of all iterations below each other."""
        rows, columns = self.graph.type(v).shape
        return self._all_rows(v).reshape([self.count * rows, columns])

    def _all_rows(self, v: str) -> Value:
        rows = self.keeping.rows(v)
        assert rows is not None
        return Value(self.b, rows)


def _is_product(node: Node) -> bool:
    """Whether a node is alpha A' B."""
    return node.op == "Gemm" and bool(node.attr("transA")) and not node.attr("transB") and len(node.inputs) == 2
