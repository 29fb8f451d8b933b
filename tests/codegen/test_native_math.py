"""Elementary functions: accuracy over all of float32, special values, vectors."""

import math as python_math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import ITEMSIZE, Kernel, kernel, math, native, optimized_ir, pointer, trig
from compiler.codegen.native.power import power

Reference = Callable[[Any], Any]
REFERENCES: dict[str, tuple[float, Reference]] = {  # bound in ulp, function in float64
    "exp": (1.02, np.exp),
    "expm1": (1.5, np.expm1),
    "log": (0.84, np.log),
    "log1p": (1.5, np.log1p),
    "tanh": (2.61, np.tanh),
    "sigmoid": (2.5, lambda x: np.where(x < 0, np.exp(-abs(x)), 1) / (1 + np.exp(-abs(x)))),
    "softplus": (2.0, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))),
    "erf": (2.0, np.vectorize(python_math.erf)),
    "sin": (1.0, np.sin),
    "cos": (1.0, np.cos),
    "tan": (2.54, np.tan),
}
WORST = {  # where the error is largest, of all numbers
    "exp": 37.77864074707031,
    "expm1": 16.982925415039062,
    "log": 1.4120755195617676,
    "log1p": -8.940696716308594e-08,
    "tanh": 0.06241587921977043,
    "sigmoid": -4.157293796539307,
    "softplus": -2.0303099155426025,
    "erf": 0.11080551892518997,
    "sin": 0.9934874773025513,
    "cos": 4.324794618739889e21,
    "tan": 1287.27783203125,
}
FUNCTIONS = {name: getattr(trig if hasattr(trig, name) else math, name) for name in REFERENCES}
SPECIAL = [
    0,
    np.inf,
    -np.inf,
    np.nan,
    1,
    -1,
    88.72,
    88.73,
    89,
    1e30,
    -87.4,
    -103.9,
    -104.1,
    1e-40,
    -1e-40,
    0.875,
    10,
    -10,
]


def make_map(name: str, function: Any) -> Kernel:
    at, size = pointer(name), ITEMSIZE[name]

    @kernel
    def apply(lo: int, hi: int, src: int, dst: int) -> None:
        s, d = at(src + size * lo, 0), at(dst + size * lo, 1)
        for i in range(hi - lo):
            d[i] = function(s[i])

    return apply


def run(k: Callable[..., None], x: Any) -> Any:
    y = np.zeros_like(x)
    k(0, len(x), x.ctypes.data, y.ctypes.data)
    return y


@pytest.mark.parametrize("name", REFERENCES)
def test_float32_accuracy(name: str) -> None:
    bound, reference = REFERENCES[name]
    bits = np.arange(0, 1 << 32, 20_011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [np.linspace(lo, hi, 20_001, dtype=np.float32) for lo, hi in ((-3, 3), (-20, 20), (-110, 95))]
    quarters = (np.arange(1, 40_000) * (np.pi / 2)).astype(np.float32)  # where sin, cos and tan are 0 or infinite
    x = np.concatenate([bits, *dense, quarters, np.array([*SPECIAL, WORST[name]], np.float32)])
    y = run(native(make_map("f32", FUNCTIONS[name])), x)
    with np.errstate(all="ignore"):
        wide = reference(x.astype(np.float64))
        expected = wide.astype(np.float32)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(y), np.isinf(expected))
        finite = np.isfinite(expected)
        ulp = np.spacing(np.maximum(np.abs(expected[finite]), np.float32(2**-126)))
        error = np.abs(y[finite] - wide[finite]) / ulp
    worst = int(error.argmax())
    assert error[worst] <= bound, f"{error[worst]} ulp at {x[finite][worst]}"


@pytest.mark.parametrize("name", REFERENCES)
def test_float64_and_plain_python(name: str) -> None:
    function, reference = FUNCTIONS[name], REFERENCES[name][1]
    x = np.array([0.5, -3, 0, 5, -700, 700, np.nan, np.inf, -np.inf])
    k = make_map("f64", function)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(native(k), x), reference(x), rtol=1e-14)
        narrow = x.astype(np.float32)
        k = make_map("f32", function)
        np.testing.assert_allclose(run(k, narrow), run(native(k), narrow), rtol=1e-6)


@pytest.mark.parametrize("name", REFERENCES)
def test_float32_vectorizes(name: str) -> None:
    text = optimized_ir(make_map("f32", FUNCTIONS[name]))
    assert "x float>" in text
    assert not [line for line in text.splitlines() if " call " in line and "@llvm." not in line]


