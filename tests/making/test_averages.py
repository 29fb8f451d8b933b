"""Running averages of weights: the model says which they are, and export writes them in place of the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import compiler
from compiler.frontend.averages import AVERAGES
from tests.frontend.small import LINEAR, linear, make_model

X = np.array([[1, 0, 2], [0, 1, -1]], np.float32)
T = np.array([[1], [2]], np.float32)


def averaging(main: str = LINEAR, **options: Any) -> onnx.ModelProto:
    return compiler.make_training_model(make_model(main), loss="mse", optimizer="sgd", lr=0.1, average=0.75, **options)


def exported(step: compiler.StepFunction, path: Path, averaged: bool) -> dict[str, np.ndarray]:
    """The initializers of an exported model, which is an inference model like any other."""
    step.export(path, averaged=averaged)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert not model.training_info
    assert AVERAGES not in {p.key for p in model.metadata_props}
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_the_model_says_which_state_is_whose_average() -> None:
    model = averaging()
    assert {p.key: json.loads(p.value) for p in model.metadata_props} == {AVERAGES: {"w": "w.average"}}
    onnx.checker.check_model(model)
    assert compiler.check(model) == ()


def test_export_of_averages(tmp_path: Path) -> None:
    step = compiler.compile(averaging(), dims={"N": 2})
    weights = []
    for _ in range(3):
        step(x=X, target=T)
        weights.append(step.state["w"].copy())
    average = weights[0]
    for w in weights[1:]:
        average = 0.75 * average + 0.25 * w
    np.testing.assert_allclose(step.averaged()["w"], average, rtol=1e-6)
    found = exported(step, tmp_path / "averaged.onnx", True)["w"]
    np.testing.assert_array_equal(found, step.state["w.average"])
    np.testing.assert_array_equal(exported(step, tmp_path / "current.onnx", False)["w"], weights[-1])
    np.testing.assert_array_equal(step.state["w"], weights[-1])  # the state stays as it is
    for name, value in step.averaged().items():  # to evaluate with them
        step.state[name] = value
    np.testing.assert_array_equal(step.infer(x=X)["y"], compiler.compile(tmp_path / "averaged.onnx")(x=X)["y"])


def test_what_has_no_average_is_as_it_is(tmp_path: Path) -> None:
    """A frozen weight, and the running statistics of BatchNormalization."""
    main = """net (float[N,3] x) => (float[N,3] y)
    <float[3,3] k = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] s = {1, 2, 3}, float[3] b = {0, 0, 0},
     float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}> {
      m = MatMul(x, k)
      y = BatchNormalization(m, s, b, mean, var)
    }"""
    step = compiler.compile(averaging(main, freeze="k"), dims={"N": 2})
    for _ in range(2):
        step(x=X, target=np.ones((2, 3), np.float32))
    found = exported(step, tmp_path / "averaged.onnx", True)
    assert step.averaged().keys() == {"s", "b"}
    for name in ("s", "b"):
        np.testing.assert_array_equal(found[name], step.state[f"{name}.average"])
        assert not np.array_equal(found[name], step.state[name])
    for name in ("mean", "var"):
        np.testing.assert_array_equal(found[name], step.state[name])
        assert found[name].any()
    np.testing.assert_array_equal(found["k"].ravel(), np.arange(1, 10))


def test_a_built_library_exports_them(tmp_path: Path) -> None:
    compiler.build(averaging(), tmp_path / "artifact", dims={"N": 2})
    step = compiler.load(tmp_path / "artifact")
    for _ in range(2):
        step(x=X, target=T)
    found = exported(step, tmp_path / "averaged.onnx", True)["w"]
    np.testing.assert_array_equal(found, step.state["w.average"])
    np.testing.assert_array_equal(exported(step, tmp_path / "current.onnx", False)["w"], step.state["w"])


def test_a_model_without_averages(tmp_path: Path) -> None:
    step = compiler.compile(linear(), dims={"N": 2})
    with pytest.raises(compiler.StateError, match="keeps no running averages of its variables: make it with"):
        step.export(tmp_path / "model.onnx", averaged=True)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("{", "'{' is no JSON object of names"),
        ('["w"]', "is no JSON object of names"),
        ('{"w": 1}', "is no JSON object of names"),
        ('{"v": "w.average"}', "'v' has an average, but is no initializer of the inference graph"),
        ('{"w": "w.mean"}', "'w.mean' is said to be the average of 'w', but no update binding changes it"),
        ('{"w": "w"}', None),
    ],
)
def test_what_the_metadata_may_say(said: str, what: str | None) -> None:
    model = averaging()
    model.metadata_props[0].value = said
    found = [str(p) for p in compiler.check(model)]
    assert len(found) == (what is not None)
    assert all(what in p and "in metadata 'onnxc.averages'" in p for p in found if what)


def test_an_average_of_another_type() -> None:
    model = averaging()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "other"))
    model.metadata_props[0].value = '{"other": "w.average"}'
    (problem,) = compiler.check(model)
    assert "'w.average' is said to be the average of 'other', but has another type" in str(problem)
