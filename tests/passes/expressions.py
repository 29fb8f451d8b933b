"""Python arithmetic on values of a builder, to write formulas down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.ir.builder import Builder


@dataclass(frozen=True)
class Value:
    """A value of a builder; numbers become constants of its dtype."""

    b: Builder
    name: str

    def op(self, op: str, *others: Value | float) -> Value:
        return Value(self.b, self.b.op(op, self.name, *(self._lift(v) for v in others)))

    def _lift(self, v: Value | float) -> str:
        return v.name if isinstance(v, Value) else self.b.scalar(v, self.name)

    def __add__(self, other: Value | float) -> Value:
        return self.op("Add", other)

    def __radd__(self, other: float) -> Value:
        return Value(self.b, self._lift(other)).op("Add", self)

    def __sub__(self, other: Value | float) -> Value:
        return self.op("Sub", other)

    def __rsub__(self, other: float) -> Value:
        return Value(self.b, self._lift(other)).op("Sub", self)

    def __mul__(self, other: Value | float) -> Value:
        return self.op("Mul", other)

    def __rmul__(self, other: float) -> Value:
        return Value(self.b, self._lift(other)).op("Mul", self)

    def __truediv__(self, other: Value | float) -> Value:
        return self.op("Div", other)

    def __pow__(self, other: Value | float) -> Value:
        return self.op("Pow", other)

    def __rpow__(self, other: float) -> Value:
        return Value(self.b, self._lift(other)).op("Pow", self)

    def __neg__(self) -> Value:
        return self.op("Neg")

    def sqrt(self) -> Value:
        return self.op("Sqrt")


def state(b: Builder, name: str, shape: tuple[int, ...], dtype: str, seed: int) -> Value:
    """A state of positive numbers."""
    numbers = np.random.default_rng(seed).uniform(0.1, 1, shape)
    return Value(b, b.state(name, np.asarray(numbers, {"f32": np.float32, "f64": np.float64}[dtype])))
