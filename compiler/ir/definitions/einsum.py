"""Definition of Einsum: diagonals, sums, and products of two operands at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.equations import Index, parse, sizes_of
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.types import onnx_dtype

_WIDENED = {"i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}
"""Integers that MatMul has not: products and sums of the wider ones agree with theirs in the bits that are kept."""


@dataclass(frozen=True)
class _Operand:
    value: str
    indices: list[Index]


class _Contraction:
    """Emits the operations on operands whose axes have names."""

    def __init__(self, b: Builder, sizes: Mapping[Index, int], output: Sequence[Index]):
        self.b, self.sizes, self.output = b, sizes, output

    def shape(self, indices: Sequence[Index]) -> list[int]:
        return [self.sizes[i] for i in indices]

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        if self.b.shape(value) == tuple(shape):
            return value
        return self.b.op("Reshape", value, self.b.ints(shape), allowzero=1 if 0 in shape else None)

    def ordered(self, x: _Operand, indices: Sequence[Index]) -> str:
        """The value with its axes in another order."""
        perm = tuple(x.indices.index(i) for i in indices)
        return x.value if perm == tuple(range(len(perm))) else self.b.op("Transpose", x.value, perm=perm)

    def plain(self, x: _Operand) -> _Operand:
        """Without repeated indices, and without axes of 1 that stand for more: those broadcast by being absent."""
        kept = [(d, i) for d, i in zip(self.b.shape(x.value), x.indices, strict=True) if d == self.sizes[i]]
        x = _Operand(self.reshaped(x.value, [d for d, _ in kept]), [i for _, i in kept])
        while repeated := [i for i, n in Counter(x.indices).items() if n > 1]:
            x = self.diagonal(x, repeated[0])
        return x

    def diagonal(self, x: _Operand, index: Index) -> _Operand:
        """Of the first two axes of this index: every (n+1)-th element of both as one axis."""
        b, n = self.b, self.sizes[index]
        one = x.indices.index(index)
        two = x.indices.index(index, one + 1)
        rest = [a for a in range(len(x.indices)) if a not in (one, two)]
        indices = [x.indices[a] for a in rest]
        perm = (*rest, one, two)
        moved = x.value if perm == tuple(range(len(perm))) else b.op("Transpose", x.value, perm=perm)
        square = self.reshaped(moved, [*(b.shape(x.value)[a] for a in rest), n * n])
        axis = b.ints([len(rest)])
        return _Operand(b.op("Slice", square, b.ints([0]), b.ints([n * n]), axis, b.ints([n + 1])), [*indices, index])

    def summed(self, x: _Operand, needed: set[Index]) -> _Operand:
        """Without the indices that nothing else has."""
        gone = [a for a, i in enumerate(x.indices) if i not in needed]
        if not gone:
            return x
        value = self.b.op("ReduceSum", x.value, self.b.ints(gone), keepdims=0)
        return _Operand(value, [i for i in x.indices if i in needed])

    def product(self, x: _Operand, y: _Operand, needed: set[Index]) -> _Operand:
        """Of two operands, summed over what only they have: a matrix product, or one of elements."""
        common = [i for i in x.indices if i in y.indices]
        batch, inner = [i for i in common if i in needed], [i for i in common if i not in needed]
        left, right = ([i for i in o.indices if i not in common] for o in (x, y))
        result: list[Index] = [*batch, *left, *right]
        if not inner:
            a = self.reshaped(self.ordered(x, [*batch, *left]), [*self.shape([*batch, *left]), *(1 for _ in right)])
            c = self.ordered(y, [*batch, *right])
            if left:
                c = self.reshaped(c, [*self.shape(batch), *(1 for _ in left), *self.shape(right)])
            return _Operand(self.b.op("Mul", a, c), result)
        rows, columns, n = prod(self.shape(left)), prod(self.shape(right)), prod(self.shape(inner))
        outer = [prod(self.shape(batch))] if batch else []
        a = self.reshaped(self.ordered(x, [*batch, *left, *inner]), [*outer, rows, n])
        c = self.reshaped(self.ordered(y, [*batch, *inner, *right]), [*outer, n, columns])
        return _Operand(self.reshaped(self.b.op("MatMul", a, c), self.shape(result)), result)

    def run(self, operands: Sequence[_Operand]) -> str:
        """The output. Of several operands, the two whose product is smallest come first."""
        pending = [self.plain(x) for x in operands]
        pending = [self.summed(x, self.needed(pending, [k])) for k, x in enumerate(pending)]
        while len(pending) > 1:
            pairs = combinations(range(len(pending)), 2)
            i, j = min(pairs, key=lambda pair: (self.cost(pending, pair), pair))
            joined = self.product(pending[i], pending[j], self.needed(pending, [i, j]))
            pending = [*(x for k, x in enumerate(pending) if k not in (i, j)), joined]
        return self.ordered(pending[0], self.output)

    def needed(self, pending: Sequence[_Operand], without: Sequence[int]) -> set[Index]:
        """The indices of the output and of the other operands."""
        return set(self.output).union(*(x.indices for k, x in enumerate(pending) if k not in without))

    def cost(self, pending: Sequence[_Operand], pair: tuple[int, int]) -> int:
        needed = self.needed(pending, pair)
        both = {*pending[pair[0]].indices, *pending[pair[1]].indices}
        return prod(self.sizes[i] for i in both if i in needed)


def einsum(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """Einsum of any number of operands, with ellipses, repeated indices, explicit or implicit output."""
    try:
        equation = parse(attrs["equation"], [len(b.shape(v)) for v in inputs])
        sizes = sizes_of(equation, [b.shape(v) for v in inputs])
    except ValueError as e:
        raise InferenceError(str(e)) from e
    dtype = b.type(inputs[0]).dtype
    wide = _WIDENED.get(dtype, dtype)
    values = [v if wide == dtype else b.op("Cast", v, to=onnx_dtype(wide)) for v in inputs]
    operands = [_Operand(v, term) for v, term in zip(values, equation.terms, strict=True)]
    y = _Contraction(b, sizes, equation.output).run(operands)
    return [y if wide == dtype else b.op("Cast", y, to=onnx_dtype(dtype))]


INTERNAL_OPS["Einsum"] = einsum
