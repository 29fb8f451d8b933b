"""LayerNormalization and its gradient. A row is everything from `axis` on; threads share rows.

Scale and bias normally have the shape of a row. Any other that broadcasts against x is expanded to a row, or to all of
x, first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from compiler.codegen.calls import Arg, Call, In, Number, Out, Site, Temp, contiguous, lowers
from compiler.codegen.kernels.common import normalized, read_only, square_of_difference
from compiler.codegen.kernels.reduce import reduce_calls
from compiler.codegen.kernels.reduce_kernels import STRETCH, WIDTH
from compiler.codegen.kernels.strided import Axis, copy_box
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, f64_of_bits, inline, kernel, make_tile, per_target, pointer

ROWS = 64
"""Rows of a part of the gradient of scale."""


@inline
def _affine(x: Any, m: Any, s: Any, w: Any, b: Any) -> Any:
    return ((x - m) * s) * w + b


@inline
def _scaled_product(g: Any, w: Any, x: Any, m: Any) -> Any:
    return (g * w) * (x - m)


@inline
def _input_gradient(g: Any, w: Any, x: Any, m: Any, s: Any, along: Any, across: Any) -> Any:
    return s * ((g * w - along) - (x - m) * across)


@inline
def _scale_gradient(g: Any, x: Any, m: Any, s: Any) -> Any:
    return g * ((x - m) * s)


@per_target
def make_layer_norm(name: str, stash: str) -> Kernel:
    """The range counts rows of n elements.

    scale_step, bias_step: elements from a row's scale (bias) to the next row's, 0 or n; -1 if there is no bias.
    mean, inv: 0 if they are not wanted.
    """
    ptr, out, size, value = pointer(name), pointer(stash), ITEMSIZE[name], dtype(name).value
    zero = value(0)

    @kernel(reassoc=True)
    def layer_norm(
        lo: int,
        hi: int,
        src: int,
        scale: int,
        scale_step: int,
        bias: int,
        bias_step: int,
        dst: int,
        mean: int,
        keep_mean: int,
        inv: int,
        keep_inv: int,
        n: int,
        epsilon: int,
    ) -> None:
        eps = f64_of_bits(epsilon)
        for r in range(lo, hi):
            at, total = src + size * r * n, 0.0
            for first in range(0, n, STRETCH):
                x, part = ptr(at + size * first, 0), zero
                for i in range(min(STRETCH, n - first)):
                    part += x[i]
                total += part
            m = value(total / np.float64(n))
            total = 0.0
            for first in range(0, n, STRETCH):
                x, part = ptr(at + size * first, 0), zero
                for i in range(min(STRETCH, n - first)):
                    part += square_of_difference(x[i], m)
                total += part
            s = value(1.0 / np.sqrt(total / np.float64(n) + eps))
            if keep_mean:
                out(mean, 4)[r] = m
            if keep_inv:
                out(inv, 5)[r] = s
            x, y = ptr(at, 0), ptr(dst + size * r * n, 3)
            w = ptr(scale + size * r * scale_step, 1)
            if bias_step < 0:
                for i in range(n):
                    y[i] = _affine(x[i], m, s, w[i], zero)
            else:
                b = ptr(bias + size * r * bias_step, 2)
                for i in range(n):
                    y[i] = _affine(x[i], m, s, w[i], b[i])

    return layer_norm


@per_target
def make_input_grad(name: str) -> Kernel:
    """dx; the range counts rows of n elements."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)

    @kernel(reassoc=True)
    def layer_norm_grad(
        lo: int, hi: int, dy: int, src: int, scale: int, scale_step: int, mean: int, inv: int, dst: int, n: int
    ) -> None:
        for r in range(lo, hi):
            row = size * r * n
            m, s = ptr(mean, 3)[r], ptr(inv, 4)[r]
            sum_g, sum_gx = 0.0, 0.0
            for first in range(0, n, STRETCH):
                g, x = ptr(dy + row + size * first, 0), ptr(src + row + size * first, 1)
                w = ptr(scale + size * (r * scale_step + first), 2)
                part_g, part_gx = zero, zero
                for i in range(min(STRETCH, n - first)):
                    part_g += g[i] * w[i]
                    part_gx += _scaled_product(g[i], w[i], x[i], m)
                sum_g += part_g
                sum_gx += part_gx
            along, across = value(sum_g / np.float64(n)), value(sum_gx / np.float64(n) * s * s)
            g, x, y, w = ptr(dy + row, 0), ptr(src + row, 1), ptr(dst + row, 5), ptr(scale + size * r * scale_step, 2)
            for i in range(n):
                y[i] = _input_gradient(g[i], w[i], x[i], m, s, along, across)

    return layer_norm_grad


