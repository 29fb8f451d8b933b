"""Conversions between element types."""

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.dtypes import Dtype, dtype, numpy_dtype
from compiler.codegen.native.memory import bf16_bits, bf16_value, loaded, stored
from compiler.codegen.native.primitive import F32, F64, I8, I32, I64, Primitive, primitive


@functools.cache
def convert(name: str) -> Primitive[[Any], Any]:
    """The conversion to an element type, as ONNX's Cast: `convert("i32")(x)`.

    Floating point to integer truncates and saturates, NaN gives 0 (the standard leaves both open), but wraps to
    integers of less than 8 bits, as ml_dtypes does; integers wrap; to bool is x != 0; to f16 or bf16 rounds to
    nearest even and gives the float32 of that value. Floats of at most 8 bits: see `narrow`.
    """
    element = dtype(name)
    if name in _LOW_BITS:
        return _low_bits(element, _LOW_BITS[name])
    to, narrow = element.value, name in ("f16", "bf16")

    def lowering(tc: Any, x: Any) -> Any:
        x = types.unliteral(x)
        if not isinstance(x, (types.Integer, types.Float, types.Boolean)):
            return None

        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            value = a[0]
            if isinstance(x, types.Float) and isinstance(to, types.Integer):
                intrinsic = f"llvm.fpto{'s' if to.signed else 'u'}i.sat.i{to.bitwidth}.f{x.bitwidth}"
                kind = ir.FunctionType(cx.get_value_type(to), [value.type])
                return b.call(cgutils.get_or_insert_function(b.module, kind, intrinsic), [value])
            if isinstance(to, types.Boolean):
                if isinstance(x, types.Float):
                    return b.fcmp_unordered("!=", value, value.type(0.0))
                return b.icmp_signed("!=", value, value.type(0))
            if not narrow:
                return cx.cast(b, value, x, to)
            return loaded(b, element, stored(b, element, _sticky(cx, b, x, value)))

        return to(x), gen

    def plain(x: Any) -> Any:
        x, to_numpy = np.asarray(x), numpy_dtype(name)
        with np.errstate(all="ignore"):
            if name == "bf16":
                return bf16_value(bf16_bits(sticky(x)))
            if x.dtype.kind == "f" and to_numpy.kind in "iu":
                info = np.iinfo(to_numpy)
                return to_numpy.type(0 if np.isnan(x) else min(max(x, info.min), info.max))
            return np.float32(sticky(x).astype(to_numpy)) if name == "f16" else x.astype(to_numpy)[()]

    plain.__name__ = plain.__qualname__ = f"convert_{name}"
    return primitive(lowering)(plain)


_LOW_BITS = {"i4": 4, "u4": 4, "i2": 2, "u2": 2}


def _low_bits(element: Dtype, bits: int) -> Primitive[[Any], Any]:
    """The conversion to an integer type of less than 8 bits: by int32, of which the low bits are taken."""
    wide, signed = convert("i32"), element.value.signed

    def lowering(tc: Any, x: Any) -> Any:
        inner = wide.lowering(tc, x)
        if inner is None:
            return None
        sig, emit = inner

        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            value = b.shl(b.trunc(emit(cx, b, sig, a), I8), I8(8 - bits))
            return (b.ashr if signed else b.lshr)(value, I8(8 - bits))

        return element.value(*sig.args), gen

    def plain(x: Any) -> Any:
        low = int(wide(x)) % (1 << bits)
        return np.dtype(element.numpy).type(low - (1 << bits) if signed and low >> (bits - 1) else low)

    plain.__name__ = plain.__qualname__ = f"convert_{element.name}"
    return primitive(lowering)(plain)


def _sticky_lowering(tc: Any, x: Any) -> Any:
    x = types.unliteral(x)
    if not isinstance(x, (types.Integer, types.Float, types.Boolean)):
        return None
    return types.float32(x), lambda cx, b, s, a: _sticky(cx, b, x, a[0])


@primitive(_sticky_lowering)
def sticky(x: Any) -> Any:
    """The number as float32; an inexact one as the neighbour with an odd last bit, so that rounding it rounds once."""
    x = np.asarray(x)
    if x.dtype == np.float32:
        return x[()]
    if x.dtype.kind in "iu" and abs(int(x)) >= _EXACT:
        x = np.asarray(int(x) >> 11 << 11 | (int(x) & 0x7FF != 0) << 11)
    return _plain_to_odd(float(x))


_EXACT = 2**53
"""Magnitude up to which float64 holds every integer."""


def _sticky(cx: Any, b: Any, x: Any, value: Any) -> Any:
    if x == types.float32:
        return value
    if isinstance(x, types.Integer) and x.bitwidth == 64:  # leave 53 bits at most, the last one odd if any are lost
        lost = b.icmp_unsigned("!=", b.and_(value, I64(0x7FF)), I64(0))
        cut = b.or_(b.and_(value, I64(-0x800)), b.shl(b.zext(lost, I64), I64(11)))
        if x.signed:
            small = b.icmp_unsigned("<", b.add(value, I64(_EXACT)), I64(2 * _EXACT))
        else:
            small = b.icmp_unsigned("<", value, I64(_EXACT))
        value = b.select(small, value, cut)
    return _to_odd(b, cx.cast(b, value, x, types.float64))


def _to_odd(b: Any, x: Any) -> Any:
    """float64 -> float32, inexact values to the neighbour with an odd last bit: rounding that again rounds x once."""
    near = b.fptrunc(x, F32)
    back, bits = b.fpext(near, F64), b.bitcast(near, I32)
    away = b.fcmp_ordered(">", _magnitude(b, back), _magnitude(b, x))
    down = b.sub(bits, b.zext(away, I32))
    return b.bitcast(b.or_(down, b.zext(b.fcmp_ordered("!=", back, x), I32)), F32)


def _magnitude(b: Any, x: Any) -> Any:
    return b.bitcast(b.and_(b.bitcast(x, I64), I64(2**63 - 1)), F64)


def _plain_to_odd(x: float) -> Any:
    near = np.float32(x)
    if np.isnan(near) or float(near) == x:
        return near
    bits = int(near.view(np.uint32)) - (abs(float(near)) > abs(x))
    return np.uint32(bits | 1).view(np.float32)
