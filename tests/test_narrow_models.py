"""Models with elements of at most 8 bits: arrays in and out, weights in files, gradients, state, quantization."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node, make_tensor_value_info
from onnx.reference import ReferenceEvaluator

import compiler
from compiler.ir.types import Tensor, numpy_dtype, onnx_dtype
from compiler.runtime.layout import BITS

Array = npt.NDArray[Any]

MOVED = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f4e2m1", "i4", "u4", "i2", "u2")
"""Types that ONNX moves; float6 is for Cast and quantization only."""
DOMAIN = "ai.onnx.preview.training"


def some(dtype: str, *shape: int) -> Array:
    """Elements of all kinds."""
    bits = np.random.default_rng(0).integers(0, 2 ** BITS.get(dtype, 8), shape)
    return Tensor(bits.astype(np.uint8).view(numpy_dtype(dtype))).array


def model(
    nodes: list[NodeProto],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, int],
    weights: Mapping[str, Array | TensorProto] | None = None,
) -> ModelProto:
    """A model; outputs: name -> element type."""
    graph = helper.make_graph(
        nodes,
        "g",
        [make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()],
        [make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [
            a if isinstance(a, TensorProto) else numpy_helper.from_array(np.asarray(a), n)
            for n, a in (weights or {}).items()
        ],
    )
    opsets = [helper.make_opsetid("", 28), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets)


def same(found: Array, wanted: Array) -> None:
    """Equal bits."""
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.view(np.uint8), Tensor(wanted).array.view(np.uint8))


@pytest.mark.parametrize("dtype", MOVED)
def test_elements_are_moved(dtype: str) -> None:
    """All bits stay, also those of a NaN; what files pack comes from a weight."""
    x, w, code = some(dtype, 3, 5), some(dtype, 5, 3), onnx_dtype(dtype)
    past, update = some(dtype, 1, 1, 4, 3), some(dtype, 1, 1, 1, 3)
    nodes = [
        make_node("Transpose", ["x"], ["transposed"]),
        make_node("Pad", ["w", "pads", "value"], ["padded"]),
        make_node("Identity", ["w"], ["same"]),
        make_node("ConstantOfShape", ["shape"], ["filled"], value=numpy_helper.from_array(x[0, :1], "v")),
    ]
    weights = {"w": w, "pads": np.array([1, 0, 0, 0]), "value": np.asarray(x[0, 1]), "shape": np.array([2])}
    wanted = {
        "transposed": np.ascontiguousarray(x.T),
        "padded": np.concatenate([np.full((1, 3), x[0, 1]), w]),
        "same": w,
        "filled": np.full(2, x[0, 0]),
    }
    inputs = {"x": x}
    if dtype not in ("i2", "u2"):
        nodes.append(make_node("TensorScatter", ["past", "update", "at"], ["scattered"]))
        inputs |= {"past": past, "update": update}
        weights["at"] = np.array([2])
        wanted["scattered"] = np.concatenate([past[:, :, :2], update, past[:, :, 3:]], axis=2)
    found = compiler.backend.run_model(
        model(nodes, inputs, dict.fromkeys(wanted, code), weights), list(inputs.values())
    )
    for array, name in zip(found, wanted, strict=True):
        same(array, wanted[name])


def test_bits_that_memory_holds_in_two_ways() -> None:
    """A byte of an int4 holds its sign in all of its upper bits, of a uint4 zeros."""
    x, types = some("i4", 9), ("u4", "f4e2m1", "i4")
    nodes = [
        make_node("BitCast", [source], [target], to=onnx_dtype(target))
        for source, target in zip(("i", *types), types, strict=False)
    ]
    m = model(nodes, {"i": x}, {t: onnx_dtype(t) for t in types})
    for found, t in zip(compiler.backend.run_model(m, [x]), types, strict=True):
        same(found, x.view(numpy_dtype(t)))


def test_arguments() -> None:
    """Arrays of ml_dtypes, or their bits; of integers their values, which must be in the range."""
    types = ("f8e4m3fn", "i4", "f4e2m1")
    arrays = {t: np.array([1, -2, 3], numpy_dtype(t)) for t in types}
    nodes = [make_node("Cast", [t], [f"y {t}"], to=TensorProto.FLOAT) for t in types]
    step = compiler.compile(model(nodes, arrays, {f"y {t}": TensorProto.FLOAT for t in types}))
    bits = {"f8e4m3fn": np.array([56, 192, 68], np.uint8), "f4e2m1": np.array([2, 12, 5], np.uint8)}
    for feeds in (arrays, {**bits, "i4": np.array([1, -2, 3], np.int8)}, {**arrays, "i4": [1, -2, 3]}):
        for found in step(**feeds).values():
            np.testing.assert_array_equal(found, [1, -2, 3])
    for wrong, message in (
        ({"i4": np.array([1, 8, 3], np.int8)}, "beyond its 4 bits"),
        ({"i4": [1, 8, 3]}, "takes int8|takes int4"),
        ({"f4e2m1": np.array([1, 16, 3], np.uint8)}, "beyond its 4 bits"),
        ({"f8e4m3fn": [1.0, 2.0, 3.0]}, "must be an array of ml_dtypes.float8_e4m3fn"),
        ({"f8e4m3fn": np.ones(3, np.float32)}, r"\.astype\(ml_dtypes.float8_e4m3fn\)"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            step(**{**arrays, **wrong})


@pytest.mark.parametrize("dtype", ["i4", "f4e2m1", "u2", "f8e5m2", "f6e3m2"])
def test_weights_in_files(dtype: str, tmp_path: Path) -> None:
    """Packed in the model, packed beside it, and too few of them."""
    w = some(dtype, 5, 3)
    one = np.float32(1)

    def made(weight: TensorProto) -> ModelProto:
        nodes = [make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT), make_node("Mul", ["v", "x"], ["y"])]
        return model(nodes, {"x": np.asarray(one)}, {"y": TensorProto.FLOAT}, {"w": weight})

    raw = numpy_helper.from_array(w, "w")
    path = tmp_path / "model.onnx"
    onnx.save_model(made(raw), path, save_as_external_data=True, size_threshold=0, location="weights")
    assert (tmp_path / "weights").stat().st_size == -(-15 * BITS.get(dtype, 8) // 8)
    np.testing.assert_array_equal(compiler.compile(path)(x=one)["y"], w.astype(np.float32))
    np.testing.assert_array_equal(compiler.compile(made(numpy_helper.from_array(w, "w")))(x=one)["y"], w.astype("f4"))
    short = numpy_helper.from_array(w, "w")
    short.raw_data = raw.raw_data[:-1]
    with pytest.raises(compiler.ModelError, match=f"needs {len(raw.raw_data)} bytes, but its data has"):
        compiler.compile(made(short))


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2fnuz", "f4e2m1"])
def test_gradients_look_through_rounding(dtype: str) -> None:
    """Of a cast to few bits and back, in float32 all the way; of the narrow tensor itself, in its type."""
    x = np.array([0.1, -3.3, 1.0], np.float32)
    q = np.array([1, -2, 3], numpy_dtype(dtype))
    nodes = [
        make_node("Cast", ["x"], ["c"], to=onnx_dtype(dtype)),
        make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
        make_node("Reshape", ["q", "shape"], ["r"]),
        make_node("Cast", ["r"], ["s"], to=TensorProto.FLOAT),
        make_node("Cast", ["q"], ["t"], to=TensorProto.FLOAT),
        make_node("Mul", ["d", "d"], ["dd"]),
        make_node("Mul", ["s", "t"], ["st"]),
        make_node("Add", ["dd", "st"], ["sum"]),
        make_node("ReduceSum", ["sum"], ["y"]),
        make_node("Gradient", ["x", "q"], ["dx", "dq"], domain=DOMAIN, xs=["x", "q"], y="y"),
    ]
    outputs = {"dx": TensorProto.FLOAT, "dq": onnx_dtype(dtype)}
    dx, dq = compiler.backend.run_model(model(nodes, {"x": x, "q": q}, outputs, {"shape": np.array([1, 3])}), [x, q])
    np.testing.assert_array_equal(dx, 2 * x.astype(numpy_dtype(dtype)).astype(np.float32))
    same(dq, (2 * q.astype(np.float32)).astype(numpy_dtype(dtype)))


def test_powers_of_two_and_integers_have_no_gradient() -> None:
    for dtype in ("f8e8m0", "i4"):
        q = np.ones(3, numpy_dtype(dtype))
        nodes = [
            make_node("Cast", ["q"], ["t"], to=TensorProto.FLOAT),
            make_node("ReduceSum", ["t"], ["y"]),
            make_node("Gradient", ["q"], ["dq"], domain=DOMAIN, xs=["q"], y="y"),
        ]
        with pytest.raises(compiler.CompileError, match=f"'q', which is {dtype}"):
            compiler.compile(model(nodes, {"q": q}, {"dq": onnx_dtype(dtype)}))(q=q)


def trained(dtype: str) -> ModelProto:
    """Y = x w, with w kept in few bits, and updated by its own gradient in float32."""
    w = np.array([[1, 2], [3, -1]], numpy_dtype(dtype))
    code, f = onnx_dtype(dtype), TensorProto.FLOAT
    m = model(
        [make_node("Cast", ["w"], ["wide"], to=f), make_node("MatMul", ["x", "wide"], ["y"])],
        {"x": np.zeros((4, 2), np.float32)},
        {"y": f},
        {"w": w},
    )
    step = helper.make_graph(
        [
            make_node("Mul", ["y", "y"], ["squares"]),
            make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
            make_node("Gradient", ["w"], ["dw"], domain=DOMAIN, xs=["w"], y="loss"),
            make_node("Cast", ["dw"], ["slope"], to=f),
            make_node("Sub", ["wide", "slope"], ["moved"]),
            make_node("Cast", ["moved"], ["w_new"], to=code),
        ],
        "step",
        [],
        [make_tensor_value_info("loss", f, []), make_tensor_value_info("w_new", code, [2, 2])],
    )
    info = m.training_info.add(algorithm=step)
    info.update_binding.add(key="w", value="w_new")
    return m


def test_a_state_of_few_bits(tmp_path: Path) -> None:
    x = np.eye(4, 2, dtype=np.float32)
    step = compiler.compile(trained("f8e4m3fn"))
    losses = [float(step(x=x)["loss"]) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    w = step.state["w"].view(ml_dtypes.float8_e4m3fn)
    by_hand = np.array([[1, 2], [3, -1]], ml_dtypes.float8_e4m3fn)
    for _ in range(4):
        slope = (by_hand.astype(np.float32) / 4).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        by_hand = (by_hand.astype(np.float32) - slope).astype(ml_dtypes.float8_e4m3fn)
    same(w, by_hand)
    step.save(tmp_path / "state")
    other = compiler.compile(trained("f8e4m3fn"))
    other.load(tmp_path / "state")
    same(other.state["w"], step.state["w"])
    step.export(tmp_path / "model.onnx")
    exported = onnx.load(tmp_path / "model.onnx")
    same(numpy_helper.to_array(exported.graph.initializer[0]), w)
    step.state["w"] = np.ones((2, 2), ml_dtypes.float8_e4m3fn)
    assert step.state["w"].tolist() == [[56, 56], [56, 56]]


def test_a_library_cannot_write_packed_state(tmp_path: Path) -> None:
    with pytest.raises(compiler.BuildError, match="state of less than 8 bits"):
        compiler.build(trained("f4e2m1"), tmp_path / "built")


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f6e2m3", "f4e2m1", "i4", "u2"])
def test_quantization(dtype: str) -> None:
    """By axis, in blocks, with scales that are powers of two; as onnx's reference, bit by bit."""
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32) * 3
    scales = np.linspace(0.1, 1, 6).astype(np.float32)
    powers = np.array([[0.25, 2, 1], [1, 0.5, 4], [8, 1, 1], [1, 1, 2]], ml_dtypes.float8_e8m0fnu)
    zero = np.full(6, dtype[0] in "iu", numpy_dtype(dtype))
    code, f = onnx_dtype(dtype), TensorProto.FLOAT
    blocks = {"axis": 1, "block_size": 2}
    nodes = [
        make_node("QuantizeLinear", ["x", "scales", "zero"], ["q"], axis=1),
        make_node("DequantizeLinear", ["q", "scales", "zero"], ["d"], axis=1),
        make_node("QuantizeLinear", ["x", "powers"], ["qb"], output_dtype=code, precision=f, **blocks),
        make_node("DequantizeLinear", ["qb", "powers"], ["db"], output_dtype=f, **blocks),
    ]
    m = model(
        nodes, {"x": x}, {"q": code, "d": f, "qb": code, "db": f}, {"scales": scales, "powers": powers, "zero": zero}
    )
    wanted = ReferenceEvaluator(m).run(None, {"x": x})
    for found, array in zip(compiler.backend.run_model(m, [x]), wanted, strict=True):
        same(found, np.asarray(array))


