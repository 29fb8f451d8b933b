"""A batch fixed at 1 becomes a symbol: the model must do to each sample what it did; else it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from compiler import UnsupportedError, make_training_model
from compiler.frontend.making.batch import with_symbolic_batch

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def model_of(nodes: list[NodeProto], x: list[int], weights: dict[str, Array], opset: int = 17) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def run(model: onnx.ModelProto, x: Array) -> Array:
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0])


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def node(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, [v if v != "-" else "" for v in inputs.split()], [output], **attributes)


W = RNG.normal(size=(4, 4)).astype(np.float32)
KERNEL = RNG.normal(size=(2, 1, 3, 3)).astype(np.float32)


def lstm(zero: float) -> tuple[list[NodeProto], list[int], dict[str, Array]]:
    weights = {
        "r": RNG.normal(size=(1, 8, 4)).astype(np.float32),
        "h": RNG.normal(size=(1, 8, 2)).astype(np.float32),
        "zero": np.full((1, 1, 2), zero, np.float32),
        "turn": ints(5, 1, 4),
        "last": ints(0, -1),
        "axis": ints(1),
    }
    nodes = [
        node("Reshape", "x turn", "t"),  # at one sample, as good as a Transpose
        helper.make_node("LSTM", ["t", "r", "h", "", "", "zero", "zero"], ["s"], hidden_size=2),
        node("Squeeze", "s axis", "q"),
        node("Transpose", "q", "p", perm=[1, 0, 2]),
        node("Relu", "p", "y"),
    ]
    return nodes, [1, 5, 4], weights


SOUND: dict[str, tuple[list[NodeProto], list[int], dict[str, Array]]] = {
    "reshape": ([node("Reshape", "x s", "h"), node("MatMul", "h w", "y")], [1, 2, 2], {"s": ints(1, 4), "w": W}),
    "reshape -1": ([node("Reshape", "x s", "h"), node("MatMul", "h w", "y")], [1, 2, 2], {"s": ints(1, -1), "w": W}),
    "reshape 0": ([node("Reshape", "x s", "h"), node("MatMul", "h w", "y")], [1, 2, 2], {"s": ints(0, -1), "w": W}),
    "type of the samples": (  # PyTorch's exporter, if it does not optimize, makes a bias of zeros so
        [node("CastLike", "zero x", "z"), node("Add", "x z", "h"), node("MatMul", "h w", "y")],
        [1, 2, 4],
        {"zero": np.zeros(4), "w": W},
    ),
    "inserted axis": ([node("Reshape", "x s", "y")], [1, 6], {"s": ints(1, 1, 2, 3)}),
    "convolution": (
        [
            node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
            node("MaxPool", "c", "p", kernel_shape=[2, 2]),
            node("Flatten", "p", "f"),
            node("Softmax", "f", "y"),
        ],
        [1, 1, 4, 4],
        {"k": KERNEL},
    ),
    "attention": (
        [
            node("MatMul", "x w", "q"),
            node("Reshape", "q heads", "q1"),
            node("Transpose", "q1", "q2", perm=[0, 2, 1, 3]),
            node("Transpose", "q1", "k2", perm=[0, 2, 3, 1]),
            node("MatMul", "q2 k2", "s"),
            node("Softmax", "s", "p"),
            node("MatMul", "p q2", "v"),
            node("Transpose", "v", "v1", perm=[0, 2, 1, 3]),
            node("Reshape", "v1 whole", "v2"),
            node("Add", "v2 position", "y"),
        ],
        [1, 3, 4],
        {"w": W, "heads": ints(1, 3, 2, 2), "whole": ints(1, 3, 4), "position": RNG.random((1, 3, 4), np.float32)},
    ),
    "computed shape": (
        [
            node("Shape", "x", "s"),
            node("Slice", "s zero one", "n"),
            node("Concat", "n rest", "t", axis=0),
            node("Reshape", "x t", "y"),
        ],
        [1, 2, 2],
        {"zero": ints(0), "one": ints(1), "rest": ints(-1)},
    ),
    "gathered shape": (
        [
            node("Shape", "x", "s"),
            node("Gather", "s index", "n"),
            node("Unsqueeze", "n zero", "u"),
            node("Concat", "u rest", "t", axis=0),
            node("Reshape", "x t", "y"),
        ],
        [1, 2, 2],
        {"index": np.array(0, np.int64), "zero": ints(0), "rest": ints(4)},
    ),
    "recurrent": lstm(0.0),
    "reduction": ([node("ReduceMean", "x", "y", axes=[1], keepdims=0)], [1, 3, 4], {}),
    "gather": ([node("Gather", "x i", "y", axis=1)], [1, 3, 4], {"i": np.array(2, np.int64)}),
}


@pytest.mark.parametrize("name", SOUND)
def test_each_sample_is_computed_as_before(name: str) -> None:
    nodes, shape, weights = SOUND[name]
    model = model_of(nodes, shape, weights)
    opened = with_symbolic_batch(model, "N")
    onnx.checker.check_model(opened, full_check=True)
    samples = RNG.normal(size=(3, *shape[1:])).astype(np.float32)
    whole = run(opened, samples)
    axis = next(i for i, d in enumerate(opened.graph.output[0].type.tensor_type.shape.dim) if d.dim_param == "N")
    for i in range(3):
        alone = run(model, samples[i : i + 1])
        np.testing.assert_allclose(np.take(whole, [i], axis), alone, rtol=1e-5, atol=1e-6)


MIXED: dict[str, tuple[tuple[list[NodeProto], list[int], dict[str, Array]], str]] = {
    "samples dropped": (
        ([node("Reshape", "x s", "y")], [1, 4], {"s": ints(2, 2)}),
        r"it makes \[2, 2\] of \[1, 4\], in which the samples have no axis of their own, in node 'y'",
    ),
    "squeezed": (([node("Squeeze", "x", "y")], [1, 4], {}), "it removes every axis of size 1"),
    "over samples": (([node("Softmax", "x", "y", axis=0)], [1, 4], {}), "it is over the axis of samples"),
    "reduced": (([node("ReduceSum", "x", "y")], [1, 4], {}), "it reduces all axes, also that of the samples"),
    "joined": (
        ([node("Concat", "x c", "y", axis=1)], [1, 2, 4], {"c": np.zeros((1, 1, 4), np.float32)}),
        "it joins samples with what has a batch of 1 by itself",
    ),
    "broadcast": (([node("Add", "x c", "y")], [1, 4], {"c": np.zeros((3, 4), np.float32)}), "has the size 3 along"),
    "state": (lstm(1.0), "its operand 'zero' is for one sample"),
    "unknown": (([node("Tile", "x r", "y")], [1, 4], {"r": ints(1, 2)}), "what ONNX's Tile does to the axis"),
    "summed": (([node("MatMul", "w x", "y")], [1, 4], {"w": W[:, :1]}), "the axis that it sums over"),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_samples_is_refused(name: str) -> None:
    (nodes, shape, weights), message = MIXED[name]
    with pytest.raises(UnsupportedError, match=message) as error:
        with_symbolic_batch(model_of(nodes, shape, weights), "N")
    assert "give batch=None to train it one sample at a time" in str(error.value)


def test_the_symbol_is_new_and_other_batches_are_left_alone() -> None:
    model = model_of([node("MatMul", "x w", "y")], [1, 4], {"w": W})
    training = make_training_model(model, loss="mse", batch="samples")
    target = training.training_info[0].algorithm.input[0]
    assert target.type.tensor_type.shape.dim[0].dim_param == "samples"
    kept = make_training_model(model, loss="mse", batch=None)
    assert kept.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    two = model_of([node("MatMul", "x w", "y")], [2, 4], {"w": W})
    assert with_symbolic_batch(two, "N") is two
