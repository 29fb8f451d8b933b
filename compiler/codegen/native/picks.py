"""Every second element of a row, as LLVM vectors."""

from typing import Any

from llvmlite import ir
from numba import types

from compiler.codegen.native.memory import PlainPointer
from compiler.codegen.native.primitive import I64, Primitive, primitive, void
from compiler.codegen.native.vector import load, shuffle, store

PICKED = 16
"""Bytes that `make_every_other` picks at once: vectors of any target, and few enough for short rows."""


def make_every_other(size: int) -> Primitive[[int, int], None]:
    """pick(src, dst): dst[i] = src[2*i] for the elements of `size` bytes, i < PICKED // size; it reads no further."""
    n = PICKED // size
    scalar = ir.IntType(8 * size)
    vec, pointer = ir.VectorType(scalar, n), scalar.as_pointer()
    lanes = [2 * i if 2 * i < n else 2 * i + 1 for i in range(n)]  # the second vector begins at n - 1

    def lowering(tc: Any, src: Any, dst: Any) -> Any:
        def gen(cx: Any, b: Any, sig: Any, args: Any) -> Any:
            source, target = (b.inttoptr(a, pointer) for a in args)
            low, high = (load(b, b.gep(source, [I64(at)]), vec, size) for at in (0, n - 1))
            store(b, shuffle(b, low, high, lanes), target, size)
            return void(cx)

        return types.void(types.int64, types.int64), gen

    def every_other(src: int, dst: int) -> None:
        name = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[size]
        s, d = PlainPointer(src, name), PlainPointer(dst, name)
        for i in range(n):
            d[i] = s[2 * i]

    return primitive(lowering)(every_other)
