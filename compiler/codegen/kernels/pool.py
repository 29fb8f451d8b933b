"""Pools: MaxPool, AveragePool, LpPool and the global ones. Threads share the planes of (sample, channel).

A row of the output is made tap by tap: for one tap, the outputs that it is inside for are a range, and their inputs lie
at a fixed distance, so the loop over the row vectorizes for any window.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from compiler.codegen.calls import Call, Site, lowers
from compiler.codegen.kernels.common import NO_AXIS, above, extremum, kind_of
from compiler.codegen.kernels.pool_geometry import (
    BEFORE,
    DILATION,
    INDEX,
    KERNEL,
    OUT,
    SIZE,
    STRIDE,
    TAPS,
    Geometry,
    geometry,
)
from compiler.codegen.kernels.reduce import reduce_calls
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, i64, inline, kernel, per_target, pointer
from compiler.codegen.native.selection import frozen, select
from compiler.ir.windows import Window


def lowest(name: str) -> Any:
    """What every number of a type is at least."""
    of = getattr(np, dtype(name).numpy)
    return dtype(name).value(-np.inf) if kind_of(name) == "float" else of(np.iinfo(of).min)


@per_target
def make_max(name: str) -> Kernel:
    """The maximum of each window. pairs: windows of 2 x 2 that tile the plane."""
    ptr, size, least = pointer(name), ITEMSIZE[name], lowest(name)
    larger = extremum(name, True)

    @kernel
    def max_pool(lo: int, hi: int, src: int, dst: int, pairs: int, meta: int) -> None:
        m, taps = i64(meta, 2), i64(meta + 8 * TAPS, 2)
        deep, high, wide = m[SIZE], m[SIZE + 1], m[SIZE + 2]
        rows, width, step = m[OUT] * m[OUT + 1], m[OUT + 2], m[STRIDE + 2]
        for u in range((hi - lo) * rows):
            plane, row = lo + u // rows, u % rows
            d0 = row // m[OUT + 1] * m[STRIDE] - m[BEFORE]
            h0 = row % m[OUT + 1] * m[STRIDE + 1] - m[BEFORE + 1]
            source = src + size * plane * deep * high * wide
            y = ptr(dst + size * (plane * rows + row) * width, 1)
            if pairs:
                p, q = ptr(source + size * h0 * wide, 0), ptr(source + size * (h0 + 1) * wide, 0)
                for i in range(width):
                    y[i] = larger(larger(p[2 * i], p[2 * i + 1]), larger(q[2 * i], q[2 * i + 1]))
            else:
                for i in range(width):
                    y[i] = least
                for k in range(m[KERNEL] * m[KERNEL + 1]):
                    d, h = d0 + k // m[KERNEL + 1] * m[DILATION], h0 + k % m[KERNEL + 1] * m[DILATION + 1]
                    if 0 <= d < deep and 0 <= h < high:
                        for t in range(m[KERNEL + 2]):
                            first, n = taps[3 * t], taps[3 * t + 1] - taps[3 * t]
                            x = ptr(source + size * ((d * high + h) * wide + taps[3 * t + 2]), 0)
                            z = ptr(dst + size * ((plane * rows + row) * width + first), 1)
                            if step == 1:
                                for i in range(n):
                                    z[i] = frozen(larger(z[i], x[i]))
                            elif step == 2:
                                for i in range(n):
                                    z[i] = frozen(larger(z[i], x[2 * i]))
                            else:
                                for i in range(n):
                                    z[i] = frozen(larger(z[i], x[i * step]))

    return max_pool


@per_target
def make_max_indices(name: str) -> Kernel:
    """The maximum of each window and where in the whole input it is (the first of equal ones)."""
    ptr, size, least = pointer(name), ITEMSIZE[name], lowest(name)

    @kernel
    def max_pool_indices(lo: int, hi: int, src: int, dst: int, indices: int, meta: int) -> None:
        m, taps = i64(meta, 3), i64(meta + 8 * TAPS, 3)
        deep, high, wide = m[SIZE], m[SIZE + 1], m[SIZE + 2]
        rows, width, step = m[OUT] * m[OUT + 1], m[OUT + 2], m[STRIDE + 2]
        across = m[INDEX + 2]
        for u in range((hi - lo) * rows):
            plane, row = lo + u // rows, u % rows
            d0 = row // m[OUT + 1] * m[STRIDE] - m[BEFORE]
            h0 = row % m[OUT + 1] * m[STRIDE + 1] - m[BEFORE + 1]
            base = plane * deep * high * wide
            target = (plane * rows + row) * width
            y, j = ptr(dst + size * target, 1), i64(indices + 8 * target, 2)
            for i in range(width):
                y[i] = least
                j[i] = -1
            for k in range(m[KERNEL] * m[KERNEL + 1]):
                d, h = d0 + k // m[KERNEL + 1] * m[DILATION], h0 + k % m[KERNEL + 1] * m[DILATION + 1]
                if 0 <= d < deep and 0 <= h < high:
                    for t in range(m[KERNEL + 2]):
                        first, n, w = taps[3 * t], taps[3 * t + 1] - taps[3 * t], taps[3 * t + 2]
                        x = ptr(src + size * (base + (d * high + h) * wide + w), 0)
                        z, at = ptr(dst + size * (target + first), 1), i64(indices + 8 * (target + first), 2)
                        here = base + d * m[INDEX] + h * m[INDEX + 1] + w * across
                        for i in range(n):
                            v, best, j0 = x[i * step], z[i], at[i]
                            take = above(v, best) | (j0 < 0)
                            at[i] = select(take, here + i * step * across, j0)
                            z[i] = select(take, v, best)

    return max_pool_indices


@inline
def _one(x: Any) -> Any:
    return x


@inline
def _magnitude(x: Any) -> Any:
    return abs(x)


@inline
def _square(x: Any) -> Any:
    return x * x


@inline
def _root(x: Any) -> Any:
    return np.sqrt(x)


@per_target
def make_sum(name: str, p: int) -> Kernel:
    """The average of each window (p = 0), or its Lp norm. pairs: windows of 2 x 2 that tile the plane."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero, inverse, exponent = value(0), value(1 / max(p, 1)), value(p)

    @inline
    def power(x: Any) -> Any:
        return abs(x) ** exponent

    @inline
    def root(x: Any) -> Any:
        return x**inverse

    each = {0: _one, 1: _magnitude, 2: _square}.get(p, power)
    finish = {0: _one, 1: _one, 2: _root}.get(p, root)
    average = p == 0

    @kernel
    def sum_pool(lo: int, hi: int, src: int, dst: int, pairs: int, meta: int) -> None:
        m, taps = i64(meta, 2), i64(meta + 8 * TAPS, 2)
        deep, high, wide = m[SIZE], m[SIZE + 1], m[SIZE + 2]
        rows, width, step = m[OUT] * m[OUT + 1], m[OUT + 2], m[STRIDE + 2]
        counts = i64(meta + 8 * (TAPS + 3 * m[KERNEL + 2]), 2)
        across = i64(meta + 8 * (TAPS + 3 * m[KERNEL + 2] + m[OUT] + m[OUT + 1]), 2)
        for u in range((hi - lo) * rows):
            plane, row = lo + u // rows, u % rows
            od, oh = row // m[OUT + 1], row % m[OUT + 1]
            d0, h0 = od * m[STRIDE] - m[BEFORE], oh * m[STRIDE + 1] - m[BEFORE + 1]
            target = (plane * rows + row) * width
            y = ptr(dst + size * target, 1)
            if pairs:
                top = src + size * ((plane * deep + d0) * high + h0) * wide
                x, z = ptr(top, 0), ptr(top + size * wide, 0)
                for i in range(width):
                    y[i] = (each(x[2 * i]) + each(x[2 * i + 1])) + (each(z[2 * i]) + each(z[2 * i + 1]))
            else:
                for i in range(width):
                    y[i] = zero
                for k in range(m[KERNEL] * m[KERNEL + 1]):
                    d, h = d0 + k // m[KERNEL + 1] * m[DILATION], h0 + k % m[KERNEL + 1] * m[DILATION + 1]
                    if 0 <= d < deep and 0 <= h < high:
                        for t in range(m[KERNEL + 2]):
                            first, n = taps[3 * t], taps[3 * t + 1] - taps[3 * t]
                            x = ptr(src + size * (((plane * deep + d) * high + h) * wide + taps[3 * t + 2]), 0)
                            z = ptr(dst + size * (target + first), 1)
                            if step == 1:
                                for i in range(n):
                                    z[i] += each(x[i])
                            elif step == 2:
                                for i in range(n):
                                    z[i] += each(x[2 * i])
                            else:
                                for i in range(n):
                                    z[i] += each(x[i * step])
            if average:
                others = counts[od] * counts[m[OUT] + oh]
                for i in range(width):
                    y[i] = y[i] / value(others * across[i])
            else:
                for i in range(width):
                    y[i] = finish(y[i])

    return sum_pool


