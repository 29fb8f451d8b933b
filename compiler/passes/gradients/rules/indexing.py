"""Gathering and scattering: each is the other's adjoint."""

from __future__ import annotations

import numpy as np

from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


@gradient("Gather")
def gather(r: Call) -> None:
    """What was read gets dy, added up."""
    x = r.x()
    r.give(0, lambda: r.dy.op("onnxc.GatherGrad", r.x(1), axis=r.attr("axis") % x.rank, shape=x.shape))


@gradient("onnxc.GatherGrad")
def gather_grad(r: Call) -> None:
    """Linear in dy: the Gather itself."""
    r.give(0, lambda: r.dy.op("Gather", r.x(1), axis=r.attr("axis")))


@gradient("GatherElements")
def gather_elements(r: Call) -> None:
    """What was read gets dy, added up."""
    x = r.x()
    axis = r.attr("axis") % x.rank
    r.give(0, lambda: r.zeros(x.shape, x).op("ScatterElements", r.x(1), r.dy, axis=axis, reduction="add"))


@gradient("GatherND")
def gather_nd(r: Call) -> None:
    """What was read gets dy, added up."""
    x = r.x()
    if r.wants(0):
        indices = _whole_indices(r.x(1), r.attr("batch_dims"))
        r.give(0, r.zeros(x.shape, x).op("ScatterND", indices, r.dy, reduction="add"))


def _whole_indices(indices: Value, batch: int) -> Value:
    """GatherND indices without batch dimensions: the position in the batch is written into them."""
    if batch == 0:
        return indices
    positions = np.moveaxis(np.indices(indices.shape[:-1], np.int64)[:batch], 0, -1)
    return Value(indices.b, indices.b.const(positions)).op("Concat", indices, axis=-1)


@gradient("ScatterElements", "ScatterND")
def scatter(r: Call) -> None:
    """By data and updates, for every reduction. Extremes are shared evenly among ties."""
    mode = r.attr("reduction")
    data, updates = r.x(0), r.x(2)
    if mode == "none":
        r.give(0, lambda: _scattered(r, r.dy, r.zeros(updates.shape, updates), None))
        r.give(2, lambda: _gathered(r, r.dy))
    elif mode == "add":
        r.give(0, r.dy)
        r.give(2, lambda: _gathered(r, r.dy))
    elif mode == "mul":
        _product(r, data, updates)
    else:
        hit, hits = data.equals(r.y()), updates.equals(_gathered(r, r.y()))
        count = _scattered(r, hit.cast(data.dtype), hits.cast(data.dtype), "add")
        share = r.dy / count
        r.give(0, lambda: hit.where(share, 0.0))
        r.give(2, lambda: hits.where(_gathered(r, share), 0.0))


def _scattered(r: Call, data: Value, updates: Value, reduction: str | None) -> Value:
    """Scatter other values with the indices of this node."""
    return data.op(r.node.op, r.x(1), updates, axis=r.node.attr("axis"), reduction=reduction)


def _gathered(r: Call, values: Value) -> Value:
    """What a value of the shape of data has at the indices of this node."""
    if r.node.op == "ScatterND":
        return values.op("GatherND", r.x(1))
    return values.op("GatherElements", r.x(1), axis=r.attr("axis"))


def _product(r: Call, data: Value, updates: Value) -> None:
    """A factor gets dy times the product of the others, computed from that of the factors that are not 0.

    Where some are, the others' product is that one times the sum of those that are 0 (but for the factor itself, if it
    is one of two): a 0, or a number that follows it, so that the second derivatives are right as well.
    """
    zero, zeros = data.equals(0.0), updates.equals(0.0)
    count = _scattered(r, zero.cast(data.dtype), zeros.cast(data.dtype), "add")
    rest = _scattered(r, zero.where(data, 0.0), zeros.where(updates, 0.0), "add")
    factor, factors = zero.where(1.0, data), zeros.where(1.0, updates)
    dy = r.dy * _scattered(r, factor, factors, "mul")

    def share(x: Value, is_zero: Value, count: Value, rest: Value, dy: Value, factor: Value) -> Value:
        of_zero = count.equals(1.0).where(dy, count.equals(2.0).where(dy * (rest - x), 0.0))
        of_other = count.equals(0.0).where(dy, count.equals(1.0).where(dy * rest, 0.0)) / factor
        return is_zero.where(of_zero, of_other)

    r.give(0, lambda: share(data, zero, count, rest, dy, factor))
    r.give(2, lambda: share(updates, zeros, _gathered(r, count), _gathered(r, rest), _gathered(r, dy), factors))


@gradient("OneHot")
def one_hot(r: Call) -> None:
    """By values: dy summed where the value off stands, and where on does."""
    if r.wants(2):
        dy = r.dy
        every = list(range(dy.rank))
        unit = r.const(np.array([0, 1], np.float32)).cast(dy.dtype)
        hot = r.x(0).op("OneHot", r.x(1), unit, axis=r.attr("axis"))
        on = (dy * hot).sum(every).reshape([1])
        off = dy.sum(every).reshape([1]) - on
        r.give(2, off.op("Concat", on, axis=0))


@gradient("TopK")
def top_k(r: Call) -> None:
    """The elements that were taken get dy."""
    x = r.x()
    axis = r.attr("axis") % x.rank
    r.give(0, r.zeros(x.shape, x).op("ScatterElements", r.y(1), r.dy, axis=axis, reduction="add"))
