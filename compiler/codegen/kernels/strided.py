"""Copies between strided boxes: what Transpose, Slice, Concat, Expand, Tile and their like come down to.

Elements are copied as bits, so one kernel for each element size serves every dtype. Strides count elements and may be
negative (Slice) or, in the source, zero (Expand).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from compiler.codegen.calls import Call, Data, In, Out, Temp, Words
from compiler.codegen.native import (
    Kernel,
    i64,
    kernel,
    make_tile,
    make_transpose,
    per_target,
    pointer,
    transpose_block,
    u8,
)
from compiler.codegen.native.picks import PICKED, make_every_other

MAX_RANK = 16
"""Axes of a box after merging; ONNX has no limit, but no model comes near."""

BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
"""Element size -> the dtype by which elements are moved as bits."""

LINE = 64  # bytes of a cache line

Source = In | Data | Temp | Words


class Axis(NamedTuple):
    """One axis of a box: its extent, and the distance of neighbours in the source and in the destination."""

    extent: int
    src: int
    dst: int


def copy_call(src: In | Data, dst: Out, nbytes: int) -> Call:
    """Copy the first `nbytes` bytes of one value to another."""
    return Call(copy_bytes, -(-nbytes // LINE), (src, dst, nbytes))


def copy_box(
    size: int, box: Sequence[Axis], src: Source, dst: Out | Temp, src_at: int = 0, dst_at: int = 0
) -> list[Call]:
    """Copy a box of elements of `size` bytes. src_at, dst_at: elements before its corner, if it is In, or Out."""
    if src_at:
        assert isinstance(src, In)
        src = replace(src, offset=src.offset + size * src_at)
    if dst_at:
        assert isinstance(dst, Out)
        dst = replace(dst, offset=dst.offset + size * dst_at)
    axes = merge(box)
    if axes is None:
        return []
    if len(axes) > MAX_RANK:
        raise ValueError(f"a copy over {len(axes)} axes that do not merge: at most {MAX_RANK} are supported")
    if len(axes) == 1:
        n, ss, ds = axes[0]
        if ss == ds == 1:
            return [Call(copy_bytes, -(-n * size // LINE), (src, dst, n * size))]
        return [Call(make_line(size), n, (src, dst, ss, ds))]
    return [_transposed(size, axes, src, dst) or _rows(size, axes, src, dst)]


def merge(box: Sequence[Axis]) -> list[Axis] | None:
    """The same box in the fewest axes, the destination's innermost last; None if it is empty."""
    if any(a.extent == 0 for a in box):
        return None
    merged: list[Axis] = []
    for a in sorted((a for a in box if a.extent > 1), key=lambda a: -a.dst):
        if merged and (merged[-1].src, merged[-1].dst) == (a.extent * a.src, a.extent * a.dst):
            merged[-1] = Axis(merged[-1].extent * a.extent, a.src, a.dst)
        else:
            merged.append(a)
    return merged or [Axis(1, 1, 1)]


def _rows(size: int, axes: list[Axis], src: Source, dst: Out | Temp) -> Call:
    *outer, inner = axes
    meta = Words((len(outer), *inner, *(a.extent for a in outer), *(a.src for a in outer), *(a.dst for a in outer)))
    return Call(make_rows(size), prod(a.extent for a in outer), (src, dst, meta))


