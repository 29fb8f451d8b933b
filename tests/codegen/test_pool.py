"""Pools against onnx.reference or an obvious loop, their gradients against their definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compiler.ir.graph import Node
from compiler.ir.windows import windows
from tests.codegen.definition import check_definition
from tests.codegen.runner import run_op

FLOATS = [np.float32, np.float64]
RNG = np.random.default_rng(0)


def values(shape, dtype=np.float32, ties=False):
    return (RNG.integers(-3, 3, shape) if ties else RNG.standard_normal(shape) * 10).astype(dtype)


def pooled(x, how, **attrs):
    """(y, indices) by the text of the standard; how: 'max', 'average' or p."""
    spatial = x.shape[2:]
    axes = windows(Node("MaxPool", (), (), attrs), spatial, attrs["kernel_shape"])
    y = np.zeros((*x.shape[:2], *(a.out for a in axes)), np.float64)
    at = np.zeros(y.shape, np.int64)
    order = "F" if attrs.get("storage_order") else "C"
    for o in np.ndindex(*y.shape[2:]):
        taps = [[a.start(i) + k * a.dilation for k in range(a.kernel)] for a, i in zip(axes, o, strict=True)]
        inside = [[t for t in ts if 0 <= t < n] for ts, n in zip(taps, spatial, strict=True)]
        window = x[(slice(None), slice(None), *np.ix_(*inside))].astype(np.float64).reshape(*x.shape[:2], -1)
        if how == "max":
            where = list(itertools.product(*inside))
            best = window.argmax(-1)  # the first NaN, if there is one
            y[(slice(None), slice(None), *o)] = window.max(-1)
            flat = np.array([np.ravel_multi_index(w, spatial, order=order) for w in where])[best]
            planes = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2]) * np.prod(spatial, dtype=int)
            at[(slice(None), slice(None), *o)] = flat + planes
        elif how == "average":
            count = 1
            for ts, a in zip(taps, axes, strict=True):
                low, high = (-a.before, a.size + a.after) if attrs.get("count_include_pad") else (0, a.size)
                count *= sum(low <= t < high for t in ts)
            y[(slice(None), slice(None), *o)] = window.sum(-1) / count
        else:
            y[(slice(None), slice(None), *o)] = (np.abs(window) ** how).sum(-1) ** (1 / how)
    return y.astype(x.dtype), at


CASES = [
    ((2, 3, 8, 8), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((2, 3, 28, 28), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((2, 3, 9, 11), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((2, 3, 9, 11), {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}),
    ((1, 2, 12, 40), {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}),
    ((1, 2, 12, 13), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 0, 1, 1), "ceil_mode": 1}),
    ((1, 2, 12, 13), {"kernel_shape": (3, 2), "strides": (3, 1), "dilations": (2, 3), "pads": (1, 2, 2, 1)}),
    ((2, 2, 7, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((2, 2, 7, 8), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_LOWER"}),
    ((2, 2, 7, 8), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "VALID"}),
    ((2, 3, 31), {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1)}),
    ((2, 3, 31), {"kernel_shape": (4,)}),
    ((1, 2, 5, 6, 7), {"kernel_shape": (2, 3, 2), "strides": (1, 2, 2), "pads": (0, 1, 1, 1, 1, 0)}),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "attrs"), CASES)
@pytest.mark.parametrize("ties", [False, True])
def test_max_pool(dtype, shape, attrs, ties):
    x = values(shape, dtype, ties)
    want, indices = pooled(x, "max", **attrs)
    (got,) = run_op("MaxPool", x, **attrs)
    np.testing.assert_array_equal(got, want)
    got, at = run_op("MaxPool", x, outputs=2, **attrs)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(at, indices)
    _, at = run_op("MaxPool", x, outputs=2, storage_order=1, **attrs)
    np.testing.assert_array_equal(at, pooled(x, "max", storage_order=1, **attrs)[1])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16])
def test_max_pool_of_other_types(dtype):
    x = RNG.integers(0, 100, (2, 3, 9, 9)).astype(dtype)
    for attrs in ({"strides": (2, 2)}, {"pads": (1, 1, 1, 1)}):
        (got,) = run_op("MaxPool", x, kernel_shape=(2, 2), **attrs)
        np.testing.assert_array_equal(got, pooled(x, "max", kernel_shape=(2, 2), **attrs)[0])


@pytest.mark.parametrize("attrs", [{"strides": (2, 2)}, {"strides": (1, 1)}])
def test_nan_and_infinity(attrs):
    x = values((1, 1, 8, 8))
    x[0, 0, 3, 3], x[0, 0, 3, 4] = np.nan, np.nan
    x[0, 0, 6:, :] = -np.inf
    want, indices = pooled(x, "max", kernel_shape=(2, 2), **attrs)
    np.testing.assert_array_equal(run_op("MaxPool", x, kernel_shape=(2, 2), **attrs)[0], want)
    got, at = run_op("MaxPool", x, outputs=2, kernel_shape=(2, 2), **attrs)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(at, indices)
    dy = values(want.shape)
    (dx,) = run_op("onnxc.MaxPoolGrad", dy, x, kernel_shape=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), **attrs)
    expected = np.zeros(x.size)
    np.add.at(expected, indices.reshape(-1), dy.reshape(-1))
    np.testing.assert_allclose(dx.reshape(-1), expected, rtol=1e-6)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "attrs"), CASES)
@pytest.mark.parametrize("included", [0, 1])
def test_average_pool(dtype, shape, attrs, included):
    x = values(shape, dtype)
    (got,) = run_op("AveragePool", x, count_include_pad=included, **attrs)
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    want, _ = pooled(x, "average", count_include_pad=included, **attrs)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_lp_pool(p, dtype):
    x = values((2, 3, 9, 8), dtype)
    (got,) = run_op("LpPool", x, p=p, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
    want, _ = pooled(x, p, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def explicit(shape, attrs):
    axes = windows(Node("MaxPool", (), (), attrs), shape[2:], attrs["kernel_shape"])
    return {
        "kernel_shape": attrs["kernel_shape"],
        "strides": tuple(a.stride for a in axes),
        "dilations": tuple(a.dilation for a in axes),
        "pads": (*(a.before for a in axes), *(a.after for a in axes)),
        "ceil_mode": attrs.get("ceil_mode", 0),
    }, (*shape[:2], *(a.out for a in axes))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "attrs"), CASES)
@pytest.mark.parametrize("ties", [False, True])
def test_max_pool_grad(dtype, shape, attrs, ties):
    x = values(shape, dtype, ties)
    attrs, out = explicit(shape, attrs)
    dy = values(out, dtype)
    (dx,) = run_op("onnxc.MaxPoolGrad", dy, x, **attrs)
    want = np.zeros(x.size)
    np.add.at(want, pooled(x, "max", **attrs)[1].reshape(-1), dy.reshape(-1))
    np.testing.assert_allclose(dx.reshape(-1), want, rtol=1e-6, atol=1e-5)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "attrs"), CASES)
@pytest.mark.parametrize("included", [0, 1])
def test_average_pool_grad(dtype, shape, attrs, included):
    attrs, out = explicit(shape, attrs)
    dy = values(out, dtype)
    attrs |= {"shape": shape, "count_include_pad": included}
    (dx,) = run_op("onnxc.AveragePoolGrad", dy, **attrs)
    x = values(shape, np.float64)  # <dy, pool(x)> = <grad(dy), x>
    left = (dy.astype(np.float64) * pooled(x, "average", **attrs)[0]).sum()
    np.testing.assert_allclose((dx * x).sum(), left, rtol=1e-5, atol=1e-2 if dtype == np.float32 else 1e-9)


def test_gradients_agree_with_their_definitions():
    attrs, out = explicit((2, 3, 9, 11), CASES[5][1])
    x, dy = values((2, 3, 9, 11)), values(out)
    check_definition("onnxc.MaxPoolGrad", dy, x, **attrs)
    check_definition("onnxc.AveragePoolGrad", dy, shape=x.shape, count_include_pad=0, **attrs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 50), (1, 2, 3, 4, 5), (2, 0, 3, 3)])
def test_global_pools(dtype, shape):
    x, axes = values(shape, dtype), tuple(range(2, len(shape)))
    (got,) = run_op("GlobalAveragePool", x)
    want = x.mean(axes, np.float64, keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(run_op("GlobalMaxPool", x)[0], x.max(axes, keepdims=True))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p):
    for shape in ((2, 3, 4, 5), (2, 3, 50), (1, 2, 2, 3, 2, 3)):
        x = values(shape)
        (got,) = run_op("GlobalLpPool", x, p=p)
        want = (np.abs(x.astype(np.float64)) ** p).sum(tuple(range(2, len(shape))), keepdims=True) ** (1 / p)
        np.testing.assert_allclose(got, want, rtol=1e-5)


axis = st.tuples(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)
)


@settings(max_examples=80, deadline=None)
@given(st.lists(axis, min_size=1, max_size=3), st.integers(0, 1), st.sampled_from(FLOATS), st.booleans())
def test_any_window(axes, ceil, dtype, ties):
    shape = (2, 2, *(a[0] for a in axes))
    attrs = {
        "kernel_shape": tuple(a[1] for a in axes),
        "strides": tuple(a[2] for a in axes),
        "dilations": tuple(a[3] for a in axes),
        "pads": (*(a[4] for a in axes), *(a[5] for a in axes)),
        "ceil_mode": ceil,
    }
    found = windows(Node("MaxPool", (), (), attrs), shape[2:], attrs["kernel_shape"])
    assume(all(a.out >= 1 and a.touches_input() for a in found))
    x = values(shape, dtype, ties)
    want, indices = pooled(x, "max", **attrs)
    np.testing.assert_array_equal(run_op("MaxPool", x, **attrs)[0], want)
    _, at = run_op("MaxPool", x, outputs=2, **attrs)
    np.testing.assert_array_equal(at, indices)
    dy = values(want.shape, dtype)
    (dx,) = run_op("onnxc.MaxPoolGrad", dy, x, **attrs)
    expected = np.zeros(x.size)
    np.add.at(expected, indices.reshape(-1), dy.reshape(-1))
    np.testing.assert_allclose(dx.reshape(-1), expected, rtol=1e-6, atol=1e-4)
