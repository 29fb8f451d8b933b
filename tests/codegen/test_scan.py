"""ArgMax, ArgMin, Hardmax, CumSum, CumProd and RandomBits."""

import numpy as np
import pytest

import compiler.codegen.kernels.arg
import compiler.codegen.kernels.cumulative
import compiler.codegen.kernels.random  # noqa: F401
from tests.codegen.definition import check_definition
from tests.codegen.runner import run_op

RNG = np.random.default_rng(0)
SHAPES = [((7,), 0), ((64, 10), 1), ((64, 10), 0), ((3, 4, 5), 1), ((2, 3, 150), 1), ((3, 1000), -1), ((4, 1, 3), 1)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.uint64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_arg(dtype, shape, axis, op, last):
    x = RNG.integers(0, 5, shape).astype(dtype)
    (got,) = run_op(op, x, axis=axis, select_last_index=last)
    find = np.argmax if op == "ArgMax" else np.argmin
    want = x.shape[axis] - 1 - find(np.flip(x, axis), axis) if last else find(x, axis)
    np.testing.assert_array_equal(got, np.expand_dims(want, axis))
    assert run_op(op, x, axis=axis, select_last_index=last, keepdims=0)[0].shape == want.shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_of_nan_and_infinity(dtype, axis, op):
    x = RNG.standard_normal((20, 20)).astype(dtype)
    x[3, 5], x[3, 9], x[8, 5] = np.nan, np.nan, np.nan
    x[10], x[:, 11] = -np.inf, np.inf
    (got,) = run_op(op, x, axis=axis, keepdims=0)
    np.testing.assert_array_equal(got, (np.argmax if op == "ArgMax" else np.argmin)(x, axis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_hardmax(dtype, shape, axis):
    check_definition("Hardmax", RNG.integers(0, 5, shape).astype(dtype), axis=axis)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative(dtype, shape, axis, exclusive, reverse):
    x = (
        RNG.uniform(0.5, 1.5, shape).astype(dtype)
        if dtype in (np.float32, np.float64)
        else RNG.integers(1, 9, shape).astype(dtype)
    )
    for op, f, start in (("CumSum", np.cumsum, 0), ("CumProd", np.cumprod, 1)):
        (got,) = run_op(op, x, np.array(axis), constants=(1,), exclusive=exclusive, reverse=reverse)
        y = np.flip(x, axis) if reverse else x
        if exclusive:
            y = np.roll(y, 1, axis)
            y[tuple(slice(1) if a == axis % x.ndim else slice(None) for a in range(x.ndim))] = start
        want = f(y.astype(np.float64) if x.dtype.kind == "f" else y, axis).astype(dtype)
        want = np.flip(want, axis) if reverse else want
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_running_sum_is_accurate():
    x = np.full(1 << 20, 0.1, np.float32)
    (got,) = run_op("CumSum", x, np.array(0), constants=(1,))
    np.testing.assert_allclose(got, np.cumsum(x.astype(np.float64)), rtol=1e-6)


def test_empty():
    assert run_op("ArgMax", np.zeros((0, 3), np.float32), axis=1)[0].shape == (0, 1)
    assert run_op("CumSum", np.zeros((0, 3), np.float32), np.array(0), constants=(1,))[0].shape == (0, 3)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("seed", "step", "draw"), [(0, 0, 0), (7, 1, 3), (-1, 2**40 + 5, 2**32 + 1), (2**63 - 1, -(2**63), 9)]
)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 333), (0, 3)])
def test_random_bits(seed, step, draw, shape):
    seed, step = np.array(seed, np.int64), np.array(step, np.int64)
    check_definition("onnxc.RandomBits", seed, step, outputs=2, draw=draw, shape=shape)
    like = np.zeros(shape, np.float32)
    check_definition("onnxc.RandomBits", seed, step, like, outputs=2, draw=draw)


def test_random_bits_of_one_output():
    seed, step = np.array(3), np.array(5)
    both = run_op("onnxc.RandomBits", seed, step, outputs=2, draw=1, shape=(9,))
    first = run_op("onnxc.RandomBits", seed, step, outputs=("bits", ""), draw=1, shape=(9,))
    second = run_op("onnxc.RandomBits", seed, step, outputs=("", "more"), draw=1, shape=(9,))
    assert (first[0] == both[0]).all()
    assert (second[1] == both[1]).all()


def test_threefry_known_answers():
    """From the authors' test vectors (Random123, kat_vectors: threefry2x32, 20 rounds)."""
    from compiler.codegen.kernels.random import _first, _second

    assert (_first(0, 0, 0, 0), _second(0, 0, 0, 0)) == (0x6B200159, 0x99BA4EFE)
    ones = (0xFFFFFFFF,) * 4
    assert (_first(*ones), _second(*ones)) == (0x1CB996FC, 0xBB002BE7)
    pi = (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)
    assert (_first(*pi), _second(*pi)) == (0xC4923A9C, 0x483DF7A0)
