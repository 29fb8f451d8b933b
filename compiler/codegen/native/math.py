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
from compiler.codegen.native.integers import int_add, int_and, int_shl, int_shr, int_sub
from compiler.codegen.native.primitive import F32, I32, Lowering, Primitive, primitive

_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0), _f(0.5), _f(1), _f(2)
_INF, _NAN, _LEAST_NORMAL = _f(np.inf), _f(np.nan), _f(2.0**-126)
_LOG2E = _f(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = _f(0.693359375), _f(-2.12194440054690583e-4)  # their sum is log(2); the high part has 10 bits
_EXP_HIGH, _EXP_LOW, _EXPM1_LOW = _f(89), _f(-104), _f(-20)  # beyond: inf, 0, -1
_ROUND = _f(1.5 * 2**23)  # x + _ROUND holds x, rounded to an integer, in its low bits
_ROUND_BITS = np.int32(0x4B400000)
_BIAS, _MANTISSA_BITS, _I1 = np.int32(127), np.int32(23), np.int32(1)
_SQRT_HALF_BITS, _FRACTION = np.int32(0x3F3504F3), np.int32(0x007FFFFF)
_TWO23, _N23 = _f(2**23), _f(23)
_TANH_FLAT, _ERF_FLAT, _ERF_SPLIT = _f(10), _f(4), _f(0.875)


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


def make_polynomial(*coefficients: float) -> Primitive[[Any], Any]:
    """A polynomial of float32 x with these coefficients, highest power first, by Horner's rule."""

    def lowering(tc: Any, x: Any) -> Any:
        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            f = cgutils.get_or_insert_function(b.module, ir.FunctionType(F32, [F32] * 3), "llvm.fmuladd.f32")
            y = F32(float(np.float32(coefficients[0])))
            for c in coefficients[1:]:
                y = b.call(f, [y, a[0], F32(float(np.float32(c)))])
            return y

        return types.float32(types.float32), gen

    def polynomial(x: Any) -> Any:
        y = np.float32(coefficients[0])
        for c in coefficients[1:]:
            y = y * x + np.float32(c)
        return y

    return primitive(lowering)(polynomial)


def _by_dtype(f64: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], ByDtype]:
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
# erf(x)/x - 1 in x^2, for |x| <= 0.875
_erf_near = make_polynomial(
    8.675383287481964e-05,
    -0.0008211102103814483,
    0.005206747446209192,
    -0.026861583814024925,
    0.11283732950687408,
    -0.37612634897232056,
    0.128379225730896,
)
# log(erfc(x)) for x in [0.875, 4]
_erf_far = make_polynomial(
    -2.0451787349884398e-05,
    0.00042708759428933263,
    -0.004135665483772755,
    0.025027193129062653,
    -0.10813909769058228,
    -0.6334733963012695,
    -1.129453182220459,
    0.00016202990082092583,
)


@inline
def _pow2(n: Any) -> Any:
    """2**n for int32 n in [-126, 127]."""
    return f32_bits(int_shl(int_add(n, _BIAS), _MANTISSA_BITS))


@inline
def _nearest(x: Any) -> Any:
    """Quotient x / log(2) rounded to an integer, kept as the sum with _ROUND."""
    return x * _LOG2E + _ROUND


@inline
def _expm1_reduced(x: Any, m: Any) -> Any:
    """exp(x - m log(2)) - 1."""
    r = (x - m * _LN2_HIGH) - m * _LN2_LOW
    return r * r * _exp_tail(r) + r


@_by_dtype(lambda x: np.exp(x))
def exp(x: Any) -> Any:
    """Exponential, 1 ulp: 0 below -104, inf above 88.72; denormal results are right."""
    x = _EXP_HIGH if x > _EXP_HIGH else x
    x = _EXP_LOW if x < _EXP_LOW else x
    t = _nearest(x)
    n = int_sub(i32_bits(t), _ROUND_BITS)
    y = _expm1_reduced(x, t - _ROUND) + _ONE
    half = int_shr(n, _I1)  # in two steps, because 2**n alone may overflow or be denormal
    return y * _pow2(half) * _pow2(int_sub(n, half))


@_by_dtype(lambda x: np.expm1(x))
def expm1(x: Any) -> Any:
    """Exponential minus 1, 1.5 ulp."""
    x = _EXP_HIGH if x > _EXP_HIGH else x
    x = _EXPM1_LOW if x < _EXPM1_LOW else x
    t = _nearest(x)
    p, s = _expm1_reduced(x, t - _ROUND), _pow2(int_sub(int_sub(i32_bits(t), _ROUND_BITS), _I1))
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


@_by_dtype(lambda x: np.log(x))
def log(x: Any) -> Any:
    """Natural logarithm, 0.8 ulp: -inf at 0, NaN below."""
    y = _log_positive(x)
    y = y if x > _ZERO else (-_INF if x == _ZERO else _NAN)
    return x if x == _INF else y


@_by_dtype(lambda x: np.log1p(x))
def log1p(x: Any) -> Any:
    """Logarithm of 1 + x, 1.5 ulp: -inf at -1, NaN below."""
    u = _ONE + x
    y = _log_positive(u) + (x - (u - _ONE)) / u  # what 1 + x lost of x
    y = y if x > -_ONE else (-_INF if x == -_ONE else _NAN)
    return x if x == _INF else y


@_by_dtype(lambda x: np.tanh(x))
def tanh(x: Any) -> Any:
    """Hyperbolic tangent, 2.5 ulp."""
    a = -x if x < _ZERO else x
    e = expm1(_TWO * (_TANH_FLAT if a > _TANH_FLAT else a))
    y = e / (e + _TWO)
    return -y if x < _ZERO else y


@inline
def _sigmoid64(x: Any) -> Any:
    e = np.exp(-abs(x))
    return (e if x < 0 else 1.0) / (1.0 + e)


@_by_dtype(_sigmoid64)
def sigmoid(x: Any) -> Any:
    """Logistic function 1 / (1 + exp(-x)), 2.5 ulp, far out on the left as well."""
    e = exp(x if x < _ZERO else -x)
    return (e if x < _ZERO else _ONE) / (_ONE + e)


@inline
def _softplus64(x: Any) -> Any:
    return (0.0 if x < 0 else x) + np.log1p(np.exp(-abs(x)))


@_by_dtype(_softplus64)
def softplus(x: Any) -> Any:
    """Softplus, log(1 + exp(x)), 2 ulp, without overflow."""
    return (_ZERO if x < _ZERO else x) + log1p(exp(x if x < _ZERO else -x))


@_by_dtype(lambda x: _libm_erf(x))
def erf(x: Any) -> Any:
    """The error function, 2 ulp."""
    a = -x if x < _ZERO else x
    far = _ONE - exp(_erf_far(_ERF_FLAT if a > _ERF_FLAT else a))
    return x * _erf_near(x * x) + x if a < _ERF_SPLIT else (-far if x < _ZERO else far)


@inline
def maximum(x: Any, y: Any) -> Any:
    """The larger one; NaN if either is NaN. Both of one type."""
    return x if (x > y) | (x != x) else y


@inline
def minimum(x: Any, y: Any) -> Any:
    """The smaller one; NaN if either is NaN. Both of one type."""
    return x if (x < y) | (x != x) else y


@inline
def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    return x != x


@inline
def isinf(x: Any) -> Any:
    """Whether x is an infinity."""
    return (x == np.inf) | (x == -np.inf)
