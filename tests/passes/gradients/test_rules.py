"""Gradient rules at the edges, against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.types import TensorType, dtype_of, numpy_dtype
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import check_off_kinks, run, with_gradients
from tests.passes.gradients.rule_cases import CASES, DOUBLE, RNG, SCE, Emit


def verify(emit: Emit, inputs: dict[str, Any], order: int = 2) -> None:
    """Check the gradients of what `emit` computes with respect to its floating-point inputs (shapes or arrays)."""
    b = Builder()
    arrays = {k: RNG.normal(size=v) if isinstance(v, tuple) else np.asarray(v) for k, v in inputs.items()}
    names = {k: b.input(k, TensorType(dtype_of(a), a.shape)) for k, a in arrays.items()}
    results = emit(b, **names)
    for i, v in enumerate([results] if isinstance(results, str) else results):
        b.output(f"out{i}", v)
    xs = [k for k, a in arrays.items() if a.dtype == np.float64]
    check_off_kinks(b.build(), arrays, xs, order=order)


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    emit, inputs = CASES[case]
    verify(emit, inputs)


@pytest.mark.parametrize("case", ["groups", "max, overlapping", "Pow", "Layer", "Batch", "Sof mean 1 False", "Gather"])
def test_third_order(case: str) -> None:
    emit, inputs = CASES[case]
    verify(emit, inputs, order=3)


def test_statistics_of_layer_normalization() -> None:
    """Mean and InvStdDev, which ONNX gives as f32 whatever x is, have gradients: in f32, against the formula in f64."""
    arrays = {"x": RNG.normal(size=(2, 5)), "scale": RNG.normal(size=5), "bias": RNG.normal(size=5)}
    coefficients = [RNG.normal(size=s) for s in ((2, 5), (2, 1), (2, 1))]

    def gradients(dtype: str, emit: Callable[[Builder, list[str]], list[str]]) -> dict[str, np.ndarray]:
        b = Builder()
        inputs = [b.input(k, TensorType(dtype, a.shape)) for k, a in arrays.items()]
        parts = [
            b.op("ReduceSum", b.op("Mul", v, b.const(c.astype(numpy_dtype(dtype)))), keepdims=0)
            for v, c in zip(emit(b, inputs), coefficients, strict=True)
        ]
        b.output("loss", b.op("Sum", *parts))
        graph = with_gradients(b.build(), "loss", list(arrays))
        return run(graph, {k: a.astype(numpy_dtype(dtype)) for k, a in arrays.items()})

    def node(b: Builder, inputs: list[str]) -> list[str]:
        return list(b.add("LayerNormalization", inputs, {"epsilon": 0.1}, 3))

    def formula(b: Builder, inputs: list[str]) -> list[str]:
        x, scale, bias = inputs
        mean = b.op("ReduceMean", x, b.ints([1]))
        centered = b.op("Sub", x, mean)
        variance = b.op("ReduceMean", b.op("Mul", centered, centered), b.ints([1]))
        inv = b.op("Reciprocal", b.op("Sqrt", b.op("Add", variance, b.scalar(0.1, x))))
        y = b.op("Add", b.op("Mul", b.op("Mul", centered, inv), scale), bias)
        return [y, mean, inv]

    found, expected = gradients("f32", node), gradients("f64", formula)
    for name in ("d0", "d1", "d2"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("narrow", "code"), [("f32", 1), ("f16", 10)])
def test_cast(narrow: str, code: int) -> None:
    """The gradient passes through in the dtype of each side."""
    b = Builder()
    x = b.input("x", TensorType("f64", (3,)))
    y = b.op("Mul", b.op("Cast", x, to=code), b.const(np.array([1, 2, 3], numpy_dtype(narrow))))
    b.output("loss", b.op("Cast", y, to=DOUBLE))
    result = run(with_gradients(b.build(), "loss", ["x"]), {"x": np.ones(3)})["d0"]
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, [1, 2, 3])


def test_a_constant_exponent_that_is_differentiated_later() -> None:
    """x^2 may be differentiated as 2 x only if the exponent is no variable."""
    b = Builder()
    x, e = b.input("x", TensorType("f64", ())), b.const(np.array(2.0), "e")
    y = b.op("Pow", x, e)
    (dx,) = b.add(GRADIENT, [y, x, x], {"xs": 1, "zs": 0}, ["dx"])
    (dxe,) = b.add(GRADIENT, [dx, e, x, e, x], {"xs": 1, "zs": 1}, ["dxe"])
    b.output("dxe", dxe)
    result = run(expand_gradients(b.build()), {"x": np.array(3.0)})["dxe"]
    np.testing.assert_allclose(result, 3 + 2 * 3 * np.log(3))  # of e x^(e-1): x^(e-1) + e x^(e-1) log(x)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2), (3, 4, 2, 5)])
def test_cross_entropy_without_a_one_hot_matrix(shape: tuple[int, ...]) -> None:
    """One node is the gradient by the scores, unless the log-probabilities have a gradient of their own."""

    def backward(through_log_prob: bool) -> list[str]:
        b = Builder()
        x = b.input("x", TensorType("f32", shape))
        labels = b.input("labels", TensorType("i64", (shape[0], *shape[2:])))
        loss, log_prob = b.add(SCE, [x, labels], {}, 2)
        if through_log_prob:
            loss = b.op("Add", loss, b.op("ReduceMean", log_prob, keepdims=0))
        b.output("loss", loss)
        ops = [n.op for n in with_gradients(b.build(), "loss", ["x"]).nodes]
        return ops[ops.index(SCE) + 1 :]

    assert [op for op in backward(False) if op != "Constant"] == ["onnxc.SoftmaxCrossEntropyLossGrad"]
    assert "onnxc.SoftmaxCrossEntropyLossGrad" not in backward(True)
