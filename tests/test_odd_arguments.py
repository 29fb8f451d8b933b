"""Arguments of any kind: what is not taken is refused by an error of onnxc, also what has no hash or no truth value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import compiler
from compiler import memory_report
from tests.models import tiny

ODD: tuple[Any, ...] = (
    "nothing", "", b"loss", 3, 1.5, float("nan"), True, ["loss"], [["loss"]], [{}], [None], [3], ("x", ["y"]), {},
    {"a": [1]}, {("a",): 1}, {b"N": 1}, {"N": "a"}, {"logits": None}, object(), [object()], slice(0, 1),
    np.array(["loss", "x"]), np.array([1, 2]), [np.array(["a", "b"])], np.array(None), np.array([["a"]], object),
)  # fmt: skip

FEEDS = {"x": np.zeros((4, 4), np.float32), "label": np.zeros(4, np.int64)}


def inference() -> onnx.ModelProto:
    model = tiny()
    del model.training_info[:]
    return model


def of(function: Callable[..., Any], *left_out: str, **given: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """A call for each parameter of a function, but for some: it takes the argument; the others are `given`."""

    def call(name: str) -> Callable[[Any], Any]:
        return lambda value: function(**{**given, name: value})

    for name, parameter in inspect.signature(function).parameters.items():
        if name not in left_out and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            yield f"{function.__name__}: {name}", call(name)


def refused(calls: Iterator[tuple[str, Callable[[Any], Any]]]) -> None:
    for name, call in calls:
        for value in ODD:
            try:
                call(value)
            except compiler.OnnxcError:
                continue
            except Exception as e:  # noqa: BLE001 - any kind
                pytest.fail(f"{name}={value!r}: {type(e).__name__}: {e}")


def test_of_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, dims = tiny(), {"N": 4}
    refused(of(compiler.lower, "model", model=model, dims=dims))
    refused(of(compiler.training_graph, "model", model=model))
    refused(of(compiler.check, "model", model=model))
    refused(of(compiler.compile, "model", model=model))
    refused(of(memory_report.memory, "model", model=model, dims=dims))
    refused(of(compiler.build, "model", "threads", "seed", model=model, folder=tmp_path / "a", dims=dims, cc="none"))
    refused(of(compiler.load, folder=tmp_path))
    made = {"loss": "cross_entropy", "target": "label", "optimizer": "sgd", "lr": 0.1}
    refused(of(compiler.make_training_model, "model", model=inference(), **made))


def test_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = compiler.compile(tiny(), threads=1)
    for run, feeds in ((step, FEEDS), (step.evaluate, FEEDS), (step.infer, {"x": FEEDS["x"]})):
        refused(iter([("fetch", lambda value, run=run, feeds=feeds: run(feeds, fetch=value)), ("feeds", run)]))
    refused(of(step.export, path="model.onnx"))
    refused(of(step.save))
    refused(of(step.load))
    for value in ODD:
        assert value not in step.state
        with pytest.raises(compiler.StateError, match="there is no state"):
            step.state[value]
        with pytest.raises(compiler.StateError, match="there is no state"):
            step.state[value] = FEEDS["x"]