def test_a_product_of_float8() -> None:
    a, b = (np.array(v, ml_dtypes.float8_e5m2) for v in ([[1, -2], [3, 0.5]], [[4, 1], [2, -8]]))
    inputs = {"a": a, "b": b}
    scale, half, zero = np.float32(1), np.float32(0.5), np.zeros((), ml_dtypes.float8_e5m2)
    node = make_node("QLinearMatMul", ["a", "s", "z", "b", "s", "z", "half", "z"], ["y"])
    m = model([node], inputs, {"y": TensorProto.FLOAT8E5M2}, {"s": scale, "half": half, "z": zero})
    (found,) = compiler.backend.run_model(m, list(inputs.values()))
    same(found, (a.astype(np.float32) @ b.astype(np.float32) * 2).astype(a.dtype))


def test_straight_through_quantization_to_float8() -> None:
    """The gradient by x is 1 inside of the range, and 0 where the number was cut off."""
    x = np.array([0.3, -20.0, 300.0, -1000.0], np.float32)
    nodes = [
        make_node("QuantizeLinear", ["x", "scale"], ["q"], output_dtype=TensorProto.FLOAT8E4M3FN),
        make_node("DequantizeLinear", ["q", "scale"], ["d"]),
        make_node("ReduceSum", ["d"], ["y"]),
        make_node("Gradient", ["x"], ["dx"], domain=DOMAIN, xs=["x"], y="y"),
    ]
    m = model(nodes, {"x": x}, dict.fromkeys(("d", "dx"), TensorProto.FLOAT), {"scale": np.float32(0.5)})
    found = compiler.compile(m, straight_through=True)(x=x)
    q = (x * 2).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(found["d"], q.astype(np.float32) / 2)
    np.testing.assert_array_equal(found["dx"], [1, 1, 0, 0])


