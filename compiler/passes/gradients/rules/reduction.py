"""Reductions, running sums, softmax. Ties: docs/ties.md."""

from __future__ import annotations

from math import prod

import numpy as np

from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


def axes_of(r: Call) -> list[int]:
    """The axes reduced, not negative, in order."""
    rank, axes = r.x().rank, r.ints(1)
    if not axes:
        return [] if r.attr("noop_with_empty_axes") else list(range(rank))
    return sorted(a % rank for a in axes)


def kept(r: Call, value: Value, axes: list[int]) -> Value:
    """A value of the output's shape, with the reduced axes as 1."""
    return value.reshape([1 if i in axes else d for i, d in enumerate(r.x().shape)])


@gradient("ReduceSum")
def reduce_sum(r: Call) -> None:
    """Every element gets dy."""
    r.give(0, kept(r, r.dy, axes_of(r)))


@gradient("ReduceMean")
def reduce_mean(r: Call) -> None:
    """Every element gets an equal share of dy."""
    axes = axes_of(r)
    r.give(0, kept(r, r.dy, axes) / max(prod(r.x().shape[a] for a in axes), 1))


@gradient("ReduceMax", "ReduceMin")
def reduce_extremum(r: Call) -> None:
    """All elements equal to the extreme share dy evenly."""
    axes, x = axes_of(r), r.x()
    hits = x.equals(kept(r, r.y(), axes))
    share = kept(r, r.dy, axes) / hits.cast(x.dtype).sum(axes, keepdims=True)
    r.give(0, hits.where(share, 0.0))


@gradient("ReduceProd")
def reduce_prod(r: Call) -> None:
    """The product of the factors before x and of those behind it: nothing is divided by x, which may be 0."""
    axes, x = axes_of(r), r.x()
    if not axes:
        r.give(0, r.dy)
        return
    perm = [*(a for a in range(x.rank) if a not in axes), *axes]
    moved = x.transpose(perm)
    line = moved.reshape([*moved.shape[: x.rank - len(axes)], prod(x.shape[a] for a in axes)])
    last = r.const(np.array(line.rank - 1, np.int64))
    others = line.op("CumProd", last, exclusive=1) * line.op("CumProd", last, exclusive=1, reverse=1)
    back = [int(a) for a in np.argsort(perm)]
    r.give(0, kept(r, r.dy, axes) * others.reshape(moved.shape).transpose(back))


@gradient("ReduceL1")
def reduce_l1(r: Call) -> None:
    """The derivative is the sign, 0 at 0."""
    r.give(0, kept(r, r.dy, axes_of(r)) * r.x().op("Sign"))


@gradient("ReduceL2")
def reduce_l2(r: Call) -> None:
    """The derivative is x / y, 0 at the zero vector."""
    axes = axes_of(r)
    y = kept(r, r.y(), axes)
    r.give(0, kept(r, r.dy, axes) / y.equals(0.0).where(1.0, y) * r.x())


@gradient("ReduceSumSquare")
def reduce_sum_square(r: Call) -> None:
    """The derivative is 2 x."""
    r.give(0, kept(r, r.dy, axes_of(r)) * 2.0 * r.x())


@gradient("ReduceLogSum")
def reduce_log_sum(r: Call) -> None:
    """The derivative is 1 / sum(x)."""
    axes = axes_of(r)
    r.give(0, kept(r, r.dy, axes) / r.x().sum(axes, keepdims=True))


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(r: Call) -> None:
    """The derivative is the softmax, exp(x - y)."""
    axes = axes_of(r)
    r.give(0, kept(r, r.dy, axes) * (r.x() - kept(r, r.y(), axes)).op("Exp"))


@gradient("Softmax")
def softmax(r: Call) -> None:
    """With the softmax y: y (dy - sum(y dy))."""
    y, dy = r.y(), r.dy
    r.give(0, y * (dy - (y * dy).sum([r.attr("axis")], keepdims=True)))


@gradient("LogSoftmax")
def log_softmax(r: Call) -> None:
    """With the logarithm y of the softmax: dy - exp(y) sum(dy)."""
    r.give(0, log_softmax_gradient(r.dy, r.y(), r.attr("axis")))


def log_softmax_gradient(dy: Value, y: Value, axis: int) -> Value:
    """The gradient by x of y = LogSoftmax(x)."""
    return dy - y.op("Exp") * dy.sum([axis], keepdims=True)


@gradient("CumSum")
def cum_sum(r: Call) -> None:
    """The running sum in the other direction."""
    flags = {"exclusive": r.node.attr("exclusive"), "reverse": 1 - r.attr("reverse") or None}
    r.give(0, lambda: r.dy.op("CumSum", r.x(1), **flags))
