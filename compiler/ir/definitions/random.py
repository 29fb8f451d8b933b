"""Random bits: a counter-based generator in integer arithmetic, so that every runtime draws the same.

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
3", SC11), which passes BigCrush. It hashes a counter of two 32-bit words under a key of two words. A draw is hashed in
three levels, each giving the key of the next: (seed; step), (draw), (index of the element). So every element comes from
its index alone, in any order, by any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from compiler.ir.bodies import internal
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.types import onnx_dtype

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
ROUNDS = 20
PARITY = 0x1BD11BDA

_U32, _U64 = onnx_dtype("u32"), onnx_dtype("u64")

MAX_ELEMENTS = 2**32
"""Elements of one draw: their index is one word of the counter."""


@internal("Threefry")
def threefry(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """(key 0, key 1, counter 0, counter 1) -> two words; all u32, broadcast together, elementwise."""
    if len(inputs) != 4 or any(not v or b.type(v).dtype != "u32" for v in inputs):
        raise InferenceError("Threefry takes four operands of u32")
    k0, k1, x0, x1 = inputs
    parity = b.op("BitwiseXor", b.op("BitwiseXor", k0, k1), b.scalar(PARITY, k0), name="parity")
    keys = (k0, k1, parity)
    x0, x1 = b.op("Add", x0, k0, name="x0"), b.op("Add", x1, k1, name="x1")
    for i in range(ROUNDS):
        x0 = b.op("Add", x0, x1, name="x0")
        x1 = b.op("BitwiseXor", _rotated(b, x1, ROTATIONS[i % 8]), x0, name="x1")
        if i % 4 == 3:
            n = i // 4 + 1
            x0 = b.op("Add", x0, keys[n % 3], name="x0")
            x1 = b.op("Add", x1, b.op("Add", keys[(n + 1) % 3], b.scalar(n, k0)), name="x1")
    return [x0, x1]


def _rotated(b: Builder, x: str, bits: int) -> str:
    left = b.op("BitShift", x, b.scalar(bits, x), direction="LEFT", name="left")
    right = b.op("BitShift", x, b.scalar(32 - bits, x), direction="RIGHT", name="right")
    return b.op("BitwiseOr", left, right, name="rotated")


@internal("RandomBits")
def random_bits(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """Draw number `draw` of a step: (seed i64[], step i64[], like?) {draw, shape?} -> two independent words an element.

    The results are u32 of the attribute `shape`, or of the shape of `like` (any tensor; its values do not matter).
    """
    if len(inputs) < 2 or any(str(b.type(v)) != "i64[]" for v in inputs[:2]):
        raise InferenceError("RandomBits takes a seed and a step, both i64[]")
    shape = attrs.get("shape") if len(inputs) == 2 else b.shape(inputs[2])
    if shape is None or prod(shape) > MAX_ELEMENTS:
        raise InferenceError(f"RandomBits needs a shape of at most {MAX_ELEMENTS} elements, not {shape}")
    k0, k1 = draw_key(b, inputs[0], inputs[1], attrs["draw"])
    zero = b.const(np.uint32(0))
    index = b.op("Range", b.const(np.int64(0)), b.const(np.int64(prod(shape))), b.const(np.int64(1)), name="index")
    index = b.op(
        "Reshape", b.op("Cast", index, to=_U32), b.ints(shape), allowzero=int(0 in shape) or None, name="index"
    )
    return b.add("onnxc.Threefry", [k0, k1, index, zero], outputs=["bits", "more"])


def draw_key(b: Builder, seed: str, step: str, draw: int) -> tuple[str, str]:
    """The key under which the indices of a draw are hashed: two u32[]."""
    k0, k1 = b.add("onnxc.Threefry", [*_words(b, seed), *_words(b, step)], outputs=["k0", "k1"])
    number = [b.const(np.uint32(draw & 0xFFFFFFFF)), b.const(np.uint32(draw >> 32 & 0xFFFFFFFF))]
    k0, k1 = b.add("onnxc.Threefry", [k0, k1, *number], outputs=["k0", "k1"])
    return k0, k1


def _words(b: Builder, x: str) -> list[str]:
    """The low and the high word of an i64[]."""
    wide = b.op("Cast", x, to=_U64, name="wide")
    high = b.op("BitShift", wide, b.const(np.uint64(32)), direction="RIGHT", name="high")
    low = b.op("BitwiseAnd", wide, b.const(np.uint64(0xFFFFFFFF)), name="low")
    return [b.op("Cast", low, to=_U32, name="low"), b.op("Cast", high, to=_U32, name="high")]
