"""Integer arithmetic with every case defined: results wrap, nothing traps.

Numba's own operators on int64 leave overflow undefined, and widen smaller types to int64. These keep the operands' type
(the wider one of two; a signed and an unsigned one need conversion first).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from compiler.codegen.native.primitive import Lowering, Primitive, primitive

Emit = Callable[[Any, Any, Any, bool], Any]  # (IRBuilder, x, y, whether the type is signed) -> LLVM value


def _lowering(emit: Emit) -> Lowering:
    def lowering(tc: Any, x: Any, y: Any) -> Any:
        x, y = types.unliteral(x), types.unliteral(y)
        if not isinstance(x, types.Integer) or not isinstance(y, types.Integer):
            return None
        common = x if x == y else tc.unify_types(x, y)
        if not isinstance(common, types.Integer):
            return None
        return common(common, common), lambda cx, b, s, a: emit(b, a[0], a[1], common.signed)

    return lowering


def _wrapped(x: Any, y: Any, operation: Callable[[int, int], int]) -> Any:
    """The operation on Python integers, wrapped to the operands' common NumPy type."""
    kind = np.result_type(np.asarray(x), np.asarray(y))
    low = int(np.iinfo(kind).min)
    return kind.type((operation(int(x), int(y)) - low) % (1 << 8 * kind.itemsize) + low)


def _operation(name: str, emit: Emit, plain: Callable[[int, int], int], doc: str) -> Primitive[[Any, Any], Any]:
    def operation(x: Any, y: Any) -> Any:
        return _wrapped(x, y, plain)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = doc
    return primitive(_lowering(emit))(operation)


def _divide(floor: bool, remainder: bool) -> Emit:
    def emit(b: Any, x: Any, y: Any, signed: bool) -> Any:
        zero = y.type(0)
        empty = b.icmp_signed("==", y, zero)
        if not signed:
            safe = b.select(empty, y.type(1), y)
            return b.select(empty, zero, (b.urem if remainder else b.udiv)(x, safe))
        negated = b.icmp_signed("==", y, y.type(-1))  # the smallest integer by -1 traps: negate, wrapping
        safe = b.select(b.or_(empty, negated), y.type(1), y)
        quotient = b.select(negated, b.sub(zero, x), b.sdiv(x, safe))
        rest = b.sub(x, b.mul(quotient, y))
        if floor:
            below = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, y), zero))
            quotient = b.select(below, b.sub(quotient, y.type(1)), quotient)
            rest = b.select(below, b.add(rest, y), rest)
        return b.select(empty, zero, rest if remainder else quotient)

    return emit


def _shift_left(b: Any, x: Any, y: Any, signed: bool) -> Any:
    bits = y.type(y.type.width)
    inside = b.icmp_unsigned("<", y, bits)
    return b.select(inside, b.shl(x, b.select(inside, y, y.type(0))), y.type(0))


def _shift_right(b: Any, x: Any, y: Any, signed: bool) -> Any:
    bits, last = y.type(y.type.width), y.type(y.type.width - 1)
    inside = b.icmp_unsigned("<", y, bits)
    if signed:
        return b.ashr(x, b.select(inside, y, last))
    return b.select(inside, b.lshr(x, b.select(inside, y, y.type(0))), y.type(0))


def _truncated(x: int, y: int) -> int:
    return 0 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)


def _far(y: int) -> bool:
    return not 0 <= y < 64


int_add = _operation("int_add", lambda b, x, y, signed: b.add(x, y), lambda x, y: x + y, "x + y, wrapping.")
int_sub = _operation("int_sub", lambda b, x, y, signed: b.sub(x, y), lambda x, y: x - y, "x - y, wrapping.")
int_mul = _operation("int_mul", lambda b, x, y, signed: b.mul(x, y), lambda x, y: x * y, "x * y, wrapping.")
int_and = _operation("int_and", lambda b, x, y, signed: b.and_(x, y), lambda x, y: x & y, "x & y.")
int_or = _operation("int_or", lambda b, x, y, signed: b.or_(x, y), lambda x, y: x | y, "x | y.")
int_xor = _operation("int_xor", lambda b, x, y, signed: b.xor(x, y), lambda x, y: x ^ y, "x ^ y.")
int_shl = _operation(
    "int_shl", _shift_left, lambda x, y: 0 if _far(y) else x << y, "x << y; 0 if y is negative or not below the width."
)
int_shr = _operation(
    "int_shr",
    _shift_right,
    lambda x, y: (-1 if x < 0 else 0) if _far(y) else x >> y,
    "x >> y, keeping a sign; all sign (or 0) if y is negative or not below the width.",
)
int_div = _operation(
    "int_div",
    _divide(floor=False, remainder=False),
    _truncated,
    "Quotient truncated toward zero (ONNX Div, C); by zero 0.",
)
int_rem = _operation(
    "int_rem",
    _divide(floor=False, remainder=True),
    lambda x, y: 0 if y == 0 else x - y * _truncated(x, y),
    "Remainder of `int_div`, with the sign of x (ONNX Mod with fmod=1, C); by zero 0.",
)
int_floordiv = _operation(
    "int_floordiv",
    _divide(floor=True, remainder=False),
    lambda x, y: 0 if y == 0 else x // y,
    "Quotient rounded down (Python's //); by zero 0.",
)
int_mod = _operation(
    "int_mod",
    _divide(floor=True, remainder=True),
    lambda x, y: 0 if y == 0 else x % y,
    "Remainder of `int_floordiv`, with the sign of y (ONNX Mod, Python's %); by zero 0.",
)
