"""Conversions between element types."""

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.dtypes import dtype, numpy_dtype
from compiler.codegen.native.memory import bf16_bits, bf16_value, loaded, stored
from compiler.codegen.native.primitive import F32, F64, I32, I64, Primitive, primitive


@functools.cache
def convert(name: str) -> Primitive[[Any], Any]:
    """The conversion to an element type, as ONNX's Cast: `convert("i32")(x)`.

    Floating point to integer truncates and saturates, NaN gives 0 (the standard leaves both open); integers wrap;
    to bool is x != 0; to f16 or bf16 rounds to nearest even and gives the float32 of that value.
    """
    element = dtype(name)
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
            if x != types.float32:
                value = _to_odd(b, cx.cast(b, value, x, types.float64))
            return loaded(b, element, stored(b, element, value))

        return to(x), gen

    def plain(x: Any) -> Any:
        x, to_numpy = np.asarray(x), numpy_dtype(name)
        with np.errstate(all="ignore"):
            if name == "bf16":
                return bf16_value(bf16_bits(x if x.dtype == np.float32 else _plain_to_odd(float(x))))
            if x.dtype.kind == "f" and to_numpy.kind in "iu":
                info = np.iinfo(to_numpy)
                return to_numpy.type(0 if np.isnan(x) else min(max(x, info.min), info.max))
            return np.float32(x.astype(to_numpy)) if name == "f16" else x.astype(to_numpy)[()]

    plain.__name__ = plain.__qualname__ = f"convert_{name}"
    return primitive(lowering)(plain)


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
