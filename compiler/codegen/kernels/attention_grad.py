"""onnxc.AttentionGrad: the weights of a block of queries and keys are computed again from what the forward pass kept.

An item is a batch element (a head of a sample). It goes through blocks of keys and, for each, through the blocks of
queries, and adds to the three gradients in their places: always in this order, so the bits do not depend on threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.codegen.calls import Arg, Call, Number, Scratch, Site, Words, lowers
from compiler.codegen.kernels.attention import WORDS, Heads, heads_of, starts_of
from compiler.codegen.kernels.gemm_panels import make_multiply
from compiler.codegen.kernels.gemm_tile import make_pack_panels, parts
from compiler.codegen.kernels.softmax import shifted_exp
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, f64_of_bits, i64, inline, kernel, per_target, pointer
from compiler.ir.types import TensorType

COLUMNS = 64
"""Keys of a block: so many that its scores and those of the queries of a block stay in the nearest caches."""

HIDDEN, OPEN, BIASED = 0, 1, 2
"""What a bias does to a block: it hides all of it, it is 0, or it is anything else."""


@inline
def _score_gradient(weight: Any, by_weight: Any, mean: Any, factor: Any) -> Any:
    return weight * (by_weight - mean) * factor


@per_target
def make_means(name: str) -> Kernel:
    """means[r] = sum of dy[r] * y[r] over n elements; the range counts rows. dy has strides, y is dense."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)

    @kernel(reassoc=True)
    def attention_means(lo: int, hi: int, dy: int, rs: int, cs: int, y: int, n: int, means: int) -> None:
        for r in range(lo, hi):
            g, x, total = ptr(dy + size * r * rs, 0), ptr(y + size * r * n, 1), zero
            if cs == 1:
                for i in range(n):
                    total += g[i] * x[i]
            else:
                for i in range(n):
                    total += g[i * cs] * x[i]
            ptr(means, 2)[r] = total

    return attention_means


@per_target
def make_weights_again(name: str) -> Kernel:
    """Rows of n products become weights, `exp(scale * x + bias - lse)`, those of `slopes` gradients of the products.

    slopes: the gradients by the weights, before; means: what is taken off them, by rows. bias: 0 for none.
    """
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value

    @kernel
    def attention_weights_again(
        lo: int,
        hi: int,
        scores: int,
        slopes: int,
        n: int,
        bias: int,
        rsb: int,
        csb: int,
        scale: int,
        lse: int,
        means: int,
    ) -> None:
        factor = value(f64_of_bits(scale))
        for r in range(lo, hi):
            x, g, b = ptr(scores + size * r * n, 0), ptr(slopes + size * r * n, 1), ptr(bias + size * r * rsb, 2)
            m, mean = ptr(lse, 3)[r], ptr(means, 4)[r]
            if bias == 0:
                for i in range(n):
                    w = shifted_exp(x[i] * factor, m)
                    x[i] = w
                    g[i] = _score_gradient(w, g[i], mean, factor)
            elif csb == 1:
                for i in range(n):
                    w = shifted_exp(x[i] * factor + b[i], m)
                    x[i] = w
                    g[i] = _score_gradient(w, g[i], mean, factor)
            else:
                for i in range(n):
                    w = shifted_exp(x[i] * factor + b[i * csb], m)
                    x[i] = w
                    g[i] = _score_gradient(w, g[i], mean, factor)

    return attention_weights_again


@per_target
def make_clear(name: str) -> Kernel:
    """Zeros to the elements of a range."""
    ptr, size, zero = pointer(name), ITEMSIZE[name], dtype(name).value(0)

    @kernel
    def clear(lo: int, hi: int, dst: int) -> None:
        d = ptr(dst + size * lo, 0)
        for i in range(hi - lo):
            d[i] = zero

    return clear


