"""Sine, cosine and tangent of float32 for kernels: one reduction that is exact for every float, and vectorizes.

The reduction is that of M. Payne and R. Hanek, "Radian reduction for trigonometric functions" (SIGNUM Newsletter 18,
1983): of x 2/pi only the bits below 4 quarter turns matter, and they are the product of the 24 bits of x with 96 bits
of 2/pi that its exponent picks. All in integers and without a table in memory or a branch, so that large arguments cost
the same as small ones. The errors in the docstrings are in units of the last place, measured against float64. Zeros
keep their sign; an infinity gives NaN. float64 is libm's.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.inline import inline
from compiler.codegen.native.integers import int_add, int_and, int_shl, int_xor
from compiler.codegen.native.math import by_dtype, f32_bits, i32_bits, make_polynomial
from compiler.codegen.native.primitive import F32, F64, I32, I64, Lowering, primitive

TWO_OVER_PI = 0x517CC1B727220A94FE13ABE8FA9A6EE06DB14ACC9E21C820FF
"""floor(2/pi 2**199): the binary digits of 2/pi, as far as 2**127 needs them."""
_WORDS = tuple(TWO_OVER_PI >> 32 * (6 - i) & 0xFFFFFFFF for i in range(7))

_f = np.float32
_ZERO, _ONE, _HALF, _INF, _NAN = _f(0), _f(1), _f(0.5), _f(np.inf), _f(np.nan)
_I0, _I1, _I2 = np.int32(0), np.int32(1), np.int32(2)
_TOP, _FROM_1, _FROM_2 = np.int32(-(2**31)), np.int32(31), np.int32(30)  # the sign bit; from bits 0 and 1 to it


def _turns_lowering(tc: Any, x: Any) -> Any:
    def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
        bits = b.bitcast(a[0], I32)
        mantissa = b.zext(b.or_(b.and_(bits, I32(0x007FFFFF)), I32(0x00800000)), I64)
        shift = b.sub(b.and_(b.lshr(bits, I32(23)), I32(255)), I32(127))
        words = [I32(w) for w in _WORDS]
        for step in (64, 32):
            moved = b.icmp_signed("!=", b.and_(shift, I32(step)), I32(0))
            n = step // 32
            words = [b.select(moved, far, near) for near, far in zip(words, words[n:], strict=False)]
        kind = ir.FunctionType(I32, [I32] * 3)
        funnel = cgutils.get_or_insert_function(b.module, kind, "llvm.fshl.i32")
        rest = b.and_(shift, I32(31))
        parts = [b.zext(b.call(funnel, [words[i], words[i + 1], rest]), I64) for i in range(3)]
        high, middle, low = (b.mul(mantissa, part) for part in parts)
        return b.add(b.add(b.shl(high, I64(32)), middle), b.lshr(low, I64(32)))

    return types.int64(types.float32), gen


@primitive(_turns_lowering)
def _turns(x: Any) -> Any:
    """|x| 2/pi modulo 4 in units of 2**-62, its first two bits are the quarter turn; for finite |x| >= 1."""
    bits = int(np.float32(x).view(np.int32))
    mantissa, shift = bits & 0x007FFFFF | 0x00800000, max((bits >> 23 & 255) - 127, 0)
    window = TWO_OVER_PI >> 224 - 96 - shift & (1 << 96) - 1
    return np.uint64((mantissa * window >> 32) & (1 << 64) - 1).view(np.int64)


def _quadrant_lowering(tc: Any, turns: Any) -> Any:
    def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
        return b.trunc(b.lshr(b.add(a[0], I64(1 << 61)), I64(62)), I32)

    return types.int32(types.int64), gen


@primitive(_quadrant_lowering)
def _quadrant(turns: Any) -> Any:
    """The nearest multiple of pi/2, modulo 4."""
    return np.int32((int(turns) + (1 << 61) >> 62) & 3)


def _angle_lowering(low: bool) -> Lowering:
    def lowering(tc: Any, turns: Any) -> Any:
        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            wide = b.fmul(b.sitofp(b.shl(a[0], I64(2)), F64), F64(np.pi * 2.0**-65))
            high = b.fptrunc(wide, F32)
            return b.fptrunc(b.fsub(wide, b.fpext(high, F64)), F32) if low else high

        return types.float32(types.int64), gen

    return lowering


def _radians(turns: Any) -> float:
    fraction = ((int(turns) << 2) + (1 << 63)) % (1 << 64) - (1 << 63)
    return fraction * (np.pi * 2.0**-65)


@primitive(_angle_lowering(low=False))
def _angle(turns: Any) -> Any:
    """What is left beside that multiple, in radians: at most pi/4 either way."""
    return np.float32(_radians(turns))


@primitive(_angle_lowering(low=True))
def _angle_low(turns: Any) -> Any:
    """What rounding `_angle` to float32 lost."""
    wide = _radians(turns)
    return np.float32(wide - float(np.float32(wide)))


# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 in r^2, for |r| <= 1
_sin_tail = make_polynomial(2.694797785807168e-06, -0.0001983611291507259, 0.008333316072821617, -0.1666666716337204)
_cos_tail = make_polynomial(2.420017699478194e-05, -0.0013884673826396465, 0.04166657477617264)


@inline
def _sin_near(r: Any, low: Any) -> Any:
    """sin(r + low) for a low that r + low rounds away."""
    z = r * r
    return (r * z * _sin_tail(z) + low) + r


@inline
def _cos_near(r: Any, low: Any) -> Any:
    """cos(r + low): the square of r is halved exactly, and what 1 - z/2 loses is added again."""
    z = r * r
    h = _HALF * z
    w = _ONE - h
    return w + (((_ONE - w) - h) + (z * z * _cos_tail(z) - r * low))


@inline
def _finite(y: Any, a: Any) -> Any:
    return y if a < _INF else _NAN


@by_dtype(lambda x: np.sin(x))
def sin(x: Any) -> Any:
    """Sine, 1 ulp."""
    a, turns = abs(x), _turns(x)
    r = a if a < _ONE else _angle(turns)
    low = _ZERO if a < _ONE else _angle_low(turns)
    q = _I0 if a < _ONE else _quadrant(turns)
    y = _cos_near(r, low) if int_and(q, _I1) != _I0 else _sin_near(r, low)
    sign = int_xor(int_shl(q, _FROM_2), i32_bits(x))
    return _finite(f32_bits(int_xor(i32_bits(y), int_and(sign, _TOP))), a)


@by_dtype(lambda x: np.cos(x))
def cos(x: Any) -> Any:
    """Cosine, 1 ulp."""
    a, turns = abs(x), _turns(x)
    r = a if a < _ONE else _angle(turns)
    low = _ZERO if a < _ONE else _angle_low(turns)
    q = _I1 if a < _ONE else int_add(_quadrant(turns), _I1)
    y = _cos_near(r, low) if int_and(q, _I1) != _I0 else _sin_near(r, low)
    return _finite(f32_bits(int_xor(i32_bits(y), int_and(int_shl(q, _FROM_2), _TOP))), a)


@by_dtype(lambda x: np.tan(x))
def tan(x: Any) -> Any:
    """Tangent, 2.54 ulp."""
    a, turns = abs(x), _turns(x)
    r = a if a < _ONE else _angle(turns)
    low = _ZERO if a < _ONE else _angle_low(turns)
    q = _I0 if a < _ONE else _quadrant(turns)
    s, c, odd = _sin_near(r, low), _cos_near(r, low), int_and(q, _I1) != _I0
    y = (c if odd else s) / (s if odd else c)
    sign = int_xor(int_shl(q, _FROM_1), i32_bits(x))
    return _finite(f32_bits(int_xor(i32_bits(y), int_and(sign, _TOP))), a)
