"""What a matrix product is: extents, strides and factors, and the operands of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

from compiler.codegen.calls import Arg, In, Number, Out, Temp, Words

_Operand = TypeVar("_Operand", In | Temp, In | int, Out | Temp)


@dataclass(frozen=True)
class Shape:
    """One batched product y[z] = alpha * a[z] @ b[z] + beta * c[z], [m, k] @ [k, n]; y is contiguous.

    a, b, c: (row stride, column stride) in elements, c's column stride 0 or 1. offsets: of a, b and c for each z.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int] = (0, 0)
    offsets: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)
    alpha: float = 1.0
    beta: float = 1.0

    def transposed(self) -> Self:
        """The product of which y is the transpose: its strides of c are those of any matrix."""
        (ra, ca), (rb, cb), (rc, cc) = self.a, self.b, self.c
        offsets = tuple((b, a, c) for a, b, c in self.offsets)
        return replace(self, m=self.n, n=self.m, a=(cb, rb), b=(ca, ra), c=(cc, rc), offsets=offsets)

    def table(self, *words: int) -> Words:
        """These words and the offsets of all matrices."""
        return Words((*words, *(v for offsets in self.offsets for v in offsets)))

    def in_pieces(self, operands: Operands, size: int, rows: int) -> Operands:
        """The operands, of elements of size bytes, with pieces of what goes together: so many rows, or a whole matrix.

        Only of a product that is not turned.
        """
        starts = [[o[i] for o in self.offsets] for i in range(3)]
        starts.append([z * self.m * self.n for z in range(len(self.offsets))])
        a, b, c, y, *_ = operands
        return operands._replace(
            a=_in_pieces(a, self.a, (rows, self.k), starts[0], size),
            b=_in_pieces(b, self.b, (self.k, self.n), starts[1], size) if rows == self.m else b,
            c=_in_pieces(c, self.c, (rows, self.n), starts[2], size),
            y=_in_pieces(y, (self.n, 1), (rows, self.n), starts[3], size),
        )


def _in_pieces(
    v: _Operand, strides: tuple[int, int], matrix: tuple[int, int], starts: Sequence[int], size: int
) -> _Operand:
    """An operand with its piece, if matrices of so many rows and columns, of elements of size bytes, make it up."""
    rows, columns = matrix
    follows = strides == (columns, 1) and all(at == z * rows * columns for z, at in enumerate(starts))
    return replace(v, piece=rows * columns * size) if isinstance(v, In | Out) and follows else v


class Operands(NamedTuple):
    """What a product reads and writes. c: 0 for none. anew: a boolean that tells to leave out c, 0 for none.

    turned: y is the transpose of the product.
    """

    a: In | Temp
    b: In | Temp
    c: In | int
    y: Out | Temp
    anew: In | int = 0
    turned: bool = False

    def transposed(self) -> Operands:
        """Those of the transposed product."""
        return self._replace(a=self.b, b=self.a, turned=not self.turned)

    def args(self, shape: Shape, table: Words) -> tuple[Arg, ...]:
        """Arguments of a kernel for few rows or columns before its scratch."""
        return (self.a, self.b, self.c, self.y, Number(shape.alpha), Number(shape.beta), table, self.anew)
