"""Operators whose shapes depend on values, compiled: what is static decides; what only a step computes is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import compiler
from compiler.errors import CompileError


def model(
    nodes: list[NodeProto], shape: list[int], element: int, constants: dict[str, Any] | None = None
) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", element, None)
    values = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", [x], [y], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def test_each_value_of_an_input_is_compiled_for() -> None:
    """Also of many elements."""
    step = compiler.compile(model([helper.make_node("NonZero", ["x"], ["y"])], [50, 60], TensorProto.INT64))
    x = (np.random.default_rng(0).random((50, 60)) < 0.3).astype(np.float32)
    for a in (x, 1 - x):
        np.testing.assert_array_equal(step(x=a)["y"], np.nonzero(a))


def test_what_follows_from_an_input() -> None:
    nodes = [helper.make_node("Greater", ["x", "zero"], ["c"]), helper.make_node("Compress", ["x", "c"], ["y"], axis=0)]
    step = compiler.compile(model(nodes, [5], TensorProto.FLOAT, {"zero": np.float32(0)}))
    x = np.array([1, -1, 2, -2, 3], np.float32)
    np.testing.assert_array_equal(step(x=x)["y"], [1, 2, 3])


def test_what_a_step_computes_is_refused() -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"]),
        helper.make_node("Unique", ["r"], ["y"]),
    ]
    refused = model(nodes, [5], TensorProto.FLOAT)
    (problem,) = compiler.check(refused)
    assert "Unique" in problem.what
    assert "r" in problem.what
    assert problem.remedy
    with pytest.raises(CompileError, match="Unique"):
        compiler.compile(refused)(x=np.zeros(5, np.float32))
