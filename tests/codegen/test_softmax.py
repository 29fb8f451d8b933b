"""Softmax and LogSoftmax against NumPy in double."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler.codegen.kernels.softmax  # noqa: F401
from tests.codegen.runner import run_op

FLOATS = [np.float32, np.float64]


def reference(x, axis, logarithm):
    x = x.astype(np.float64)
    z = x - x.max(axis=axis, keepdims=True)
    log = z - np.log(np.exp(z).sum(axis=axis, keepdims=True))
    return log if logarithm else np.exp(log)


def check(x, axis):
    for op in ("Softmax", "LogSoftmax"):
        (got,) = run_op(op, x, axis=axis)
        rtol = 1e-6 if x.dtype == np.float32 else 1e-13
        np.testing.assert_allclose(got, reference(x, axis, op == "LogSoftmax"), rtol=3 * rtol, atol=rtol)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5,), 0),
        ((64, 10), 1),
        ((131, 16), 1),
        ((9, 17), 1),
        ((3, 2500), -1),
        ((3, 4, 5), 1),
        ((3, 4, 150), 1),
        ((130, 7), 0),
        ((2, 1, 3), 1),
    ],
)
def test_softmax(dtype, shape, axis):
    check(np.random.default_rng(0).standard_normal(shape).astype(dtype) * 5, axis)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_short_rows_have_the_bits_of_columns(dtype, op):
    for rows in (1, 3, 8, 65):
        for n in (1, 2, 3, 7, 8, 9, 15, 16):
            x = np.random.default_rng(n).standard_normal((rows, n)).astype(dtype) * 5
            (along,) = run_op(op, x, axis=1)
            (across,) = run_op(op, np.ascontiguousarray(x.T), axis=0)
            assert along.tobytes() == np.ascontiguousarray(across.T).tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_overflow_and_digits_kept(dtype):
    x = np.array([[10000, 10001, 9990], [-10000, -10003, -9999], [0, -np.inf, 1]], dtype)
    with np.errstate(invalid="ignore"):
        check(x, 1)
        check(np.ascontiguousarray(x.T), 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_shows(dtype, axis):
    for columns in (40, 9):  # long rows, and short ones
        x = np.random.default_rng(0).standard_normal((40, columns)).astype(dtype)
        x[13, 7] = np.nan
        (got,) = run_op("Softmax", x, axis=axis)
        assert np.isnan(got).sum() == x.shape[axis]
        assert np.isnan(got[13 if axis else slice(None), slice(None) if axis else 7]).all()


def test_empty():
    for shape, axis in (((0, 3), 1), ((3, 0), 1), ((3, 0, 2), 0)):
        assert run_op("Softmax", np.zeros(shape, np.float32), axis=axis)[0].shape == shape


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data(), st.sampled_from(FLOATS))
def test_any(shape, data, dtype):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    check(np.random.default_rng(2).standard_normal(shape).astype(dtype), axis)


@pytest.mark.parametrize("axis", [0, 1])
def test_half(axis):
    x = np.random.default_rng(0).standard_normal((9, 70)).astype(np.float16)
    (got,) = run_op("Softmax", x, axis=axis)
    np.testing.assert_allclose(got, reference(x, axis, False), rtol=5e-3, atol=1e-4)