@per_target
def make_attention_grad(name: str) -> Kernel:
    """dq, dk and dv; the range counts batch elements.

    words: see `Heads.words`; grads: strides of dy, the keys of a block, then where dy begins for each batch element;
    kinds: what the bias does to each block, by keys and queries. scratch: packed keys and values of a block, its scores
    and their gradients, the means of all rows, room to pack.
    """
    _, nr, size, _, _ = parts(name)
    multiply, pack = make_multiply(name), make_pack_panels(name)
    means_of, again, clear = make_means(name), make_weights_again(name), make_clear(name)

    @kernel
    def attention_grad(
        lo: int,
        hi: int,
        dy: int,
        q: int,
        k: int,
        v: int,
        bias: int,
        y: int,
        lse: int,
        dq: int,
        dk: int,
        dv: int,
        scale: int,
        words: int,
        grads: int,
        kinds: int,
        scratch: int,
    ) -> None:
        s, g, kind = i64(words, 0), i64(grads, 1), i64(kinds, 2)
        queries, keys, depth, width, rows = s[0], s[1], s[2], s[3], s[4]
        rsg, csg, columns = g[0], g[1], g[2]
        blocks = (queries + rows - 1) // rows
        whole = (columns + nr - 1) // nr * nr
        values_t = scratch + size * whole * depth
        scores = values_t + size * whole * width
        slopes = scores + size * rows * columns
        means = slopes + size * rows * columns
        room = means + size * queries
        for z in range(lo, hi):
            at = i64(words + 8 * (WORDS + 4 * z), 0)
            q0, k0, v0, g0 = q + size * at[0], k + size * at[1], v + size * at[2], dy + size * g[3 + z]
            dq0, dk0, dv0 = dq + size * z * queries * depth, dk + size * z * keys * depth, dv + size * z * keys * width
            clear(0, queries * depth, dq0)
            clear(0, keys * depth, dk0)
            clear(0, keys * width, dv0)
            means_of(0, queries, g0, rsg, csg, y + size * z * queries * width, width, means)
            for j0 in range(0, keys, columns):
                n = min(columns, keys - j0)
                panels = (n + nr - 1) // nr
                k1, v1 = k0 + size * j0 * s[7], v0 + size * j0 * s[9]
                pack(0, panels, k1, depth, n, s[8], s[7], scratch)
                pack(0, panels, v1, width, n, s[10], s[9], values_t)
                dk1, dv1 = dk0 + size * j0 * depth, dv0 + size * j0 * width
                for block in range(blocks):
                    i0 = block * rows
                    m, what = min(rows, queries - i0), kind[j0 // columns * blocks + block]
                    if what == HIDDEN:
                        continue
                    q1, g1 = q0 + size * i0 * s[5], g0 + size * i0 * rsg
                    added = bias + size * (at[3] + i0 * s[11] + j0 * s[12]) if what == BIASED else 0
                    own = lse + size * (z * queries + i0)
                    multiply(0, m, q1, s[5], s[6], scratch, nr, depth, 0, scores, n, depth, 0, room)
                    multiply(0, m, g1, rsg, csg, values_t, nr, width, 0, slopes, n, width, 0, room)
                    again(0, m, scores, slopes, n, added, s[11], s[12], scale, own, means + size * i0)
                    multiply(0, n, scores, 1, n, g1, rsg, csg, csg != 1, dv1, width, m, 1, room)
                    multiply(0, n, slopes, 1, n, q1, s[5], s[6], s[6] != 1, dk1, depth, m, 1, room)
                    dq1 = dq0 + size * i0 * depth
                    multiply(0, m, slopes, n, 1, k1, s[7], s[8], s[8] != 1, dq1, depth, n, 1, room)

    return attention_grad


def _kinds(h: Heads, columns: int, biased: bool) -> tuple[int, ...]:
    """What the bias does to each block, by keys and queries."""
    blocks = [(j, i) for j in range(0, h.keys, columns) for i in range(0, h.queries, h.rows)]
    if h.bias is None:
        return (BIASED if biased else OPEN,) * len(blocks)
    alive = (h.bias != -np.inf).any(axis=1)
    found: list[int] = []
    for j, i in blocks:
        part = h.bias[i : i + h.rows, j : j + columns]
        hidden = bool((part == -np.inf).all()) and bool(alive[i : i + h.rows].all())
        found.append(HIDDEN if hidden else BIASED if part.any() else OPEN)
    return tuple(found)


@lowers("onnxc.AttentionGrad")
def attention_grad(site: Site) -> list[Call]:
    """Inputs dy, q, k, v, bias or none, y, lse; outputs dq?, dk?, dv?; attribute scale."""
    h = heads_of(site, 1)
    _, nr, size, _, _ = parts(h.dtype)
    columns = min(COLUMNS, h.keys)
    strides = site.strides(0)
    grads = Words((strides[-2], strides[-1], columns, *starts_of(site.type(0).shape[:-2], strides).tolist()))
    bias: Arg = site.read(4) if site.has(4) else 0
    shapes = ((h.queries, h.size), (h.keys, h.size), (h.keys, h.width))
    outs = [site.write_or_drop(i, TensorType(h.dtype, (h.count, *shape))) for i, shape in enumerate(shapes)]
    elements = -(-columns // nr) * nr * (h.size + h.width) + 2 * h.rows * columns + h.queries
    room = h.packing(strides[-1] != 1, h.strides[0][1] != 1, h.strides[1][1] != 1)
    args = (*(site.read(i) for i in range(4)), bias, site.read(5), site.read(6), *outs)
    tables = (Number(site.attr("scale", 1.0)), Words(h.words()), grads, Words(_kinds(h, columns, site.has(4))))
    return [Call(make_attention_grad(h.dtype), h.count, (*args, *tables, Scratch(size * elements + room)))]
