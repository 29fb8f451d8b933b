"""Reductions over any axes: ReduceSum and its nine relatives.

Shapes are reduced to alternating kept and reduced axes. Threads share the results; where a few results have many
elements each, they share parts of fixed size, which a second call joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from compiler.codegen.calls import Call, In, Listing, Out, Site, Temp, Words, contiguous, lowers
from compiler.codegen.kernels.common import kind_of, known_ints, normalized, read_only
from compiler.codegen.kernels.reduce_kernels import STRETCH, WIDTH, make_reduce
from compiler.codegen.native import ITEMSIZE, Inline

PIECE = 8192
"""Elements of a part, about, where a result is cut into parts."""

MANY = 16
"""Units of work that are enough for all threads."""

MOST_PARTS = 64
"""Parts of a result."""

LONG = 512
"""Elements of a result that are worth computing on the way."""


class Axis(NamedTuple):
    """Neighbouring axes of a tensor as one: extent, stride, whether it is reduced."""

    extent: int
    stride: int
    reduced: bool


def merged(shape: Sequence[int], axes: frozenset[int]) -> list[Axis]:
    """The axes of a dense tensor, neighbours of one kind as one; those of extent 1 are left out."""
    out: list[Axis] = []
    for i, (n, stride) in enumerate(zip(shape, contiguous(shape), strict=True)):
        if n != 1:
            if out and out[-1].reduced == (i in axes):
                out[-1] = Axis(out[-1].extent * n, stride, out[-1].reduced)
            else:
                out.append(Axis(n, stride, i in axes))
    return out


def reduce_calls(
    op: str,
    shape: Sequence[int],
    axes: frozenset[int],
    src: In | Temp | Listing,
    dtype: str,
    dst: Out | Temp,
    out: str,
    load: Inline[..., int] | None = None,
) -> list[Call]:
    """Reduce a dense tensor. op: the op's name without Reduce. out: the dtype of dst. load: as of `make_reduce`."""
    shape = tuple(shape)
    count = prod(shape[i] for i in axes)
    if not prod(n for i, n in enumerate(shape) if i not in axes):
        return []
    if count == 0:
        shape, axes = (*(n for i, n in enumerate(shape) if i not in axes), 0), frozenset({len(shape) - len(axes)})
    calls: list[Call] = []
    shift: Temp | int = 0
    if op == "LogSumExp":  # in two passes: the largest elements first
        wide = "f64" if dtype == "f64" else "f32"
        shift = Temp("shift", ITEMSIZE[wide] * max(1, prod(n for i, n in enumerate(shape) if i not in axes)))
        calls = reduce_calls("Max", shape, axes, src, dtype, shift, wide)
    return calls + _reduce(op, merged(shape, axes), count, src, dtype, shift, dst, out, load=load)


def _reduce(
    op: str,
    axes: list[Axis],
    n: int,
    src: In | Temp | Listing,
    dtype: str,
    shift: Temp | int,
    dst: Out | Temp,
    out: str,
    stage: str = "whole",
    load: Inline[..., int] | None = None,
) -> list[Call]:
    kept, reduced = [a for a in axes if not a.reduced], [a for a in axes if a.reduced]
    results = prod(a.extent for a in kept)
    columns = not (axes and axes[-1].reduced)
    if columns:
        width = size = kept.pop().extent if kept else 1
        units = prod(a.extent for a in kept) * -(-width // WIDTH)
        reduced = reduced or [Axis(1, 0, True)]
    else:
        width = reduced[-1].extent
        units, size = results, min(width, STRETCH)
        reduced[-1] = Axis(-(-width // STRETCH), STRETCH, True)
    rows = prod(a.extent for a in reduced)
    chunk, pieces = max(rows, 1), 1
    if stage == "whole" and units < MANY and rows * size >= 8 * PIECE:
        chunk = max(-(-PIECE // size), -(-rows // MOST_PARTS))
        pieces = -(-rows // chunk)
    words = [n, pieces, chunk, rows, width, len(kept), len(reduced)]
    for a in (*reversed(kept), *reversed(reduced)):
        words += (a.extent, a.stride)
    meta = Words(tuple(words))
    if pieces == 1:
        return [Call(make_reduce(op, dtype, out, columns, stage, load), units, (src, _read(shift), dst, meta))]
    inner = {"float": "f64" if dtype == "f64" else "f32", "signed": "i64", "unsigned": "u64"}[kind_of(dtype)]
    parts = Temp(f"parts of {op}", ITEMSIZE[inner] * pieces * results)
    kernel = make_reduce(op, dtype, inner, columns, "first", load)
    first = Call(kernel, units * pieces, (src, _read(shift), parts, meta))
    shape = (results // width, pieces, width) if columns else (results, pieces)
    return [first, *_reduce(op, merged(shape, frozenset({1})), n, read_only(parts), inner, shift, dst, out, "last")]


def _read(memory: Temp | int) -> Temp | int:
    return read_only(memory) if isinstance(memory, Temp) else memory


def axes_of(site: Site) -> frozenset[int]:
    """The axes that a Reduce node reduces."""
    rank = site.type(0).rank
    axes = known_ints(site, 1, "axes") if site.has(1) else ()
    if not axes and not site.attr("noop_with_empty_axes", 0):
        return frozenset(range(rank))
    return frozenset(normalized(a, rank) for a in axes)


def computes(site: Site) -> bool:
    """Whether the kernel of a Reduce node should compute the elements of its operand, so that they need no memory.

    Only where that was faster: it goes over memory as a loop does if the elements of a result follow each other. Across
    rows, or between planes, it jumps in all operands of the loop (up to three times as long), and for rows shorter than
    LONG the loop starts too often. Nor where there are too few units for all threads: alone, the loop may have more.
    """
    t = site.type(0)
    axes = merged(t.shape, axes_of(site))
    if not t.size or [a.reduced for a in axes if a.reduced or a is axes[-1]] != [True] or axes[-1].extent < LONG:
        return False
    return t.size // axes[-1].extent >= MANY or axes[-1].extent >= 8 * PIECE


@lowers(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
)
def reduce(site: Site) -> list[Call]:
    """Constant axes; keepdims does not matter here, as the output's elements are the same."""
    t = site.type(0)
    op = site.node.op.removeprefix("Reduce")
    src, load = (site.joint.memory, site.joint.first) if site.joint else (site.read(0), None)
    return reduce_calls(op, t.shape, axes_of(site), src, t.dtype, site.write(), site.out().dtype, load)