def test_operators_without_these_types_are_refused() -> None:
    x = np.ones((2, 2), ml_dtypes.float8_e4m3fn)
    for node in (make_node("Add", ["x", "x"], ["y"]), make_node("Concat", ["x", "x"], ["y"], axis=0)):
        with pytest.raises(compiler.ModelError, match=rf"{node.op_type}\('\w+': f8e4m3fn\[2,2\].*does not take"):
            compiler.compile(model([node], {"x": x}, {"y": TensorProto.FLOAT8E4M3FN}))(x=x)


def test_dropout_of_float8_in_training() -> None:
    """What is kept is doubled; the gradient passes where it was kept."""
    x = np.full((8, 8), 3, ml_dtypes.float8_e5m2)
    nodes = [
        make_node("Dropout", ["x", "ratio", "training"], ["dropped"]),
        make_node("Cast", ["dropped"], ["wide"], to=TensorProto.FLOAT),
        make_node("ReduceSum", ["wide"], ["y"]),
        make_node("Gradient", ["x"], ["dx"], domain=DOMAIN, xs=["x"], y="y"),
    ]
    weights = {"ratio": np.float32(0.5), "training": np.array(True)}
    outputs = dict.fromkeys(("dropped", "dx"), TensorProto.FLOAT8E5M2)
    found = compiler.compile(model(nodes, {"x": x}, outputs, weights))(x=x)
    kept, slopes = (found[n].view(ml_dtypes.float8_e5m2).astype(np.float32) for n in ("dropped", "dx"))
    assert set(kept.reshape(-1)) == {0, 6}
    np.testing.assert_array_equal(slopes * 3, kept)


