"""Scalar products of rows of two matrices, as LLVM vectors along the rows."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.dtypes import dtype
from compiler.codegen.native.memory import PlainPointer
from compiler.codegen.native.primitive import I64, Primitive, primitive, void
from compiler.codegen.native.vector import either, keep_rolled, load, shuffle, splat, store, tile_for

Dots = Primitive[[int, int, int, int, int, int, int, int], None]

COUNT = 8
"""Products at a time: so many sums keep multiply-adds busy."""


def make_dots(name: str, columns: int) -> Dots:
    """dots(a, rsa, b, rsb, k, t, ni, nj): t[i*columns + j] = sum over q < k of a[i*rsa + q] * b[j*rsb + q].

    columns: 1, 2, 4 or 8; there are i < COUNT / columns rows of them. Of a only ni > 0 rows are read, of b nj > 0; the
    last of them is repeated. Rows may be read up to one vector too far.

    A sum has as many parts as a vector of the tile has elements: part l is a chain of multiply-adds over q = l, l + vl,
    ...; neighbouring parts are added, then neighbours of these sums, and so on.
    """
    vl, rows = tile_for(name).vl, COUNT // columns
    element = dtype(name)
    scalar, size = element.storage, element.size
    vec, pointer = ir.VectorType(scalar, vl), scalar.as_pointer()
    zero = ir.Constant(vec, [0.0] * vl)

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        a_at, rsa, b_at, rsb, k, to, ni, nj = args
        fma = cgutils.get_or_insert_function(
            b.module, ir.FunctionType(vec, [vec] * 3), f"llvm.fmuladd.v{vl}f{8 * size}"
        )

        def starts(address: Any, stride: Any, n: int, there: Any) -> list[Any]:
            base, last = b.inttoptr(address, pointer), b.sub(there, I64(1))
            numbers = [b.select(b.icmp_signed("<", I64(i), last), I64(i), last) for i in range(n)]
            return [b.gep(base, [b.mul(stride, i)]) for i in numbers]

        def vectors(at: list[Any], q: Any) -> list[Any]:
            return [load(b, b.gep(p, [q]), vec, size) for p in at]

        def products(vectors: list[list[Any]], sums: list[Any]) -> list[Any]:
            pairs = [(x, y) for x in vectors[0] for y in vectors[1]]
            return [b.call(fma, [x, y, s]) for (x, y), s in zip(pairs, sums, strict=True)]

        left, right = starts(a_at, rsa, rows, ni), starts(b_at, rsb, columns, nj)
        whole = b.and_(k, I64(-vl))
        before, loop, done = b.block, b.append_basic_block("k"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed(">", whole, I64(0)), loop, done)

        b.position_at_end(loop)
        q, sums = b.phi(I64), [b.phi(vec) for _ in range(COUNT)]
        new = products([vectors(at, q) for at in (left, right)], sums)
        here, following = b.block, b.add(q, I64(vl))  # checked loads make blocks of their own
        for phi, first, then in zip([q, *sums], [I64(0)] + [zero] * COUNT, [following, *new], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(then, here)
        keep_rolled(b.module, b.cbranch(b.icmp_signed("<", following, whole), loop, done))

        b.position_at_end(done)
        sums = [either(b, zero, before, s, here) for s in new]
        rest, entry = b.sub(k, whole), b.block
        with b.if_then(b.icmp_signed(">", rest, I64(0))):
            lanes = ir.VectorType(I64, vl)
            there = b.icmp_signed("<", ir.Constant(lanes, list(range(vl))), splat(b, rest, lanes))
            ends = [[b.select(there, v, zero) for v in vectors(at, whole)] for at in (left, right)]
            more, last = products(ends, sums), b.block
        sums = [either(b, s, entry, m, last) for s, m in zip(sums, more, strict=True)]

        evens, odds = list(range(0, 2 * vl, 2)), list(range(1, 2 * vl, 2))
        parts = vl
        while parts > 1:
            pairs = list(zip(sums[::2], sums[1::2], strict=True)) if len(sums) > 1 else [(sums[0], sums[0])]
            sums = [b.fadd(shuffle(b, x, y, evens), shuffle(b, x, y, odds)) for x, y in pairs]
            parts //= 2
        held = min(vl, COUNT)
        for i, s in enumerate(sums):
            value = shuffle(b, s, s, list(range(held)))
            store(b, value, b.gep(b.inttoptr(to, pointer), [I64(i * held)]), size)
        return void(cx)

    def lowering(tc: Any, a: Any, rsa: Any, b: Any, rsb: Any, k: Any, t: Any, ni: Any, nj: Any) -> Any:
        return types.void(*[types.int64] * 8), generate

    def dots(a: int, rsa: int, b: int, rsb: int, k: int, t: int, ni: int, nj: int) -> None:
        number = np.float64 if name == "f64" else np.float32
        ap, bp, tp = (PlainPointer(p, name) for p in (a, b, t))
        for i in range(rows):
            for j in range(columns):
                parts = [number(0)] * vl
                for q in range(k):
                    x, y = ap[min(i, ni - 1) * rsa + q], bp[min(j, nj - 1) * rsb + q]
                    parts[q % vl] = number(float(parts[q % vl]) + float(x) * float(y))
                while len(parts) > 1:
                    parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
                tp[i * columns + j] = parts[0]

    return primitive(lowering)(dots)
