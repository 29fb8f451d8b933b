"""Elementary functions: accuracy over all of float32, special values, vectors."""

import math as python_math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import ITEMSIZE, Kernel, kernel, math, native, optimized_ir, pointer

Reference = Callable[[Any], Any]
REFERENCES: dict[str, tuple[float, Reference]] = {  # bound in ulp, function in float64
    "exp": (1.0, np.exp),
    "expm1": (1.5, np.expm1),
    "log": (0.8, np.log),
    "log1p": (1.5, np.log1p),
    "tanh": (2.5, np.tanh),
    "sigmoid": (2.5, lambda x: np.where(x < 0, np.exp(-abs(x)), 1) / (1 + np.exp(-abs(x)))),
    "softplus": (2.0, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))),
    "erf": (2.0, np.vectorize(python_math.erf)),
}
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
    x = np.concatenate([bits, *dense, np.array(SPECIAL, np.float32)])
    y = run(native(make_map("f32", getattr(math, name))), x)
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
    function, reference = getattr(math, name), REFERENCES[name][1]
    x = np.array([0.5, -3, 0, 5, -700, 700, np.nan, np.inf, -np.inf])
    k = make_map("f64", function)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(native(k), x), reference(x), rtol=1e-14)
        narrow = x.astype(np.float32)
        k = make_map("f32", function)
        np.testing.assert_allclose(run(k, narrow), run(native(k), narrow), rtol=1e-6)


@pytest.mark.parametrize("name", REFERENCES)
def test_float32_vectorizes(name: str) -> None:
    text = optimized_ir(make_map("f32", getattr(math, name)))
    assert "x float>" in text
    assert not [line for line in text.splitlines() if " call " in line and "@llvm." not in line]


def test_values_that_matter() -> None:
    def at(name: str, *x: float) -> list[float]:
        return [float(v) for v in run(native(make_map("f32", getattr(math, name))), np.array(x, np.float32))]

    assert at("exp", -np.inf, 89, 0, np.inf) == [0, np.inf, 1, np.inf]
    assert at("log", 0, np.inf, 1) == [-np.inf, np.inf, 0]
    assert all(np.isnan(at("log", -1, -np.inf, np.nan)))
    assert at("tanh", -100, 0, np.inf) == [-1, 0, 1]
    assert at("sigmoid", -np.inf, 0, np.inf) == [0, 0.5, 1]
    assert at("softplus", -np.inf, np.inf) == [0, np.inf]
    assert at("erf", -np.inf, 5, 0) == [-1, 1, 0]
