"""Elementary functions for kernels: float32 by polynomials that vectorize, float64 by libm.

Denormals are kept everywhere (IEEE gradual underflow, nothing flushes them). The polynomials were fitted for this file
(least squares on Chebyshev nodes, reweighted toward the minimax error); their errors, in units of the last place of
float32, were measured against float64 and stand in each docstring. NaN gives NaN. The sign of zero may be lost.
Integers and booleans count as float64.
"""

from collections.abc import Callable
from math import erf as _libm_erf
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.inline import ByDtype, inline
from compiler.codegen.native.integers import int_add, int_and, int_or, int_shl, int_shr, int_sub
from compiler.codegen.native.primitive import F32, F64, I32, Lowering, Primitive, primitive
from compiler.codegen.native.selection import select

_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0), _f(0.5), _f(1), _f(2)
_INF, _NAN, _LEAST_NORMAL = _f(np.inf), _f(np.nan), _f(2.0**-126)
_LOG2E = _f(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440054690583e-4)  # their sum is log(2); the high part has 10 bits
_EXP_HIGH, _EXP_LOW, _EXPM1_LOW = _f(89), _f(-104), _f(-20)  # beyond: inf, 0, -1
_ROUND = _f(1.5 * 2**23)  # x + _ROUND holds x, rounded to an integer, in its low bits
_MANTISSA_BITS, _I1 = np.int32(23), np.int32(1)
_SIGN, _EXPONENT = np.int32(-(2**31)), np.int32(-(2**23))  # bits: the sign; all above the fraction
_TWO64, _DOWN = _f(2.0**64), _f(2.0**-64)
_SQRT_HALF_BITS, _FRACTION = np.int32(0x3F3504F3), np.int32(0x007FFFFF)
_TWO23, _N23 = _f(2**23), _f(23)
_TANH_FLAT, _ERF_FLAT = _f(10), _f(4)


def _bitcast(source: Any, target: Any, kind: Any) -> Lowering:
    def lowering(tc: Any, x: Any) -> Any:
        return target(source), lambda cx, b, s, a: b.bitcast(a[0], kind)

    return lowering


@primitive(_bitcast(types.float32, types.int32, I32))
def i32_bits(x: Any) -> Any:
    """The bits of a float32 as int32."""
    return np.float32(x).view(np.int32)


@primitive(_bitcast(types.int32, types.float32, F32))
def f32_bits(bits: Any) -> Any:
    """The float32 with these 32 bits."""
    return np.int32(bits).view(np.float32)


def _horner(terms: list[Any], x: Any, fma: Callable[[Any, Any, Any], Any]) -> Any:
    y = terms[0]
    for c in terms[1:]:
        y = fma(y, x, c)
    return y


