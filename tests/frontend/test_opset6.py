"""Models of opset 6: broadcasting by attributes, a slope for each channel, flags of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

import compiler
from compiler.errors import CompileError

Array = npt.NDArray[Any]
X = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)


def model(
    op: str, shapes: list[tuple[int, ...] | None], outputs: int = 1, opset: int = 6, **attrs: Any
) -> onnx.ModelProto:
    names = [f"i{k}" for k in range(len(shapes))]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, shapes, strict=True)]
    results = [f"o{k}" for k in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, **attrs)],
        "g",
        inputs,
        [helper.make_empty_tensor_value_info(n) for n in results],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def run(m: onnx.ModelProto, *arrays: Array) -> Array:
    return compiler.compile(m)({f"i{k}": a for k, a in enumerate(arrays)})["o0"]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow"])
@pytest.mark.parametrize(
    ("shape", "attrs", "as_numpy"),
    [
        ((2, 3, 4), {}, (2, 3, 4)),
        ((3, 4), {"broadcast": 1}, (3, 4)),
        ((3,), {"broadcast": 1, "axis": 1}, (3, 1)),
        ((2, 3), {"broadcast": 1, "axis": 0}, (2, 3, 1)),
        ((3,), {"broadcast": 1, "axis": -2}, (3, 1)),
        ((), {"broadcast": 1}, ()),
        ((1,), {"broadcast": 1}, (1,)),
    ],
)
def test_binary_ops(op: str, shape: tuple[int, ...], attrs: dict[str, int], as_numpy: tuple[int, ...]) -> None:
    y = np.linspace(0.5, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    compute = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}[op]
    found = run(model(op, [X.shape, shape], **attrs), X, y)
    np.testing.assert_allclose(found, compute(X, y.reshape(as_numpy)), rtol=1e-5)


def test_the_slope_of_prelu_is_for_channels() -> None:
    slope = np.array([0.1, 0.2, 0.3], np.float32)
    found = run(model("PRelu", [X.shape, (3,)]), -X, slope)
    np.testing.assert_allclose(found, -X * slope[:, None], rtol=1e-6)


def test_one_slope_is_for_all() -> None:
    found = run(model("PRelu", [X.shape, (1,)]), -X, np.array([0.5], np.float32))
    np.testing.assert_allclose(found, -X * 0.5)


def test_upsample_by_two_factors() -> None:
    image = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    found = run(model("Upsample", [image.shape], mode="nearest", height_scale=2.0, width_scale=3.0), image)
    np.testing.assert_array_equal(found[0, 0], np.kron(image[0, 0], np.ones((2, 3))))


def test_flags_of_training_are_dropped() -> None:
    scale, bias, mean, var = (np.array(v, np.float32) for v in ([1, 2, 3], [0, 1, 0], [1, 1, 2], [1, 4, 9]))
    m = model("BatchNormalization", [X.shape, *[(3,)] * 4], is_test=1, epsilon=0.0)
    found = run(m, X, scale, bias, mean, var)
    wide = [v[:, None] for v in (scale, bias, mean, var)]
    np.testing.assert_allclose(found, (X - wide[2]) / np.sqrt(wide[3]) * wide[0] + wide[1], rtol=1e-6)
    np.testing.assert_array_equal(run(model("Dropout", [X.shape], is_test=1, ratio=0.3), X), X)


def test_an_unknown_rank_is_reported() -> None:
    m = model("Add", [None, (3,)], broadcast=1, axis=1)
    m.graph.node.insert(0, helper.make_node("Reshape", ["x", "shape"], ["i0"]))
    del m.graph.input[0]
    m.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape))
    m.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"]))
    with pytest.raises(CompileError, match=r"rank of 'i0'.*in node 'o0'.*shape"):
        compiler.compile(m)


def test_older_forms_are_refused() -> None:
    with pytest.raises(CompileError, match=r"Add of ai\.onnx version 5 is too old"):
        compiler.compile(model("Add", [X.shape, X.shape], opset=5))
