"""Quantized operators by their definitions, against onnxruntime: onnx.reference lacks some forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from tests.ir.test_definitions import Array, run

RNG = np.random.default_rng(6)


def by_onnxruntime(op: str, *arrays: Array | None, outputs: int = 1, **attrs: Any) -> Array:
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    results = [f"y{i}" for i in range(outputs)]
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
        if a is not None
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, **attrs)],
        "g",
        types,
        [helper.make_empty_tensor_value_info(v) for v in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {n: a for n, a in zip(names, arrays, strict=True) if a is not None})[0]
    return result


def integers(dtype: Any, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


def weights(*shape: int) -> Array:
    """Signed weights of 7 bits: onnxruntime's kernels for u8 times i8 saturate sums of two products to 16 bits."""
    return RNG.integers(-64, 64, shape, np.int8)


F = np.float32
U, S = np.uint8, np.int8

CASES: dict[str, tuple[str, list[Array | None], dict[str, Any]]] = {
    "quantize": ("QuantizeLinear", [RNG.normal(size=(3, 4)).astype(F), F(0.02), U(120)], {}),
    "quantize, ties": ("QuantizeLinear", [np.arange(-9, 10).astype(F) / 2, F(1), S(0)], {}),
    "quantize, out of range": ("QuantizeLinear", [np.array([1e9, -1e9, 300, -300], F), F(1), S(3)], {}),
    "quantize an axis": (
        "QuantizeLinear",
        [RNG.normal(size=(2, 3, 4)).astype(F), np.array([0.1, 0.2, 0.3], F), np.array([1, 2, 3], np.uint16)],
        {"axis": -2},
    ),
    "quantize blocks": (
        "QuantizeLinear",
        [RNG.normal(size=(2, 5)).astype(F), RNG.uniform(0.01, 0.1, (2, 3)).astype(F), integers(S, 2, 3)],
        {"axis": 1, "block_size": 2},
    ),
    "dequantize": ("DequantizeLinear", [integers(S, 3, 4), F(0.02), S(12)], {}),
    "dequantize i32": ("DequantizeLinear", [integers(np.int32, 3, 4), F(0.02), None], {}),
    "dequantize blocks": (
        "DequantizeLinear",
        [integers(U, 5, 2), RNG.uniform(0.01, 0.1, (2, 2)).astype(F), integers(U, 2, 2)],
        {"axis": 0, "block_size": 3},
    ),
    "conv": ("ConvInteger", [integers(U, 1, 2, 6, 5), integers(U, 3, 2, 3, 2), U(7), U(5)], {"pads": [1, 0, 1, 1]}),
    "conv, groups": ("ConvInteger", [integers(U, 2, 4, 7), weights(6, 2, 3), U(7)], {"group": 2, "strides": [2]}),
    "matmul": ("MatMulInteger", [integers(U, 2, 3, 4), weights(4, 5), U(9), S(-3)], {}),
    "matmul, columns": ("MatMulInteger", [integers(U, 3, 4), integers(U, 4, 5), U(9), integers(U, 5)], {}),
    "linear conv": (
        "QLinearConv",
        [
            *(integers(U, 1, 2, 6, 5), F(0.02), U(120)),
            *(weights(3, 2, 3, 2), np.array([0.01, 0.02, 0.03], F), np.zeros(3, S)),
            *(F(0.5), U(100), integers(np.int32, 3) // 2**20),
        ],
        {"pads": [1, 1, 1, 0]},
    ),
    "linear matmul": (
        "QLinearMatMul",
        [integers(U, 2, 3, 4), F(0.02), U(120), weights(4, 5), F(0.01), S(2), F(0.1), U(128)],
        {},
    ),
    "linear matmul, columns": (
        "QLinearMatMul",
        [
            *(integers(U, 3, 4), F(0.02), U(120)),
            *(weights(4, 5), RNG.uniform(0.01, 0.02, 5).astype(F), np.zeros(5, S)),
            *(F(0.1), U(128)),
        ],
        {},
    ),
    "dynamic": ("DynamicQuantizeLinear", [RNG.normal(size=(3, 4)).astype(F)], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_as_onnxruntime(case: str) -> None:
    op, given, attrs = CASES[case]
    arrays = [None if a is None else np.asarray(a) for a in given]
    outputs = 3 if op == "DynamicQuantizeLinear" else 1
    expected = by_onnxruntime(op, *arrays, outputs=outputs, **attrs)
    tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
    y, *_ = run(op, *arrays, outputs=outputs, **tuples)
    assert y.dtype == expected.dtype
    if y.dtype.kind == "f":
        np.testing.assert_allclose(y, expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(y, expected)