@pytest.mark.parametrize("name", [*REFERENCES, "power"])
def test_bits_do_not_depend_on_how_work_is_split(name: str) -> None:
    """One element at a time (what is left beside the vectors) gives the bits of vectors."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(1000) * 5, np.exp(rng.standard_normal(1000) * 20)]).astype(np.float32)
    y = rng.standard_normal(len(x)).astype(np.float32)
    k = native(make_power("f32") if name == "power" else make_map("f32", FUNCTIONS[name]))
    whole, single = np.zeros_like(x), np.zeros_like(x)
    operands = [x.ctypes.data] + [y.ctypes.data] * (name == "power")
    k(0, len(x), *operands, whole.ctypes.data)
    for i in range(len(x)):
        k(i, i + 1, *operands, single.ctypes.data)
    np.testing.assert_array_equal(whole.view(np.int32), single.view(np.int32))


def test_values_that_matter() -> None:
    def at(name: str, *x: float) -> list[float]:
        return [float(v) for v in run(native(make_map("f32", FUNCTIONS[name])), np.array(x, np.float32))]

    assert at("exp", -np.inf, 89, 0, np.inf) == [0, np.inf, 1, np.inf]
    assert at("log", 0, np.inf, 1) == [-np.inf, np.inf, 0]
    assert all(np.isnan(at("log", -1, -np.inf, np.nan)))
    assert at("tanh", -100, 0, np.inf) == [-1, 0, 1]
    assert at("sigmoid", -np.inf, 0, np.inf) == [0, 0.5, 1]
    assert at("softplus", -np.inf, np.inf) == [0, np.inf]
    assert at("erf", -np.inf, 5, 0) == [-1, 1, 0]


def test_digits_of_two_over_pi() -> None:
    """By Machin's formula for pi, in integers."""

    def arccot(n: int, one: int) -> int:
        term, total, k = one // n, 0, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term, k = term // (n * n), k + 1
        return total

    one = 1 << 300
    pi = 4 * (4 * arccot(5, one) - arccot(239, one))
    assert (2 * one << 199) // pi == trig.TWO_OVER_PI


def test_trigonometry_reduces_the_largest_and_the_worst_arguments() -> None:
    """2**k for every k, and the float32 closest to a multiple of pi/2; zeros keep their sign, infinities give NaN."""
    x = np.concatenate([2.0 ** np.arange(-149, 128), [16367173 * 2.0**72, float(np.finfo(np.float32).max)]])
    x = np.concatenate([x, -x]).astype(np.float32)
    for name, reference in (("sin", np.sin), ("cos", np.cos), ("tan", np.tan)):
        y = run(native(make_map("f32", FUNCTIONS[name])), x)
        np.testing.assert_allclose(y, reference(x.astype(np.float64)), rtol=4e-7, atol=1e-45)
        edge = run(native(make_map("f32", FUNCTIONS[name])), np.array([-0.0, 0.0, np.inf, -np.inf, np.nan], np.float32))
        assert np.isnan(edge[2:]).all()
        assert list(np.signbit(edge[:2])) == ([False, False] if name == "cos" else [True, False])


def make_power(name: str) -> Kernel:
    at, size = pointer(name), ITEMSIZE[name]

    @kernel
    def apply(lo: int, hi: int, base: int, exponent: int, dst: int) -> None:
        x, y, d = at(base + size * lo, 0), at(exponent + size * lo, 1), at(dst + size * lo, 2)
        for i in range(hi - lo):
            d[i] = power(x[i], y[i])

    return apply


def raised(k: Callable[..., None], x: Any, y: Any) -> Any:
    z = np.zeros_like(x)
    k(0, len(x), x.ctypes.data, y.ctypes.data, z.ctypes.data)
    return z


def test_power_accuracy() -> None:
    rng = np.random.default_rng(0)
    n = 200_000
    any_bits = rng.integers(0, 1 << 32, (2, n), dtype=np.uint64).astype(np.uint32).view(np.float32)
    near_1 = (1 + rng.standard_normal(n) * 1e-3, rng.standard_normal(n) * 1e4)
    usual = (np.exp(rng.standard_normal(n) * 10), rng.standard_normal(n) * 4)
    whole = (rng.standard_normal(n) * 9, rng.integers(-40, 40, n))
    x, y = (
        np.concatenate([any_bits[k], *(pair[k].astype(np.float32) for pair in (near_1, usual, whole))]) for k in (0, 1)
    )
    z = raised(native(make_power("f32")), x, y)
    with np.errstate(all="ignore"):
        wide = np.power(x.astype(np.float64), y.astype(np.float64))
        expected = wide.astype(np.float32)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(z[~finite], expected[~finite])
    np.testing.assert_array_equal(np.signbit(z[finite]), np.signbit(expected[finite]))
    ulp = np.spacing(np.maximum(np.abs(expected[finite]), np.float32(2**-126)))
    error = np.abs(z[finite] - wide[finite]) / ulp
    worst = int(error.argmax())
    assert error[worst] <= 0.54, f"{error[worst]} ulp at {x[finite][worst]} ** {y[finite][worst]}"


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_power_of_special_values(form: str) -> None:
    """All pairs of values that have a case of their own, as NumPy (C's pow) has them, signs of zeros as well."""
    ends = [np.inf, 3.4e38, 1e-45, 0.0, 1.0, 2.0, 3.0, 0.5, 2.5, 16777215.0, 16777216.0, 1e20]
    values = np.array([*ends, *(-v for v in ends), np.nan], np.float32)
    x, y = (g.ravel().copy() for g in np.meshgrid(values, values))
    k = make_power("f32")
    with np.errstate(all="ignore"):
        z = raised(native(k) if form == "compiled" else k, x, y)
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(z, expected, rtol=1e-6, atol=1e-45)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(z[known]), np.signbit(expected[known]))


def test_power_vectorizes() -> None:
    text = optimized_ir(make_power("f32"))
    assert "x double>" in text
    assert not [line for line in text.splitlines() if " call " in line and "@llvm." not in line]
