"""Gradients of pools. A plane of (sample, channel) belongs to one thread, so windows may overlap."""

from __future__ import annotations

from math import prod

from compiler.codegen.calls import Call, Scratch, Site, lowers
from compiler.codegen.kernels.common import above
from compiler.codegen.kernels.pool import lowest
from compiler.codegen.kernels.pool_geometry import BEFORE, DILATION, KERNEL, OUT, SIZE, STRIDE, TAPS, geometry
from compiler.codegen.native import ITEMSIZE, Kernel, convert, dtype, i64, kernel, make_tile, per_target, pointer
from compiler.codegen.native.selection import select


@per_target
def make_max_grad(name: str) -> Kernel:
    """Dx for any window: dy is added where the first of the largest elements is. The range counts planes.

    For each row of outputs, scratch has the largest elements so far, and the taps that they are at: 4 bytes each.
    Behind them is how far each tap is from the first one of its window.
    """
    ptr, size = pointer(name), ITEMSIZE[name]
    zero, least, number = dtype(name).value(0), lowest(name), convert("i32")
    numbers = pointer("i32")

    @kernel
    def max_pool_grad(lo: int, hi: int, dy: int, x: int, dst: int, meta: int, scratch: int) -> None:
        m, taps = i64(meta, 3), i64(meta + 8 * TAPS, 3)
        deep, high, wide = m[SIZE], m[SIZE + 1], m[SIZE + 2]
        rows, width, step = m[OUT] * m[OUT + 1], m[OUT + 2], m[STRIDE + 2]
        lines, across = m[KERNEL] * m[KERNEL + 1], m[KERNEL + 2]
        found, where, away = scratch, scratch + 8 * width, i64(scratch + 16 * width, 4)
        for k in range(lines):
            there = (k // m[KERNEL + 1] * m[DILATION] * high + k % m[KERNEL + 1] * m[DILATION + 1]) * wide
            for t in range(across):
                away[k * across + t] = there + t * m[DILATION + 2]
        for plane in range(lo, hi):
            fresh = ptr(dst + size * plane * deep * high * wide, 1)
            for i in range(deep * high * wide):
                fresh[i] = zero
            for row in range(rows):
                d0 = row // m[OUT + 1] * m[STRIDE] - m[BEFORE]
                h0 = row % m[OUT + 1] * m[STRIDE + 1] - m[BEFORE + 1]
                y, at = ptr(found, 5), numbers(where, 6)
                for i in range(width):
                    y[i] = least
                    at[i] = number(-1)
                for k in range(lines):
                    d, h = d0 + k // m[KERNEL + 1] * m[DILATION], h0 + k % m[KERNEL + 1] * m[DILATION + 1]
                    if 0 <= d < deep and 0 <= h < high:
                        for t in range(across):
                            first, n, w = taps[3 * t], taps[3 * t + 1] - taps[3 * t], taps[3 * t + 2]
                            v = ptr(x + size * (((plane * deep + d) * high + h) * wide + w), 2)
                            z, j, tap = (
                                ptr(found + size * first, 5),
                                numbers(where + 4 * first, 6),
                                number(k * across + t),
                            )
                            if step == 1:
                                for i in range(n):
                                    take = above(v[i], z[i]) | (j[i] < 0)
                                    z[i], j[i] = select(take, v[i], z[i]), select(take, tap, j[i])
                            elif step == 2:
                                for i in range(n):
                                    take = above(v[2 * i], z[i]) | (j[i] < 0)
                                    z[i], j[i] = select(take, v[2 * i], z[i]), select(take, tap, j[i])
                            else:
                                for i in range(n):
                                    take = above(v[i * step], z[i]) | (j[i] < 0)
                                    z[i], j[i] = select(take, v[i * step], z[i]), select(take, tap, j[i])
                g = ptr(dy + size * (plane * rows + row) * width, 0)
                begin = ((plane * deep + d0) * high + h0) * wide - m[BEFORE + 2]
                line = ptr(dst + size * begin, 1)
                for i in range(width):
                    line[i * step + away[at[i]]] += g[i]

    return max_pool_grad


BLOCK = 32
"""Outputs of a row that `make_max_grad_pairs` does at a time; a multiple of the elements in any vector."""


@per_target
def make_max_grad_pairs(name: str) -> Kernel:
    """Dx for windows of 2 x 2 that tile the plane. The range counts planes of high x wide.

    Rows are short and which element is largest is random, so a scalar rest of a row would be mispredicted branches:
    whole vectors are computed to the stack, reading a little past the row, and copied from there.
    """
    ptr, size = pointer(name), ITEMSIZE[name]
    zero = dtype(name).value(0)
    lanes = 32 // size  # at most 128 bytes past the end of x are read
    upper, lower = make_tile(2 * BLOCK, name), make_tile(2 * BLOCK, name)

    @kernel
    def max_pool_grad_pairs(lo: int, hi: int, dy: int, x: int, dst: int, high: int, wide: int) -> None:
        rows, width = high // 2, wide // 2
        r, s = ptr(upper(), 3), ptr(lower(), 4)
        for u in range((hi - lo) * rows):
            plane, row = lo + u // rows, u % rows
            top = size * (plane * high + 2 * row) * wide
            for first in range(0, width, BLOCK):
                at, n = top + 2 * size * first, min(BLOCK, width - first)
                p, q = ptr(x + at, 0), ptr(x + at + size * wide, 0)
                g = ptr(dy + size * ((plane * rows + row) * width + first), 1)
                for i in range((n + lanes - 1) // lanes * lanes):
                    a, b, c, d, e = p[2 * i], p[2 * i + 1], q[2 * i], q[2 * i + 1], g[i]
                    second = above(b, a)
                    best = b if second else a
                    third = above(c, best)
                    best = c if third else best
                    fourth = above(d, best)
                    r[2 * i] = zero if second | third | fourth else e
                    r[2 * i + 1] = e if second & (not (third | fourth)) else zero
                    s[2 * i] = e if third & (not fourth) else zero
                    s[2 * i + 1] = e if fourth else zero
                over, under = ptr(dst + at, 2), ptr(dst + at + size * wide, 2)
                for i in range(2 * n):
                    over[i] = r[i]
                for i in range(2 * n):
                    under[i] = s[i]
            t = ptr(dst + top, 2)
            if wide % 2:  # what no window covers
                t[wide - 1] = zero
                t[2 * wide - 1] = zero
            if row == rows - 1 and high % 2:
                for i in range(2 * wide, 3 * wide):
                    t[i] = zero

    return max_pool_grad_pairs


@per_target
def make_average_grad_pairs(name: str) -> Kernel:
    """Dx of an average over windows of 2 x 2 that tile the plane; the range counts planes of high x wide."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero, quarter = value(0), value(0.25)

    @kernel
    def average_pool_grad_pairs(lo: int, hi: int, dy: int, dst: int, high: int, wide: int) -> None:
        rows, width = high // 2, wide // 2
        for u in range((hi - lo) * rows):
            plane, row = lo + u // rows, u % rows
            top = dst + size * (plane * high + 2 * row) * wide
            g, x, z = ptr(dy + size * (plane * rows + row) * width, 0), ptr(top, 1), ptr(top + size * wide, 2)
            for i in range(width):
                share = g[i] * quarter
                x[2 * i] = share
                x[2 * i + 1] = share
                z[2 * i] = share
                z[2 * i + 1] = share
            if wide % 2:  # what no window covers
                x[wide - 1] = zero
                z[wide - 1] = zero
            if row == rows - 1 and high % 2:
                last = ptr(top + 2 * size * wide, 3)
                for i in range(wide):
                    last[i] = zero

    return average_pool_grad_pairs


@per_target
def make_average_grad(name: str) -> Kernel:
    """Dx of an average: the share dy / count of each output, added tap by tap. The range counts planes."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)

    @kernel
    def average_pool_grad(lo: int, hi: int, dy: int, dst: int, meta: int, scratch: int) -> None:
        m, taps = i64(meta, 2), i64(meta + 8 * TAPS, 2)
        deep, high, wide = m[SIZE], m[SIZE + 1], m[SIZE + 2]
        rows, width, step = m[OUT] * m[OUT + 1], m[OUT + 2], m[STRIDE + 2]
        counts = i64(meta + 8 * (TAPS + 3 * m[KERNEL + 2]), 2)
        across = i64(meta + 8 * (TAPS + 3 * m[KERNEL + 2] + m[OUT] + m[OUT + 1]), 2)
        share = ptr(scratch, 3)
        for plane in range(hi - lo):
            fresh = ptr(dst + size * (lo + plane) * deep * high * wide, 1)
            for i in range(deep * high * wide):
                fresh[i] = zero
            for row in range(rows):
                od, oh = row // m[OUT + 1], row % m[OUT + 1]
                d0, h0 = od * m[STRIDE] - m[BEFORE], oh * m[STRIDE + 1] - m[BEFORE + 1]
                g = ptr(dy + size * ((lo + plane) * rows + row) * width, 0)
                others = counts[od] * counts[m[OUT] + oh]
                for i in range(width):
                    share[i] = g[i] / value(others * across[i])
                for k in range(m[KERNEL] * m[KERNEL + 1]):
                    d, h = d0 + k // m[KERNEL + 1] * m[DILATION], h0 + k % m[KERNEL + 1] * m[DILATION + 1]
                    if 0 <= d < deep and 0 <= h < high:
                        for t in range(m[KERNEL + 2]):
                            first, n = taps[3 * t], taps[3 * t + 1] - taps[3 * t]
                            at = (((lo + plane) * deep + d) * high + h) * wide + taps[3 * t + 2]
                            x, s = ptr(dst + size * at, 1), ptr(scratch + size * first, 3)
                            if step == 1:
                                for i in range(n):
                                    x[i] += s[i]
                            elif step == 2:
                                for i in range(n):
                                    x[2 * i] += s[i]
                            else:
                                for i in range(n):
                                    x[i * step] += s[i]

    return average_pool_grad


@lowers("onnxc.MaxPoolGrad")
def max_pool_grad(site: Site) -> list[Call]:
    """Inputs dy, x; attributes of the MaxPool."""
    t = site.type(1)
    g = geometry(site, t.shape)
    if not t.size:
        return []
    dy, dx = site.in_pieces(g.planes)
    args = (dy, site.read(1, piece=t.nbytes // max(1, g.planes)), dx)
    if g.pairs and g.outputs:
        high, wide = g.axes[1].size, g.axes[2].size
        return [Call(make_max_grad_pairs(t.dtype), g.planes, (*args, high, wide))]
    scratch = Scratch(8 * (2 * g.axes[2].out + prod(a.kernel for a in g.axes)))
    return [Call(make_max_grad(t.dtype), g.planes, (*args, g.words, scratch))]


@lowers("onnxc.AveragePoolGrad")
def average_pool_grad(site: Site) -> list[Call]:
    """Input dy; attributes of the AveragePool and the shape of its input."""
    t = site.out()
    g = geometry(site, t.shape)
    if not t.size:
        return []
    if g.pairs and g.outputs:
        high, wide = g.axes[1].size, g.axes[2].size
        return [Call(make_average_grad_pairs(t.dtype), g.planes, (*site.in_pieces(g.planes), high, wide))]
    scratch = Scratch(ITEMSIZE[t.dtype] * max(1, g.axes[2].out))
    return [Call(make_average_grad(t.dtype), g.planes, (*site.in_pieces(g.planes), g.words, scratch))]
