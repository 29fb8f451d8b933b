"""Ops that move elements without looking at them."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any

import numpy as np

from compiler.ir.slices import slice_range
from compiler.passes.gradients.parts import padded, sliced
from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


@gradient("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(r: Call) -> None:
    """Back to the shape of x."""
    r.give(0, r.dy.reshape(r.x().shape))


@gradient("Transpose")
def transpose(r: Call) -> None:
    """The inverse permutation."""
    perm = r.attr("perm") or range(r.x().rank)[::-1]
    r.give(0, r.dy.transpose([int(i) for i in np.argsort(perm)]))


@gradient("Expand")
def expand(r: Call) -> None:
    """The driver sums."""
    r.give(0, r.dy)


@gradient("Tile")
def tile(r: Call) -> None:
    """The sum over the copies."""
    repeats, shape = r.ints(1) or [], r.x().shape
    split = r.dy.reshape(list(chain(*zip(repeats, shape, strict=True))))
    r.give(0, split.sum(range(0, 2 * len(shape), 2)))


@gradient("Concat")
def concat(r: Call) -> None:
    """Each operand gets its part of dy."""
    axis = r.attr("axis") % r.dy.rank
    sizes = [x.shape[axis] for x in r.xs]
    if len(r.wanted) == len(sizes) > 1:
        for i, part in enumerate(r.add("Split", [r.dy, r.dy.ints(sizes)], len(sizes), axis=axis)):
            r.give(i, part)
    else:
        ends = list(accumulate(sizes))
        for i in sorted(r.wanted):
            r.give(i, sliced(r.dy, [ends[i] - sizes[i]], [ends[i]], [axis]))


@gradient("Split")
def split(r: Call) -> None:
    """The parts side by side; zeros for those that nothing depends on."""
    axis, x = r.attr("axis") % r.x().rank, r.x()
    sizes = r.ints(1) or _even_sizes(x.shape[axis], r.attr("num_outputs"))
    parts = [
        r.dys(i) or r.zeros([size if d == axis else n for d, n in enumerate(x.shape)], x)
        for i, size in enumerate(sizes)
    ]
    r.give(0, parts[0].op("Concat", *parts[1:], axis=axis) if len(parts) > 1 else parts[0])


def _even_sizes(total: int, count: int) -> list[int]:
    """Sizes of the parts where Split gives their number: the last may be smaller."""
    size = -(-total // count)
    return [max(min(size, total - i * size), 0) for i in range(count)]


@gradient("Slice")
def slice_(r: Call) -> None:
    """Dy back in its place, with zeros around it and between its elements."""
    x, dy = r.x(), r.dy
    starts, ends = r.ints(1) or [], r.ints(2) or []
    axes = r.ints(3) or list(range(len(starts)))
    steps = r.ints(4) or [1] * len(starts)
    begin, end = [0] * x.rank, [0] * x.rank
    if dy.type.size == 0:
        r.give(0, r.zeros(x.shape, x))
        return
    for start, stop, given, step in zip(starts, ends, axes, steps, strict=True):
        axis = given % x.rank
        taken = slice_range(x.shape[axis], start, stop, step)
        if taken.step < 0:
            dy = _reversed(dy, axis)
            taken = taken[::-1]
        if taken.step > 1 and len(taken) > 1:
            dy = _spread(dy, axis, taken.step)
        begin[axis], end[axis] = taken[0], x.shape[axis] - taken[-1] - 1
    r.give(0, padded(dy, begin, end))


def _reversed(x: Value, axis: int) -> Value:
    return x.op("Slice", x.ints([-1]), x.ints([-(2**31)]), x.ints([axis]), x.ints([-1]))


def _spread(x: Value, axis: int, step: int) -> Value:
    """Put step - 1 zeros between neighbours."""
    n, (before, after) = x.shape[axis], (x.shape[:axis], x.shape[axis + 1 :])
    columns = x.reshape([*before, n, 1, *after])
    begin, end = [0] * columns.rank, [0] * columns.rank
    end[axis + 1] = step - 1
    spread = padded(columns, begin, end).reshape([*before, n * step, *after])
    return sliced(spread, [0], [(n - 1) * step + 1], [axis])


@gradient("Pad")
def pad(r: Call) -> None:
    """Constant: the inside to x, the rest to the constant. Other modes are a Gather along each axis."""
    x, dy, pads, mode = r.x(), r.dy, r.ints(1) or [], r.attr("mode")
    given = r.ints(3)
    axes = range(x.rank) if given is None else [a % x.rank for a in given]
    begin, end = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(axes):
        begin[axis], end[axis] = pads[i], pads[len(axes) + i]
    if mode != "constant":
        r.give(0, _fold_pads(dy, x.shape, begin, end, mode))
        return
    inside = padded(dy, [-p for p in begin], [-p for p in end])
    r.give(0, inside)
    every = list(range(x.rank))
    r.give(2, lambda: (dy.sum(every) - inside.sum(every)).reshape(r.x(2).shape))


def _fold_pads(dy: Value, shape: tuple[int, ...], begin: list[int], end: list[int], mode: Any) -> Value:
    """Add what a Pad repeated to where it came from; NumPy calls the modes by the same names."""
    for axis, (b, e) in enumerate(zip(begin, end, strict=True)):
        if b or e:
            source = np.pad(np.arange(shape[axis]), (max(b, 0), max(e, 0)), mode)
            source = source[max(-b, 0) : len(source) - max(-e, 0)]
            indices = Value(dy.b, dy.b.const(source.astype(np.int64)))
            target = (*dy.shape[:axis], shape[axis], *dy.shape[axis + 1 :])
            dy = dy.op("onnxc.GatherGrad", indices, axis=axis, shape=target)
    return dy


@gradient("Trilu")
def trilu(r: Call) -> None:
    """The same triangle of dy."""
    k = [r.x(1)] if r.has(1) else []
    r.give(0, lambda: r.dy.op("Trilu", *k, upper=r.node.attr("upper")))


@gradient("ReverseSequence")
def reverse_sequence(r: Call) -> None:
    """It undoes itself."""
    r.give(0, lambda: r.dy.op("ReverseSequence", r.x(1), **r.node.attrs))


@gradient("DepthToSpace")
def depth_to_space(r: Call) -> None:
    """Its inverse."""
    r.give(0, r.dy.op("SpaceToDepth", **r.node.attrs))


@gradient("SpaceToDepth")
def space_to_depth(r: Call) -> None:
    """Its inverse."""
    r.give(0, r.dy.op("DepthToSpace", **r.node.attrs))
