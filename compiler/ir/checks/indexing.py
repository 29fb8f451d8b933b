"""Ops that take indices: their shapes, and the indices themselves where they are known at compile time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from compiler.ir.checks.base import NodeFacts, axes_of, precondition, shown, wrong_shape
from compiler.ir.types import AnyArray


def _out_of_range(indices: AnyArray | None, size: int, what: str) -> Iterator[str]:
    """Known indices outside of [-size, size)."""
    if indices is None or indices.size == 0:
        return
    low, high = int(np.min(indices)), int(np.max(indices))
    if low < -size or high >= size:
        yield f"index {low if low < -size else high} is out of the range of {what}, which has {size} elements"


@precondition("Gather")
def _gather(f: NodeFacts) -> Iterator[str]:
    shape, indices = f.shape(0), f.shape(1)
    axis = axes_of([f.attr("axis")], len(shape))[0]
    yield from _out_of_range(f.known(1), shape[axis], f"axis {axis}")
    if shape[axis] == 0 and f.type(1).size:
        yield f"axis {axis} has no element to gather"
    yield from wrong_shape(f, [*shape[:axis], *indices, *shape[axis + 1 :]])


def _elements(f: NodeFacts) -> Iterator[str]:
    """What GatherElements and ScatterElements share: indices lie along `axis`, and inside the data elsewhere."""
    shape, indices = f.shape(0), f.shape(1)
    if len(indices) != len(shape):
        yield f"the indices {shown(indices)} and the data {shown(shape)} differ in rank"
        return
    axis = axes_of([f.attr("axis")], len(shape))[0]
    for i, (d, n) in enumerate(zip(shape, indices, strict=True)):
        if i != axis and n > d:
            yield f"axis {i} of the indices {shown(indices)} is longer than that of the data {shown(shape)}"
    yield from _out_of_range(f.known(1), shape[axis], f"axis {axis}")
    if shape[axis] == 0 and f.type(1).size:
        yield f"axis {axis} of the data has no element"


@precondition("GatherElements")
def _gather_elements(f: NodeFacts) -> Iterator[str]:
    yield from _elements(f)
    yield from wrong_shape(f, f.shape(1))


@precondition("ScatterElements")
def _scatter_elements(f: NodeFacts) -> Iterator[str]:
    yield from _elements(f)
    if f.shape(2) != f.shape(1):
        yield f"the updates {shown(f.shape(2))} and the indices {shown(f.shape(1))} differ in shape"
    yield from _arithmetic(f)
    yield from wrong_shape(f, f.shape(0))


def _arithmetic(f: NodeFacts) -> Iterator[str]:
    if f.attr("reduction") != "none" and f.type(0).dtype == "bool":
        yield f"bool has no reduction {f.attr('reduction')!r}"


def _tuples(f: NodeFacts, batch: Sequence[int]) -> Iterator[str]:
    """Index tuples of GatherND and ScatterND along the last axis of the indices, behind `batch` dimensions."""
    data = f.shape(0)[len(batch) :]
    length = f.shape(1)[-1]
    if not 1 <= length <= len(data):
        yield f"tuples of {length} indices do not fit the {len(data)} axes they index"
        return
    known = f.known(1)
    for i in range(length):
        yield from _out_of_range(None if known is None else known[..., i], data[i], f"axis {i + len(batch)}")
    if 0 in data[:length] and f.type(1).size:
        yield f"the data {shown(f.shape(0))} have no element to index"


@precondition("GatherND")
def _gather_nd(f: NodeFacts) -> Iterator[str]:
    shape, indices, batch = f.shape(0), f.shape(1), f.attr("batch_dims")
    if not shape or not indices or not 0 <= batch < min(len(shape), len(indices)):
        yield f"batch_dims {batch} is not below the ranks of {shown(shape)} and {shown(indices)}"
        return
    if shape[:batch] != indices[:batch]:
        yield f"the first {batch} dimensions of {shown(shape)} and {shown(indices)} differ"
        return
    yield from _tuples(f, shape[:batch])
    yield from wrong_shape(f, [*indices[:-1], *shape[batch + indices[-1] :]])


@precondition("ScatterND")
def _scatter_nd(f: NodeFacts) -> Iterator[str]:
    shape, indices, updates = f.shape(0), f.shape(1), f.shape(2)
    if not shape or not indices:
        yield "data and indices need at least one axis"
        return
    if problems := list(_tuples(f, ())):
        yield from problems
        return
    expected = (*indices[:-1], *shape[indices[-1] :])
    if updates != expected:
        yield f"the updates have the shape {shown(updates)}, not {shown(expected)}"
    yield from _arithmetic(f)
    yield from wrong_shape(f, shape)


@precondition("OneHot")
def _one_hot(f: NodeFacts) -> Iterator[str]:
    indices, depth, axis = f.shape(0), f.ints(1) or [0], f.attr("axis")
    rank = len(indices) + 1
    if f.shape(2) != (2,):
        yield f"the values have the shape {shown(f.shape(2))}, not [2]"
    if depth[0] < 0 or not -rank <= axis < rank:
        yield f"a depth of {depth[0]} on axis {axis} of {shown(indices)} is impossible"
        return
    at = axes_of([axis], rank)[0]
    yield from wrong_shape(f, [*indices[:at], depth[0], *indices[at:]])


@precondition("ArgMax", "ArgMin")
def _arg_max(f: NodeFacts) -> Iterator[str]:
    shape = f.shape(0)
    axis = axes_of([f.attr("axis")], len(shape))[0]
    if shape[axis] == 0:
        yield f"axis {axis} has no element to choose"
    yield from wrong_shape(f, [*shape[:axis], *([1] if f.attr("keepdims") else []), *shape[axis + 1 :]])


@precondition("TopK")
def _top_k(f: NodeFacts) -> Iterator[str]:
    shape, k = f.shape(0), f.ints(1) or []
    axis = axes_of([f.attr("axis")], len(shape))[0]
    if len(k) != 1 or not 0 <= k[0] <= shape[axis]:
        yield f"k is {shown(k)}, where axis {axis} has {shape[axis]} elements"
        return
    for i in range(2):
        yield from wrong_shape(f, [*shape[:axis], k[0], *shape[axis + 1 :]], i)


@precondition("ReverseSequence")
def _reverse_sequence(f: NodeFacts) -> Iterator[str]:
    shape, batch, time = f.shape(0), f.attr("batch_axis"), f.attr("time_axis")
    if sorted((batch, time)) != [0, 1] or len(shape) < 2:
        yield f"batch_axis {batch} and time_axis {time} are not the first two axes"
        return
    if f.shape(1) != (shape[batch],):
        yield f"there are lengths for {shown(f.shape(1))}, not for the {shape[batch]} of the batch"
    lengths = f.known(1)
    if lengths is not None and lengths.size and not 0 <= int(np.min(lengths)) <= int(np.max(lengths)) <= shape[time]:
        yield f"a length is not between 0 and {shape[time]}"
