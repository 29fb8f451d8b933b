"""BitCast where memory holds the same bits in two ways: a byte holds a sign in its unused bits, or zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.types import NARROW_INTEGERS, dtype_from_onnx, onnx_dtype

_UNSIGNED = {"i4": "u4", "i2": "u2"}


def is_view(source: str, target: str) -> bool:
    """Whether the bytes stay as they are."""
    return (source in _UNSIGNED) == (target in _UNSIGNED) or not {source, target} <= {*NARROW_INTEGERS, "f4e2m1"}


def bit_cast(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """BitCast(x): of integers of less than 8 bits by Cast, which keeps their low bits."""
    x, to = inputs[0], dtype_from_onnx(attrs["to"]) or ""
    unsigned = _UNSIGNED.get(b.type(x).dtype)
    if unsigned:
        x = b.op("Cast", x, to=onnx_dtype(unsigned))
    elif b.type(x).dtype != _UNSIGNED.get(to, b.type(x).dtype):
        x = b.op("BitCast", x, to=onnx_dtype(_UNSIGNED[to]))
    if b.type(x).dtype == to:
        return [x]
    return [b.op("Cast" if to in _UNSIGNED else "BitCast", x, to=attrs["to"])]


INTERNAL_OPS["BitCast"] = bit_cast
