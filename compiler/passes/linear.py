"""Elementwise arithmetic as sums of coefficients times atoms: one form for all spellings of an optimizer update.

A *factor* is a product of scalars: numbers, values of one element, square roots of factors. An *atom* is a tensor, its
square, or a tensor over a root `sqrt(H + inside) + epsilon`. `Linear` writes a value as {atom: [factor, ...]}. It looks
into a sum only to reach one of the values that it is given to stop at (the variable, its moments), so that a gradient
stays one atom however it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from compiler.ir.graph import Graph, Node
from compiler.passes.scalars import Scalar, apply, number, scalar_of

_MAX_DEPTH = 64
"""Nodes in a row that are looked through; an optimizer update has a dozen."""


@dataclass(frozen=True)
class Factor:
    """number * values and square roots / (values and square roots)."""

    number: float = 1.0
    over: tuple[Base, ...] = ()
    under: tuple[Base, ...] = ()

    def __mul__(self, other: Factor) -> Factor:
        over, under = [*self.over, *other.over], []
        for base in (*self.under, *other.under):
            if base in over:
                over.remove(base)
            else:
                under.append(base)
        return Factor(self.number * other.number, tuple(sorted(over, key=repr)), tuple(sorted(under, key=repr)))

    def __truediv__(self, other: Factor) -> Factor:
        return self * Factor(float(np.float64(1) / np.float64(other.number)), other.under, other.over)

    def __neg__(self) -> Factor:
        return Factor(-self.number, self.over, self.under)

    @property
    def known(self) -> bool:
        """Whether it is a number."""
        return not self.over and not self.under

    def root(self) -> Factor:
        """Its square root."""
        return Factor(float(np.sqrt(self.number))) if self.known else Factor(1.0, (Root(self),))

    def scalar(self, graph: Graph, dtype: str) -> Scalar:
        """The arithmetic that computes it."""
        bases = [[_base_scalar(base, graph, dtype) for base in side] for side in (self.over, self.under)]
        result = number(self.number, dtype)
        for base in bases[0]:
            result = apply("Neg", base) if result.number == -1 else apply("Mul", result, base)
        for base in bases[1]:
            result = apply("Div", result, base)
        return result


@dataclass(frozen=True)
class Root:
    """The square root of a factor."""

    of: Factor


Base = str | Root
ONE = Factor()


def _base_scalar(base: Base, graph: Graph, dtype: str) -> Scalar:
    return scalar_of(graph, base) if isinstance(base, str) else apply("Sqrt", base.of.scalar(graph, dtype))


@dataclass(frozen=True)
class Denominator:
    """sqrt(tensor + inside) + epsilon; None: that term is absent."""

    tensor: str
    inside: Factor | None = None
    epsilon: Factor | None = None


@dataclass(frozen=True)
class Square:
    """A tensor times itself."""

    tensor: str


@dataclass(frozen=True)
class Quotient:
    """A tensor over a denominator."""

    tensor: str
    over: Denominator


Atom = str | Square | Quotient
Form = dict[Atom, list[Factor]]


class Linear:
    """Forms of the values of a graph that have one shape and dtype, with respect to values to stop at."""

    def __init__(self, graph: Graph, like: str, stops: Callable[[str], bool]):
        self._graph, self._type, self._stops = graph, graph.type(like), stops
        self._reaches: dict[str, bool] = {}

    def __call__(self, value: str) -> Form:
        """The form of a value: value = sum of factor * atom."""
        return self._form(value, 0)

    def _form(self, value: str, depth: int) -> Form:
        node = self._graph.producer(value)
        if self._stops(value) or node is None or depth > _MAX_DEPTH:
            return {value: [ONE]}
        ins = node.inputs
        if node.op in ("Add", "Sub", "Sum") and self._reached(value, depth):
            total: Form = {}
            for i, v in enumerate(ins):
                sign = -1.0 if node.op == "Sub" and i == 1 else 1.0
                _add(total, self._form(v, depth + 1), Factor(sign))
            return total
        if (scaled := self._scaled(node)) is not None:
            return _times(self._form(scaled[1], depth + 1), scaled[0])
        if (square := self._square(node)) is not None:
            return {Square(square[1]): [square[0]]}
        if (quotient := self._quotient(node)) is not None:
            numerator, (factor, over) = quotient
            scale, tensor = self._stripped(numerator)
            return {Quotient(tensor, over): [scale / factor]}
        return {value: [ONE]}

    def _reached(self, value: str, depth: int) -> bool:
        """Whether additions and scalings of tensors alone lead from a stop to the value."""
        if self._stops(value):
            return True
        if value not in self._reaches:
            self._reaches[value] = False
            node = self._graph.producer(value)
            if node is not None and depth <= _MAX_DEPTH:
                if node.op in ("Add", "Sub", "Sum"):
                    found = all(map(self._fits, node.inputs)) and any(self._reached(v, depth + 1) for v in node.inputs)
                elif (scaled := self._scaled(node)) is not None:
                    found = self._reached(scaled[1], depth + 1)
                else:
                    found = self._quotient(node) is not None
                self._reaches[value] = found
        return self._reaches[value]

    def _fits(self, value: str) -> bool:
        return self._graph.type(value) == self._type

    # --- the kinds of nodes ------------------------------------------------------------------------------
    def factor(self, value: str) -> Factor | None:
        """A scalar as a factor, through products and quotients of scalars; None for a tensor."""
        return self._factor(value, 0)

    def _factor(self, value: str, depth: int) -> Factor | None:
        t = self._graph.type(value)
        array = self._graph.constant(value)
        if t.dtype != self._type.dtype:
            return None
        if array is not None and array.size and (array == array.flat[0]).all() and t.rank <= self._type.rank:
            return Factor(float(array.flat[0]))
        if t.size != 1 or t.rank > self._type.rank or t == self._type:
            return None
        node = self._graph.producer(value)
        if node is not None and depth < _MAX_DEPTH and all(self._graph.type(v).size == 1 for v in node.inputs if v):
            if node.op == "Neg" and (f := self._factor(node.inputs[0], depth + 1)) is not None:
                return -f
            if node.op in ("Mul", "Div"):
                a, b = (self._factor(v, depth + 1) for v in node.inputs)
                if a is not None and b is not None:
                    return a * b if node.op == "Mul" else a / b
        return Factor(1.0, (value,))

    def _scaled(self, node: Node) -> tuple[Factor, str] | None:
        """(factor, tensor) of a node that multiplies a tensor by a scalar."""
        ins = node.inputs
        if node.op in ("Neg", "Identity"):
            return Factor(-1.0 if node.op == "Neg" else 1.0), ins[0]
        if node.op == "Mul":
            for scalar, tensor in ((ins[0], ins[1]), (ins[1], ins[0])):
                if self._fits(tensor) and (f := self.factor(scalar)) is not None:
                    return f, tensor
        if node.op == "Div" and self._fits(ins[0]) and (f := self.factor(ins[1])) is not None:
            return ONE / f, ins[0]
        return None

    def _stripped(self, value: str) -> tuple[Factor, str]:
        """A tensor without the scalars that it is multiplied by."""
        factor = ONE
        for _ in range(_MAX_DEPTH):
            node = None if self._stops(value) else self._graph.producer(value)
            scaled = None if node is None else self._scaled(node)
            if scaled is None:
                break
            factor, value = factor * scaled[0], scaled[1]
        return factor, value

    def _square(self, node: Node) -> tuple[Factor, str] | None:
        """(factor, tensor) of factor * tensor * tensor."""
        ins = node.inputs
        if node.op == "Pow" and self._fits(ins[0]) and _is(self.factor(ins[1]), 2.0):
            return ONE, ins[0]
        if node.op == "Mul" and all(map(self._fits, ins)):
            if ins[0] == ins[1]:  # a scaled tensor as it is: the squares of scale and tensor may not be representable
                return ONE, ins[0]
            (f, a), (g, b) = map(self._stripped, ins)
            return (f * g, a) if a == b and ONE in (f, g) else None
        return None

    def _quotient(self, node: Node) -> tuple[str, tuple[Factor, Denominator]] | None:
        """(numerator, denominator) of a node that divides by a root."""
        ins = node.inputs
        if node.op == "Div" and all(map(self._fits, ins)) and (over := self.denominator(ins[1])) is not None:
            return ins[0], over
        if node.op == "Mul" and all(map(self._fits, ins)):
            for numerator, inverse in ((ins[0], ins[1]), (ins[1], ins[0])):
                producer = self._graph.producer(inverse)
                if producer is not None and producer.op == "Reciprocal":
                    over = self.denominator(producer.inputs[0])
                    if over is not None:
                        return numerator, over
        return None

    def denominator(self, value: str) -> tuple[Factor, Denominator] | None:
        """A root: value = factor * (sqrt(H + inside) + epsilon) with H a stop; None if it is not of this form."""
        node = self._graph.producer(value)
        if node is None or not self._fits(value):
            return None
        if (scaled := self._scaled(node)) is not None:
            inner = self.denominator(scaled[1])
            return None if inner is None else (inner[0] * scaled[0], inner[1])
        if node.op == "Add":
            for tensor, scalar in (node.inputs, node.inputs[::-1]):
                if self._fits(tensor) and (f := self.factor(scalar)) is not None:
                    inner = self.denominator(tensor)
                    if inner is not None and inner[1].epsilon is None:
                        return inner[0], Denominator(inner[1].tensor, inner[1].inside, f / inner[0])
        if node.op == "Sqrt" or (node.op == "Pow" and _is(self.factor(node.inputs[1]), 0.5)):
            return self._root(node.inputs[0])
        return None

    def _root(self, value: str) -> tuple[Factor, Denominator] | None:
        """The square root of factor * H + inside."""
        inside: Factor | None = None
        factor, tensor = self._stripped(value)
        node = None if self._stops(tensor) else self._graph.producer(tensor)
        if node is not None and node.op == "Add":
            for inner, scalar in (node.inputs, node.inputs[::-1]):
                if self._fits(inner) and (f := self.factor(scalar)) is not None:
                    (scale, tensor), inside = self._stripped(inner), f
                    factor, inside = factor * scale, f / scale
                    break
        if not self._stops(tensor):
            return None
        return factor.root(), Denominator(tensor, inside)


def _is(factor: Factor | None, value: float) -> bool:
    return factor is not None and factor.known and factor.number == value


def _add(total: Form, form: Form, factor: Factor) -> None:
    for atom, factors in form.items():
        total.setdefault(atom, []).extend(f * factor for f in factors)


def _times(form: Form, factor: Factor) -> Form:
    return {atom: [f * factor for f in factors] for atom, factors in form.items()}
