"""Elements of at most 8 bits: their casts in every kernel, against tables that follow from the formats alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from compiler.codegen.native import f32, f64, kernel, native, u8
from compiler.codegen.native.convert import sticky
from compiler.codegen.native.narrow import FORMATS, NARROW_FLOATS, POWERS, ROUND_MODES, decoder, encoder
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import NARROW, NARROW_INTEGERS, AnyArray, TensorType, limits, numpy_dtype, onnx_dtype
from compiler.passes.pipeline import passes, run
from compiler.runtime.layout import BITS, NUMPY
from tests.codegen.graphs import Running

POINTERS: dict[str, Callable[[int, int], Any]] = {"float32": f32, "float64": f64}


def codes(name: str) -> AnyArray:
    """Every element of a type."""
    return np.arange(2 ** BITS.get(name, 8)).astype(np.uint8).view(numpy_dtype(name))


def magnitudes(name: str) -> AnyArray:
    """The finite numbers that are not negative, in float64: the codes of a format are in their order."""
    f = FORMATS[name]
    code = np.arange(f.largest + 1)
    exponent, mantissa = code >> f.mantissa, code & (2**f.mantissa - 1)
    hidden = np.where(exponent > 0, 2.0**f.mantissa, 0.0)
    return (hidden + mantissa) * 2.0 ** (np.maximum(exponent, 1) - f.bias - f.mantissa)


def expected(name: str, x: AnyArray, saturate: bool) -> AnyArray:
    """The codes of numbers of any type: nearest in exact arithmetic, ties to even, and the standard's special cases."""
    f, finite = FORMATS[name], magnitudes(name)
    steps = np.append(finite, 2 * finite[-1] - finite[-2])  # the next one, if the exponent went on
    halves = (steps[1:] + steps[:-1]) / 2
    size = np.abs(x)
    code = np.searchsorted(halves, size, side="left")
    tie = halves[np.minimum(code, len(halves) - 1)] == size
    code = code + (tie & (code % 2 == 1))
    code = np.where(code > f.largest, f.largest if saturate else f.beyond, code)
    sign = np.where(np.signbit(x), f.sign, 0)
    signed = np.where((code == 0) & f.one_zero, 0, code | sign)
    nan = (sign ^ f.sign) if f.nan is None else (f.nan | sign)
    return np.where(np.isnan(x), nan, signed).astype(np.uint8)


def numbers(name: str) -> AnyArray:
    """Numbers that tell roundings apart, in float64."""
    rng = np.random.default_rng(0)
    some = magnitudes(name) if name in FORMATS else 2.0 ** np.arange(-127, 128)
    ties = np.concatenate([some, (some[1:] + some[:-1]) / 2, some[-1:] * [1.01, 1.5, 2, 4]])
    x = np.concatenate([ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), [0.0, 1e-300, 1e300]])
    with np.errstate(all="ignore"):
        near = ties.astype(np.float32)
        x = np.concatenate(
            [x, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(0)), [1e-45, 3e38]]
        )
        bits = rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32).astype(np.float64)
    return np.concatenate(
        [x, -x, rng.standard_normal(20000) * some[-1] ** 0.5, bits, [np.inf, -np.inf, np.nan, -np.nan]]
    )


def encoded(name: str, x: AnyArray, saturate: bool = True, mode: str = "up") -> AnyArray:
    encode, source = encoder(name, saturate, mode), POINTERS[x.dtype.name]

    @kernel
    def convert(lo: int, hi: int, src: int, dst: int) -> None:
        s, d = source(src, 0), u8(dst, 1)
        for i in range(hi - lo):
            d[i] = encode(sticky(s[i]))

    result = np.zeros(x.size, np.uint8)
    native(convert)(0, x.size, x.ctypes.data, result.ctypes.data)
    return result


