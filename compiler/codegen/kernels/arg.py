"""ArgMax, ArgMin and Hardmax. The first of equal elements wins (or the last, by attribute); NaN counts as extreme."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.codegen.calls import Call, Site, lowers
from compiler.codegen.kernels.common import above, around, below, extremum, normalized
from compiler.codegen.kernels.reduce_kernels import WIDTH
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, i64, inline, kernel, make_tile, per_target, pointer
from compiler.codegen.native.selection import select


@inline
def _same(x: Any, y: Any) -> Any:
    return (x == y) | ((x != x) & (y != y))


@per_target
def make_rows(name: str, largest: bool) -> Kernel:
    """The index along dense rows of n > 0 elements; the range counts rows. last: of equal elements, the last.

    First the extreme, in vectors, then a search for it.
    """
    ptr, size = pointer(name), ITEMSIZE[name]
    extreme = extremum(name, largest)

    @kernel
    def arg_rows(lo: int, hi: int, src: int, dst: int, n: int, last: int) -> None:
        y = i64(dst + 8 * lo, 1)
        for r in range(hi - lo):
            x = ptr(src + size * (lo + r) * n, 0)
            best = x[0]
            for i in range(n):
                best = extreme(best, x[i])
            at, step = (n - 1, -1) if last else (0, 1)
            for _ in range(n - 1):
                if _same(x[at], best):
                    break
                at += step
            y[r] = at

    return arg_rows


@per_target
def make_columns(name: str, largest: bool) -> Kernel:
    """The index along the middle axis of outer x n x inner; the range counts blocks of WIDTH of the inner axis."""
    ptr, size = pointer(name), ITEMSIZE[name]
    better = above if largest else below
    extremes, indices = make_tile(WIDTH, name), make_tile(WIDTH, "i64")

    @kernel
    def arg_columns(lo: int, hi: int, src: int, dst: int, n: int, inner: int, last: int) -> None:
        blocks = (inner + WIDTH - 1) // WIDTH
        best, at = ptr(extremes(), 2), i64(indices(), 3)
        for u in range(hi - lo):
            o, column = (lo + u) // blocks, (lo + u) % blocks * WIDTH
            width = min(WIDTH, inner - column)
            first, step = (n - 1, -1) if last else (0, 1)
            x = ptr(src + size * ((o * n + first) * inner + column), 0)
            for j in range(width):
                best[j] = x[j]
                at[j] = first
            for k in range(1, n):
                i = first + k * step
                x = ptr(src + size * ((o * n + i) * inner + column), 0)
                for j in range(width):
                    v, b, old = x[j], best[j], at[j]
                    take = better(v, b)
                    best[j] = select(take, v, b)
                    at[j] = select(take, i, old)
            y = i64(dst + 8 * (o * inner + column), 1)
            for j in range(width):
                y[j] = at[j]

    return arg_columns


@lowers("ArgMax", "ArgMin")
def arg(site: Site) -> list[Call]:
    """Attributes axis, select_last_index."""
    t = site.type(0)
    if not t.size:
        return []
    outer, n, inner = around(t.shape, normalized(site.attr("axis"), t.rank))
    largest, last = site.node.op == "ArgMax", site.attr("select_last_index")
    if inner == 1:
        return [Call(make_rows(t.dtype, largest), outer, (site.read(0), site.write(), n, last))]
    units = outer * -(-inner // WIDTH)
    return [Call(make_columns(t.dtype, largest), units, (site.read(0), site.write(), n, inner, last))]


@per_target
def make_hardmax(name: str) -> Kernel:
    """1 at the first largest element along the middle axis of outer x n x inner, else 0; the range counts outer."""
    ptr, size, of = pointer(name), ITEMSIZE[name], getattr(np, dtype(name).value.name)
    zero, one = of(0), of(1)

    @kernel
    def hardmax(lo: int, hi: int, src: int, dst: int, n: int, inner: int) -> None:
        for o in range(hi - lo):
            x, y = ptr(src + size * (lo + o) * n * inner, 0), ptr(dst + size * (lo + o) * n * inner, 1)
            for i in range(n * inner):
                y[i] = zero
            for j in range(inner):
                at = 0
                for k in range(1, n):
                    if above(x[k * inner + j], x[at * inner + j]):
                        at = k
                y[at * inner + j] = one

    return hardmax


@lowers("Hardmax")
def hardmax_(site: Site) -> list[Call]:
    """Attribute axis."""
    t = site.type(0)
    if not t.size:
        return []
    outer, n, inner = around(t.shape, normalized(site.attr("axis"), t.rank))
    return [Call(make_hardmax(t.dtype), outer, (site.read(0), site.write(), n, inner))]
