"""Gradients of linear algebra, running products, transforms, selection and attention, where onnx's tests leave gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.types import TensorType
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import run, with_gradients
from tests.passes.gradients.rule_cases import Emit, op
from tests.passes.gradients.test_rules import verify

RNG = np.random.default_rng(11)

ZEROS = np.array([[2.0, 0.0, -1.5, 0.5], [0.0, 3.0, 0.0, 1.0], [1.0, 2.0, 3.0, -1.0]])
SINGULAR = np.array(
    [[[1.0, 2, 3], [2, 4, 6], [0, 1, 5]], [[1, 2, 3], [2, 4, 6], [3, 6, 9]], [[1, 0, 2], [3, 1, 1], [0, 2, 1]]]
)


def einsum(equation: str, **shapes: Any) -> tuple[Emit, dict[str, Any]]:
    return op("Einsum", equation=equation), shapes


def cumulative(exclusive: int, reverse: int) -> Emit:
    def emit(b: Builder, x: str) -> str:
        return b.op("CumProd", x, b.const(np.array(1)), exclusive=exclusive, reverse=reverse)

    return emit


def reduced(axes: list[int], **attrs: Any) -> Emit:
    return lambda b, x: b.op("ReduceProd", x, b.ints(axes), **attrs)


def known(name: str, *operands: Any, **attrs: Any) -> Emit:
    """A node on x and constants."""

    def emit(b: Builder, /, **inputs: str) -> str:
        x, *more = inputs.values()
        given = ["" if a is None else more.pop() if isinstance(a, str) else b.const(np.asarray(a)) for a in operands]
        return b.op(name, x, *given, **attrs)

    return emit


def attention(*order: str, heads: int = 0, outputs: int = 1, **attrs: Any) -> Emit:
    more = {"q_num_heads": heads, "kv_num_heads": heads} if heads else {}

    def emit(b: Builder, /, **inputs: str) -> list[str]:
        operands = [inputs.get(k, "") for k in ("q", "k", "v", "mask", "past_k", "past_v", "valid")]
        return list(b.add("Attention", operands, {**more, **attrs}, outputs))

    return emit


Q = {"q": (2, 4, 3, 2), "k": (2, 2, 5, 2), "v": (2, 2, 5, 3)}  # two heads of queries share one of keys
HALF_MASKED = np.where(RNG.random((3, 5)) < 0.4, -np.inf, 0.5)
HALF_MASKED[1] = -np.inf
HEADS = {"q": (2, 3, 2), "k": (2, 5, 2), "v": (2, 5, 3)}


def fused(bias: Any = None, outputs: int = 2, **attrs: Any) -> Emit:
    """The results of onnxc.Attention, maybe with a constant bias."""

    def emit(b: Builder, /, **inputs: str) -> Any:
        given = [*inputs.values(), *([] if bias is None else [b.const(bias)])]
        return b.add("onnxc.Attention", given, attrs, outputs)

    return emit


CASES: dict[str, tuple[Emit, dict[str, Any]]] = {
    "three operands": einsum("ij,jk,kl->il", a=(2, 3), b=(3, 4), c=(4, 2)),
    "a diagonal": einsum("iij->j", a=(3, 3, 2)),
    "ellipses": einsum("...ij,...jk", a=(2, 1, 2, 3), b=(1, 4, 3, 2)),
    "a trace": einsum("ij,ji->", a=(2, 3), b=(3, 2)),
    "Det, singular": (op("Det"), {"x": SINGULAR}),
    "Det, zero": (op("Det"), {"x": np.zeros((2, 2))}),
    "Det, 1 by 1": (op("Det"), {"x": (3, 1, 1)}),
    "Det, 4 by 4": (op("Det"), {"x": (4, 4)}),
    **{f"CumProd with zeros {e}{r}": (cumulative(e, r), {"x": ZEROS}) for e in (0, 1) for r in (0, 1)},
    "CumProd of one": (cumulative(0, 0), {"x": (3, 1)}),
    "CumProd of nothing": (cumulative(1, 0), {"x": (3, 0)}),
    "ReduceProd with zeros": (reduced([1]), {"x": ZEROS}),
    "ReduceProd with zeros, all": (reduced([0, 1], keepdims=0), {"x": ZEROS[:, :2]}),
    "ReduceProd, outer axes": (reduced([0, -1]), {"x": np.concatenate([ZEROS, ZEROS + 1]).reshape(2, 3, 4)}),
    "LinearRecurrence": (op("onnxc.LinearRecurrence", axis=1), {"a": (2, 5), "b": (2, 5)}),
    "LinearRecurrence back": (op("onnxc.LinearRecurrence", axis=0, reverse=1), {"a": (5, 2), "b": (5, 2)}),
    "DFT real": (known("DFT", None, 1), {"x": (2, 5, 1)}),
    "DFT complex, padded": (known("DFT", 6, 1, inverse=1), {"x": (2, 5, 2)}),
    "DFT onesided": (known("DFT", 4, 1, onesided=1), {"x": (2, 5, 1)}),
    "DFT onesided inverse": (known("DFT", 5, 0, onesided=1, inverse=1), {"x": (3, 2, 2)}),
    "DFT by factors": (known("DFT", 72, 1), {"x": (1, 72, 2)}),
    "STFT": (known("STFT", 3, "window", None), {"x": (2, 12, 1), "window": (6,)}),
    "TensorScatter": (
        op("TensorScatter", "past", "update", "at", mode="circular"),
        {"past": (2, 4, 3), "update": (2, 2, 3), "at": np.array([3, 1])},
    ),
    "Compress": (known("Compress", [True, False, True], axis=1), {"x": (2, 4)}),
    "ScatterND mul with zeros": (
        op("ScatterND", reduction="mul"),
        {"x": np.array([0.0, 2, 3, 0]), "i": np.array([[0], [1], [1], [3]]), "u": np.array([2.0, 0, 5, 0])},
    ),
    "ScatterElements mul with zeros": (
        op("ScatterElements", reduction="mul"),
        {"x": np.array([0.0, 2, 3]), "i": np.array([1, 1, 1, 2]), "u": np.array([0.0, 4, 3, 0])},
    ),
    "Attention": (attention(), Q),
    "Attention, packed": (attention(heads=2), {"q": (2, 3, 4), "k": (2, 5, 4), "v": (2, 5, 6)}),
    "Attention, causal and soft cap": (attention(is_causal=1, softcap=0.7, scale=0.3), Q),
    "Attention, windows": (attention(left_window_size=1, right_window_size=1), Q),
    "Attention, a trained mask": (attention(), {**Q, "mask": (3, 5)}),
    "Attention, a short mask": (attention(), {**Q, "mask": (4, 3, 4)}),
    "Attention, no key for a row": (attention(), {**Q, "mask": HALF_MASKED > 0}),
    "Attention, valid keys": (attention(is_causal=1), {**Q, "valid": np.array([4, 1])}),
    "onnxc.Attention": (fused(), HEADS),
    "onnxc.Attention, a trained bias": (fused(scale=0.25), {**HEADS, "bias": (3, 1)}),
    "onnxc.Attention, rows without a key": (fused(HALF_MASKED, outputs=1, zeros=1, scale=0.25), HEADS),
    "onnxc.AttentionGrad": (
        op("onnxc.AttentionGrad", "dy", "q", "k", "v", "-", "y", "lse", scale=0.5),
        {**HEADS, "dy": (2, 3, 3), "y": (2, 3, 3), "lse": (2, 3)},
    ),
    "Attention, a cache": (
        attention(outputs=3, is_causal=1),
        {**Q, "past_k": (2, 2, 2, 2), "past_v": (2, 2, 2, 3)},
    ),
    **{
        # onnx.reference gives capped scores in mode 0 as well, unlike the standard's text and body and onnxruntime
        f"Attention, scores {mode}": (attention(outputs=4, qk_matmul_output_mode=mode, softcap=0.9 * (mode > 0)), Q)
        for mode in range(4)
    },
}


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    emit, inputs = CASES[case]
    verify(emit, inputs)


@pytest.mark.parametrize("case", ["CumProd with zeros 10", "ReduceProd with zeros", "Det, singular", "a trace"])
def test_third_order(case: str) -> None:
    emit, inputs = CASES[case]
    verify(emit, inputs, order=3)


def test_masks_of_infinity() -> None:
    """Where the mask is -inf, its gradient and those of all others are finite; 0 for a query that sees no key."""
    b = Builder()
    arrays = {k: RNG.normal(size=s) for k, s in Q.items()} | {"mask": HALF_MASKED}
    names = {k: b.input(k, TensorType("f64", a.shape)) for k, a in arrays.items()}
    b.output("y", b.op("Attention", *names.values(), is_causal=1))
    results = run(with_gradients(b.build(), "y", list(arrays)), arrays)
    assert all(np.isfinite(results[f"d{i}"]).all() for i in range(4))
    assert not results["y"][:, :, 1].any()
    assert not results["d0"][:, :, 1].any()
    assert not results["d3"][~np.isfinite(HALF_MASKED)].any()
    assert results["d3"].any()


def differentiated(emit: Emit, points: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """The gradients of the sum of the squares of y with respect to constants."""
    b = Builder()
    names = [b.const(np.asarray(a), k) for k, a in points.items()]
    y = emit(b, *names)
    loss = b.op("ReduceSum", b.op("Mul", y, y), keepdims=0)
    gradients = b.add(GRADIENT, [loss, *names, *names], {"xs": len(names), "zs": 0}, len(names))
    for i, v in enumerate(gradients):
        b.output(f"d{i}", v)
    return list(run(expand_gradients(b.build()), {}).values())


def test_unique_of_a_constant() -> None:
    """The first of equal elements gets the gradient."""
    (dx,) = differentiated(lambda b, x: b.op("Unique", x), {"x": [3.0, 1.0, 3.0, 2.0]})
    np.testing.assert_array_equal(dx, [6, 2, 0, 4])


def test_range() -> None:
    """Of 1 + 0.5 i for i = 0, 1, 2: by its start and its step."""
    start, limit, delta = differentiated(lambda b, *v: b.op("Range", *v), {"start": 1.0, "limit": 2.3, "delta": 0.5})
    assert (start, limit, delta) == (2 * (1 + 1.5 + 2), 0, 2 * (1.5 + 2 * 2))


@pytest.mark.parametrize("n", [2, 6])
def test_cofactors_far_from_singular(n: int) -> None:
    """The same as det(A) inverse(A)^T."""
    x = RNG.normal(size=(n, n))
    b = Builder()
    b.output("y", b.op("Det", b.input("x", TensorType("f64", (n, n)))))
    found = run(with_gradients(b.build(), "y", ["x"]), {"x": x})["d0"]
    np.testing.assert_allclose(found, np.linalg.det(x) * np.linalg.inv(x).T, atol=1e-10)


def quantized(block: int, axis: int, scale: np.ndarray[Any, Any], zero: bool) -> None:
    x = RNG.integers(-128, 128, (3, 4), np.int8)
    z = RNG.integers(-9, 9, scale.shape, np.int8) if zero else None
    b = Builder()
    operands = [b.const(x), b.input("s", TensorType("f32", scale.shape)), *([b.const(z)] if z is not None else [])]
    y = b.op("DequantizeLinear", *operands, axis=axis, block_size=block)
    dy = RNG.normal(size=(3, 4)).astype(np.float32)
    b.output("y", b.op("Mul", y, b.const(dy)))
    found = run(with_gradients(b.build(), "y", ["s"]), {"s": scale})["d0"]

    def spread(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if block:
            return np.repeat(a, block, axis)[:3, :4]
        return a.reshape([-1 if d == axis else 1 for d in range(2)]) if a.ndim else a

    expected = np.zeros(scale.shape)
    owner = np.broadcast_to(spread(np.arange(scale.size).reshape(scale.shape)), (3, 4))
    np.add.at(expected.reshape(-1), owner, (x - (0.0 if z is None else spread(z).astype(float))) * dy)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("zero", [False, True])
def test_scale_of_dequantize_linear(zero: bool) -> None:
    """It takes no float64, but is linear in the scale: the sum of (x - zero) dy over what a scale is for."""
    quantized(0, 1, np.array(0.5, np.float32), zero)
    quantized(0, 1, np.array([0.5, 2, 1, 3], np.float32), zero)
    quantized(0, 0, np.array([0.5, 2, 1], np.float32), zero)
    quantized(3, 1, RNG.uniform(1, 2, (3, 2)).astype(np.float32), zero)
    quantized(2, 0, RNG.uniform(1, 2, (2, 4)).astype(np.float32), zero)
