"""Losses of the user's own as models: from files, with declared types, and whether they fit the network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnx.external_data_helper import set_external_data

import compiler
from compiler import InputError, Loss, make_training_model
from tests.making.loss_models import checked, linear, output, step_by_interpreter

FACTORS = np.array([1.0, 2.0, 3.0, 4.0])
FEEDS = {"x": np.random.default_rng(0).normal(size=(5, 3)), "truth": np.ones((5, 4))}


def loss_model(truth: str = "double[N, C]", prediction: str = "double[N, C]") -> onnx.ModelProto:
    """Mean of the squares of factors * (prediction - truth)."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> mine ({prediction} prediction, {truth} truth) => (double cost) {{
        error = Sub (prediction, truth)
        weighted = Mul (error, factors)
        square = Mul (weighted, weighted)
        cost = ReduceMean <keepdims: int = 0> (square)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(FACTORS, "factors"))
    return model


def with_external_data(folder: Path, location: str) -> Path:
    model = loss_model()
    (factors,) = model.graph.initializer
    (folder / location).write_bytes(factors.raw_data)
    set_external_data(factors, location)
    factors.ClearField("raw_data")
    path = folder / "mine.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def as_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(loss_model().SerializeToString())
    return path


@pytest.mark.parametrize(
    "given",
    [
        lambda folder: loss_model(),
        lambda folder: loss_model().SerializeToString(),
        lambda folder: as_file(folder, "mine.onnx"),
        lambda folder: str(as_file(folder, "mine.onnx")),
        lambda folder: str(as_file(folder, "mse")),  # a path, though its last part is the name of a loss
        lambda folder: with_external_data(folder, "factors.bin"),
        lambda folder: Loss(str(with_external_data(folder, "factors.bin")), target="truth"),
        lambda folder: {"y": str(as_file(folder, "mine.onnx"))},
    ],
)
def test_a_model_is_given_as_any_other(given: Callable[[Path], Any], tmp_path: Path) -> None:
    network = linear(["N", 4])
    training = checked(make_training_model(network, loss=given(tmp_path), optimizer="sgd"))
    expected = ((FACTORS * (output(network, FEEDS) - 1)) ** 2).mean()
    assert step_by_interpreter(training, FEEDS)["loss"] == pytest.approx(expected)


def test_a_file_in_the_folder_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "mse", "mse.onnx"):
        as_file(tmp_path, name)
    assert Loss("mine").name == Loss("mse.onnx").name == ""
    assert Loss("mse").name == "mse"


def test_what_is_neither_a_loss_nor_a_model(tmp_path: Path) -> None:
    text = tmp_path / "text.onnx"
    text.write_text("nothing")
    kinds = "there are cross_entropy, nll, .*, ctc; nor is it the path of a model: "
    for loss, message in {
        "msee": r"no loss 'msee' \(did you mean 'mse'\?\); nor is it the path of a model: there is no file 'msee'",
        "none.onnx": rf"no loss 'none.onnx': {kinds}there is no file 'none.onnx'",
        text: rf"text.onnx': {kinds}this is text",
        str(tmp_path): rf"{kinds}this is a folder",
        b"nothing": "the bytes given as a loss are no model: this is text",
    }.items():
        with pytest.raises(InputError, match=message):
            make_training_model(linear(["N", 4]), loss=loss)


def test_data_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    path = with_external_data(inner, "../factors.bin")
    assert (tmp_path / "factors.bin").exists()
    with pytest.raises(InputError, match=r"the loss .*mine.onnx': external data: the location '../factors.bin' is not"):
        make_training_model(linear(["N", 4]), loss=path)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (
            "int64[N, C]",
            r"'truth': i64\[2,4\]\): B is i64, but A is f64: they must be of one dtype, in its node 'error' ",
        ),
        (
            "double[5]",
            r"'truth': f64\[5\]\): Incompatible dimensions, in its node 'error' \(tried with N = 2\): correct",
        ),
        ("double[N, 3]", r"Incompatible dimensions, in its node 'error'"),
    ],
)
def test_what_does_not_fit_the_network(truth: str, message: str) -> None:
    with pytest.raises(InputError, match=f"your loss does not fit the network: .*{message}"):
        make_training_model(linear(["N", 4]), loss=loss_model(truth))


@pytest.mark.parametrize(
    ("truth", "dims"), [("double[N, C]", ["N", 4]), ("double[C]", [4]), ("double[1, C]", [1, 4]), ("double[4]", [4])]
)
def test_symbols_are_what_they_are_of_the_output(truth: str, dims: list[Any]) -> None:
    """[M, C] of an output [N, 4] makes C 4 and M N."""
    mine = loss_model(truth.replace("N", "M"), "double[M, C]")
    training = checked(make_training_model(linear(["N", 4]), loss=mine))
    declared = training.training_info[0].algorithm.input[0]
    assert [d.dim_param or d.dim_value for d in declared.type.tensor_type.shape.dim] == dims


def test_a_size_that_is_open_is_no_fault() -> None:
    """A network for 3 features only: at no size that is tried it has types, but there is one."""
    network = linear(["N", 4])
    network.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "features"
    training = make_training_model(network, loss="mse", optimizer="sgd")
    assert compiler.check(training, dims={"features": 3}) == ()
    assert make_training_model(network, loss=loss_model()).training_info
