"""TopK, Det and its cofactors: the kernels on guarded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler.codegen.kernels
import compiler.ir.definitions  # noqa: F401  (onnxc.Cofactors)
from tests.codegen.runner import run_op

RNG = np.random.default_rng(2)

Array = np.ndarray[Any, Any]


def top(x: Array, k: int, axis: int, largest: int) -> tuple[Array, Array]:
    """By a stable sort: a NaN is larger than any number, and of equal elements the first comes first."""
    key = np.where(np.isnan(x), np.inf, x.astype(np.float64)) if x.dtype.kind == "f" else x.astype(object)
    order = np.argsort(-key if largest else key, axis=axis, kind="stable")
    indices = np.take(order, range(k), axis)
    return np.take_along_axis(x, indices, axis), indices


SHAPES = [((3, 7), 1, 3), ((3, 7), 0, 3), ((2, 5, 4), 1, 5), ((40,), 0, 40), ((40,), -1, 1), ((3, 1), 1, 1)]


@pytest.mark.parametrize("dtype", ["f4", "i1", "u8"])
def test_top_k(dtype: str) -> None:
    for shape, axis, k in SHAPES:
        x = RNG.integers(0, 6, shape).astype(dtype)
        if x.dtype.kind == "f":
            x[RNG.random(shape) < 0.1] = np.nan
        elif x.dtype.kind == "u":
            x[x == 5] = np.iinfo(dtype).max
        for largest in (0, 1):
            found = run_op("TopK", x, np.array([k]), constants=(1,), outputs=2, axis=axis, largest=largest)
            for a, e in zip(found, top(x, k, axis, largest), strict=True):
                np.testing.assert_array_equal(a, e)


def test_top_k_of_nothing() -> None:
    values, indices = run_op("TopK", np.zeros((2, 3), np.float32), np.array([0]), constants=(1,), outputs=2)
    assert values.shape == indices.shape == (2, 0)


def cofactors(x: Array) -> Array:
    n = x.shape[-1]
    y = np.ones_like(x)
    for i in range(n):
        for j in range(n):
            y[..., i, j] = (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, -2), j, -1))
    return y


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_determinants(dtype: Any) -> None:
    """Of regular matrices, of zeros, of a rank below by one and by two."""
    tolerance = 1e-4 if dtype is np.float32 else 1e-11
    for n in (1, 2, 3, 6):
        x = RNG.normal(size=(4, n, n)).astype(dtype)
        x[1] = 0
        x[2, -1] = x[2, 0]
        x[3, -1] = x[3, 0] * 2
        x[3, n // 2] = -x[3, 0]
        (d,) = run_op("Det", x)
        (c,) = run_op("onnxc.Cofactors", x)
        assert d.dtype == c.dtype == dtype
        np.testing.assert_allclose(d, np.linalg.det(x.astype(np.float64)), atol=tolerance)
        np.testing.assert_allclose(c, cofactors(x.astype(np.float64)), atol=tolerance)


def test_determinants_of_empty_matrices() -> None:
    assert run_op("Det", np.zeros((2, 0, 0)))[0].tolist() == [1, 1]
    assert run_op("Det", np.zeros((0, 3, 3)))[0].shape == (0,)


def test_a_nan_shows() -> None:
    x = np.eye(3)
    x[1, 2] = np.nan
    assert np.isnan(run_op("Det", x)[0])
