"""Convolutions, pooling, batch and layer normalization, and their gradients against PyTorch in float64. An extra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.codegen.support import has_kernel
from compiler.ir.builder import Builder
from compiler.ir.types import TensorType
from compiler.passes.pipeline import passes
from compiler.passes.pipeline import run as run_passes
from tests.codegen.graphs import Running
from tests.gradcheck import scalar, with_gradients

torch = pytest.importorskip("torch")
F = torch.nn.functional

Case = tuple[str, list[tuple[int, ...]], dict[str, Any], Callable[..., Any]]

X1, X2, X3 = (2, 4, 9), (2, 4, 9, 8), (2, 4, 5, 6, 4)


def _pool(op: str, shape: tuple[int, ...], attrs: dict[str, Any], pool: Callable[..., Any]) -> Case:
    return op, [shape], attrs, pool


CASES: dict[str, Case] = {
    "conv 1-D": (
        "Conv",
        [X1, (6, 4, 3), (6,)],
        {"strides": (2,), "pads": (1, 1)},
        lambda x, w, b: F.conv1d(x, w, b, 2, 1),
    ),
    "conv 2-D": (
        "Conv",
        [X2, (6, 4, 3, 2), (6,)],
        {"strides": (2, 1), "pads": (1, 0, 1, 0), "dilations": (1, 2)},
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2)),
    ),
    "conv in groups": (
        "Conv",
        [X2, (6, 2, 3, 3), (6,)],
        {"group": 2, "pads": (1, 1, 1, 1)},
        lambda x, w, b: F.conv2d(x, w, b, 1, 1, 1, 2),
    ),
    "depthwise conv": (
        "Conv",
        [X2, (4, 1, 3, 3), (4,)],
        {"group": 4},
        lambda x, w, b: F.conv2d(x, w, b, groups=4),
    ),
    "conv 3-D": ("Conv", [X3, (3, 4, 2, 3, 2)], {}, lambda x, w: F.conv3d(x, w)),
    "transposed conv": (
        "ConvTranspose",
        [X2, (4, 3, 3, 2), (3,)],
        {"strides": (2, 3), "pads": (1, 0, 1, 0), "output_padding": (1, 2)},
        lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2)),
    ),
    "transposed conv in groups": (
        "ConvTranspose",
        [X1, (4, 3, 3)],
        {"strides": (2,), "group": 2, "dilations": (2,)},
        lambda x, w: F.conv_transpose1d(x, w, None, 2, 0, 0, 2, 2),
    ),
    "max pool": _pool(
        "MaxPool",
        X2,
        {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 1, 1, 1)},
        lambda x: F.max_pool2d(x, (3, 2), 2, 1),
    ),
    "max pool, dilated, last window cut": _pool(
        "MaxPool",
        X1,
        {"kernel_shape": (2,), "strides": (2,), "dilations": (2,), "ceil_mode": 1},
        lambda x: F.max_pool1d(x, 2, 2, 0, 2, True),
    ),
    "average pool": _pool(
        "AveragePool",
        X2,
        {"kernel_shape": (3, 3), "strides": (2, 1), "pads": (1, 1, 1, 1)},
        lambda x: F.avg_pool2d(x, 3, (2, 1), 1, count_include_pad=False),
    ),
    "average pool with padding": _pool(
        "AveragePool",
        X3,
        {"kernel_shape": (2, 2, 2), "pads": (1,) * 6, "count_include_pad": 1},
        lambda x: F.avg_pool3d(x, 2, 1, 1, count_include_pad=True),
    ),
    "global average": _pool("GlobalAveragePool", X2, {}, lambda x: x.mean((2, 3), keepdim=True)),
    "global maximum": _pool("GlobalMaxPool", X2, {}, lambda x: x.amax((2, 3), keepdim=True)),
    "layer normalization": (
        "LayerNormalization",
        [X2, (9, 8), (9, 8)],
        {"axis": 2, "epsilon": 1e-3},
        lambda x, s, b: F.layer_norm(x, (9, 8), s, b, float(np.float32(1e-3))),
    ),
    "softmax": ("Softmax", [X2], {"axis": 1}, lambda x: F.softmax(x, 1)),
    "log softmax": ("LogSoftmax", [X2], {"axis": -1}, lambda x: F.log_softmax(x, -1)),
}


def _check(
    build: Callable[[Builder, list[str]], str], shapes: list[tuple[int, ...]], expected: Callable[..., Any]
) -> None:
    """Value and gradients by machine code, of a random combination of the elements of the result and their squares."""
    rng = np.random.default_rng(0)
    b = Builder()
    names = [b.input(f"x{i}", TensorType("f64", s)) for i, s in enumerate(shapes)]
    b.output("y", build(b, names))
    feeds = {v: rng.standard_normal(s) for v, s in zip(names, shapes, strict=True)}
    loss = scalar(b.build(), ["y"], np.random.default_rng(1), square=True)
    found = Running(with_gradients(loss, "loss", names, expand=lambda g: run_passes(g, passes(has_kernel))))(feeds)

    tensors = [torch.tensor(a, requires_grad=True) for a in feeds.values()]
    y = expected(*tensors)
    again = np.random.default_rng(1)
    weights = again.uniform(0.5, 1.5, tuple(y.shape)) * again.choice([-1, 1], tuple(y.shape))
    total = (y * torch.tensor(weights) * (y + 0.7)).sum()
    total.backward()
    np.testing.assert_allclose(found["loss"], total.detach().numpy(), rtol=1e-10)
    for i, t in enumerate(tensors):
        scale = float(t.grad.abs().max())
        np.testing.assert_allclose(found[f"d{i}"], t.grad.numpy(), rtol=1e-9, atol=1e-10 * scale, err_msg=names[i])


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_pytorch(case: str) -> None:
    op, shapes, attrs, expected = CASES[case]
    _check(lambda b, names: b.add(op, names, attrs, 1)[0], shapes, expected)


def test_batch_normalization_in_training() -> None:
    def build(b: Builder, names: list[str]) -> str:
        running = [b.const(np.zeros(4)), b.const(np.ones(4))]
        return b.add("BatchNormalization", [*names, *running], {"training_mode": 1, "epsilon": 1e-3}, 3)[0]

    def expected(x: Any, scale: Any, bias: Any) -> Any:
        return F.batch_norm(x, None, None, scale, bias, training=True, eps=float(np.float32(1e-3)))

    _check(build, [X2, (4,), (4,)], expected)
