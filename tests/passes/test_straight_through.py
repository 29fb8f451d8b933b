"""The option `straight_through`: gradients look through roundings, forward results stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import run

X = np.array([[-9.0, -0.74, 0.24], [0.26, 1.76, 9.0]], np.float32)
DY = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
LOW, HIGH = -128, 127


def graph(scale: np.ndarray[Any, Any], zero: np.ndarray[Any, Any] | None, axis: int = 1, block: int = 0) -> Graph:
    """sum of dy times x quantized and back, and its gradients by x and the scale."""
    b = Builder()
    x, s = b.input("x", TensorType("f32", X.shape)), b.input("s", TensorType("f32", scale.shape))
    z = [b.const(zero)] if zero is not None else []
    q = b.op("QuantizeLinear", x, s, *z, axis=axis, block_size=block, output_dtype=TensorProto.INT8)
    y = b.op("DequantizeLinear", q, s, *z, axis=axis, block_size=block)
    loss = b.op("ReduceSum", b.op("Mul", y, b.const(DY)), keepdims=0)
    dx, ds = b.add(GRADIENT, [loss, x, s, x, s], {"xs": 2, "zs": 0}, ["dx", "ds"])
    for name, v in (("y", y), ("dx", dx), ("ds", ds)):
        b.output(name, v)
    return b.build()


@pytest.mark.parametrize(
    ("scale", "zero", "axis", "block"),
    [
        (np.float32(0.02), None, 1, 0),
        (np.float32(0.02), np.int8(5), 1, 0),
        (np.array([0.02, 0.5, 0.3], np.float32), np.array([5, -2, 0], np.int8), 1, 0),
        (np.array([0.02, 0.5], np.float32), np.array([5, -2], np.int8), -2, 0),
        (np.array([[0.02, 0.5], [0.1, 0.3]], np.float32), None, 1, 2),
    ],
)
def test_fake_quantization(scale: Any, zero: Any, axis: int, block: int) -> None:
    scale = np.asarray(scale)
    zero = None if zero is None else np.asarray(zero)
    before = graph(scale, zero, axis, block)
    plain = run(expand_gradients(before), {"x": X, "s": scale})
    found = run(expand_gradients(before, look_through=True), {"x": X, "s": scale})

    def spread(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if block:
            return np.repeat(a, block, axis)[:, :3]
        return a.reshape([-1 if d == axis % 2 else 1 for d in range(2)]) if a.ndim else a

    s, z = spread(scale), spread(zero).astype(np.float32) if zero is not None else np.float32(0)
    q = np.round(X / s) + z
    inside = (q >= LOW) & (q <= HIGH)
    kept = q.clip(LOW, HIGH) - z
    np.testing.assert_array_equal(found["y"], plain["y"])
    np.testing.assert_allclose(found["y"], kept * s, rtol=1e-6)
    np.testing.assert_allclose(found["dx"], np.where(inside, DY, 0), rtol=1e-6)
    each = np.where(inside, kept - X / s, kept) * DY
    owner = np.broadcast_to(spread(np.arange(scale.size).reshape(scale.shape)), X.shape)
    ds = np.bincount(owner.reshape(-1), each.reshape(-1), scale.size).reshape(scale.shape)
    np.testing.assert_allclose(found["ds"], ds, rtol=1e-4, atol=1e-5)
    assert 0 < inside.sum() < X.size or scale.size > 1
    assert not plain["dx"].any()


def test_round() -> None:
    b = Builder()
    x = b.input("x", TensorType("f64", (2,)))
    y = b.op("Round", b.op("Mul", x, x))
    b.output("dx", b.add(GRADIENT, [y, x, x], {"xs": 1, "zs": 0}, ["dx"])[0])
    feeds = {"x": np.array([0.7, -2.0])}
    assert run(expand_gradients(b.build()), feeds)["dx"].tolist() == [0, 0]
    np.testing.assert_allclose(run(expand_gradients(b.build(), look_through=True), feeds)["dx"], [1.4, -4])


def test_equal_constants_are_the_same_parameters() -> None:
    """Exporters write a scale twice, and a zero point of 0 on one side only; other parameters stay apart."""

    def gradient(*back: str) -> Any:
        b = Builder()
        x = b.input("x", TensorType("f32", (2,)))
        consts = {"s": np.float32(0.5), "t": np.float32(0.5), "u": np.float32(0.25), "z": np.int8(0)}
        names = {k: b.const(np.asarray(a), k) for k, a in consts.items()}
        q = b.op("QuantizeLinear", x, names["s"], names["z"])
        y = b.op("DequantizeLinear", q, *(names[v] for v in back))
        b.output("dx", b.add(GRADIENT, [y, x, x], {"xs": 1, "zs": 0}, ["dx"])[0])
        return run(expand_gradients(b.build(), look_through=True), {"x": np.ones(2, np.float32)})["dx"].tolist()

    assert gradient("t", "z") == gradient("t") == [1, 1]
    assert gradient("u", "z") == [0, 0]


def test_the_option_of_compile() -> None:
    """A Gradient node in the model's graph: of x rounded in steps of 0.5."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        helper.make_node("Gradient", ["x"], ["dx"], domain="ai.onnx.preview.training", xs=["x"], y="y"),
    ]
    values = [numpy_helper.from_array(a, n) for a, n in ((np.float32(0.5), "s"), (np.int8(0), "z"))]
    x, y, dx = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y", "dx"))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y, dx], values), opset_imports=opsets, ir_version=10)
    assert isinstance(model, onnx.ModelProto)
    feeds = np.array([0.6, -1.3, 99.0], np.float32)
    for option, expected in ((False, [0, 0, 0]), (True, [1, 1, 0])):
        found = compiler.compile(model, straight_through=option)(x=feeds)
        np.testing.assert_array_equal(found["y"], [0.5, -1.5, 63.5])
        np.testing.assert_array_equal(found["dx"], expected)
    for until in ("expand_gradients", None):
        session = ort.InferenceSession(
            compiler.lower(model, until, straight_through=True).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        np.testing.assert_array_equal(session.run(["dx"], {"x": feeds})[0], [1, 1, 0])
