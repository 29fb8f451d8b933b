"""Attention, quantization and determinants against PyTorch: an extra, where torch is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.types import TensorType, dtype_of
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import run, with_gradients

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(4)


def ours(arrays: dict[str, Any], **attrs: Any) -> dict[str, Any]:
    """y, and the gradients of the sum of y times dy by the floating-point operands."""
    order = ("q", "k", "v", "mask")
    b = Builder()
    names = {k: b.input(k, TensorType(dtype_of(a), a.shape)) for k, a in arrays.items()}
    y = b.op("Attention", *(names.get(k, "") for k in order), **attrs)
    b.output("y", b.op("Mul", y, b.const(dy_of(b.shape(y)))))
    xs = [k for k, a in arrays.items() if a.dtype == np.float64]
    found = run(with_gradients(b.build(), "y", xs), arrays)
    return {"y": found["y"], **{x: found[f"d{i}"] for i, x in enumerate(xs)}}


def dy_of(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(9).normal(size=shape)


def theirs(arrays: dict[str, Any], **options: Any) -> dict[str, Any]:
    tensors = {k: torch.tensor(a, requires_grad=a.dtype == np.float64) for k, a in arrays.items()}
    y = torch.nn.functional.scaled_dot_product_attention(
        tensors["q"], tensors["k"], tensors["v"], attn_mask=tensors.get("mask"), **options
    )
    y = y * torch.tensor(dy_of(tuple(y.shape)))
    y.sum().backward()
    grads = {k: t.grad.numpy() for k, t in tensors.items() if t.requires_grad}
    return {"y": y.detach().numpy(), **grads}


def operands(heads: int = 3, groups: int = 3, n: int = 4, m: int = 6) -> dict[str, Any]:
    shapes = {"q": (2, heads, n, 8), "k": (2, groups, m, 8), "v": (2, groups, m, 5)}
    return {k: RNG.normal(size=s) for k, s in shapes.items()}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": (operands(), {}, {}),
    "scale": (operands(), {"scale": 0.25}, {"scale": 0.25}),
    "causal": (operands(n=5, m=5), {"is_causal": 1}, {"is_causal": True}),
    "groups": (operands(6, 2), {}, {"enable_gqa": True}),
    "one head of keys": (operands(4, 1), {}, {"enable_gqa": True}),
    "a mask of numbers": ({**operands(), "mask": RNG.normal(size=(2, 3, 4, 6))}, {}, {}),
    "a broadcast mask": ({**operands(), "mask": RNG.normal(size=(4, 6))}, {}, {}),
    "a mask of booleans": ({**operands(), "mask": (RNG.random((2, 1, 4, 6)) < 0.5) | (np.arange(6) == 2)}, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_attention(case: str) -> None:
    arrays, attrs, options = CASES[case]
    found, expected = ours(arrays, **attrs), theirs(arrays, **options)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


def test_a_query_that_sees_no_key() -> None:
    """PyTorch gives zeros as well, with gradients of zero."""
    mask = RNG.random((4, 6)) < 0.5
    mask[1], mask[2] = False, True
    arrays = {**operands(), "mask": mask}
    found, expected = ours(arrays), theirs(arrays)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    assert not found["y"][:, :, 1].any()


@pytest.mark.parametrize("per_channel", [False, True])
def test_fake_quantization(per_channel: bool) -> None:
    """The straight-through gradient by x is that of fake_quantize."""
    x = RNG.normal(size=(3, 40)).astype(np.float32) * 4
    scale = np.array([0.02, 0.05, 0.01] if per_channel else 0.02, np.float32)
    zero = np.array([3, 0, -4] if per_channel else 3, np.int8)
    b = Builder()
    v, s, z = b.input("x", TensorType("f32", x.shape)), b.const(scale), b.const(zero)
    y = b.op("DequantizeLinear", b.op("QuantizeLinear", v, s, z, axis=0), s, z, axis=0)
    b.output("y", y)
    b.output("dx", b.add(GRADIENT, [y, v, v], {"xs": 1, "zs": 0}, ["dx"])[0])
    found = run(expand_gradients(b.build(), look_through=True), {"x": x})
    t = torch.tensor(x, requires_grad=True)
    if per_channel:
        q = torch.fake_quantize_per_channel_affine(
            t, torch.tensor(scale), torch.tensor(zero, dtype=torch.int32), 0, -128, 127
        )
    else:
        q = torch.fake_quantize_per_tensor_affine(t, float(scale), int(zero), -128, 127)
    q.sum().backward()
    np.testing.assert_allclose(found["y"], q.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(found["dx"], t.grad.numpy(), rtol=1e-6)
    assert 0 < (found["dx"] == 0).sum() < x.size


@pytest.mark.parametrize("n", [2, 5])
def test_determinants(n: int) -> None:
    x = RNG.normal(size=(3, n, n))
    b = Builder()
    b.output("y", b.op("Det", b.input("x", TensorType("f64", x.shape))))
    found = run(with_gradients(b.build(), "y", ["x"]), {"x": x})
    t = torch.tensor(x, requires_grad=True)
    y = torch.linalg.det(t)
    y.sum().backward()
    np.testing.assert_allclose(found["y"], y.detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(found["d0"], t.grad.numpy(), rtol=1e-9, atol=1e-10)