@per_target
def make_scale_grad(name: str) -> Kernel:
    """dst[part, i] = sum of dy * normalized x over ROWS rows; the range counts (part, block of WIDTH columns)."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    sums = make_tile(WIDTH, name)
    zero = value(0)

    @kernel
    def layer_norm_scale_grad(
        lo: int, hi: int, dy: int, src: int, mean: int, inv: int, dst: int, rows: int, n: int
    ) -> None:
        blocks = (n + WIDTH - 1) // WIDTH
        total = ptr(sums(), 5)
        for u in range(lo, hi):
            part, column = u // blocks, u % blocks * WIDTH
            width = min(WIDTH, n - column)
            for j in range(width):
                total[j] = zero
            for r in range(part * ROWS, min((part + 1) * ROWS, rows)):
                g, x = ptr(dy + size * (r * n + column), 0), ptr(src + size * (r * n + column), 1)
                m, s = ptr(mean, 2)[r], ptr(inv, 3)[r]
                for j in range(width):
                    total[j] += _scale_gradient(g[j], x[j], m, s)
            y = ptr(dst + size * (part * n + column), 4)
            for j in range(width):
                y[j] = total[j]

    return layer_norm_scale_grad


@per_target
def make_products(name: str) -> Kernel:
    """Dst = dy * normalized x; the range counts rows of n elements."""
    ptr, size = pointer(name), ITEMSIZE[name]

    @kernel
    def layer_norm_products(lo: int, hi: int, dy: int, src: int, mean: int, inv: int, dst: int, n: int) -> None:
        for r in range(lo, hi):
            g, x, y = ptr(dy + size * r * n, 0), ptr(src + size * r * n, 1), ptr(dst + size * r * n, 4)
            m, s = ptr(mean, 2)[r], ptr(inv, 3)[r]
            for i in range(n):
                y[i] = _scale_gradient(g[i], x[i], m, s)

    return layer_norm_products


def _as_rows(site: Site, i: int, shape: Sequence[int], axis: int) -> tuple[list[Call], In | Temp, int]:
    """An operand that broadcasts against x: calls that expand it, where it is then, and its step from row to row."""
    own = site.type(i)
    padded = (1,) * (len(shape) - own.rank) + own.shape
    row = tuple(shape[axis:])
    if all(n == 1 for n in padded[:axis]):
        if padded[axis:] == row:
            return [], site.read(i), 0
        to, step, padded = row, 0, padded[axis:]
    else:
        to, step = tuple(shape), prod(row)
    temp = Temp(f"expanded {i}", ITEMSIZE[own.dtype] * prod(to))
    box = [
        Axis(n, 0 if have == 1 else s, d)
        for n, have, s, d in zip(to, padded, contiguous(padded), contiguous(to), strict=True)
    ]
    return copy_box(ITEMSIZE[own.dtype], box, site.read(i), temp), read_only(temp), step


@lowers("LayerNormalization")
def layer_normalization(site: Site) -> list[Call]:
    """Inputs x, scale, bias?; outputs y, mean?, inverse deviation?; attributes axis, epsilon.

    The computation is in x's dtype (ONNX rounds float64 to its stash_type, float32, inside; the two outputs have that).
    """
    t = site.type(0)
    if not t.size:
        return []
    axis = normalized(site.attr("axis"), t.rank)
    rows, n = prod(t.shape[:axis]), prod(t.shape[axis:])
    calls, scale, scale_step = _as_rows(site, 1, t.shape, axis)
    bias, bias_step = scale, -1
    if site.has(2):
        more, bias, bias_step = _as_rows(site, 2, t.shape, axis)
        calls += more
    row = n * ITEMSIZE[t.dtype]
    keep: list[Arg] = []
    for i in (1, 2):
        name = site.node.output(i)
        keep += [Out(name, piece=ITEMSIZE[site.types[name].dtype]), 1] if name else [0, 0]
    stash = next((site.types[v].dtype for v in site.node.outputs[1:] if v), t.dtype)
    x, y = site.read(0, piece=row), site.write(piece=row)
    args = (x, scale, scale_step, bias, bias_step, y, *keep, n, Number(site.attr("epsilon")))
    return [*calls, Call(make_layer_norm(t.dtype, stash), rows, args)]


@lowers("onnxc.LayerNormGrad")
def layer_norm_grad(site: Site) -> list[Call]:
    """Inputs dy, x, scale, mean, inverse deviation, all of one dtype; outputs dx and the gradient of scale."""
    t, w = site.type(1), site.type(2)
    axis = normalized(site.attr("axis"), t.rank)
    rows, n = prod(t.shape[:axis]), prod(t.shape[axis:])
    padded = (1,) * (t.rank - w.rank) + w.shape
    size = ITEMSIZE[t.dtype]
    to = zip((site.node.output(0), site.node.output(1)), (n * size, 0), strict=True)
    dx, dscale = (Out(v, piece=piece) if v else None for v, piece in to)
    calls: list[Call] = []
    if dx and t.size:
        calls, scale, step = _as_rows(site, 2, t.shape, axis)
        dy, x = (site.read(i, piece=n * size) for i in (0, 1))
        mean, deviation = (site.read(i, piece=size) for i in (3, 4))
        args = (dy, x, scale, step, mean, deviation, dx, n)
        calls.append(Call(make_input_grad(t.dtype), rows, args))
    if not dscale or not w.size:
        return calls
    reads = (site.read(0), site.read(1), site.read(3), site.read(4))
    if padded == (1,) * axis + t.shape[axis:]:
        parts = -(-rows // ROWS)
        if parts == 1:
            return [*calls, Call(make_scale_grad(t.dtype), -(-n // WIDTH), (*reads, dscale, rows, n))]
        sums = Temp("parts of scale", ITEMSIZE[t.dtype] * parts * n)
        if parts:
            calls.append(Call(make_scale_grad(t.dtype), parts * -(-n // WIDTH), (*reads, sums, rows, n)))
        return calls + reduce_calls("Sum", (parts, n), frozenset({0}), read_only(sums), t.dtype, dscale, t.dtype)
    products = Temp("products", t.nbytes)
    if t.size:
        calls.append(Call(make_products(t.dtype), rows, (*reads, products, n)))
    axes = frozenset(i for i, have in enumerate(padded) if have == 1)
    return calls + reduce_calls("Sum", t.shape, axes, read_only(products), t.dtype, dscale, t.dtype)
