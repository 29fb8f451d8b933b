"""Floating-point types of at most 8 bits: float32 to their codes and back, in integer arithmetic that vectorizes.

A kernel has such an element as its code, a uint8. The formats and what becomes of NaN, infinity and numbers out of
range are those of ONNX's Cast; where it leaves them open (the formats without NaN), those of ml_dtypes.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.codegen.native.inline import Inline, inline
from compiler.codegen.native.integers import int_add, int_and, int_or, int_shl, int_shr, int_sub, int_xor
from compiler.codegen.native.math import f32_bits, i32_bits


@dataclass(frozen=True)
class Format:
    """A sign, an exponent with a bias, and a mantissa, which is subnormal where the exponent is 0.

    sign: the bit; largest: code of the largest finite number; beyond: code of what is larger, when it is not
    saturated (NaN or infinity); nan: the code of NaN, None if there is none. one_zero: the code of -0 is the only NaN.
    """

    mantissa: int
    bias: int
    sign: int
    largest: int
    beyond: int
    nan: int | None
    one_zero: bool = False


FORMATS = {
    "f8e4m3fn": Format(3, 7, 0x80, 0x7E, 0x7F, 0x7F),
    "f8e4m3fnuz": Format(3, 8, 0x80, 0x7F, 0x80, 0x80, one_zero=True),
    "f8e5m2": Format(2, 15, 0x80, 0x7B, 0x7C, 0x7E),
    "f8e5m2fnuz": Format(2, 16, 0x80, 0x7F, 0x80, 0x80, one_zero=True),
    "f6e2m3": Format(3, 1, 0x20, 0x1F, 0x1F, None),
    "f6e3m2": Format(2, 3, 0x20, 0x1F, 0x1F, None),
    "f4e2m1": Format(1, 1, 0x08, 0x07, 0x07, None),
}
POWERS = "f8e8m0"
"""The format that has no sign and no mantissa: code c is 2**(c - 127), and 255 NaN."""

NARROW_FLOATS = (*FORMATS, POWERS)
ROUND_MODES = ("up", "down", "nearest")
"""Roundings to f8e8m0."""

_i = np.int32
_MAGNITUDE, _FRACTION, _HIDDEN, _INF, _QUIET = map(_i, (0x7FFFFFFF, 0x7FFFFF, 0x800000, 0x7F800000, 0x7FC00000))
_0, _1, _23 = map(_i, (0, 1, 23))


@functools.cache
def encoder(name: str, saturate: bool = True, mode: str = "up") -> Inline[[Any], Any]:
    """`encode(x)`: the code nearest to a float32, ties to even. Of other types: `encode(sticky(x))` rounds once.

    saturate: what is out of range becomes the largest number, else infinity or NaN. Types of less than 8 bits always
    saturate. mode: of f8e8m0, where x < 0 gives NaN.
    """
    return _power_encoder(saturate, mode) if name == POWERS else _encoder(FORMATS[name], saturate)


def _encoder(f: Format, saturate: bool) -> Inline[[Any], Any]:
    dropped, to_sign = _i(23 - f.mantissa), _i(31 - (f.sign.bit_length() - 1))
    first = _i(128 - f.bias)  # the exponent field of a float32 that the least normal number has
    rebias, largest = _i((127 - f.bias) << f.mantissa), _i(f.largest)
    over, sign_bit, nothing = _i(f.largest if saturate else f.beyond), _i(f.sign), _i(25)
    nan, flips, one_zero = _i(0 if f.nan is None else f.nan), _i(f.sign if f.nan is None else 0), f.one_zero

    @inline
    def encode(x: Any) -> Any:
        bits = i32_bits(x)
        size = int_and(bits, _MAGNITUDE)
        sign = int_and(int_shr(bits, to_sign), sign_bit)
        exponent = int_shr(size, _23)
        # below the least normal number, the mantissa with its hidden bit loses more bits, down to all of them
        tiny = exponent < first
        extra = int_sub(first, exponent) if tiny else _0
        shift = int_add(dropped, extra)
        shift = nothing if shift > nothing else shift
        kept = int_or(int_and(size, _FRACTION), _HIDDEN) if tiny else size
        odd = int_and(int_shr(kept, shift), _1)
        half = int_sub(int_shl(_1, int_sub(shift, _1)), _1)
        code = int_shr(int_add(kept, int_add(half, odd)), shift)
        code = code if tiny else int_sub(code, rebias)
        code = over if code > largest else code
        signed = int_or(code, sign)
        if one_zero:
            signed = code if code == _0 else signed
        return np.uint8(int_xor(int_or(nan, sign), flips) if size > _INF else signed)

    return encode


def _power_encoder(saturate: bool, mode: str) -> Inline[[Any], Any]:
    least, largest = _i(0x400000), _i(0x7F000000)  # the bits of 2**-127 and 2**127
    under, over = (_i(0), _i(254)) if saturate else (_i(255), _i(255))
    lift = _i({"up": 0x7FFFFF, "down": 0, "nearest": 0x400000}[mode])
    nan = _i(255)

    @inline
    def encode(x: Any) -> Any:
        bits = i32_bits(x)
        size = int_and(bits, _MAGNITUDE)
        # a subnormal float32 from 2**-127 on has its leading bit in the fraction
        fraction = int_and(int_shl(size, _1) if size < _HIDDEN else size, _FRACTION)
        code = int_add(int_shr(size, _23), int_shr(int_add(fraction, lift), _23))
        code = under if size < least else (over if size > largest else code)
        return np.uint8(nan if (size > _INF) | ((bits < _0) & (size != _0)) else code)

    return encode


@functools.cache
def decoder(name: str) -> Inline[[Any], Any]:
    """`decode(code)`: the float32 of a code."""
    return _decode_power if name == POWERS else _decoder(FORMATS[name])


@inline
def _decode_power(code: Any) -> Any:
    c = np.int32(code)
    bits = int_shl(c, _23)
    bits = _QUIET if bits == _INF else bits
    return f32_bits(int_shr(_HIDDEN, _1) if c == _0 else bits)


def _decoder(f: Format) -> Inline[[Any], Any]:
    up, sign_bit, scale = _i(23 - f.mantissa), _i(f.sign), np.float32(2.0 ** (127 - f.bias))
    largest, signs = _i(f.largest), _i(f.sign - 1)
    infinite, one_zero = _i(f.beyond if f.beyond != f.nan else 0), f.one_zero
    flip = np.int32(-(2**31))

    @inline
    def decode(code: Any) -> Any:
        c = np.int32(code)
        size, sign = int_and(c, signs), int_and(c, sign_bit)
        value = f32_bits(int_shl(size, up)) * scale  # also of subnormal codes, which are subnormal float32 before
        bits = i32_bits(value)
        if one_zero:
            bits = _QUIET if c == sign_bit else bits
        else:
            bits = (_INF if size == infinite else _QUIET) if size > largest else bits
        return f32_bits(int_xor(bits, flip) if sign != _0 else bits)

    return decode
