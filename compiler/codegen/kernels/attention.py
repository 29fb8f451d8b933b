"""onnxc.Attention without the matrix of scores: a block of queries at a time, in memory of each thread's own.

The scores of a block with all keys go to that memory; their exponentials, shifted by the row's maximum, take their
place and are multiplied with the values; the rows of the result are divided by the sums. What is kept is a number for
each row, from which the backward pass finds the weights again. Where a constant bias hides keys from a whole block (it
is causal, or has a window), these keys are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.codegen.calls import Arg, Call, Number, Scratch, Site, Words, contiguous, lowers
from compiler.codegen.kernels.common import fmax
from compiler.codegen.kernels.gemm_panels import make_multiply
from compiler.codegen.kernels.gemm_tile import BLOCK, make_pack_panels, parts
from compiler.codegen.kernels.reduce_kernels import STRETCH
from compiler.codegen.kernels.softmax import shifted_exp
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, f64_of_bits, i64, kernel, per_target, pointer
from compiler.ir.types import AnyArray, TensorType

ROWS = 64
"""About how many queries a block has: whole tiles of the product."""

WORDS = 16
"""Words of a table before what is told for each batch element; see `Heads.words`."""


@dataclass(frozen=True)
class Heads:
    """The operands of a node: how many of what there are, and where they lie.

    strides: (row, column) of q, k, v and the bias, in elements. starts: of each of them for each batch element.
    bias: where it is constant and the same for all batch elements, its array [T, S].
    """

    dtype: str
    queries: int
    keys: int
    size: int
    width: int
    strides: tuple[tuple[int, int], ...]
    starts: tuple[tuple[int, ...], ...]
    bias: AnyArray | None

    @property
    def count(self) -> int:
        """Batch elements."""
        return len(self.starts)

    @property
    def rows(self) -> int:
        """Queries of a block."""
        mr = parts(self.dtype).mr
        return min(-(-ROWS // mr) * mr, -(-self.queries // mr) * mr)

    def words(self) -> tuple[int, ...]:
        """T, S, d, e, rows of a block; strides of q, k, v, bias. WORDS in all. Then the starts, by batch element."""
        head = (self.queries, self.keys, self.size, self.width, self.rows, *(s for pair in self.strides for s in pair))
        return (*head, *(0,) * (WORDS - len(head)), *(at for starts in self.starts for at in starts))

    def panels(self, columns: int) -> int:
        """Bytes of `columns` keys or values, packed."""
        _, nr, size, _, _ = parts(self.dtype)
        return size * -(-self.keys // nr) * nr * columns

    def packing(self, *packed: bool) -> int:
        """Bytes for a product that packs its right operand, if one does."""
        _, nr, size, _, _ = parts(self.dtype)
        return size * BLOCK * nr if any(packed) else 0


def heads_of(site: Site, q: int) -> Heads:
    """The operands q, k, v, bias? of a node, which begin at input q."""
    (*batch, queries, size), (*_, keys, _), (*_, width) = (site.type(q + i).shape for i in range(3))
    strides = [site.strides(q + i) for i in range(3)]
    bias = None
    if site.has(q + 3):
        t = site.type(q + 3)
        shape = (1,) * (len(batch) + 2 - t.rank) + t.shape
        strides.append(tuple(0 if n == 1 else s for n, s in zip(shape, contiguous(shape), strict=True)))
        known = site.constant(q + 3)
        if known is not None and prod(shape[:-2]) == 1:
            bias = np.broadcast_to(known.reshape(shape[-2:]), (queries, keys))
    else:
        strides.append((0,) * (len(batch) + 2))
    starts = zip(*(starts_of(batch, s).tolist() for s in strides), strict=True)
    pairs = tuple((s[-2], s[-1]) for s in strides)
    return Heads(site.type(q).dtype, queries, keys, size, width, pairs, tuple(starts), bias)


def starts_of(batch: Sequence[int], strides: tuple[int, ...]) -> AnyArray:
    """Elements before each matrix of a stack."""
    at = np.zeros(batch, np.int64)
    for axis, (n, step) in enumerate(zip(batch, strides, strict=False)):
        at += (np.arange(n) * step).reshape(n, *(1,) * (len(batch) - axis - 1))
    return at.reshape(-1)


@per_target
def make_weights(name: str) -> Kernel:
    """Rows of products become exponentials of logits, `exp(scale * x + bias - m)` with m the row's maximum, in place.

    totals[r]: their sum; lse[r]: m and the logarithm of it. bias: 0 for none. zeros: not 0: of a row of nothing but
    -inf the exponentials are 0, the sum is 1 and lse inf; else all are NaN. The range counts rows of n elements.
    """
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero, one, least, most = value(0), value(1), value(-np.inf), value(np.inf)

    @kernel(reassoc=True)
    def attention_weights(
        lo: int,
        hi: int,
        scores: int,
        n: int,
        bias: int,
        rsb: int,
        csb: int,
        scale: int,
        zeros: int,
        totals: int,
        lse: int,
    ) -> None:
        factor = value(f64_of_bits(scale))
        for r in range(lo, hi):
            row, m = scores + size * r * n, least
            x, b = ptr(row, 0), ptr(bias + size * r * rsb, 1)
            if bias == 0:
                for i in range(n):
                    u = x[i] * factor
                    x[i] = u
                    m = fmax(m, u)
            elif csb == 1:
                for i in range(n):
                    u = x[i] * factor + b[i]
                    x[i] = u
                    m = fmax(m, u)
            else:
                for i in range(n):
                    u = x[i] * factor + b[i * csb]
                    x[i] = u
                    m = fmax(m, u)
            hidden = zeros != 0 and m == least
            m = zero if hidden else m
            total = 0.0
            for first in range(0, n, STRETCH):
                part, p = zero, ptr(row + size * first, 0)
                for i in range(min(STRETCH, n - first)):
                    e = shifted_exp(p[i], m)
                    p[i] = e
                    part += e
                total += part
            ptr(totals, 2)[r] = one if hidden else value(total)
            ptr(lse, 3)[r] = most if hidden else value(m + np.log(total))

    return attention_weights


@per_target
def make_shares(name: str) -> Kernel:
    """Rows of n elements are divided by their totals, in place; the range counts rows."""
    ptr, size = pointer(name), ITEMSIZE[name]

    @kernel
    def attention_shares(lo: int, hi: int, y: int, n: int, totals: int) -> None:
        for r in range(lo, hi):
            row, total = ptr(y + size * r * n, 0), ptr(totals, 1)[r]
            for i in range(n):
                row[i] = row[i] / total

    return attention_shares


@per_target
def make_attention(name: str) -> Kernel:
    """Results y and lse; the range counts blocks of queries, those of a batch element one after the other.

    words: see `Heads.words`; behind them, for each block, the first key that it looks at (a multiple of nr) and the
    one behind the last. scratch: packed keys, the scores of a block, their totals, room to pack.
    """
    _, nr, size, _, _ = parts(name)
    multiply, pack, weights, shares = (
        make_multiply(name),
        make_pack_panels(name),
        make_weights(name),
        make_shares(name),
    )

    @kernel
    def attention(
        lo: int,
        hi: int,
        q: int,
        k: int,
        v: int,
        bias: int,
        y: int,
        lse: int,
        scale: int,
        zeros: int,
        words: int,
        ranges: int,
        scratch: int,
    ) -> None:
        s, span = i64(words, 0), i64(ranges, 1)
        queries, keys, depth, width, rows = s[0], s[1], s[2], s[3], s[4]
        panels, blocks = (keys + nr - 1) // nr, (queries + rows - 1) // rows
        scores = scratch + size * panels * nr * depth
        totals = scores + size * rows * keys
        room, held = totals + size * rows, -1
        for item in range(lo, hi):
            z, block = item // blocks, item % blocks
            at = i64(words + 8 * (WORDS + 4 * z), 0)
            if held != z:
                pack(0, panels, k + size * at[1], depth, keys, s[8], s[7], scratch)
                held = z
            i0, first, n = block * rows, span[2 * block], span[2 * block + 1] - span[2 * block]
            count = min(rows, queries - i0)
            own = q + size * (at[0] + i0 * s[5])
            multiply(0, count, own, s[5], s[6], scratch + size * first * depth, nr, depth, 0, scores, n, depth, 0, room)
            added = bias + size * (at[3] + i0 * s[11] + first * s[12]) if bias != 0 else 0
            row = z * queries + i0
            weights(0, count, scores, n, added, s[11], s[12], scale, zeros, totals, lse + size * row)
            values, to = v + size * (at[2] + first * s[9]), y + size * row * width
            multiply(0, count, scores, n, 1, values, s[9], s[10], s[10] != 1, to, width, n, 0, room)
            shares(0, count, to, width, totals)

    return attention


def _ranges(h: Heads) -> tuple[int, ...]:
    """For each block of queries: the first key (or some before it) that it sees, and the one behind the last."""
    nr = parts(h.dtype).nr
    found: list[int] = []
    for i in range(0, h.queries, h.rows):
        seen = np.arange(h.keys)
        if h.bias is not None:
            rows = h.bias[i : i + h.rows] != -np.inf
            if rows.any(axis=1).all():  # a row of nothing but -inf is NaN for all keys
                seen = np.flatnonzero(rows.any(axis=0))
        found += [int(seen[0]) // nr * nr, int(seen[-1]) + 1]
    return tuple(found)


@lowers("onnxc.Attention")
def attention(site: Site) -> list[Call]:
    """Inputs q, k, v, bias?; outputs y, lse?; attributes scale, zeros."""
    h = heads_of(site, 0)
    size, blocks = ITEMSIZE[h.dtype], -(-h.queries // h.rows) if h.queries else 0
    bias: Arg = site.read(3) if site.has(3) else 0
    y = TensorType(h.dtype, (h.count, h.queries, h.width))
    lse = TensorType(h.dtype, (h.count, h.queries))
    scratch = h.panels(h.size) + size * h.rows * (h.keys + 1) + h.packing(h.strides[2][1] != 1)
    args = (*(site.read(i) for i in range(3)), bias, site.write_or_drop(0, y), site.write_or_drop(1, lse))
    tables = (Number(site.attr("scale", 1.0)), site.attr("zeros", 0), Words(h.words()), Words(_ranges(h)))
    return [Call(make_attention(h.dtype), h.count * blocks, (*args, *tables, Scratch(scratch)))]
