"""Symbolic scalars: the hyper-parameters of optimizer steps, before there are nodes for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import numpy_dtype


@dataclass(frozen=True)
class Scalar:
    """A number known now (`number`), a value of the graph of one element (`value`), or an operator on scalars."""

    dtype: str
    number: float | None = None
    value: str = ""
    op: str = ""
    args: tuple[Scalar, ...] = ()

    def values(self) -> Iterator[str]:
        """The values of the graph that it depends on."""
        if self.value:
            yield self.value
        for arg in self.args:
            yield from arg.values()


def number(x: float, dtype: str) -> Scalar:
    """A number known now. It is rounded to its dtype when it becomes a constant."""
    return Scalar(dtype, float(x))


def scalar_of(graph: Graph, value: str) -> Scalar:
    """A value of the graph; its number if it is a constant."""
    array = graph.constant(value)
    dtype = graph.type(value).dtype
    return Scalar(dtype, value=value) if array is None else number(float(array.reshape(())), dtype)


def apply(op: str, *args: Scalar) -> Scalar:
    """An operator of the arithmetic below, computed now if all arguments are numbers (in float64)."""
    dtype = args[-1].dtype
    numbers = [a.number for a in args]
    if all(n is not None for n in numbers):
        return Scalar(dtype, _compute(op, [n for n in numbers if n is not None]))
    if (op in ("Mul", "Div") and numbers[1] == 1) or (op == "Sub" and numbers[1] == 0):
        return args[0]
    if op == "Mul" and numbers[0] == 1:
        return args[1]
    return Scalar(dtype, op=op, args=args)


def _compute(op: str, x: list[float]) -> float:
    with np.errstate(all="ignore"):
        match op:
            case "Add":
                return x[0] + x[1]
            case "Sub":
                return x[0] - x[1]
            case "Mul":
                return x[0] * x[1]
            case "Div":
                return float(np.float64(x[0]) / np.float64(x[1]))
            case "Pow":
                return float(np.float64(x[0]) ** np.float64(x[1]))
            case "Sqrt":
                return math.sqrt(x[0]) if x[0] >= 0 else math.nan
            case "Neg":
                return -x[0]
    raise KeyError(op)


class Emitter:
    """Adds the nodes of scalars to a builder, equal ones once. `names`: values of the old graph -> of the new one."""

    def __init__(self, b: Builder, names: dict[str, str]):
        self._b, self._names = b, names
        self._done: dict[Scalar, str] = {}

    def __call__(self, x: Scalar, hint: str = "") -> str:
        """The value of a scalar, of rank 0."""
        if x not in self._done:
            self._done[x] = self._emit(x, hint or x.op)
        return self._done[x]

    def _emit(self, x: Scalar, hint: str) -> str:
        b = self._b
        if x.number is not None:
            return b.const(np.array(x.number, numpy_dtype(x.dtype)))
        if x.value:
            value = self._names[x.value]
            return b.op("Reshape", value, b.ints([])) if b.shape(value) else value
        args = [self(a) for a in x.args]
        return b.op(x.op, *args, name=b.fresh(hint))