@lowers("MaxPool")
def max_pool(site: Site) -> list[Call]:
    """Outputs y and maybe the indices, by rows or by columns (storage_order)."""
    t = site.type(0)
    if not site.types[site.node.results[0]].size:
        return []
    g = geometry(site, t.shape)
    if not site.node.output(1):
        return [Call(make_max(t.dtype), g.planes, (*site.in_pieces(g.planes), int(g.pairs), g.words))]
    return [Call(make_max_indices(t.dtype), g.planes, (site.read(0), site.write(), site.write(1), g.words))]


@lowers("AveragePool", "LpPool")
def sum_pool(site: Site) -> list[Call]:
    """Attributes of the window, count_include_pad, p."""
    t = site.type(0)
    if not site.out().size:
        return []
    g = geometry(site, t.shape)
    p = site.attr("p") if site.node.op == "LpPool" else 0
    return [Call(make_sum(t.dtype, p), g.planes, (*site.in_pieces(g.planes), int(g.pairs), g.words))]


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(site: Site) -> list[Call]:
    """Over all spatial axes."""
    t = site.type(0)
    op = "Mean" if site.node.op == "GlobalAveragePool" else "Max"
    shape = (t.shape[0] * t.shape[1], prod(t.shape[2:]))
    return reduce_calls(op, shape, frozenset({1}), site.read(0), t.dtype, site.write(), t.dtype)


@lowers("GlobalLpPool")
def global_lp_pool(site: Site) -> list[Call]:
    """A window that is everything; attribute p."""
    t = site.type(0)
    if not t.size:
        return []
    n = prod(t.shape[2:])  # the sum does not depend on how the axes are cut
    g = Geometry(t.shape[0] * t.shape[1], (NO_AXIS, NO_AXIS, Window(n, n, 1, 1, 0, 0, 1)))
    return [Call(make_sum(t.dtype, site.attr("p")), g.planes, (site.read(0), site.write(), 0, g.words))]