def test_a_loop_over_float8() -> None:
    """The gradient of what a loop carries and captures in 8 bits is added up in float32."""
    code, f = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT
    x = np.array([1, 2], ml_dtypes.float8_e4m3fn)
    body = helper.make_graph(
        [
            make_node("Cast", ["s"], ["a"], to=f),
            make_node("Cast", ["x"], ["b"], to=f),
            make_node("Add", ["a", "b"], ["c"]),
            make_node("Cast", ["c"], ["t"], to=code),
            make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            make_tensor_value_info("i", TensorProto.INT64, []),
            make_tensor_value_info("go", TensorProto.BOOL, []),
            make_tensor_value_info("s", code, [2]),
        ],
        [make_tensor_value_info("on", TensorProto.BOOL, []), make_tensor_value_info("t", code, [2])],
    )
    nodes = [
        make_node("Loop", ["n", "", "x"], ["r"], body=body),
        make_node("Cast", ["r"], ["wide"], to=f),
        make_node("ReduceSum", ["wide"], ["y"]),
        make_node("Gradient", ["x"], ["dx"], domain=DOMAIN, xs=["x"], y="y"),
    ]
    r, dx = compiler.backend.run_model(model(nodes, {"x": x}, {"r": code, "dx": code}, {"n": np.array(6)}), [x])
    same(r, np.array([7, 14], ml_dtypes.float8_e4m3fn))
    same(dx, np.array([7, 7], ml_dtypes.float8_e4m3fn))
