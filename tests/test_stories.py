"""The stories of docs/stories.md, shortened: each learns what it is about, and stock onnxruntime agrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from examples.stories import autoencoder, fine_tuning, regression, sunspots, text


def values(path: Path) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.slow
def test_fine_tuning(tmp_path: Path) -> None:
    found = fine_tuning.story(tmp_path, epochs=6, draws=1)
    assert found["0 to 4"] > 0.95
    assert found["new head, 140 of each"] > 0.9
    assert found["from scratch, 140 of each"] > 0.9
    assert found["new head, 20 of each"] > 0.7
    before = values(tmp_path / "digits-0-to-4.onnx")
    tuned, other = (values(tmp_path / f"{name}-140.onnx") for name in ("new-head", "from-scratch"))
    for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"):
        assert before[name].tobytes() == tuned[name].tobytes()
        assert before[name].tobytes() != other[name].tobytes()
    assert before["head.weight"].tobytes() != tuned["head.weight"].tobytes()


def test_regression(tmp_path: Path) -> None:
    found = regression.story(tmp_path, epochs=60)
    assert found["network"] < 1.1 * found["least squares"] < 0.8 * found["the mean of all"]
    train, _, _ = regression.parts()
    exported = values(tmp_path / "diabetes.onnx")  # what scales the columns is no weight
    np.testing.assert_array_equal(exported["mean"], train["table"].mean(0))
    assert exported["usual"] == train["target"].mean()


def test_autoencoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = autoencoder.story(tmp_path, epochs=12)
    assert found["autoencoder"] < found["8 principal components"] < found["the mean image"]
    assert "@@" in capsys.readouterr().out.splitlines()[-4]


def test_sunspots(tmp_path: Path) -> None:
    found = sunspots.story(tmp_path, steps=120)
    assert found["LSTM"] < 0.75 * found["the year before"]


@pytest.mark.slow
def test_text(tmp_path: Path) -> None:
    found = text.story(tmp_path, steps=150)
    assert found["transformer"] < found["pairs of characters"] + 0.2 < found["any character as likely"]
    assert len(text.write(tmp_path / "text.onnx", "The ", 5)) == 9
