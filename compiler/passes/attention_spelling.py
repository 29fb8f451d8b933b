"""How attention is spelled in a graph: the scores behind the last product, with their scales and masks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from compiler.ir.builder import GRADIENT
from compiler.ir.evaluate import evaluate
from compiler.ir.graph import Graph, Node
from compiler.ir.proto import default
from compiler.ir.types import AnyArray, Tensor, TensorType, numpy_dtype

LARGE = 2 << 20
"""Bytes of scores, of all heads, beyond which attention may be one node: the time is the same about there."""

HIDING = -1e4
"""A finite number that hides a score: the exponential of what is so much less than another is 0."""


MASKS = frozenset(
    {"Add", "And", "ConstantOfShape", "Equal", "Expand", "Flatten", "Gather", "Greater", "GreaterOrEqual", "Less"}
    | {"LessOrEqual", "Mul", "Neg", "Not", "Or", "Range", "Reshape", "Slice", "Squeeze", "Sub", "Transpose", "Trilu"}
    | {"Unsqueeze", "Where"}
)
"""Operators of which masks are made, and which the reference implementation computes as they are meant."""

MASK_ELEMENTS = 1 << 24
"""Elements of a mask that is computed at compile time, at most."""


@dataclass(frozen=True)
class Term:
    """What is added to the scores: a value; or, if `where` is not '', 0 where that condition is `shown`, else -inf.

    array: it, if it follows from constants, in place of the others. finite: the model has a number in place of -inf.
    """

    value: str = ""
    where: str = ""
    shown: bool = True
    finite: bool = False
    array: AnyArray | None = None


@dataclass(frozen=True)
class Scores:
    """Scores as `scale * left @ right + terms`, right being [.., d, S].

    inner: the values that are computed on the way. zeros: a row of NaN, as of a query that sees no key, becomes zeros
    behind the softmax.
    """

    left: str
    right: str
    scale: float = 1.0
    terms: tuple[Term, ...] = ()
    inner: tuple[str, ...] = ()
    zeros: bool = False


def pays(scores: TensorType, size: int, width: int) -> bool:
    """Whether it pays not to have scores of this type, for keys of `size` and values of `width` elements.

    With fewer keys than both have together, a head's scores are smaller than what it reads: no memory is saved.
    """
    return scores.dtype in ("f32", "f64") and scores.nbytes > LARGE and scores.shape[-1] >= size + width


class Finder:
    """Looks for attention in a graph, from the last product backwards."""

    def __init__(self, graph: Graph, outside: frozenset[str]):
        self.graph = graph
        self.bound = frozenset(graph.results)
        self.points = frozenset(v for n in graph.nodes if n.op == GRADIENT for v in n.inputs)
        self._arrays: dict[str, AnyArray | None] = {}
        self.moving = set(outside)
        for node in graph.nodes:
            if node.op == GRADIENT:
                self.moving.update(node.inputs[1 : 1 + node.attr("xs", 0)])
        for node in graph.nodes:
            if not self.moving.isdisjoint(node.reads):
                self.moving.update(v for v in node.results if graph.type(v).is_float)

    def attention(self, node: Node) -> Scores | None:
        """The scores of the attention whose last product is `node`; None if it is no such product."""
        if node.op != "MatMul":
            return None
        weights, v = node.inputs
        t = self.graph.type(weights)
        if v == weights or not pays(t, 0, 0):
            return None
        softmax, inner = self._softmax(weights)
        if softmax is None:
            return None
        if softmax.attr("axis", default("Softmax", "axis")) not in (-1, t.rank - 1):
            return None
        scores = self._masked(softmax.inputs[0], t)
        if scores is None or (len(scores.terms) > 1 and any(term.finite for term in scores.terms)):
            return None  # a finite number hides less than -inf: with another mask, it may be what is left of a row
        shapes = [self.graph.type(x).shape for x in (scores.left, scores.right, v)]
        if min(map(len, shapes)) < 2 or len({s[:-2] for s in shapes}) > 1 or not pays(t, shapes[0][-1], shapes[2][-1]):
            return None
        return replace(scores, inner=(*scores.inner, *inner), zeros=len(inner) > 1)

    def _softmax(self, weights: str) -> tuple[Node | None, tuple[str, ...]]:
        """The Softmax that gives the weights, and the values from it on: PyTorch adds `Where(IsNaN(w), 0, w)`."""
        node = self._made_by(weights)
        inner: tuple[str, ...] = (weights,)
        if node is not None and node.op == "Where" and self._number(node.inputs[1]) == 0:
            condition, _, w = node.inputs
            test = self._made_by(condition)
            if test is None or test.op != "IsNaN" or test.inputs[0] != w:
                return None, ()
            node, inner = self._made_by(w, readers=2), (weights, condition, w)
        return (node, inner) if node is not None and node.op == "Softmax" else (None, ())

    def is_attention(self, node: Node) -> bool:
        """Whether a node is ONNX's Attention with scores that nobody wants to have, and a mask without a gradient."""
        if node.op != "Attention" or node.output(3) or node.input(3) in self.moving:
            return False
        q, k, v = (self.graph.type(x) for x in node.inputs[:3])
        heads = q.shape[1] if q.rank == 4 else node.attr("q_num_heads", 1)
        shared = 1 if k.rank == 4 else node.attr("kv_num_heads", 1)
        keys = k.shape[-2] + (self.graph.type(node.input(4)).shape[2] if node.input(4) else 0)
        scores = TensorType(q.dtype, (q.shape[0], heads, q.shape[-2], keys))
        return pays(scores, k.shape[-1] // shared, v.shape[-1] // shared)

    def _made_by(self, v: str, readers: int = 1) -> Node | None:
        """The producer of a value that one node (or so many) reads and nothing else needs."""
        if v in self.bound or v in self.points or len(self.graph.readers(v)) != readers:
            return None
        return self.graph.producer(v)

    def _masked(self, v: str, t: TensorType) -> Scores | None:
        """The logits v, of type t: scores, and maybe masks."""
        node = self._made_by(v)
        if node is None or self.graph.type(v) != t:
            return None
        scores: Scores | None = None
        if node.op == "Add" and node.inputs[0] != node.inputs[1]:
            for x, bias in (node.inputs, node.inputs[::-1]):
                if bias not in self.moving and (scores := self._masked(x, t)) is not None:
                    scores = replace(scores, terms=(*scores.terms, Term(bias, array=self._computed(bias))))
                    break
        elif node.op == "Where":
            condition, then, otherwise = node.inputs
            for shown, x, hidden in ((True, then, otherwise), (False, otherwise, then)):
                term = self._hiding(condition, shown, hidden, t.dtype)
                if term is not None and (scores := self._masked(x, t)) is not None:
                    scores = replace(scores, terms=(*scores.terms, term))
                    break
        else:
            scores = self._product(v, t)
        return None if scores is None else replace(scores, inner=(*scores.inner, v))

    def _hiding(self, condition: str, shown: bool, hidden: str, dtype: str) -> Term | None:
        """The term that stands for `hidden` where a condition is not `shown`; None if it would mean something else."""
        number = self._number(hidden)
        if number is None or number > HIDING:
            return None
        known = self._computed(condition)
        if known is None:
            return Term(where=condition, shown=shown) if number == -np.inf else None
        seen = known == shown
        bias = np.where(seen, 0, -np.inf).astype(numpy_dtype(dtype))
        return Term(finite=number != -np.inf, array=bias) if np.atleast_1d(seen).any(axis=-1).all() else None

    def _product(self, v: str, t: TensorType) -> Scores | None:
        """The scores v: a product, and maybe scales."""
        scale, inner = 1.0, list[str]()
        while (node := self._made_by(v)) is not None and self.graph.type(v) == t:
            if node.op == "MatMul":
                left, by_left = self._unscaled(node.inputs[0])
                right, by_right = self._unscaled(node.inputs[1])
                return Scores(left, right, scale * by_left * by_right, (), tuple(inner))
            if (step := self._scaling(node)) is None:
                return None
            v, scale = step[0], scale * step[1]
            inner.append(v)
        return None

    def _unscaled(self, v: str) -> tuple[str, float]:
        """(value, factor) whose product v is."""
        scale = 1.0
        while v not in self.points and (node := self.graph.producer(v)) is not None:
            if (step := self._scaling(node)) is None or self.graph.type(step[0]) != self.graph.type(v):
                break
            v, scale = step[0], scale * step[1]
        return v, scale

    def _scaling(self, node: Node) -> tuple[str, float] | None:
        """(operand, factor) of a Mul or Div by a constant that is one finite number, not 0."""
        if node.op not in ("Mul", "Div"):
            return None
        pairs = (node.inputs, node.inputs[::-1]) if node.op == "Mul" else (node.inputs,)
        for x, factor in pairs:
            number = self._number(factor)
            if number is not None and np.isfinite(number) and number != 0:
                return x, number if node.op == "Mul" else 1 / number
        return None

    def _number(self, v: str) -> float | None:
        array = self._constant(v)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def _constant(self, v: str) -> AnyArray | None:
        return None if v in self.points else self.graph.constant(v)

    def _computed(self, v: str) -> AnyArray | None:
        """The array of what follows from constants by operators of MASKS; fold_constants leaves large ones alone."""
        if v not in self._arrays:
            self._arrays[v] = self._evaluated(v)
        return self._arrays[v]

    def _evaluated(self, v: str) -> AnyArray | None:
        needed: dict[str, Node] = {}
        pending = [v]
        while pending:
            u = pending.pop()
            node = self.graph.producer(u)
            if u in needed or self._constant(u) is not None:
                continue
            if node is None or node.op not in MASKS or u in self.points or self.graph.type(u).size > MASK_ELEMENTS:
                return None
            needed[u] = node
            pending += node.reads
        arrays: dict[str, AnyArray | None] = {"": None}
        for node in self.graph.nodes if needed else ():
            if node.results and (result := node.results[0]) in needed:
                args = [arrays[u] if u in arrays else self._constant(u) for u in node.inputs]
                try:
                    (found,) = evaluate(node, args)
                except Exception:  # noqa: BLE001 - the reference raises anything; then it is computed at run time
                    return None
                if found is None or Tensor(found).type != self.graph.type(result):
                    return None
                arrays[result] = found
        return arrays.get(v, self._constant(v))
