"""Arithmetic on single numbers in an algorithm: learning rates, corrections, coefficients; and the count of updates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from compiler.errors import Problem, UnsupportedError
from compiler.frontend.making.emit import Algorithm

Number = float | str
"""A number known now, or the name of a value of double[]."""

_COMPUTE: dict[str, Callable[..., float]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "Div": lambda x, y: float(np.float64(x) / np.float64(y)),
    "Pow": lambda x, y: float(np.float64(x) ** np.float64(y)),
    "Min": min,
    "Max": max,
    "Floor": lambda x: float(math.floor(x)),
    "Sqrt": math.sqrt,
    "Cos": math.cos,
}


class Scalars:
    """Makes nodes for scalars in double; equal ones once, and none for what is known now.

    Double, because 1 - beta^T of a float has few correct digits: so the numbers are those of PyTorch, which computes
    them in Python. `typed` rounds once, to the type of the tensors.
    """

    def __init__(self, a: Algorithm):
        self._a = a
        self._done: dict[tuple[object, ...], str] = {}
        self._widened: dict[tuple[str, int], str] = {}

    def op(self, op: str, *args: Number, hint: str) -> Number:
        """One of Add, Sub, Mul, Div, Pow, Min, Max, Floor, Sqrt, Cos."""
        known = [x for x in args if isinstance(x, float)]
        if len(known) == len(args):
            return _COMPUTE[op](*known)
        if op == "Mul" and 1.0 in args:
            return args[0] if args[1] == 1.0 else args[1]
        if (op in ("Div", "Pow") and args[1] == 1.0) or (op in ("Add", "Sub") and args[1] == 0.0):
            return args[0]
        return self._node(op, [self.value(x) for x in args], hint)

    def less(self, x: Number, y: Number, hint: str) -> str:
        """Whether x < y: the name of a bool[]."""
        return self._node("Less", [self.value(x), self.value(y)], hint)

    def where(self, condition: str, x: Number, y: Number, hint: str) -> Number:
        """One of two finite numbers: x if the condition, else y."""
        if x == y:
            return x
        if self._a.opset >= 9:
            return self._node("Where", [condition, self.value(x), self.value(y)], hint)
        yes = self._node("Cast", [condition], f"{condition}.number", to=TensorProto.DOUBLE)
        no = self.op("Sub", 1.0, yes, hint=f"{condition}.not")
        taken = self.op("Mul", yes, x, hint=hint) if x else 0.0
        other = self.op("Mul", no, y, hint=hint) if y else 0.0
        return self.op("Add", taken, other, hint=hint) if x else other

    def value(self, x: Number, hint: str = "number") -> str:
        """The name of a double[]."""
        return x if isinstance(x, str) else self._a.const(x, hint, TensorProto.DOUBLE)

    def typed(self, x: Number, elem_type: int, hint: str) -> str:
        """A number as a scalar of another float type."""
        if elem_type == TensorProto.DOUBLE:
            return self.value(x, hint)
        if isinstance(x, float):
            return self._a.const(x, hint, elem_type)
        return self._widened.get((x, elem_type)) or self.cast(x, elem_type, hint)

    def wide(self, value: str, elem_type: int, hint: str) -> str:
        """A scalar of a float type as a double."""
        if elem_type == TensorProto.DOUBLE:
            return value
        result = self.cast(value, TensorProto.DOUBLE, hint)
        self._widened[result, elem_type] = value
        return result

    def cast(self, value: str, elem_type: int, hint: str) -> str:
        """A scalar of any type as one of another."""
        return self._node("Cast", [value], hint, to=elem_type)

    def _node(self, op: str, inputs: list[str], hint: str, to: int | None = None) -> str:
        key = (op, *inputs, to)
        if key not in self._done:
            node = self._a.node
            self._done[key] = node(op, inputs, hint) if to is None else node(op, inputs, hint, to=to)
        return self._done[key]


class Clock:
    """Counts the updates: one in `every` steps. Its state `iteration` counts the steps; it is made when it is used."""

    def __init__(self, a: Algorithm, scalars: Scalars, every: int = 1):
        self._a, self._s, self._every = a, scalars, every
        self._counts: tuple[str, str, str] | None = None

    @property
    def index(self) -> str:
        """How many updates there were before this step's: int64[], 0 in the first steps."""
        return self._read()[0]

    @property
    def done(self) -> str:
        """`index` as a double[]."""
        return self._s.cast(self.index, TensorProto.DOUBLE, "updates")

    @property
    def number(self) -> str:
        """1 + `done`: the number of the update that this step makes, or takes part in."""
        return self._s.value(self._s.op("Add", self.done, 1.0, hint="update"))

    @property
    def due(self) -> str | None:
        """Whether this step makes its update: bool[]; None if each does."""
        return None if self._every == 1 else self._read()[1]

    @property
    def first(self) -> str:
        """Whether this step is the first one after an update: bool[]."""
        return self._read()[2]

    def choose(self, condition: str, x: str, y: str, elem_type: int, hint: str) -> str:
        """One of two tensors: x if the condition, else y. x may be 0."""
        a, s = self._a, self._s
        if a.opset >= 9:
            return a.node("Where", [condition, x, y], hint)
        kept = a.node("Mul", [s.typed(s.where(condition, 0.0, 1.0, "old"), elem_type, "old"), y], hint)
        if x == s.typed(0.0, elem_type, "zero"):
            return kept
        taken = a.node("Mul", [s.typed(s.where(condition, 1.0, 0.0, "new"), elem_type, "new"), x], hint)
        return a.node("Add", [taken, kept], hint)

    def update(self, variable: str, value: str, elem_type: int) -> str:
        """Bind a variable to a value, in steps that make an update; gives its next value."""
        if self.due is not None:
            value = self.choose(self.due, value, variable, elem_type, f"{variable}.next")
        self._a.update(variable, value)
        return value

    def hint(self, variable: str) -> str:
        """The name for the value that an update gives a variable."""
        return f"{variable}.next" if self._every == 1 else f"{variable}.proposed"

    def _read(self) -> tuple[str, str, str]:
        if self._counts is None:
            a = self._a
            one = a.const(1, "one", TensorProto.INT64)
            steps = a.state("iteration", 0, TensorProto.INT64)
            after = a.node("Add", [steps, one], "iteration.next")
            a.update(steps, after)
            if self._every == 1:
                self._counts = steps, "", ""
            else:
                every = a.const(self._every, "steps_per_update", TensorProto.INT64)
                index = a.node("Div", [steps, every], "updates.count")
                # Mod exists since opset 10 only
                last = a.node("Mul", [a.node("Add", [index, one], "update.count"), every], "update.last_step")
                first = a.node("Mul", [index, every], "update.first_step")
                due = a.node("Equal", [last, after], "update.due")
                self._counts = index, due, a.node("Equal", [first, steps], "update.first")
        return self._counts


def need_opset(a: Algorithm, version: int, what: str, operator: str) -> None:
    """UnsupportedError if the model's version of ai.onnx lacks an operator."""
    if a.opset < version:
        raise UnsupportedError(
            Problem(
                f"{what} needs the operator {operator}, which ai.onnx has from version {version} on",
                f"a model of version {a.opset}",
                f"convert the model first: onnx.version_converter.convert_version(model, {version})",
            )
        )
