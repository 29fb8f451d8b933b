"""onnxc.RandomBits: the words of `compiler.ir.definitions.random`, each from its index alone."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from compiler.codegen.calls import Call, Out, Site, lowers
from compiler.codegen.native import Primitive, i64, inline, kernel, primitive, u32
from compiler.ir.definitions.random import PARITY, ROTATIONS, ROUNDS

_MASK = 0xFFFFFFFF


def _make_threefry(word: int) -> Primitive[[int, int, int, int], int]:
    """threefry(k0, k1, x0, x1): one of the two words. Called for both, LLVM computes them once.

    In LLVM, as Numba's uint32 arithmetic is 64 bits wide, which would halve the lanes.
    """

    def lowering(tc: Any, k0: Any, k1: Any, x0: Any, x1: Any) -> Any:
        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            kind = ir.IntType(32)
            rotate = b.module.declare_intrinsic("llvm.fshl.i32", (), ir.FunctionType(kind, [kind] * 3))
            k0, k1, x0, x1 = a
            keys = (k0, k1, b.xor(b.xor(k0, k1), kind(PARITY)))
            x0, x1 = b.add(x0, k0), b.add(x1, k1)
            for i in range(ROUNDS):
                x0 = b.add(x0, x1)
                x1 = b.xor(b.call(rotate, [x1, x1, kind(ROTATIONS[i % 8])]), x0)
                if i % 4 == 3:
                    n = i // 4 + 1
                    x0, x1 = b.add(x0, keys[n % 3]), b.add(x1, b.add(keys[(n + 1) % 3], kind(n)))
            return (x0, x1)[word]

        return types.uint32(*[types.uint32] * 4), gen

    def threefry(k0: int, k1: int, x0: int, x1: int) -> int:
        k0, k1, x0, x1 = (int(v) & _MASK for v in (k0, k1, x0, x1))
        keys = (k0, k1, k0 ^ k1 ^ PARITY)
        x0, x1 = x0 + k0 & _MASK, x1 + k1 & _MASK
        for i in range(ROUNDS):
            x0 = x0 + x1 & _MASK
            r = ROTATIONS[i % 8]
            x1 = (x1 << r | x1 >> 32 - r) & _MASK ^ x0
            if i % 4 == 3:
                n = i // 4 + 1
                x0, x1 = x0 + keys[n % 3] & _MASK, x1 + keys[(n + 1) % 3] + n & _MASK
        return (x0, x1)[word]

    return primitive(lowering)(threefry)


_first, _second = _make_threefry(0), _make_threefry(1)


@inline
def _low(x: Any) -> Any:
    return types.uint32(x & 0xFFFFFFFF)


@inline
def _high(x: Any) -> Any:
    return types.uint32((x >> 32) & 0xFFFFFFFF)


@kernel
def random_bits(
    lo: int, hi: int, seed: int, step: int, draw: int, bits: int, keep_bits: int, more: int, keep_more: int
) -> None:
    """The words of elements [lo, hi); seed and step are addresses of int64, draw is a number."""
    s, t = i64(seed, 0)[0], i64(step, 1)[0]
    a, b = _first(_low(s), _high(s), _low(t), _high(t)), _second(_low(s), _high(s), _low(t), _high(t))
    k0, k1 = _first(a, b, _low(draw), _high(draw)), _second(a, b, _low(draw), _high(draw))
    p, q = u32(bits + 4 * lo, 2), u32(more + 4 * lo, 3)
    if keep_bits and keep_more:
        for i in range(hi - lo):
            p[i] = _first(k0, k1, _low(lo + i), _low(0))
            q[i] = _second(k0, k1, _low(lo + i), _low(0))
    elif keep_bits:
        for i in range(hi - lo):
            p[i] = _first(k0, k1, _low(lo + i), _low(0))
    else:
        for i in range(hi - lo):
            q[i] = _second(k0, k1, _low(lo + i), _low(0))


@lowers("onnxc.RandomBits")
def random_bits_(site: Site) -> list[Call]:
    """Inputs seed and step; attribute draw; outputs two words an element, either of them maybe absent."""
    size = site.types[site.node.results[0]].size
    if not size:
        return []
    draw = site.attr("draw")
    words: list[Out | int] = []
    for i in (0, 1):
        name = site.node.output(i)
        words += [Out(name), 1] if name else [0, 0]
    return [Call(random_bits, size, (site.read(0), site.read(1), draw, *words))]
