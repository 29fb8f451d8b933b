"""Powers of float32 for kernels: by a logarithm and an exponential in double precision, which vectorize.

The special cases are those of C's pow (C17 F.10.4.4) and of NumPy. float64 is libm's.
"""

from typing import Any

import numpy as np
from numba import float32, float64, types

from compiler.codegen.native.inline import inline
from compiler.codegen.native.integers import int_add, int_and, int_shr, int_sub, int_xor
from compiler.codegen.native.math import by_dtype, f32_bits, i32_bits, make_polynomial
from compiler.codegen.native.primitive import F64, I64, primitive

_f = np.float32
_ZERO, _HALF, _ONE, _INF, _NAN = _f(0), _f(0.5), _f(1), _f(np.inf), _f(np.nan)
_LEAST_NORMAL, _TWO23 = _f(2.0**-126), _f(2**23)
_I0, _I23, _SIGN = np.int32(0), np.int32(23), np.int32(-(2**31))
_SQRT_HALF_BITS, _FRACTION = np.int32(0x3F3504F3), np.int32(0x007FFFFF)
_LOW, _HIGH = -151.0, 129.0  # 2**_LOW is 0 in float32, 2**_HIGH is inf
_ROUND = 1.5 * 2**52  # x + _ROUND holds x, rounded to an integer, in its low bits


def _pow2_lowering(tc: Any, t: Any) -> Any:
    def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
        return b.bitcast(b.shl(b.add(b.bitcast(a[0], I64), I64(1023)), I64(52)), F64)

    return types.float64(types.float64), gen


@primitive(_pow2_lowering)
def _pow2(t: Any) -> Any:
    """2**n, where t is n + _ROUND."""
    return 2.0 ** (t - _ROUND)


# log2((1 + s) / (1 - s)) / s in s^2, for |s| <= (sqrt(2) - 1) / (sqrt(2) + 1), to 2^-45
_log2_tail = make_polynomial(
    0.2828975232045043,
    0.31990595493628293,
    0.4122092435601654,
    0.5770779424920505,
    0.9617966941126237,
    2.8853900817778513,
    double=True,
)
# 2**g for |g| <= 1/2, to 2^-29
_exp2_near = make_polynomial(
    0.00015345788545673145,
    0.0013399957624398162,
    0.009618489246012718,
    0.05550328711813213,
    0.24022646886064924,
    0.6931472057671357,
    1.0000000005550524,
    double=True,
)


@inline
def _log2(a: Any) -> Any:
    """log2 of a finite float32 a > 0, in float64; otherwise rubbish."""
    small = a < _LEAST_NORMAL
    i = int_sub(i32_bits(a * _TWO23 if small else a), _SQRT_HALF_BITS)
    e = int_sub(int_shr(i, _I23), _I23 if small else _I0)
    m = float64(f32_bits(int_add(int_and(i, _FRACTION), _SQRT_HALF_BITS)))
    s = (m - 1.0) / (m + 1.0)
    return s * _log2_tail(s * s) + float64(e)


@inline
def _exp2(w: Any) -> Any:
    """2**w of float64 w, rounded once to float32."""
    w = _HIGH if w > _HIGH else w
    w = _LOW if w < _LOW else w
    t = w + _ROUND
    return float32(_exp2_near(w - (t - _ROUND)) * _pow2(t))


@by_dtype(lambda x, y: np.power(x, y))
def power(x: Any, y: Any) -> Any:
    """x**y of two float32, 0.54 ulp."""
    a = abs(x)
    log = _log2(a)
    log = log if a < _INF else float64(a)  # of an infinity and a NaN themselves
    log = log if a > _ZERO or a != a else float64(-_INF)
    p = _exp2(log * float64(y))
    p = _ONE if a == _ONE and y == y else p  # the logarithm is 0, the exponent may be infinite
    integer, half = np.floor(y) == y, _HALF * y
    p = _NAN if x < _ZERO and a < _INF and not integer and a != _ZERO else p
    odd = integer and np.floor(half) != half
    p = f32_bits(int_xor(i32_bits(p), int_and(i32_bits(x), _SIGN) if odd else _I0))
    return _ONE if y == _ZERO or x == _ONE else p
