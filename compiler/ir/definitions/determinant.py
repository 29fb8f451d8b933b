"""Definitions of Det and of the cofactors, its gradient: without divisions, so right for singular matrices as well.

Both come from Faddeev and LeVerrier's recursion for the characteristic polynomial, n - 1 matrix products. Kernels
compute them by elimination; the recursion is their meaning, and what a second derivative is taken of. It loses digits
as n grows: its numbers are as large as powers of the norm of A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.bodies import internal
from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.types import numpy_dtype


def _adjugate(b: Builder, x: str) -> str:
    """The adjugates of [.., n, n], n > 0: with M = I, n - 1 times M = A M - I trace(A M) / k; then (-1)^(n-1) M."""
    n = b.shape(x)[-1]
    identity = np.eye(n, dtype=numpy_dtype(b.type(x).dtype))
    unit = b.const(identity)
    m = b.op("Expand", unit, b.ints(b.shape(x)))
    for k in range(1, n):
        product = b.op("MatMul", x, m) if k > 1 else x
        trace = b.op("ReduceSum", b.op("Mul", product, unit), b.ints([-2, -1]), keepdims=1)
        m = b.op("Sub", product, b.op("Mul", b.op("Div", trace, b.scalar(k, x)), unit))
    return b.op("Neg", m) if n % 2 == 0 else m


def _swapped(b: Builder, x: str) -> str:
    rank = len(b.shape(x))
    return b.op("Transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _square(b: Builder, x: str) -> int:
    shape = b.shape(x)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise InferenceError(f"{list(shape)} is no batch of square matrices")
    return shape[-1]


@internal("Cofactors")
def cofactors(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """Matrices [.., n, n] -> theirs of cofactors: the gradient of the determinants."""
    (x,) = inputs
    return [_swapped(b, _adjugate(b, x)) if _square(b, x) else x]


def det(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """Det: the first row times its cofactors."""
    (x,) = inputs
    if not _square(b, x):
        return [b.full(1, type(b.type(x))(b.type(x).dtype, b.shape(x)[:-2]))]
    rows = [b.op("Slice", v, b.ints([0]), b.ints([1]), b.ints([-2])) for v in (x, b.op("onnxc.Cofactors", x))]
    return [b.op("ReduceSum", b.op("Mul", *rows), b.ints([-2, -1]), keepdims=0)]


INTERNAL_OPS["Det"] = det