@pytest.mark.parametrize("name", NARROW_FLOATS)
def test_codes_to_numbers(name: str) -> None:
    decode = decoder(name)

    @kernel
    def convert(lo: int, hi: int, src: int, dst: int) -> None:
        s, d = u8(src, 0), f32(dst, 1)
        for i in range(hi - lo):
            d[i] = decode(s[i])

    x = codes(name).view(np.uint8)
    result = np.zeros(x.size, np.float32)
    native(convert)(0, x.size, x.ctypes.data, result.ctypes.data)
    np.testing.assert_array_equal(result, codes(name).astype(np.float32))
    exact = ~np.isnan(result)
    np.testing.assert_array_equal(np.signbit(result)[exact], np.signbit(codes(name).astype(np.float32))[exact])
    np.testing.assert_array_equal([decode(c) for c in x], result)
    if name in FORMATS:
        np.testing.assert_array_equal(result[: FORMATS[name].largest + 1], magnitudes(name))


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_to_codes(name: str) -> None:
    """Of float32 and float64, in one rounding; as the standard has it for numbers out of range."""
    x = numbers(name)
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    for saturate in (True, False):
        result = encoded(name, single, saturate)
        np.testing.assert_array_equal(result, expected(name, single.astype(np.float64), saturate))
        dtype = numpy_dtype(name)
        with np.errstate(invalid="ignore", over="ignore"):
            other = numpy_helper.saturate_cast(single, dtype) if saturate and BITS.get(name, 8) == 8 else None
            other = single.astype(dtype) if other is None else other
        np.testing.assert_array_equal(result, other.view(np.uint8))
        encode = encoder(name, saturate)
        np.testing.assert_array_equal([encode(v) for v in single[::97]], result[::97])
    np.testing.assert_array_equal(encoded(name, x), expected(name, x, True))


@pytest.mark.parametrize("mode", ROUND_MODES)
def test_numbers_to_powers_of_two(mode: str) -> None:
    """The table of ONNX's Cast: below the least and above the largest number, of which 0 and infinity are some."""
    x = np.abs(numbers(POWERS))
    mantissa, exponent = np.frexp(np.where(np.isfinite(x) & (x > 0), x, 1.0))
    away = {"up": mantissa > 0.5, "down": mantissa > 1, "nearest": mantissa >= 0.75}[mode]
    code = exponent - 1 + 127 + away
    for saturate in (True, False):
        under, over = (0, 254) if saturate else (255, 255)
        limited = np.where(x < 2.0**-127, under, np.where(x > 2.0**127, over, code))
        wanted = np.where(np.isnan(x), 255, limited).astype(np.uint8)
        np.testing.assert_array_equal(encoded(POWERS, x, saturate, mode), wanted)
    assert encoded(POWERS, np.array([-1.0, -0.0], np.float32), True, mode).tolist() == [255, 0]


def casts(source: str, targets: list[str], n: int) -> Graph:
    b = Builder("casts")
    x = b.input("x", TensorType(source, (n,)))
    for t in targets:
        b.output(t, b.op("Cast", x, to=onnx_dtype(t)))
    return b.build()


def stored(x: AnyArray, dtype: str) -> AnyArray:
    """An array as the runtime has it."""
    return x.view(NUMPY[dtype]) if dtype == "bf16" or dtype in NARROW else x


SOURCES: dict[str, AnyArray] = {
    "f64": np.array([0.3, -1.7, 500.0, 3.5, -8.0, 1.0625 + 2**-40, np.nan]),
    "f16": np.array([0.3, -1.7, 500.0, 3.5, -8.0, np.inf], np.float16),
    "bf16": np.array([0.3, -1.7, 500.0, 3.5, -8.0], ml_dtypes.bfloat16),
    "i64": np.array([0, 1, -9, 17, -300, 2**62 + 1, -(2**63), 2**53 + 1]),
    "u64": np.array([0, 1, 300, 2**63 + 1, 2**64 - 1], np.uint64),
    "i8": np.arange(-128, 128).astype(np.int8),
    "bool": np.array([False, True]),
}


@pytest.mark.parametrize("source", SOURCES)
def test_casts_to_narrow_types(source: str) -> None:
    x = SOURCES[source]
    floats = ["f8e5m2fnuz", "f4e2m1"]
    targets = [*floats, "i4", "u2"]
    found = Running(casts(source, targets, x.size))({"x": stored(x, source)})
    for t in floats:
        np.testing.assert_array_equal(found[t], expected(t, x.astype(np.float64), True), err_msg=t)
    for t in ("i4", "u2"):
        wide = [int(v) if np.isfinite(v) else None for v in x.tolist()]
        least, most = limits(t)
        wrapped = [None if v is None else (v - least) % (most - least + 1) + least for v in wide]
        assert [v for v, w in zip(found[t].tolist(), wrapped, strict=True) if w is not None] == [
            w for w in wrapped if w is not None
        ], t


