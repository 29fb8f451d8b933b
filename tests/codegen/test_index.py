"""Gathers, scatters and OneHot against NumPy; wrong indices are reported and stay inside memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.calls import LOWERINGS, Site
from compiler.ir.types import Tensor
from tests.codegen.definition import check_definition
from tests.codegen.runner import NodeRun, Reported, make_node, run_op

RNG = np.random.default_rng(0)
DTYPES = [np.float32, np.float64, np.int8, np.bool_, np.int64, np.float16]


def values(shape, dtype=np.float32):
    return RNG.integers(0, 2, shape).astype(dtype) if dtype == np.bool_ else (RNG.integers(-9, 9, shape)).astype(dtype)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "axis", "of"), [((5, 7), 0, (3, 4)), ((5, 7), 1, (9,)), ((4, 3, 6), -2, ()), ((9,), 0, (70,))]
)
def test_gather(dtype, index, shape, axis, of):
    x, at = values(shape, dtype), RNG.integers(-shape[axis], shape[axis], of).astype(index)
    (got,) = run_op("Gather", x, np.asarray(at), axis=axis)
    np.testing.assert_array_equal(got, np.take(x, at, axis))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "of", "axis"), [((5, 7), (3, 7), 0), ((5, 7), (4, 9), 1), ((4, 3, 6), (4, 8, 5), 1), ((9,), (70,), 0)]
)
def test_gather_elements(dtype, shape, of, axis):
    x, at = values(shape, dtype), RNG.integers(-shape[axis], shape[axis], of)
    (got,) = run_op("GatherElements", x, at, axis=axis)
    part = x[tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(of))]
    np.testing.assert_array_equal(got, np.take_along_axis(part, at % shape[axis], axis))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "of", "batch"),
    [
        ((5, 7), (3, 2), 0),
        ((5, 7), (3, 1), 0),
        ((4, 3, 6), (4, 2, 1), 1),
        ((4, 3, 6), (4, 2), 1),
        ((2, 3, 4, 5), (2, 3, 6, 1), 2),
    ],
)
def test_gather_nd(dtype, shape, of, batch):
    bounds = np.array(shape[batch : batch + of[-1]])
    check_definition("GatherND", values(shape, dtype), RNG.integers(0, bounds, of), batch_dims=batch)
    x, at = values((5, 7)), np.array([[-1, -7], [4, 6]])
    np.testing.assert_array_equal(run_op("GatherND", x, at)[0], x[at[:, 0], at[:, 1]])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(dtype, index, axis):
    at = np.array([[1, -1, 4], [-6, 5, -5]], index)
    v = np.array([0, 1]).astype(dtype) if dtype == np.bool_ else np.array([3, 7]).astype(dtype)
    (got,) = run_op("OneHot", at, np.array(5), v, constants=(1,), axis=axis)
    hot = np.zeros((2, 3, 5), bool)
    for o, i, j in ((0, 0, 1), (0, 1, 4), (0, 2, 4), (1, 2, 0)):
        hot[o, i, j] = True
    np.testing.assert_array_equal(got, np.where(np.moveaxis(hot, -1, axis), v[1], v[0]))


REDUCTIONS = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint64])
@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "of", "axis"), [((5, 7), (3, 7), 0), ((5, 7), (4, 9), 1), ((4, 3, 6), (4, 8, 5), 1), ((9,), (70,), 0)]
)
def test_scatter_elements(dtype, how, shape, of, axis):
    x, at, updates = values(shape, dtype), RNG.integers(-shape[axis], shape[axis], of), values(of, dtype)
    (got,) = run_op("ScatterElements", x, at, updates, axis=axis, reduction=how)
    want = x.copy()
    for c in np.ndindex(*of):
        t = list(c)
        t[axis] = at[c]
        f = REDUCTIONS[how]
        want[tuple(t)] = updates[c] if f is None else f(want[tuple(t)], updates[c])
    np.testing.assert_array_equal(got, want)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint64])
@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "of"), [((5, 7), (30, 1)), ((5, 7), (30, 2)), ((4, 3, 6), (2, 3, 2)), ((4, 3), (2, 0))]
)
def test_scatter_nd(dtype, how, shape, of):
    d = of[-1]
    at = RNG.integers(-np.array(shape[:d], int), np.array(shape[:d], int), of)
    x, updates = values(shape, dtype), values((*of[:-1], *shape[d:]), dtype)
    (got,) = run_op("ScatterND", x, at, updates, reduction=how)
    want = x.copy()
    for c in np.ndindex(*of[:-1]):
        t, f = tuple(at[c]), REDUCTIONS[how]
        want[t] = updates[c] if f is None else f(want[t], updates[c])
    np.testing.assert_array_equal(got, want)


def test_scatters_of_booleans():
    x, at = np.array([True, False, True]), np.array([1, 2])
    np.testing.assert_array_equal(run_op("ScatterElements", x, at, ~x[:2])[0], [True, False, True])
    np.testing.assert_array_equal(run_op("ScatterND", x, at[:, None], ~x[:2])[0], [True, False, True])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "axis", "of"),
    [((5, 7), 0, (3, 4)), ((5, 7), 1, (9,)), ((4, 3, 6), 1, (2, 2)), ((9,), 0, (70,)), ((1000, 33), 0, (64,))],
)
def test_gather_grad(dtype, index, shape, axis, of):
    at = RNG.integers(-shape[axis], shape[axis], of).astype(index)
    dy = values((*shape[:axis], *of, *shape[axis + 1 :]), dtype)
    check_definition("onnxc.GatherGrad", dy, at, axis=axis, shape=shape)


def operands(op, at):
    """Operands with which `at` are the indices; they have 4 rows of 3."""
    x = values((4, 3))
    if op == "Gather":
        return (x, at), {}
    if op == "GatherElements":
        return (x, at.reshape(1, 3)), {}
    if op == "GatherND":
        return (x, at.reshape(3, 1)), {}
    if op == "ScatterElements":
        return (x, at.reshape(1, 3), values((1, 3))), {}
    if op == "ScatterND":
        return (x, at.reshape(3, 1), values((3, 3))), {}
    return (values((3, 3)), at), {"axis": 0, "shape": (4, 3)}


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "op", ["Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "onnxc.GatherGrad"]
)
@pytest.mark.parametrize("bad", [4, -5, 2**62, -(2**62)])
@pytest.mark.parametrize("where", [0, 2])
def test_wrong_index(op, bad, where):
    at = np.zeros(3, np.int64)
    at[where] = bad
    inputs, attrs = operands(op, at)
    with pytest.raises(Reported, match=rf"index out of range \[-4, 4\).*: element {where}$"):
        run_op(op, *inputs, **attrs)
    node, types, feeds, known = make_node(op, *inputs, **attrs)  # and without the check: nothing outside is written
    run = NodeRun(node, types, feeds, known)
    kept = [i for i, c in enumerate(run.calls) if not c.check]
    for name in ("calls", "_records", "_entries"):
        setattr(run, name, [getattr(run, name)[i] for i in kept])
    run.reset()
    run.run(2)
    run.check()


def test_constant_indices_are_not_checked_again():
    x, at = values((4, 3)), np.array([1, 2])
    node, types, _, known = make_node("Gather", x, at, constants=(1,))
    calls = LOWERINGS["Gather"](Site(node, types, {k: Tensor(a) for k, a in known.items()}))
    assert not any(c.check for c in calls)


def test_empty():
    none = np.zeros(0, np.int64)
    assert run_op("Gather", values((4, 3)), none)[0].shape == (0, 3)
    assert run_op("Gather", values((0, 3)), none)[0].shape == (0, 3)
    assert run_op("GatherElements", values((4, 3)), none.reshape(0, 3))[0].shape == (0, 3)
    x = values((4, 3))
    np.testing.assert_array_equal(run_op("ScatterElements", x, none.reshape(0, 3), values((0, 3)))[0], x)
    np.testing.assert_array_equal(run_op("ScatterND", x, none.reshape(0, 1), values((0, 3)))[0], x)
    (got,) = run_op("onnxc.GatherGrad", values((0, 3)), none, axis=0, shape=(4, 3))
    np.testing.assert_array_equal(got, np.zeros((4, 3)))
    with pytest.raises(Reported):
        run_op("Gather", values((0, 3)), np.array([0]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_gather_any(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    of = data.draw(st.lists(st.integers(0, 4), max_size=2))
    x, at = values(shape), np.asarray(RNG.integers(-shape[axis], shape[axis], of))
    np.testing.assert_array_equal(run_op("Gather", x, at, axis=axis)[0], np.take(x, at, axis))
