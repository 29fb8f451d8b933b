"""Operators that exporters write, replaced by others: the models compute what onnxruntime computes of the originals."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import compiler
from compiler import UnsupportedError, make_training_model
from compiler.frontend.substitutes import with_substitutes

Array = npt.NDArray[Any]
X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
ML = "ai.onnx.ml"


def model_of(nodes: list[NodeProto], weights: dict[str, Any], outputs: dict[str, int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
        [helper.make_tensor_value_info(v, t, None) for v, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model: onnx.ModelProto) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, {"x": X})]


def sequence(split: Any, positions: list[int]) -> onnx.ModelProto:
    """Parts of the second axis, added up by their means; positions are Constant nodes, as in PyTorch's exports."""
    nodes = [helper.make_node("SplitToSequence", ["x", "split"], ["parts"], axis=1)]
    for i, p in enumerate(positions):
        nodes.append(helper.make_node("Constant", [], [f"at{i}"], value=numpy_helper.from_array(np.array(p))))
        nodes.append(helper.make_node("SequenceAt", ["parts", f"at{i}"], [f"part{i}"]))
    nodes.append(helper.make_node("Concat", [f"part{i}" for i in range(len(positions))], ["y"], axis=1))
    return model_of(nodes, {"split": np.asarray(split, np.int64)}, {"y": TensorProto.FLOAT})


def classifier() -> onnx.ModelProto:
    """A scaler, a layer and the class, as skl2onnx writes a pipeline with an MLPClassifier."""
    scale = {"offset": np.arange(6, dtype=np.float32) / 10, "scale": np.linspace(0.5, 2, 6, dtype=np.float32)}
    nodes = [
        helper.make_node("Scaler", ["x"], ["variable"], "Scaler", domain=ML, **scale),
        helper.make_node("MatMul", ["variable", "coefficient"], ["mul"]),
        helper.make_node("Add", ["mul", "intercepts"], ["add"]),
        helper.make_node("Softmax", ["add"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["argmax"], axis=1),
        helper.make_node("ArrayFeatureExtractor", ["classes", "argmax"], ["picked"], domain=ML),
        helper.make_node("Reshape", ["picked", "shape"], ["class"]),
    ]
    weights = {
        "coefficient": np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32),
        "intercepts": np.zeros(3, np.float32),
        "classes": np.array([7, 8, 9], np.int32),
        "shape": np.array([-1]),
    }
    return model_of(nodes, weights, {"class": TensorProto.INT32, "probabilities": TensorProto.FLOAT})


@pytest.mark.parametrize(
    "model",
    [sequence(2, [2, 0, 1]), sequence(4, [1, 0]), sequence([1, 2, 3], [2, 0]), sequence([1, 2, 3], [-1, -2])],
    ids=["equal parts", "a smaller last part", "parts", "from the end"],
)
def test_parts_of_a_sequence_are_slices(model: onnx.ModelProto) -> None:
    replaced = with_substitutes(model)
    assert {node.op_type for node in replaced.graph.node} == {"Constant", "Slice", "Concat"}
    np.testing.assert_array_equal(run(replaced)[0], run(model)[0])
    assert compiler.check(model) == ()


@pytest.mark.parametrize("positions", [[-1], [3]])
def test_parts_that_are_not_known_stay_a_sequence(positions: list[int]) -> None:
    model = sequence(2 if positions[0] < 0 else [1, 2, 3], positions)
    assert with_substitutes(model).graph == model.graph
    (problem, *_) = compiler.check(model)
    assert "SplitToSequence" in problem.what


def test_a_pipeline_of_scikit_learn_scales_and_names_the_class() -> None:
    model = classifier()
    before = model.SerializeToString()
    replaced = with_substitutes(model)
    assert all(node.domain == "" for node in replaced.graph.node)
    for ours, theirs in zip(run(replaced), run(model), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert ours.shape == theirs.shape
    training = make_training_model(model, target="digit", optimizer="sgd")
    assert compiler.check(training) == ()
    (gradient,) = [n for n in training.training_info[0].algorithm.node if n.op_type == "Gradient"]
    assert set(gradient.output) == {"coefficient.gradient", "intercepts.gradient"}  # and not the scaler
    assert model.SerializeToString() == before


def test_a_map_of_probabilities_is_refused_with_the_way_out() -> None:
    model = classifier()
    model.graph.node.append(
        helper.make_node("ZipMap", ["probabilities"], ["map"], domain=ML, classlabels_int64s=[7, 8, 9])
    )
    with pytest.raises(UnsupportedError, match=r"ZipMap.*options=\{'zipmap': False\}"):
        make_training_model(model)