def test_integers_of_64_bits_round_once() -> None:
    """To the next power of two, 2**62 + 1 is more than 2**62; to bfloat16, a half and a bit is more than a half."""
    b = Builder("casts")
    x, y = b.input("x", TensorType("i64", (3,))), b.input("y", TensorType("u64", (3,)))
    for name, v in (("x", x), ("y", y)):
        b.output(f"{name} up", b.op("Cast", v, to=onnx_dtype("f8e8m0")))
        b.output(f"{name} bf16", b.op("Cast", v, to=onnx_dtype("bf16")))
    odd = [2**62 + 1, 2**62, 2**62 + 2**54 + 1]
    found = Running(b.build())({"x": np.array(odd), "y": np.array(odd, np.uint64)})
    for v in ("x", "y"):
        assert found[f"{v} up"].tolist() == [127 + 63, 127 + 62, 127 + 63]
        assert (found[f"{v} bf16"] & 1).tolist() == [0, 0, 1]


@pytest.mark.parametrize("source", ["f8e4m3fn", "f8e8m0", "i4", "u2"])
def test_casts_from_narrow_types(source: str) -> None:
    x = codes(source)
    values = x.astype(np.float32)
    integer = source in NARROW_INTEGERS
    ordinary = [
        "f32",
        "f64",
        "f16",
        "bf16",
        "bool",
        "f8e5m2",
        *(["i8", "u8", "i64", "i4", "u2"] if integer else ["i32"]),
    ]
    targets = [t for t in ordinary if t != source]
    numpy = stored(x, source) if not source.startswith("i") else values.astype(np.int8)
    found = Running(casts(source, targets, x.size))({"x": numpy})
    for t in ("f32", "f64"):
        np.testing.assert_array_equal(found[t], values)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found["f16"], values.astype(np.float16))
    np.testing.assert_array_equal(found["bf16"].view(ml_dtypes.bfloat16).astype(np.float32), values)
    np.testing.assert_array_equal(found["bool"], values != 0)
    np.testing.assert_array_equal(found["f8e5m2"], expected("f8e5m2", values.astype(np.float64), True))
    if not integer:
        inside = np.abs(values) < 2.0**31
        np.testing.assert_array_equal(found["i32"][inside], values[inside].astype(np.int32))
        return
    for t in ("i8", "u8", "i64"):
        np.testing.assert_array_equal(found[t], values.astype(np.int64).astype(numpy_dtype(t)))
    if source != "u2":
        np.testing.assert_array_equal(found["u2"], values.astype(np.int64) % 4)


def test_what_is_folded_is_what_kernels_give() -> None:
    """A cast of constants: folded where onnx's reference rounds once, left to the kernel where it does not."""
    x = numbers("f8e4m3fn")[:40]
    b, c = Builder("constants"), Builder("inputs")
    for name in ("f64", "f32"):
        array = x.astype(numpy_dtype(name))
        for builder, v in ((b, b.const(array)), (c, c.input(name, TensorType(name, x.shape)))):
            for t in ("f8e4m3fn", "f8e8m0", "f4e2m1", "i4"):
                builder.output(f"{name} {t}", builder.op("Cast", v, to=onnx_dtype(t)))
    folded = run(b.build(), passes(lambda node, types: True))
    left = {onnx_dtype("f8e8m0"), *map(onnx_dtype, ("f8e4m3fn", "f4e2m1", "i4"))}
    assert {n.attr("to") for n in folded.nodes} <= left
    assert len(folded.nodes) < 8
    feeds = {n: x.astype(numpy_dtype(n)) for n in ("f64", "f32")}
    constants, computed = Running(folded)({}), Running(c.build())(feeds)
    for name, a in computed.items():
        np.testing.assert_array_equal(constants[name], a, err_msg=name)
