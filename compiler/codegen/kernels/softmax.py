"""Softmax and LogSoftmax along any axis, shifted by the maximum so that nothing overflows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from compiler.codegen.calls import Call, In, Out, Site, Temp, lowers
from compiler.codegen.kernels.common import around, fmax, normalized
from compiler.codegen.kernels.reduce_kernels import GROUP, STRETCH, WIDTH
from compiler.codegen.native import (
    ITEMSIZE,
    Kernel,
    dtype,
    f64,
    inline,
    kernel,
    make_tile,
    make_transpose_edge,
    per_target,
    pointer,
    transpose_block,
)
from compiler.codegen.native.math import exp, log
from compiler.codegen.native.selection import frozen
from compiler.ir.types import TensorType


@inline
def shifted_exp(x: Any, m: Any) -> Any:
    """exp(x - m): of a logit and the row's maximum."""
    return exp(x - m)


@inline
def _log_share(x: Any, m: Any, log_sum: Any) -> Any:
    return (x - m) - log_sum  # in this order: m + log_sum would lose the digits of log_sum where m is large


@per_target
def make_rows(name: str, logarithm: bool) -> Kernel:
    """Along dense rows of n > 0 elements; the range counts rows."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)

    @kernel(reassoc=True)
    def softmax_rows(lo: int, hi: int, src: int, dst: int, n: int) -> None:
        for r in range(hi - lo):
            row = size * (lo + r) * n
            x, y = ptr(src + row, 0), ptr(dst + row, 1)
            m = x[0]
            for i in range(n):
                m = fmax(m, x[i])
            total = 0.0
            for first in range(0, n, STRETCH):
                part, p, q = zero, ptr(src + row + size * first, 0), ptr(dst + row + size * first, 1)
                if logarithm:
                    for i in range(min(STRETCH, n - first)):
                        part += shifted_exp(p[i], m)
                else:
                    for i in range(min(STRETCH, n - first)):
                        e = shifted_exp(p[i], m)
                        q[i] = e
                        part += e
                total += part
            if logarithm:
                log_sum = value(np.log(total))
                for i in range(n):
                    y[i] = _log_share(x[i], m, log_sum)
            else:
                whole = value(total)
                for i in range(n):
                    y[i] = y[i] / whole

    return softmax_rows


@per_target
def make_columns(name: str, logarithm: bool) -> Kernel:
    """Along the middle axis of outer x n x inner; the range counts blocks of WIDTH of the inner axis."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    maxima, parts, totals = make_tile(WIDTH, name), make_tile(WIDTH, name), make_tile(WIDTH, "f64")
    zero = value(0)

    @kernel
    def softmax_columns(lo: int, hi: int, src: int, dst: int, n: int, inner: int) -> None:
        blocks = (inner + WIDTH - 1) // WIDTH
        m, part, total = ptr(maxima(), 2), ptr(parts(), 3), f64(totals(), 4)
        for u in range(hi - lo):
            column = (lo + u) % blocks * WIDTH
            width = min(WIDTH, inner - column)
            at = size * ((lo + u) // blocks * n * inner + column)
            x = ptr(src + at, 0)
            for j in range(width):
                m[j] = x[j]
                total[j] = 0.0
            for k in range(1, n):
                x = ptr(src + at + size * k * inner, 0)
                for j in range(width):
                    m[j] = frozen(fmax(m[j], x[j]))
            for first in range(0, n, GROUP):
                for j in range(width):
                    part[j] = zero
                for k in range(first, min(first + GROUP, n)):
                    x, y = ptr(src + at + size * k * inner, 0), ptr(dst + at + size * k * inner, 1)
                    if logarithm:
                        for j in range(width):
                            part[j] += shifted_exp(x[j], m[j])
                    else:
                        for j in range(width):
                            e = shifted_exp(x[j], m[j])
                            y[j] = e
                            part[j] += e
                for j in range(width):
                    total[j] += part[j]
            for j in range(width):
                part[j] = log(value(total[j])) if logarithm else value(total[j])
            for k in range(n):
                x, y = ptr(src + at + size * k * inner, 0), ptr(dst + at + size * k * inner, 1)
                if logarithm:
                    for j in range(width):
                        y[j] = _log_share(x[j], m[j], part[j])
                else:
                    for j in range(width):
                        y[j] = y[j] / part[j]

    return softmax_columns


SHORT = 16
"""Elements of rows that are too short to fill the lanes of a vector."""


@per_target
def make_short_rows(name: str, logarithm: bool) -> Kernel:
    """Along dense rows of 0 < n <= SHORT elements, turned to columns WIDTH at a time; the range counts rows.

    The bits are those of `make_columns`: so few terms are one group.
    """
    ptr, size = pointer(name), ITEMSIZE[name]
    side, turn = transpose_block(size), make_transpose_edge(size)
    columns, maxima, parts = make_tile(SHORT * WIDTH, name), make_tile(WIDTH, name), make_tile(WIDTH, name)
    zero = dtype(name).value(0)

    @kernel
    def softmax_short_rows(lo: int, hi: int, src: int, dst: int, n: int) -> None:
        s = columns()
        m, part = ptr(maxima(), 3), ptr(parts(), 4)
        for first in range(lo, hi, WIDTH):
            at, count = size * first * n, min(WIDTH, hi - first)
            width = (count + side - 1) // side * side  # rows beyond the last are like it
            for j in range(0, count, side):
                for k in range(0, n, side):
                    turn(src + at + size * (j * n + k), n, s + size * (k * width + j), width, count - j)
            x = ptr(s, 2)
            for j in range(width):
                m[j] = x[j]
                part[j] = zero
            for k in range(1, n):
                x = ptr(s + size * k * width, 2)
                for j in range(width):
                    m[j] = fmax(m[j], x[j])
            for k in range(n):
                x = ptr(s + size * k * width, 2)
                for j in range(width):
                    e = shifted_exp(x[j], m[j])
                    part[j] += e
                    if not logarithm:
                        x[j] = e
            if logarithm:
                for j in range(width):
                    part[j] = log(part[j])
            for k in range(n):
                x, y = ptr(s + size * k * width, 2), ptr(dst + at + size * k, 1)
                for j in range(width):
                    x[j] = _log_share(x[j], m[j], part[j]) if logarithm else x[j] / part[j]
                for j in range(count):
                    y[j * n] = x[j]

    return softmax_short_rows


def softmax_calls(t: TensorType, axis: int, logarithm: bool, src: In, dst: Out | Temp) -> list[Call]:
    """Softmax or its logarithm of a dense tensor along an axis."""
    if not t.size:
        return []
    outer, n, inner = around(t.shape, axis)
    if inner == 1:
        make = make_short_rows if n <= SHORT else make_rows
        row = n * ITEMSIZE[t.dtype]
        to = replace(dst, piece=row) if isinstance(dst, Out) else dst
        return [Call(make(t.dtype, logarithm), outer, (replace(src, piece=row), to, n))]
    return [Call(make_columns(t.dtype, logarithm), outer * -(-inner // WIDTH), (src, dst, n, inner))]


@lowers("Softmax", "LogSoftmax")
def softmax(site: Site) -> list[Call]:
    """Attribute axis."""
    t = site.type(0)
    axis = normalized(site.attr("axis"), t.rank)
    return softmax_calls(t, axis, site.node.op == "LogSoftmax", site.read(0), site.write())
