"""Reductions against NumPy in double."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler.codegen.kernels.reduce  # noqa: F401
from tests.codegen.runner import make_node, run_op

FLOATS = [np.float32, np.float64]
OPS = ["Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp"]
RNG = np.random.default_rng(0)


def reference(op, x, axes, keepdims=True):
    x = x.astype(np.float64) if x.dtype.kind == "f" else x
    k = {"axis": axes, "keepdims": keepdims}
    with np.errstate(all="ignore"):
        match op:
            case "Sum":
                return x.sum(**k)
            case "Mean":
                return x.mean(**k)
            case "Max":
                return x.max(**k)
            case "Min":
                return x.min(**k)
            case "Prod":
                return x.prod(**k)
            case "SumSquare":
                return (x * x).sum(**k)
            case "L1":
                return np.abs(x).sum(**k)
            case "L2":
                return np.sqrt((x * x).sum(**k))
            case "LogSum":
                return np.log(x.sum(**k))
            case "LogSumExp":
                m = x.max(axis=axes, keepdims=True)
                y = np.log(np.exp(x - m).sum(axis=axes, keepdims=True)) + m
                return y if keepdims else y.reshape(x.sum(**k).shape)
    raise KeyError(op)


def check(op, x, axes, keepdims=1, rtol=None):
    (got,) = run_op(f"Reduce{op}", x, np.array(axes, np.int64), constants=(1,), keepdims=keepdims)
    want = reference(op, x, tuple(axes), bool(keepdims))
    assert got.shape == want.shape
    if x.dtype.kind == "f":
        scale = np.abs(x).max(initial=1) * np.sqrt(x.size / max(want.size, 1))
        rtol = rtol or {2: 2e-3, 4: 1e-6, 8: 1e-13}[x.dtype.itemsize]
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale)
    else:
        np.testing.assert_array_equal(got, want.astype(x.dtype))
    return got


SHAPES = [
    ((7,), (0,)),
    ((3, 5), (0,)),
    ((3, 5), (1,)),
    ((3, 5), (0, 1)),
    ((64, 10), (0,)),
    ((2, 3, 4, 5), (0, 2)),
    ((2, 3, 4, 5), (1, 3)),
    ((4, 70, 9), (0, 2)),
    ((4, 70, 129), (1,)),
    ((2, 2500), (1,)),
    ((100, 3), (0,)),
    ((3, 1, 2), (1,)),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_floats(op, dtype, shape, axes):
    x = RNG.standard_normal(shape).astype(dtype)
    if op == "LogSum":
        x = np.abs(x) + dtype(0.1)
    check(op, x, axes, keepdims=len(shape) % 2)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "L2", "LogSumExp"])
def test_half(op):
    check(op, RNG.standard_normal((5, 40)).astype(np.float16), (1,))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "SumSquare", "LogSumExp"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("shape", "axes"), [((70001,), (0,)), ((19000, 7), (0,)), ((80, 3, 999), (0, 2)), ((2, 70000), (1,))]
)
def test_parts(op, dtype, shape, axes):
    """Few results of many elements: parts of them in parallel."""
    x = RNG.standard_normal(shape).astype(dtype)
    node, types, feeds, known = make_node(f"Reduce{op}", x, np.array(axes), constants=(1,))
    from tests.codegen.runner import NodeRun

    assert len(NodeRun(node, types, feeds, known).calls) > 1
    check(op, x, axes)


def test_sums_are_accurate():
    x = np.full((1 << 22,), 0.1, np.float32)
    (got,) = run_op("ReduceSum", x)
    assert abs(got.item() / (np.float64(np.float32(0.1)) * x.size) - 1) < 1e-6
    (got,) = run_op("ReduceSum", x.reshape(-1, 64), np.array([0]), constants=(1,))
    np.testing.assert_allclose(got[0], np.float64(np.float32(0.1)) * (x.size // 64), rtol=1e-6)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize(("shape", "axes"), [((6, 5), (1,)), ((6, 70), (0,)), ((3, 4, 5), (0, 2))])
def test_integers(op, dtype, shape, axes):
    x = RNG.integers(0 if np.dtype(dtype).kind == "u" else -9, 9, shape).astype(dtype)
    check(op, x, axes)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.bool_])
def test_narrow_extrema(op, dtype):
    x = RNG.integers(0, 2, (50, 3)).astype(dtype) if dtype == np.bool_ else RNG.integers(0, 100, (50, 3)).astype(dtype)
    check(op, x, (0,))
    check(op, x, (1,))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "LogSumExp"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_shows(op, dtype, axis):
    for at in ((0, 0), (37, 41), (49, 49)):
        x = RNG.standard_normal((50, 50)).astype(dtype)
        x[at] = np.nan
        (got,) = run_op(f"Reduce{op}", x, np.array([axis]), constants=(1,), keepdims=0)
        assert np.isnan(got[at[1 - axis]])
        assert np.isnan(got).sum() == 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [0, 1])
def test_log_sum_exp_is_stable(dtype, axis):
    x = np.array([[1000, 1000, 1], [-np.inf, -np.inf, -np.inf], [np.inf, 0, 1], [-1000, -1001, -np.inf]], dtype)
    x = x if axis == 1 else x.T.copy()
    (got,) = run_op("ReduceLogSumExp", x, np.array([axis]), constants=(1,), keepdims=0)
    want = [1000 + np.log(2), -np.inf, np.inf, -1000 + np.log(1 + np.exp(-1.0))]
    np.testing.assert_allclose(got, np.array(want, dtype), rtol=1e-6)


EMPTY = {"Sum": 0, "Prod": 1, "Max": -np.inf, "Min": np.inf, "L1": 0, "L2": 0, "SumSquare": 0, "Mean": np.nan}
EMPTY |= {"LogSum": -np.inf, "LogSumExp": -np.inf}


@pytest.mark.parametrize("op", OPS)
def test_empty_sets(op):
    (got,) = run_op(f"Reduce{op}", np.zeros((2, 0, 3), np.float32), np.array([1]), constants=(1,))
    np.testing.assert_array_equal(got, np.full((2, 1, 3), EMPTY[op], np.float32))
    (got,) = run_op(f"Reduce{op}", np.zeros((2, 0, 3), np.float32), np.array([0]), constants=(1,))
    assert got.shape == (1, 0, 3)


def test_empty_sets_of_integers():
    x = np.zeros((0, 3), np.int32)
    assert (run_op("ReduceMax", x, np.array([0]), constants=(1,))[0] == np.iinfo(np.int32).min).all()
    assert (run_op("ReduceMin", x.astype(np.bool_), np.array([0]), constants=(1,))[0] == True).all()  # noqa: E712
    assert (run_op("ReduceMax", x.astype(np.bool_), np.array([0]), constants=(1,))[0] == False).all()  # noqa: E712


def test_axes_absent_or_empty():
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    none = np.zeros(0, np.int64)
    for axes in ((), (none,)):
        (got,) = run_op("ReduceSum", x, *axes, constants=(1,), keepdims=0)
        np.testing.assert_allclose(got, x.sum(), rtol=1e-5)
    for axes in ((), (none,)):
        (got,) = run_op("ReduceSum", x, *axes, constants=(1,), noop_with_empty_axes=1)
        np.testing.assert_array_equal(got, x)
        (got,) = run_op("ReduceSumSquare", x, *axes, constants=(1,), noop_with_empty_axes=1)
        np.testing.assert_array_equal(got, x * x)
        (got,) = run_op("ReduceLogSumExp", x, *axes, constants=(1,), noop_with_empty_axes=1)
        np.testing.assert_allclose(got, x, rtol=1e-6)
    (got,) = run_op("ReduceMax", np.array(3.0, np.float32))
    assert got == 3


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=5),
    st.sampled_from(["Sum", "Max", "Mean", "L2"]),
    st.sampled_from(FLOATS),
)
def test_any_shape(axes, op, dtype):
    shape, reduced = [n for n, _ in axes], tuple(i for i, (_, r) in enumerate(axes) if r)
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    if not reduced or (op == "Max" and 0 in shape):
        return
    check(op, x, reduced)
