"""Training form of BatchNormalization and Dropout in the algorithm, inference form in the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler import make_training_model
from compiler.ir.interpret import interpret
from tests.making.loss_models import Array, checked, step_by_interpreter, step_graph

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3))
LABEL = np.array([0, 1, 1, 0, 1, 0])
WEIGHTS = {
    "w1": RNG.normal(size=(3, 4)),
    "bn.scale": RNG.normal(size=4),
    "bn.bias": RNG.normal(size=4),
    "bn.mean": RNG.normal(size=4),
    "bn.var": RNG.random(4) + 0.5,
    "w2": RNG.normal(size=(4, 2)),
}
BN = ["bn.scale", "bn.bias", "bn.mean", "bn.var"]


def model_of(
    nodes: list[onnx.NodeProto], opset: int, weights: Mapping[str, Array] = WEIGHTS, batch: Any = "N"
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [batch, 3])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [batch, 2])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def normalized(opset: int = 15, outputs: int = 1, **attributes: Any) -> onnx.ModelProto:
    names = ["n", "n.mean", "n.var", "n.saved_mean", "n.saved_var"][:outputs]
    return model_of(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("BatchNormalization", ["h", *BN], names, epsilon=1e-3, momentum=0.75, **attributes),
            helper.make_node("Relu", ["n"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["y"]),
        ],
        opset,
    )


def by_numpy(mean: Array | None = None, var: Array | None = None) -> tuple[float, Array, Array]:
    """The loss, and the statistics of the batch, which are used unless others are given."""
    h = X @ WEIGHTS["w1"]
    batch = h.mean(0), h.var(0)
    mean, var = batch if mean is None or var is None else (mean, var)
    n = (h - mean) / np.sqrt(var + np.float32(1e-3)) * WEIGHTS["bn.scale"] + WEIGHTS["bn.bias"]
    y = np.maximum(n, 0) @ WEIGHTS["w2"]
    log = y - np.log(np.exp(y).sum(1, keepdims=True))
    return float(-log[range(6), LABEL].mean()), *batch


FEEDS = {"x": X, "label": LABEL}


@pytest.mark.parametrize(
    "model",
    [normalized(), normalized(9), normalized(15, 3, training_mode=1), normalized(9, 5)],
    ids=["inference", "inference9", "training", "training9"],
)
def test_batch_normalization_trains_and_the_model_infers(model: onnx.ModelProto) -> None:
    training = checked(make_training_model(model, optimizer="sgd"))
    graph = step_graph(training, FEEDS)
    values = interpret(graph, FEEDS)
    loss, mean, var = by_numpy()
    assert float(values[graph.outputs["loss"]]) == pytest.approx(loss, rel=1e-12)
    for name, batch in (("bn.mean", mean), ("bn.var", var)):
        np.testing.assert_allclose(values[graph.updates[name]], 0.75 * WEIGHTS[name] + 0.25 * batch, rtol=1e-6)
    (node,) = [n for n in training.graph.node if n.op_type == "BatchNormalization"]
    assert len(node.output) == 1
    assert all(a.name != "training_mode" for a in node.attribute)
    assert [v.name for v in training.graph.output] == ["y"]


@pytest.mark.parametrize(
    "options", [{"freeze": "bn.*"}, {"train": "w*"}, {"batch_norm": "frozen"}, {"freeze": ["bn.scale", "bn.bias"]}]
)
def test_a_frozen_batch_normalization_stays_frozen(options: dict[str, Any]) -> None:
    training = checked(make_training_model(normalized(), optimizer="sgd", **options))
    graph = step_graph(training, FEEDS)
    assert float(interpret(graph, FEEDS)[graph.outputs["loss"]]) == pytest.approx(
        by_numpy(WEIGHTS["bn.mean"], WEIGHTS["bn.var"])[0], rel=1e-12
    )
    assert not {"bn.mean", "bn.var"} & set(graph.updates)
    assert all(node.op_type != "BatchNormalization" for node in training.training_info[0].algorithm.node)


def test_batch_statistics_may_be_asked_for() -> None:
    training = make_training_model(normalized(), optimizer="sgd", freeze="bn.*", batch_norm="train")
    graph = step_graph(training, FEEDS)
    assert float(interpret(graph, FEEDS)[graph.outputs["loss"]]) == pytest.approx(by_numpy()[0], rel=1e-12)
    assert set(graph.updates) - {"iteration"} == {"w1", "w2", "bn.mean", "bn.var"}


def test_a_normalization_used_twice_updates_its_statistics_twice() -> None:
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("BatchNormalization", ["h", *BN], ["n"], momentum=0.75),
            helper.make_node("BatchNormalization", ["n", *BN], ["m"], momentum=0.75),
            helper.make_node("MatMul", ["m", "w2"], ["y"]),
        ],
        15,
    )
    training = checked(make_training_model(model, optimizer="sgd"))
    graph = step_graph(training, FEEDS)
    h = X @ WEIGHTS["w1"]
    n = (h - h.mean(0)) / np.sqrt(h.var(0) + np.float32(1e-5)) * WEIGHTS["bn.scale"] + WEIGHTS["bn.bias"]
    expected = 0.75 * (0.75 * WEIGHTS["bn.mean"] + 0.25 * h.mean(0)) + 0.25 * n.mean(0)
    np.testing.assert_allclose(interpret(graph, FEEDS)[graph.updates["bn.mean"]], expected, rtol=1e-6)


@pytest.mark.parametrize("opset", [8, pytest.param(11, marks=pytest.mark.exhaustive), 13])
def test_dropout_drops_in_training_only(opset: int) -> None:
    inputs, attributes = (["r", "ratio"], {}) if opset >= 12 else (["r"], {"ratio": 0.25})
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Dropout", inputs, ["d"], **attributes),
            helper.make_node("MatMul", ["d", "w2"], ["y"]),
        ],
        opset,
        {n: WEIGHTS[n] for n in ("w1", "w2")} | ({"ratio": np.array(0.25)} if opset >= 12 else {}),
    )
    training = checked(make_training_model(model, optimizer="sgd", lr=0.0))
    x = RNG.normal(size=(400, 3))
    feeds = {"x": x, "label": RNG.integers(0, 2, 400)}
    step = compiler.compile(training, seed=3)
    first, second = (step(feeds, fetch=["d.train"])["d.train"] for _ in range(2))
    whole = np.maximum(x @ WEIGHTS["w1"], 0)
    kept = first != 0
    np.testing.assert_allclose(first[kept], whole[kept] / 0.75)
    assert 0.2 < 1 - kept[whole > 0].mean() < 0.3
    assert (first != second).any()
    np.testing.assert_allclose(step.infer(x=x)["y"], whole @ WEIGHTS["w2"])
    assert {n.op_type for n in training.graph.node} == {"MatMul", "Relu", "Dropout"}


def test_dropout_in_training_form_gets_the_inference_form() -> None:
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Dropout", ["h", "ratio", "yes"], ["d"], seed=5),
            helper.make_node("MatMul", ["d", "w2"], ["y"]),
        ],
        13,
        {n: WEIGHTS[n] for n in ("w1", "w2")} | {"ratio": np.array(0.5), "yes": np.array(True)},
    )
    training = checked(make_training_model(model, optimizer="sgd"))
    (inference,) = [n for n in training.graph.node if n.op_type == "Dropout"]
    (trained,) = [n for n in training.training_info[0].algorithm.node if n.op_type == "Dropout"]
    assert (len(inference.input), len(trained.input)) == (2, 3)
    assert [a.i for a in trained.attribute if a.name == "seed"] == [5]


def test_what_does_not_depend_on_the_form_is_shared() -> None:
    training = make_training_model(normalized(), optimizer="sgd")
    forward = [n for n in training.training_info[0].algorithm.node if n.name.startswith("forward/")]
    assert [n.op_type for n in forward] == ["BatchNormalization", "Relu", "MatMul"]
    assert forward[0].input[0] == "h"


def test_values_captured_by_a_body_are_those_of_training() -> None:
    body = helper.make_graph(
        [helper.make_node("Mul", ["n", "two"], ["b"])],
        "body",
        [],
        [helper.make_tensor_value_info("b", TensorProto.DOUBLE, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["n"], ["c"])],
        "other",
        [],
        [helper.make_tensor_value_info("c", TensorProto.DOUBLE, None)],
    )
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("BatchNormalization", ["h", *BN], ["n"], epsilon=1e-3),
            helper.make_node("If", ["yes"], ["r"], then_branch=body, else_branch=other),
            helper.make_node("MatMul", ["r", "w2"], ["y"]),
        ],
        15,
        {**WEIGHTS, "yes": np.array(True), "two": np.array(2.0)},
    )
    training = make_training_model(model, optimizer="sgd")
    values = step_by_interpreter(training, FEEDS)
    h = X @ WEIGHTS["w1"]
    n = (h - h.mean(0)) / np.sqrt(h.var(0) + np.float32(1e-3)) * WEIGHTS["bn.scale"] + WEIGHTS["bn.bias"]
    y = 2 * n @ WEIGHTS["w2"]
    expected = -(y - np.log(np.exp(y).sum(1, keepdims=True)))[range(6), LABEL].mean()
    assert float(values["loss"]) == pytest.approx(expected, rel=1e-9)


def test_a_batch_fixed_at_one_is_noted() -> None:
    """The mean of one number is that number: the output is the bias, and nothing before it trains."""
    model = normalized()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    notes: list[str] = []
    training = checked(make_training_model(model, batch=None, optimizer="sgd", note=notes.append))
    assert [text.partition(":")[0] for text in notes] == [
        "BatchNormalization 'n' sees one number of each channel, which is its own mean"
    ]
    values = step_by_interpreter(training, {"x": X[:1], "label": LABEL[:1]})
    assert np.allclose(values["w1.gradient"], 0)
    assert (values["w2.gradient"][WEIGHTS["bn.bias"] > 0, LABEL[0]] != 0).all()
    for options in ({"batch": "N"}, {"batch": None, "batch_norm": "frozen"}):
        make_training_model(model, note=notes.append, **options)
    assert len(notes) == 1
