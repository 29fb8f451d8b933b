"""Matrix products. Products of two matrices are Gemm: its flags spare the transposed copies."""

from __future__ import annotations

from math import prod

from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


def product(a: Value, b: Value, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0) -> Value:
    """The product alpha a' b' of two matrices, transposed or not."""
    if not trans_a and not trans_b and alpha == 1.0:
        return a.op("MatMul", b)
    return a.op(
        "Gemm", b, transA=int(trans_a) or None, transB=int(trans_b) or None, alpha=alpha if alpha != 1 else None
    )


def _swapped(x: Value) -> Value:
    """The transpose of each matrix in a stack."""
    return x.transpose([*range(x.rank - 2), x.rank - 1, x.rank - 2])


@gradient("MatMul")
def matmul(r: Call) -> None:
    """By the left: dY B', by the right: A' dY. A vector is a matrix of one row (left) or one column (right)."""
    a, b, dy = r.x(0), r.x(1), r.dy
    rows, columns = a.shape[-2:-1] or (1,), b.shape[-1:] if b.rank > 1 else (1,)
    stack = dy.shape[: dy.rank - (a.rank > 1) - (b.rank > 1)]
    dy = dy.reshape([*stack, *rows, *columns])
    a2 = a.reshape([1, *a.shape]) if a.rank == 1 else a
    b2 = b.reshape([*b.shape, 1]) if b.rank == 1 else b
    if b2.rank == 2 and a2.rank > 2:  # a stack times one matrix is one tall matrix times it
        a2, dy = a2.reshape([prod(a2.shape[:-1]), a2.shape[-1]]), dy.reshape([prod(dy.shape[:-1]), dy.shape[-1]])
    if a2.rank == b2.rank == 2:
        r.give(0, lambda: product(dy, b2, trans_b=True).reshape(a.shape))
        r.give(1, lambda: product(a2, dy, trans_a=True).reshape(b.shape))
    else:
        r.give(0, lambda: dy.op("MatMul", _swapped(b2)).fit(a2.shape).reshape(a.shape))
        r.give(1, lambda: _swapped(a2).op("MatMul", dy).fit(b2.shape).reshape(b.shape))


@gradient("Gemm")
def gemm(r: Call) -> None:
    """The factors of alpha A' B' + beta C, and C."""
    a, b, dy, alpha, beta = r.x(0), r.x(1), r.dy, r.attr("alpha"), r.attr("beta")
    ta, tb = bool(r.attr("transA")), bool(r.attr("transB"))
    r.give(0, lambda: product(b, dy, tb, True, alpha) if ta else product(dy, b, False, not tb, alpha))
    r.give(1, lambda: product(dy, a, True, ta, alpha) if tb else product(a, dy, not ta, False, alpha))
    if r.has(2) and r.wants(2):
        dc = dy.fit(r.x(2).shape)
        r.give(2, dc if beta == 1 else dc * beta)
