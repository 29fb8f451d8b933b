"""Register-level sums of shifted rows: what a depthwise convolution is made of, as LLVM vectors.

The vectors run along a row of positions; micro kernels of products (vector.py) have their lanes along output channels
instead, of which a group has one here.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.dtypes import dtype
from compiler.codegen.native.memory import PlainPointer
from compiler.codegen.native.primitive import I64, Primitive, primitive, void
from compiler.codegen.native.vector import load, splat, store, tile_for

CELLS = 8
"""Vectors that `make_shifted_sum` computes at once: a multiply-add waits for one that began 4 cycles ago."""

Shifted = Primitive[[int, int, int, int, int, int, int, int], None]
Correlation = Primitive[[int, int, int, int, int, int, int, int], None]


def _fma(b: Any, vec: Any, name: str) -> Any:
    kind = ir.FunctionType(vec, [vec] * 3)
    return cgutils.get_or_insert_function(b.module, kind, f"llvm.fmuladd.v{vec.count}{name}")


def make_shifted_sum(name: str, vectors: int) -> Shifted:
    """shifted(x, row, terms, k, w, start, y, ldy): y[i*ldy + j] = *start + sum of w[at(q)] * x[off(q) + i*row + j].

    Over q < k, for i < CELLS / vectors and j < vectors * vl. terms: address of k pairs of int64, off(q) and at(q).
    Offsets count elements; start is the address of a number. Each element is one chain of multiply-adds in the order of
    q.
    """
    element, vl = dtype(name), tile_for(name).vl
    scalar, size = element.storage, element.size
    vec, pointer = ir.VectorType(scalar, vl), scalar.as_pointer()
    count = CELLS // vectors
    cells = [(i, j) for i in range(count) for j in range(vectors)]

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        x_at, row, terms, k, w_at, start, y_at, ldy = args
        x, w, y, first = (b.inttoptr(p, pointer) for p in (x_at, w_at, y_at, start))
        table, fma = b.inttoptr(terms, I64.as_pointer()), _fma(b, vec, f"f{8 * size}")
        rows = [b.mul(row, I64(i)) for i in range(count)]
        begin = splat(b, load(b, first, scalar, size), vec)
        before, loop, done = b.block, b.append_basic_block("terms"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed(">", k, I64(0)), loop, done)

        b.position_at_end(loop)
        q = b.phi(I64)
        acc = [b.phi(vec) for _ in cells]
        pair = b.gep(table, [b.mul(q, I64(2))])
        source = b.gep(x, [load(b, pair, I64, 8)])
        factor = splat(b, load(b, b.gep(w, [load(b, b.gep(pair, [I64(1)]), I64, 8)]), scalar, size), vec)
        new = []
        for (i, j), a in zip(cells, acc, strict=True):
            value = load(b, b.gep(source, [b.add(rows[i], I64(j * vl))]), vec, size)
            new.append(b.call(fma, [factor, value, a]))
        here, after = b.block, b.add(q, I64(1))
        q.add_incoming(I64(0), before)
        q.add_incoming(after, here)
        for a, n in zip(acc, new, strict=True):
            a.add_incoming(begin, before)
            a.add_incoming(n, here)
        b.cbranch(b.icmp_signed("<", after, k), loop, done)

        b.position_at_end(done)
        out = [b.phi(vec) for _ in cells]
        for o, n in zip(out, new, strict=True):
            o.add_incoming(begin, before)
            o.add_incoming(n, here)
        for (i, j), o in zip(cells, out, strict=True):
            store(b, o, b.gep(y, [b.add(b.mul(ldy, I64(i)), I64(j * vl))]), size)
        return void(cx)

    def lowering(tc: Any, x: Any, row: Any, terms: Any, k: Any, w: Any, start: Any, y: Any, ldy: Any) -> Any:
        return types.void(*[types.int64] * 8), generate

    def shifted(x: int, row: int, terms: int, k: int, w: int, start: int, y: int, ldy: int) -> None:
        xp, wp, yp, t = PlainPointer(x, name), PlainPointer(w, name), PlainPointer(y, name), PlainPointer(terms, "i64")
        number = np.float64 if name == "f64" else np.float32
        for i in range(count):
            for j in range(vectors * vl):
                total = float(PlainPointer(start, name)[0])
                for q in range(k):
                    total = float(number(total + float(wp[t[2 * q + 1]]) * float(xp[t[2 * q] + i * row + j])))
                yp[i * ldy + j] = total

    return primitive(lowering)(shifted)


def make_correlation(name: str, count: int) -> Correlation:
    """correlate(d, ldd, x, row, terms, rows, columns, sums): products of d with shifts of x, added up in lanes.

    sums[t*vl + j % vl] += sum of d[i*ldd + j] * x[off(t) + i*row + j] over i < rows and j < columns (a multiple of vl),
    for t < count. terms: pairs of int64 that begin with off(t). A lane is one chain of multiply-adds, row by row.
    """
    element, vl = dtype(name), tile_for(name).vl
    scalar, size = element.storage, element.size
    vec, pointer = ir.VectorType(scalar, vl), scalar.as_pointer()

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        d_at, ldd, x_at, row, terms, rows, columns, sums_at = args
        d, x, sums = (b.inttoptr(p, pointer) for p in (d_at, x_at, sums_at))
        table, fma = b.inttoptr(terms, I64.as_pointer()), _fma(b, vec, f"f{8 * size}")
        sources = [b.gep(x, [load(b, b.gep(table, [I64(2 * t)]), I64, 8)]) for t in range(count)]
        places = [b.gep(sums, [I64(t * vl)]) for t in range(count)]
        start = [load(b, p, vec, size) for p in places]
        outer, inner, next_row, done = (b.append_basic_block(n) for n in ("row", "column", "next", "done"))
        some = b.and_(b.icmp_signed(">", rows, I64(0)), b.icmp_signed(">", columns, I64(0)))
        before = b.block
        b.cbranch(some, outer, done)

        b.position_at_end(outer)
        i = b.phi(I64)
        held = [b.phi(vec) for _ in range(count)]
        d_row, x_row = b.mul(i, ldd), b.mul(i, row)
        b.branch(inner)

        b.position_at_end(inner)
        j = b.phi(I64)
        acc = [b.phi(vec) for _ in range(count)]
        left = load(b, b.gep(d, [b.add(d_row, j)]), vec, size)
        at = b.add(x_row, j)
        new = [b.call(fma, [left, load(b, b.gep(s, [at]), vec, size), a]) for s, a in zip(sources, acc, strict=True)]
        inner_end, after = b.block, b.add(j, I64(vl))
        j.add_incoming(I64(0), outer)
        j.add_incoming(after, inner_end)
        for a, h, n in zip(acc, held, new, strict=True):
            a.add_incoming(h, outer)
            a.add_incoming(n, inner_end)
        b.cbranch(b.icmp_signed("<", after, columns), inner, next_row)

        b.position_at_end(next_row)
        following = b.add(i, I64(1))
        i.add_incoming(I64(0), before)
        i.add_incoming(following, next_row)
        for h, s, n in zip(held, start, new, strict=True):
            h.add_incoming(s, before)
            h.add_incoming(n, next_row)
        b.cbranch(b.icmp_signed("<", following, rows), outer, done)

        b.position_at_end(done)
        out = [b.phi(vec) for _ in range(count)]
        for o, s, n in zip(out, start, new, strict=True):
            o.add_incoming(s, before)
            o.add_incoming(n, next_row)
        for o, p in zip(out, places, strict=True):
            store(b, o, p, size)
        return void(cx)

    def lowering(tc: Any, d: Any, ldd: Any, x: Any, row: Any, terms: Any, rows: Any, columns: Any, sums: Any) -> Any:
        return types.void(*[types.int64] * 8), generate

    def correlate(d: int, ldd: int, x: int, row: int, terms: int, rows: int, columns: int, sums: int) -> None:
        dp, xp, s, t = (
            PlainPointer(d, name),
            PlainPointer(x, name),
            PlainPointer(sums, name),
            PlainPointer(terms, "i64"),
        )
        number = np.float64 if name == "f64" else np.float32
        for q in range(count):
            for i in range(rows):
                for j in range(columns):
                    term = float(dp[i * ldd + j]) * float(xp[t[2 * q] + i * row + j])
                    s[q * vl + j % vl] = number(float(s[q * vl + j % vl]) + term)

    return primitive(lowering)(correlate)
