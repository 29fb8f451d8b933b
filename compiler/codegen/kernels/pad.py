"""Pad in all four modes: a table for each axis says where the border's elements come from."""

from __future__ import annotations

from math import prod

from compiler.codegen.calls import Call, Site, Words, contiguous, lowers
from compiler.codegen.kernels.common import item_size, known_ints, normalized
from compiler.codegen.kernels.strided import BITS
from compiler.codegen.native import Kernel, i64, kernel, per_target, pointer

FILL = -1  # no source: the constant


def border(mode: str, n: int, i: int) -> int:
    """Index of [0, n) that index i outside of it stands for."""
    if mode == "constant" or n == 0:
        return FILL
    if mode == "wrap":
        return i % n
    if mode == "reflect" and n > 1:
        i = i % (2 * n - 2)
        return min(i, 2 * n - 2 - i)
    return min(max(i, 0), n - 1)


@per_target
def make_pad(size: int) -> Kernel:
    """The range counts rows of the output.

    meta: rank; then for each axis, innermost first: output extent, first and behind-last output index that lie
    inside the input, input index of the first one, input stride, address of its table in words from meta. A table
    holds the input offsets (-1: the value) of the output indices before the inside, then of those behind it.
    """
    ptr = pointer(BITS[size])

    @kernel
    def pad(lo: int, hi: int, src: int, value: int, dst: int, meta: int) -> None:
        m = i64(meta, 3)
        rank, wide, first, last, corner, table = m[0], m[1], m[2], m[3], m[4], m[6]
        fill = ptr(value, 1)[0]
        for u in range(hi - lo):
            rest, at, outside = lo + u, 0, 0
            for k in range(1, rank):
                w = 1 + 6 * k
                x = rest % m[w]
                rest = rest // m[w]
                if x < m[w + 1]:
                    offset = m[m[w + 5] + x]
                elif x >= m[w + 2]:
                    offset = m[m[w + 5] + x - (m[w + 2] - m[w + 1])]
                else:
                    offset = (x - m[w + 1] + m[w + 3]) * m[w + 4]
                if offset < 0:
                    outside = 1
                at += offset
            d = ptr(dst + size * (lo + u) * wide, 2)
            if outside:
                for i in range(wide):
                    d[i] = fill
            else:
                s = ptr(src + size * at, 0)
                for i in range(first):
                    j = m[table + i]
                    d[i] = fill if j < 0 else s[j]
                inside, p = ptr(src + size * (at + corner), 0), ptr(dst + size * ((lo + u) * wide + first), 2)
                for i in range(last - first):
                    p[i] = inside[i]
                for i in range(last, wide):
                    j = m[table + i - (last - first)]
                    d[i] = fill if j < 0 else s[j]

    return pad


@lowers("Pad")
def pad_(site: Site) -> list[Call]:
    """Inputs data, pads and axes (constants), value (may be computed at run time; zero if absent)."""
    t, out = site.type(0), site.out()
    pads = known_ints(site, 1, "pads")
    axes = [normalized(a, t.rank) for a in (known_ints(site, 3, "axes") if site.has(3) else range(t.rank))]
    before, behind = [0] * t.rank, [0] * t.rank
    for i, axis in enumerate(axes):
        before[axis], behind[axis] = pads[i], pads[i + len(axes)]
    if not out.size:
        return []
    shape, before, behind = _merged(t.shape, before, behind)
    steps = contiguous(shape)
    head, tables = [len(shape)], list[int]()
    start = 1 + 6 * len(shape)
    for n, b, e, step in reversed(list(zip(shape, before, behind, steps, strict=True))):
        wide = n + b + e
        first, last = min(max(b, 0), wide), min(max(b + n, 0), wide)
        last = max(first, last)
        outside = [*range(first), *range(last, wide)]
        head += [wide, first, last, first - b, step, start + len(tables)]
        where = [border(site.attr("mode"), n, i - b) for i in outside]
        tables += [FILL if j == FILL else j * step for j in where]
    value = site.read(2) if site.has(2) else Words((0,))
    args = (site.read(0), value, site.write(), Words((*head, *tables)))
    rows = prod(n + b + e for n, b, e in zip(shape[:-1], before, behind, strict=False))
    return [Call(make_pad(item_size(t)), rows, args)]


def _merged(shape: tuple[int, ...], before: list[int], behind: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Neighbouring axes that are not padded become one."""
    merged: list[list[int]] = []
    for axis in zip(shape, before, behind, strict=True):
        if merged and not axis[1] and not axis[2] and not any(merged[-1][1:]):
            merged[-1][0] *= axis[0]
        else:
            merged.append(list(axis))
    a, b, c = zip(*(merged or [[1, 0, 0]]), strict=True)
    return list(a), list(b), list(c)
