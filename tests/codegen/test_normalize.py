"""Batch and layer normalization and their gradients, against NumPy in double and their definitions."""

import numpy as np
import pytest

import compiler.codegen.kernels.batch_norm
import compiler.codegen.kernels.layer_norm  # noqa: F401
from tests.codegen.definition import check_definition, defined
from tests.codegen.runner import run_op

FLOATS = [np.float32, np.float64]
RNG = np.random.default_rng(0)
EPSILON = float(np.float32(1e-5))
"""As ONNX keeps it."""


def values(shape, dtype):
    return (RNG.standard_normal(shape) * 3 + 1).astype(dtype)


SHAPES = [(8, 3), (64, 130), (2, 3, 50), (4, 5, 7, 7), (16, 4, 40, 40), (1, 2, 3), (2, 3, 1, 1)]


def rtol(dtype):
    return 5e-6 if dtype == np.float32 else 1e-12


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm(dtype, shape):
    x, scale, bias = values(shape, dtype), values(shape[1], dtype), values(shape[1], dtype)
    y, mean, variance = run_op("onnxc.BatchNorm", x, scale, bias, outputs=3, epsilon=EPSILON)
    wide = x.astype(np.float64)
    axes, column = (0, *range(2, x.ndim)), (1, -1, *(1 for _ in shape[2:]))
    m, v = wide.mean(axes), wide.var(axes)
    want = (wide - m.reshape(column)) * (scale / np.sqrt(v + EPSILON)).reshape(column) + bias.reshape(column)
    tolerance = {"rtol": rtol(dtype), "atol": 10 * rtol(dtype)}
    np.testing.assert_allclose(mean, m, **tolerance)
    np.testing.assert_allclose(variance, v, **tolerance)
    np.testing.assert_allclose(y, want, **tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_grad(dtype, shape):
    dy, x, scale = values(shape, dtype), values(shape, dtype), values(shape[1], dtype)
    axes = (0, *range(2, x.ndim))
    mean = x.astype(np.float64).mean(axes).astype(dtype)
    inv = (1 / np.sqrt(x.astype(np.float64).var(axes) + 1e-5)).astype(dtype)
    got = run_op("onnxc.BatchNormGrad", dy, x, scale, mean, inv, outputs=3)
    wide = [a.astype(np.float64) for a in (dy, x, scale, mean, inv)]
    for g, w in zip(got, defined("onnxc.BatchNormGrad", *wide, outputs=3), strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol(dtype), atol=rtol(dtype) * 10 * max(1, np.abs(w).max()))


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5)])
@pytest.mark.parametrize("kept", [(1, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 1)])
def test_batch_norm_results_that_nobody_needs(shape, kept):
    """A frozen scale has no gradient, and running statistics may be all that is wanted."""
    dy, x, w, m, inv = values(shape, np.float32), values(shape, np.float32), *(values(3, np.float32) for _ in range(3))
    for op, operands, attrs in [
        ("onnxc.BatchNorm", (x, w, m), {"epsilon": 1e-5}),
        ("onnxc.BatchNormGrad", (dy, x, w, m, inv), {}),
    ]:
        want = run_op(op, *operands, outputs=3, **attrs)
        got = run_op(op, *operands, outputs=[f"y{i}" if k else "" for i, k in enumerate(kept)], **attrs)
        for i, g in enumerate(got):
            assert (g is not None) == bool(kept[i])
            if g is not None:
                np.testing.assert_array_equal(g, want[i])


def test_batch_norm_does_not_cancel():
    x = (RNG.standard_normal((32, 2, 30)) + 10000).astype(np.float32)
    ones = np.ones(2, np.float32)
    _, _, variance = run_op("onnxc.BatchNorm", x, ones, ones, outputs=3, epsilon=1e-5)
    np.testing.assert_allclose(variance, x.astype(np.float64).var((0, 2)), rtol=1e-3)


LAYERS = [
    ((5, 8), -1),
    ((3, 4, 70), 2),
    ((3, 4, 70), 1),
    ((2, 3, 4, 5), 0),
    ((200, 130), 1),
    ((3, 2500), -1),
    ((4, 1), 1),
]


def layer(x, scale, bias, axis, epsilon=EPSILON):
    x = x.astype(np.float64)
    axes = tuple(range(axis % x.ndim, x.ndim))
    m, v = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    inv = 1 / np.sqrt(v + epsilon)
    return (x - m) * inv * scale + (0 if bias is None else bias), m, inv


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), LAYERS)
@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(dtype, shape, axis, biased):
    row = shape[axis % len(shape) :]
    x, scale, bias = values(shape, dtype), values(row, dtype), values(row, dtype) if biased else None
    operands = [x, scale, *([bias] if biased else [])]
    tolerance = {"rtol": rtol(dtype), "atol": 10 * rtol(dtype)}
    (got,) = run_op("LayerNormalization", *operands, axis=axis)
    want, m, inv = layer(x, scale, bias, axis)
    np.testing.assert_allclose(got, want, **tolerance)
    got, mean, inverse = run_op("LayerNormalization", *operands, outputs=3, axis=axis)
    assert mean.dtype == inverse.dtype == np.float32
    np.testing.assert_allclose(got, want, **tolerance)
    np.testing.assert_allclose(mean, m, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inverse, inv, rtol=1e-5)
    _, _, inverse = run_op("LayerNormalization", *operands, outputs=("y", "", "inv"), axis=axis)
    np.testing.assert_allclose(inverse, inv, rtol=1e-5)


@pytest.mark.parametrize("scale", [(), (1,), (4, 1), (3, 1, 5), (3, 4, 5), (1, 4, 5)])
def test_layer_norm_broadcasts_scale(scale):
    x, w, b = values((3, 4, 5), np.float32), values(scale, np.float32), values((5,), np.float32)
    w = np.asarray(w, np.float32)
    (got,) = run_op("LayerNormalization", x, w, b, axis=1)
    np.testing.assert_allclose(got, layer(x, w, b, 1)[0], rtol=1e-5, atol=1e-5)
    dy, (_, m, inv) = values((3, 4, 5), np.float32), layer(x, w, b, 1)
    check_definition(
        "onnxc.LayerNormGrad", dy, x, w, m.astype(np.float32), inv.astype(np.float32), outputs=2, axis=1, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("shape", "axis"), LAYERS[:-1])
def test_layer_norm_grad(dtype, shape, axis):
    axis %= len(shape)
    dy, x, scale = values(shape, dtype), values(shape, dtype), values(shape[axis:], dtype)
    _, m, inv = layer(x, scale, None, axis)
    got = run_op("onnxc.LayerNormGrad", dy, x, scale, m.astype(dtype), inv.astype(dtype), outputs=2, axis=axis)
    wide = [a.astype(np.float64) for a in (dy, x, scale, m.astype(dtype), inv.astype(dtype))]
    for g, w in zip(got, defined("onnxc.LayerNormGrad", *wide, outputs=2, axis=axis), strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol(dtype), atol=rtol(dtype) * 10 * max(1, np.abs(w).max()))


def test_empty():
    scale = np.ones(3, np.float32)
    assert run_op("LayerNormalization", np.ones((0, 3), np.float32), scale)[0].shape == (0, 3)
    none, column = np.ones((0, 3), np.float32), np.ones((0, 1), np.float32)
    dx, dscale = run_op("onnxc.LayerNormGrad", none, none, scale, column, column, outputs=2, axis=1)
    assert dx.shape == (0, 3)
    np.testing.assert_array_equal(dscale, 0)
