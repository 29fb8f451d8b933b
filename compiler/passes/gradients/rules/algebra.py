"""Determinants, running products, and what else has no family."""

from __future__ import annotations

import numpy as np

from compiler.ir.definitions.recurrence import shifted
from compiler.ir.types import numpy_dtype
from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


@gradient("Det")
def det(r: Call) -> None:
    """The cofactors, which are right where the matrix is singular, unlike det times the inverse."""
    r.give(0, lambda: r.dy.reshape([*r.dy.shape, 1, 1]) * r.x().op("onnxc.Cofactors"))


def _moved(x: Value, axis: int, by: int) -> Value:
    return Value(x.b, shifted(x.b, x.name, axis, by))


def _recurrence(factors: Value, terms: Value, axis: int, reverse: bool) -> Value:
    return factors.op("onnxc.LinearRecurrence", terms, axis=axis, reverse=int(reverse))


@gradient("CumProd")
def cum_prod(r: Call) -> None:
    """Of x[j]: the product before it, times s[j] = dy[j] + x[j+1] s[j+1], the sum over all products that it is in.

    Nothing is divided by x, so that zeros are like other numbers. If exclusive, dy starts one further; if reverse,
    before is behind.
    """
    x, dy, reverse = r.x(), r.dy, bool(r.attr("reverse"))
    axis = (r.ints(1) or [0])[0] % x.rank
    towards = 1 if reverse else -1
    before = x.op("CumProd", r.x(1), exclusive=1, reverse=int(reverse))
    terms = _moved(dy, axis, towards) if r.attr("exclusive") else dy
    r.give(0, before * _recurrence(_moved(x, axis, towards), terms, axis, not reverse))


@gradient("onnxc.LinearRecurrence")
def linear_recurrence(r: Call) -> None:
    """Of s[i] = a[i] s[i-1] + b[i]: db[i] = ds[i] + a[i+1] db[i+1], a recurrence again; da[i] = db[i] s[i-1]."""
    factors, axis, reverse = r.x(0), r.attr("axis"), bool(r.node.attr("reverse", 0))
    back, forth = (1, -1) if reverse else (-1, 1)
    db = _recurrence(_moved(factors, axis, back), r.dy, axis, not reverse)
    r.give(0, lambda: db * _moved(r.y(), axis, forth))
    r.give(1, db)


@gradient("Range")
def range_(r: Call) -> None:
    """Of start + i delta; where it ends has no influence but on the shape."""
    dy = r.dy
    r.give(0, lambda: dy.sum([0]).reshape(r.x(0).shape))
    steps = r.const(np.arange(dy.shape[0]).astype(numpy_dtype(dy.dtype)))
    r.give(2, lambda: (dy * steps).sum([0]).reshape(r.x(2).shape))


@gradient("onnxc.RoundThrough")
def round_through(r: Call) -> None:
    """As if nothing had been rounded."""
    r.give(0, r.dy)