def _estrin(terms: list[Any], x: Any, fma: Callable[[Any, Any, Any], Any]) -> Any:
    terms = terms[::-1]
    while len(terms) > 1:
        pairs = [fma(high, x, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(terms) - len(terms) % 2 :]
        x = fma(x, x, None)
    return terms[0]


def make_polynomial(*coefficients: float, parallel: bool = False, double: bool = False) -> Primitive[[Any], Any]:
    """A polynomial of float32 (double: of float64) x with these coefficients, highest power first.

    By Horner's rule; parallel: by Estrin's scheme, which pairs neighbours up to half as many coefficients in x^2. That
    takes a few products more and rounds slightly worse, but a loop waits less for it: for long polynomials.
    """
    evaluate = _estrin if parallel else _horner
    number, kind, numba_type = (np.float64, F64, types.float64) if double else (np.float32, F32, types.float32)

    def lowering(tc: Any, x: Any) -> Any:
        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            name = f"llvm.fmuladd.f{64 if double else 32}"
            f = cgutils.get_or_insert_function(b.module, ir.FunctionType(kind, [kind] * 3), name)

            def fma(x: Any, y: Any, z: Any) -> Any:
                return b.fmul(x, y) if z is None else b.call(f, [x, y, z])

            return evaluate([kind(float(number(c))) for c in coefficients], a[0], fma)

        return numba_type(numba_type), gen

    def polynomial(x: Any) -> Any:
        return evaluate([number(c) for c in coefficients], x, lambda x, y, z: x * y if z is None else x * y + z)

    return primitive(lowering)(polynomial)


def by_dtype(f64: Callable[..., Any]) -> Callable[[Callable[..., Any]], ByDtype]:
    """Make a helper for kernels of a float32 implementation; f64 is the one for float64."""
    return lambda f32: ByDtype(f32, f64)


# (exp(r) - 1 - r) / r^2 for |r| <= log(2)/2
_exp_tail = make_polynomial(
    1.3814312405884266e-3, 8.368851616978645e-3, 4.1668400168418884e-2, 0.1666651964187622, 0.4999999403953552
)
# (log(1+f) - f + f^2/2) / f^3 for 1+f in [sqrt(1/2), sqrt(2)]
_log_tail = make_polynomial(
    0.0674649178981781,
    -0.11675615608692169,
    0.11888211220502853,
    -0.12405597418546677,
    0.142195463180542,
    -0.16667994856834412,
    0.2000211924314499,
    -0.25000008940696716,
    0.3333331346511841,
)
# -log(erfc(x)) / x - 1, for x in [0, 4]
_erf_tail = make_polynomial(
    -9.256272278435063e-06,
    0.00011764132796088234,
    -0.0006328370654955506,
    0.0016670278273522854,
    -0.00016039639012888074,
    -0.019153064116835594,
    0.10277783125638962,
    0.6366193890571594,
    0.12837916612625122,
    parallel=True,
)


@inline
def _nearest(x: Any) -> Any:
    """Quotient x / log(2) rounded to an integer n, kept as the sum with _ROUND."""
    return x * _LOG2E + _ROUND


@inline
def _expm1_reduced(x: Any, m: Any) -> Any:
    """exp(x - m log(2)) - 1."""
    r = (x - m * _LN2_HIGH) - m * _LN2_LOW
    return r * r * _exp_tail(r) + r


@inline
def _exponent(t: Any) -> Any:
    """Shift an n in [-256, 255] that `_nearest` gave to the exponent, n * 2**23: the low bits of _ROUND are zeros."""
    return int_shl(i32_bits(t), _MANTISSA_BITS)


@inline
def _scaled(c: Any, exponent: Any) -> Any:
    """Product c * 2**n by arithmetic on the bits, where both are normal numbers (no NaN); exponent: n * 2**23."""
    return f32_bits(int_add(i32_bits(c), exponent))


@by_dtype(lambda x: np.exp(x))
def exp(x: Any) -> Any:
    """Exponential, 1.02 ulp: 0 below -104, inf above 88.72; denormal results are right."""
    x = _EXP_HIGH if x > _EXP_HIGH else x
    x = _EXP_LOW if x < _EXP_LOW else x
    t = _nearest(x)
    y, n = _expm1_reduced(x, t - _ROUND) + _ONE, _exponent(t)
    half = int_and(int_shr(n, _I1), _EXPONENT)  # in two steps, because 2**n alone may overflow or be denormal
    return y * _scaled(_ONE, half) * _scaled(_ONE, int_sub(n, half))


@inline
def _exp_negative(x: Any) -> Any:
    """exp(x) for x <= 0; denormal results are right."""
    x = _EXP_LOW if x < _EXP_LOW else x
    t = _nearest(x)
    s = _scaled(_TWO64, _exponent(t))  # a normal number, where 2**n may be denormal
    return (_expm1_reduced(x, t - _ROUND) * s + s) * _DOWN


@inline
def _expm1_parts(x: Any) -> Any:
    """Two numbers p and s = 2**n such that s (1 + p) is exp(x), |p| at most about 1/2; for x in [-86, 88]."""
    t = _nearest(x)
    return _expm1_reduced(x, t - _ROUND), _scaled(_ONE, _exponent(t))


@by_dtype(lambda x: np.expm1(x))
def expm1(x: Any) -> Any:
    """Exponential minus 1, 1.5 ulp."""
    x = _EXP_HIGH if x > _EXP_HIGH else x
    x = _EXPM1_LOW if x < _EXPM1_LOW else x
    t = _nearest(x)
    p, s = _expm1_reduced(x, t - _ROUND), _scaled(_HALF, _exponent(t))  # half of 2**n, which may overflow
    return (s * p + (s - _HALF)) * _TWO


@inline
def _log_positive(x: Any) -> Any:
    """log(x) for finite x > 0, denormal or not; otherwise rubbish."""
    small = x < _LEAST_NORMAL
    x = x * _TWO23 if small else x
    i = int_sub(i32_bits(x), _SQRT_HALF_BITS)
    e = np.float32(int_shr(i, _MANTISSA_BITS)) - (_N23 if small else _ZERO)
    f = f32_bits(int_add(int_and(i, _FRACTION), _SQRT_HALF_BITS)) - _ONE
    z = f * f
    return ((e * _LN2_LOW + f * z * _log_tail(f)) - _HALF * z) + f + e * _LN2_HIGH


@by_dtype(lambda x: np.log(x))
def log(x: Any) -> Any:
    """Natural logarithm, 0.84 ulp: -inf at 0, NaN below."""
    y = _log_positive(x)
    y = y if x > _ZERO else (-_INF if x == _ZERO else _NAN)
    return x if x == _INF else y


@by_dtype(lambda x: np.log1p(x))
def log1p(x: Any) -> Any:
    """Logarithm of 1 + x, 1.5 ulp: -inf at -1, NaN below."""
    u = _ONE + x
    y = _log_positive(u) + (x - (u - _ONE)) / u  # what 1 + x lost of x
    y = y if x > -_ONE else (-_INF if x == -_ONE else _NAN)
    return x if x == _INF else y


@inline
def _with_sign(y: Any, x: Any) -> Any:
    """Give y >= 0 the sign of x."""
    return f32_bits(int_or(i32_bits(y), int_and(i32_bits(x), _SIGN)))


@by_dtype(lambda x: np.tanh(x))
def tanh(x: Any) -> Any:
    """Hyperbolic tangent, 2.61 ulp."""
    a = abs(x)
    p, s = _expm1_parts(_TWO * (_TANH_FLAT if a > _TANH_FLAT else a))
    e = s * p + (s - _ONE)
    return _with_sign(e / (e + _TWO), x)


@inline
def _sigmoid64(x: Any) -> Any:
    e = np.exp(-abs(x))
    return (e if x < 0 else 1.0) / (1.0 + e)


@by_dtype(_sigmoid64)
def sigmoid(x: Any) -> Any:
    """Logistic function 1 / (1 + exp(-x)), 2.5 ulp, far out on the left as well."""
    e = _exp_negative(-abs(x))
    return (e if x < _ZERO else _ONE) / (_ONE + e)


@inline
def _softplus64(x: Any) -> Any:
    return (0.0 if x < 0 else x) + np.log1p(np.exp(-abs(x)))


@by_dtype(_softplus64)
def softplus(x: Any) -> Any:
    """Softplus, log(1 + exp(x)), 2 ulp, without overflow."""
    return (_ZERO if x < _ZERO else x) + log1p(_exp_negative(-abs(x)))


@by_dtype(lambda x: _libm_erf(x))
def erf(x: Any) -> Any:
    """The error function, 2 ulp."""
    a = abs(x)
    b = _ERF_FLAT if a > _ERF_FLAT else a
    p, s = _expm1_parts(-(b * _erf_tail(b) + b))
    return _with_sign((_ONE - s) - s * p, x)


@inline
def maximum(x: Any, y: Any) -> Any:
    """The larger one; NaN if either is NaN. Both of one type."""
    return select((x > y) | (x != x), x, y)


@inline
def minimum(x: Any, y: Any) -> Any:
    """The smaller one; NaN if either is NaN. Both of one type."""
    return select((x < y) | (x != x), x, y)


@inline
def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    return x != x


@inline
def isinf(x: Any) -> Any:
    """Whether x is an infinity."""
    return (x == np.inf) | (x == -np.inf)
