"""Exports of Keras by tf2onnx: they train, and the result runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import ModelError, UnsupportedError, make_training_model
from tests.exporters.training import trains

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
tf2onnx = pytest.importorskip("tf2onnx")
layers = keras.layers

DIGITS = np.load(Path(__file__).parents[2] / "examples" / "data" / "digits.npz")
ROWS = DIGITS["images"].astype(np.float32) / 16
LABELS = DIGITS["labels"].astype(np.int64)
LOOPS = {"lstm", "gru"}
"""Networks that are exported as a Loop if the batch is 1."""


def cnn() -> list[Any]:
    """Everything between channels last and first, as a separable convolution; the second statistics follow a ReLU."""
    return [
        layers.Conv2D(16, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.SeparableConv2D(32, 3, padding="same", activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.2),
        layers.Flatten(),
        layers.Dense(10, activation="softmax"),
    ]


def pooled() -> list[Any]:
    return [
        layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(32, activation="elu"),
        layers.Dense(10),
    ]


def lstm() -> list[Any]:
    return [layers.LSTM(16, return_sequences=True), layers.Bidirectional(layers.LSTM(8)), layers.Dense(10)]


def gru() -> list[Any]:
    return [layers.GRU(16), layers.Dense(10)]


NETWORKS = {"cnn": (cnn, True), "pooled": (pooled, True), "lstm": (lstm, False), "gru": (gru, False)}


def export(name: str, path: Path, one: bool = False) -> np.ndarray[Any, Any]:
    """Write a network; what it is for."""
    make, image = NETWORKS[name]
    keras.utils.set_random_seed(0)
    x = ROWS[..., None] if image else ROWS
    net = keras.Sequential([keras.Input(x.shape[1:], name="x"), *make()])
    net.output_names = ["y"]
    signature = [tf.TensorSpec((1 if one else None, *x.shape[1:]), tf.float32, name="x")]
    tf2onnx.convert.from_keras(net, input_signature=signature, opset=17, output_path=str(path))
    return x


@pytest.mark.parametrize("one", [False, True], ids=["N", "1"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_export_trains(name: str, one: bool, tmp_path: Path) -> None:
    x = export(name, tmp_path / "net.onnx", one)
    if one and name in LOOPS:
        with pytest.raises(UnsupportedError, match="cannot be opened: what ONNX's Loop does"):
            make_training_model(tmp_path / "net.onnx")
        return
    training = make_training_model(tmp_path / "net.onnx", lr=0.02)
    trains(training, {"x": x, "label": LABELS}, tmp_path / "trained.onnx")


def test_all_weights_of_a_gru_train(tmp_path: Path) -> None:
    """It is a Loop, to which they are states that stay as they are."""
    export("gru", tmp_path / "net.onnx")
    (gradient,) = [
        n for n in make_training_model(tmp_path / "net.onnx").training_info[0].algorithm.node if n.op_type == "Gradient"
    ]
    assert len(gradient.output) == 4  # kernel, recurrent kernel, biases, and the dense layer, whose bias 0 is left out


def test_what_tf2onnx_leaves_untranslated_is_refused(tmp_path: Path) -> None:
    net = keras.Sequential([keras.Input((8,), name="x"), layers.Dense(8, activation="gelu")])
    net.output_names = ["y"]
    tf2onnx.convert.from_keras(net, opset=17, output_path=str(tmp_path / "net.onnx"))
    with pytest.raises(ModelError, match="there is no operator 'Erfc'"):
        compiler.compile(tmp_path / "net.onnx")
