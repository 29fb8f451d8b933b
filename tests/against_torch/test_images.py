"""Resampling, normalizations and their gradients against PyTorch, in float64. An extra: skipped where it is absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.types import TensorType
from tests.gradcheck import run, scalar, with_gradients

torch = pytest.importorskip("torch")
F = torch.nn.functional

X = (2, 3, 5, 6)
Case = tuple[str, list[Any], dict[str, Any], list[Any], Callable[..., Any]]


def _sizes(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def _resize(mode: str, size: tuple[int, ...], torch_mode: str, more: dict[str, Any], **kwargs: Any) -> Case:
    axes = tuple(range(2, 2 + len(size)))
    shape = (2, 3, 5, 6, 4)[: 2 + len(size)]
    attrs = {"mode": mode, "axes": axes, **more}
    return (
        "Resize",
        [shape],
        attrs,
        [None, None, _sizes(*size)],
        lambda x: F.interpolate(x, size=size, mode=torch_mode, **kwargs),
    )


PYTORCH = {"coordinate_transformation_mode": "pytorch_half_pixel"}
CORNERS = {"coordinate_transformation_mode": "align_corners"}
ANTIALIAS = {"antialias": 1, "exclude_outside": 1}
GRID = (2, 4, 3, 2)


def _grid(mode: str, padding: str, aligned: bool, shape: tuple[int, ...] = X, grid: tuple[int, ...] = GRID) -> Case:
    names = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    return (
        "GridSample",
        [shape, grid],
        {"mode": mode, "padding_mode": padding, "align_corners": int(aligned)},
        [],
        lambda x, g: F.grid_sample(x, g, mode=names[mode], padding_mode=padding, align_corners=aligned),
    )


CASES: dict[str, Case] = {
    "linear up": _resize("linear", (8, 11), "bilinear", PYTORCH, align_corners=False),
    "linear down": _resize("linear", (3, 4), "bilinear", PYTORCH, align_corners=False),
    "linear to one": _resize("linear", (1, 4), "bilinear", {}, align_corners=False),
    "linear corners": _resize("linear", (7, 4), "bilinear", CORNERS, align_corners=True),
    "linear antialias": _resize("linear", (2, 9), "bilinear", {**PYTORCH, **ANTIALIAS}, antialias=True),
    "linear 1-D": _resize("linear", (8,), "linear", PYTORCH, align_corners=False),
    "linear 3-D": _resize("linear", (3, 8, 5), "trilinear", PYTORCH, align_corners=False),
    "cubic up": _resize("cubic", (8, 11), "bicubic", PYTORCH, align_corners=False),
    "cubic down": _resize("cubic", (3, 4), "bicubic", PYTORCH, align_corners=False),
    "cubic corners": _resize("cubic", (7, 4), "bicubic", CORNERS, align_corners=True),
    "cubic antialias": _resize(
        "cubic", (2, 4), "bicubic", {**PYTORCH, **ANTIALIAS, "cubic_coeff_a": -0.5}, antialias=True
    ),
    "nearest": _resize(
        "nearest", (7, 4), "nearest", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    ),
    "nearest exact": _resize("nearest", (7, 4), "nearest-exact", {"nearest_mode": "round_prefer_ceil"}),
    **{
        f"grid {mode} {padding} {aligned}": _grid(mode, padding, aligned)
        for mode in ("linear", "cubic", "nearest")
        for padding in ("zeros", "border", "reflection")
        for aligned in (False, True)
    },
    "grid 3-D": _grid("linear", "reflection", False, (2, 2, 3, 4, 2), (2, 3, 2, 2, 3)),
    "affine": ("AffineGrid", [(2, 2, 3)], {}, [_sizes(2, 1, 4, 3)], lambda t: F.affine_grid(t, (2, 1, 4, 3), False)),
    "affine corners": (
        "AffineGrid",
        [(2, 3, 4)],
        {"align_corners": 1},
        [_sizes(2, 1, 4, 3, 2)],
        lambda t: F.affine_grid(t, (2, 1, 4, 3, 2), True),
    ),
    "instance": (
        "InstanceNormalization",
        [X, (3,), (3,)],
        {"epsilon": 0.01},
        [],
        lambda x, s, b: F.instance_norm(x, weight=s, bias=b, eps=0.01),
    ),
    "group": (
        "GroupNormalization",
        [(2, 6, 4), (6,), (6,)],
        {"num_groups": 3, "epsilon": 0.01},
        [],
        lambda x, s, b: F.group_norm(x, 3, s, b, eps=0.01),
    ),
    "rms": (
        "RMSNormalization",
        [(2, 3, 4), (3, 4)],
        {"axis": 1, "epsilon": 0.01},
        [],
        lambda x, s: F.rms_norm(x, (3, 4), s, eps=0.01),
    ),
    "channels": (
        "LRN",
        [X],
        {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 0.7},
        [],
        lambda x: F.local_response_norm(x, 3, 0.5, 0.6, 0.7),
    ),
    **{
        f"norms {p}": (
            "LpPool",
            [X],
            {"kernel_shape": (2, 3), "strides": (2, 1), "p": p},
            [],
            lambda x, p=p: F.lp_pool2d(x.abs(), float(p), (2, 3), (2, 1)),  # PyTorch takes no magnitudes for odd p
        )
        for p in (1, 2, 3)
    },
    "normalized": ("LpNormalization", [X], {"axis": 1, "p": 1}, [], lambda x: F.normalize(x, 1.0, 1)),
    "columns": (
        "Col2Im",
        [(2, 12, 6)],
        {"pads": (1, 0, 1, 0), "strides": (2, 1), "dilations": (1, 2)},
        [_sizes(4, 4), _sizes(2, 2)],
        lambda x: F.fold(x, (4, 4), (2, 2), dilation=(1, 2), padding=(1, 0), stride=(2, 1)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_pytorch(case: str) -> None:
    op, shapes, attrs, static, function = CASES[case]
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=s) for s in shapes]
    b = Builder()
    names = [b.input(f"x{i}", TensorType("f64", a.shape)) for i, a in enumerate(arrays)]
    b.output("y", b.op(op, *names, *("" if v is None else b.const(v) for v in static), **attrs))
    graph, feeds = b.build(), dict(zip(names, arrays, strict=True))
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = function(*leaves)
    np.testing.assert_allclose(run(graph, feeds)["y"], expected.detach().numpy(), rtol=1e-6, atol=1e-7)

    loss = scalar(graph, ["y"], np.random.default_rng(6), square=True)  # the same draws as below
    found = run(with_gradients(loss, "loss", names), feeds)
    draw = np.random.default_rng(6)
    weights = draw.uniform(0.5, 1.5, expected.shape) * draw.choice([-1, 1], expected.shape)
    (expected * torch.tensor(weights) * (expected + 0.7)).sum().backward()
    for i, leaf in enumerate(leaves):
        want = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(found[f"d{i}"], want, rtol=1e-6, atol=1e-6, err_msg=f"gradient by input {i}")
