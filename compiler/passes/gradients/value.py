"""Arithmetic on values of a graph under construction: what rules are written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compiler.ir.builder import Builder
from compiler.ir.graph import Attr
from compiler.ir.types import TensorType, onnx_dtype


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of a builder. Operators add nodes; numbers become scalar constants of the other operand's dtype.

    Binary operators broadcast as ONNX's do. `==` is identity: compare elements with `equals`.
    """

    b: Builder
    name: str

    @property
    def type(self) -> TensorType:
        """Element type and shape."""
        return self.b.type(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self.b.shape(self.name)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """Short name of the element type, as 'f32'."""
        return self.type.dtype

    def _wrap(self, operand: Value | float) -> Value:
        return operand if isinstance(operand, Value) else Value(self.b, self.b.scalar(operand, self.name))

    def op(self, op: str, *operands: Value | float, **attrs: Attr) -> Value:
        """A node of one output with this value as its first operand."""
        return Value(self.b, self.b.op(op, self.name, *(self._wrap(v).name for v in operands), **attrs))

    def __add__(self, other: Value | float) -> Value:
        return self.op("Add", other)

    def __radd__(self, other: float) -> Value:
        return self._wrap(other).op("Add", self)

    def __sub__(self, other: Value | float) -> Value:
        return self.op("Sub", other)

    def __rsub__(self, other: float) -> Value:
        return self._wrap(other).op("Sub", self)

    def __mul__(self, other: Value | float) -> Value:
        return self.op("Mul", other)

    def __rmul__(self, other: float) -> Value:
        return self._wrap(other).op("Mul", self)

    def __truediv__(self, other: Value | float) -> Value:
        return self.op("Div", other)

    def __rtruediv__(self, other: float) -> Value:
        return self._wrap(other).op("Div", self)

    def __neg__(self) -> Value:
        return self.op("Neg")

    def __gt__(self, other: Value | float) -> Value:
        return self.op("Greater", other)

    def __ge__(self, other: Value | float) -> Value:
        return self.op("GreaterOrEqual", other)

    def __lt__(self, other: Value | float) -> Value:
        return self.op("Less", other)

    def __le__(self, other: Value | float) -> Value:
        return self.op("LessOrEqual", other)

    def __and__(self, other: Value) -> Value:
        return self.op("And", other)

    def equals(self, other: Value | float) -> Value:
        """Elementwise comparison."""
        return self.op("Equal", other)

    def where(self, then: Value | float, other: Value | float) -> Value:
        """`then` where this condition holds, else `other`; at least one of them is a Value."""
        like = then if isinstance(then, Value) else other
        assert isinstance(like, Value)
        return self.op("Where", like._wrap(then), like._wrap(other))

    def ints(self, values: Iterable[int]) -> Value:
        """A constant list of int64."""
        return Value(self.b, self.b.ints(values))

    def cast(self, dtype: str) -> Value:
        """The value as another dtype; itself if it has it."""
        return self if self.dtype == dtype else self.op("Cast", to=onnx_dtype(dtype))

    def reshape(self, shape: Sequence[int]) -> Value:
        """The value in another shape of as many elements; itself if it has it."""
        return self if self.shape == tuple(shape) else self.op("Reshape", self.ints(shape), allowzero=_zero(shape))

    def expand(self, shape: Sequence[int]) -> Value:
        """The value broadcast to a shape; itself if it has it."""
        return self if self.shape == tuple(shape) else self.op("Expand", self.ints(shape))

    def transpose(self, perm: Sequence[int]) -> Value:
        """The value with its axes permuted; itself if nothing moves."""
        return self if list(perm) == list(range(self.rank)) else self.op("Transpose", perm=tuple(perm))

    def sum(self, axes: Sequence[int], keepdims: bool = False) -> Value:
        """The sum along some axes; the value itself for no axis."""
        return self if not axes else self.op("ReduceSum", self.ints(axes), keepdims=None if keepdims else 0)

    def mean(self, axes: Sequence[int], keepdims: bool = False) -> Value:
        """The mean along some axes; the value itself for no axis."""
        return self if not axes else self.op("ReduceMean", self.ints(axes), keepdims=None if keepdims else 0)

    def fit(self, shape: tuple[int, ...]) -> Value:
        """Undo broadcasting from `shape`: sum along axes that it lacks or has as 1; broadcast where it is larger."""
        if self.shape == shape:
            return self
        padded = (1,) * (self.rank - len(shape)) + shape
        own = (1,) * (len(padded) - self.rank) + self.shape
        summed = [i for i, (a, s) in enumerate(zip(own, padded, strict=True)) if s == 1 != a]
        missing = range(len(padded) - len(shape))
        if set(missing) >= set(summed):
            reduced = self.sum(list(missing))
        elif not missing:
            reduced = self.sum(summed, keepdims=True)
        else:
            reduced = self.sum([*missing, *(i for i in summed if i not in missing)])
            reduced = reduced.reshape([1 if i in summed else own[i] for i in range(len(missing), len(own))])
        return reduced.expand(shape)


def _zero(shape: Sequence[int]) -> int | None:
    return 1 if 0 in shape else None