def _transposed(size: int, axes: list[Axis], src: Source, dst: Out | Temp) -> Call | None:
    """By blocks, if another axis than the destination's innermost is the source's innermost."""
    b = axes[-1]
    block = transpose_block(size)
    a = next((a for a in axes[:-1] if a.src == 1), None)
    if a is None or b.dst != 1 or b.src < 2 or a.extent < block // 2:
        return None
    width = max(LINE // size, block)
    while width < a.extent and width * b.extent < 1024:
        width *= 2
    strips = -(-a.extent // width)
    outer = [q for q in axes if q is not a and q is not b]
    meta = [strips, width, a.extent, b.extent, b.src, a.dst, len(outer)]
    for q in reversed(outer):
        meta += q
    return Call(make_strips(size), strips * prod(q.extent for q in outer), (src, dst, Words(tuple(meta))))


@kernel
def copy_bytes(lo: int, hi: int, src: int, dst: int, nbytes: int) -> None:
    """dst[i] = src[i] for i < nbytes, by cache lines: the range counts pieces of 64 bytes."""
    first = LINE * lo
    s, d = u8(src + first, 0), u8(dst + first, 1)
    for i in range(min(LINE * hi, nbytes) - first):
        d[i] = s[i]


@per_target
def make_line(size: int) -> Kernel:
    """dst[i*ds] = src[i*ss] over elements of `size` bytes; ss = 0 fills."""
    ptr = pointer(BITS[size])

    @kernel
    def copy_line(lo: int, hi: int, src: int, dst: int, ss: int, ds: int) -> None:
        s, d = ptr(src + size * lo * ss, 0), ptr(dst + size * lo * ds, 1)
        if ss == 0 and ds == 1:
            value = s[0]
            for i in range(hi - lo):
                d[i] = value
        elif ds == 1:
            for i in range(hi - lo):
                d[i] = s[i * ss]
        else:
            for i in range(hi - lo):
                d[i * ds] = s[i * ss]

    return copy_line


@per_target
def make_rows(size: int) -> Kernel:
    """Copy a box row by row; the range counts rows.

    meta: number m of outer axes (at least 1); extent, source and destination stride of the inner axis; m extents, m
    source strides, m destination strides of the outer axes, outermost first.
    """
    ptr = pointer(BITS[size])
    tile = make_tile(MAX_RANK, "i64")
    block, pick = PICKED // size, make_every_other(size)

    @kernel
    def copy_rows(lo: int, hi: int, src: int, dst: int, meta: int) -> None:
        m = i64(meta, 2)
        rank, n, ss, ds = m[0], m[1], m[2], m[3]
        extent, sstep, dstep = i64(meta + 32, 2), i64(meta + 32 + 8 * rank, 2), i64(meta + 32 + 16 * rank, 2)
        at = i64(tile(), 3)
        s, d, rest = src, dst, lo
        for back in range(rank):  # coordinates and addresses of row lo
            a = rank - 1 - back
            at[a] = rest % extent[a]
            rest = rest // extent[a]
            s += size * at[a] * sstep[a]
            d += size * at[a] * dstep[a]
        last = rank - 1
        srow, drow = size * sstep[last], size * dstep[last]
        left = hi - lo
        while left > 0:
            run = min(left, extent[last] - at[last])
            if ss == 1 and ds == 1:
                for r in range(run):
                    p, q = ptr(s + r * srow, 0), ptr(d + r * drow, 1)
                    for i in range(n):
                        q[i] = p[i]
            elif ss == 0 and ds == 1:
                for r in range(run):
                    value, q = ptr(s + r * srow, 0)[0], ptr(d + r * drow, 1)
                    for i in range(n):
                        q[i] = value
            elif ss == 2 and ds == 1 and n >= block:
                for r in range(run):
                    p, q = s + r * srow, d + r * drow
                    for i in range(0, n - block, block):
                        pick(p + 2 * size * i, q + size * i)
                    pick(p + 2 * size * (n - block), q + size * (n - block))
            else:
                for r in range(run):
                    p, q = ptr(s + r * srow, 0), ptr(d + r * drow, 1)
                    for i in range(n):
                        q[i * ds] = p[i * ss]
            left -= run
            s += run * srow
            d += run * drow
            at[last] += run
            a = last
            while a > 0 and at[a] == extent[a]:
                at[a] = 0
                s += size * (sstep[a - 1] - extent[a] * sstep[a])
                d += size * (dstep[a - 1] - extent[a] * dstep[a])
                a -= 1
                at[a] += 1

    return copy_rows


@per_target
def make_strips(size: int) -> Kernel:
    """Transpose planes: dst[a*ldd + b] = src[b*lds + a], a < A, b < B; the range counts strips of `width` values of a.

    A strip reads whole cache lines, so none is fetched twice. meta: strips of a plane, width, A, B, lds, ldd, number
    of outer axes, then extent, source and destination stride of each, innermost first.
    """
    ptr = pointer(BITS[size])
    n = transpose_block(size)
    block = make_transpose(size)

    @kernel
    def transpose_strips(lo: int, hi: int, src: int, dst: int, meta: int) -> None:
        m = i64(meta, 2)
        strips, width, count, rows, lds, ldd, rank = m[0], m[1], m[2], m[3], m[4], m[5], m[6]
        for u in range(hi - lo):
            rest = lo + u
            first = rest % strips * width
            rest = rest // strips
            s, d = src + size * first, dst + size * first * ldd
            for k in range(rank):
                x = rest % m[7 + 3 * k]
                rest = rest // m[7 + 3 * k]
                s += size * x * m[8 + 3 * k]
                d += size * x * m[9 + 3 * k]
            wide = min(width, count - first)
            whole, tall = wide // n * n, rows // n * n
            for b in range(0, tall, n):
                for a in range(0, whole, n):
                    block(s + size * (b * lds + a), lds, d + size * (a * ldd + b), ldd)
            p, q = ptr(s, 0), ptr(d, 1)
            for b in range(tall, rows):  # below the blocks
                for a in range(whole):
                    q[a * ldd + b] = p[b * lds + a]
            for a in range(whole, wide):  # beside them
                for b in range(rows):
                    q[a * ldd + b] = p[b * lds + a]

    return transpose_strips
