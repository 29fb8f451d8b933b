"""Exports of scikit-learn by skl2onnx: networks train on, and the result runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler import UnsupportedError, make_training_model
from tests.exporters.training import trains

skl2onnx = pytest.importorskip("skl2onnx")
pytest.importorskip("sklearn")

from sklearn import datasets  # noqa: E402
from sklearn.neural_network import MLPClassifier, MLPRegressor  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def classifier(name: str, **options: Any) -> tuple[Any, Any, Any]:
    """A pipeline that was fitted a little, and its data."""
    data = datasets.load_digits() if name == "digits" else datasets.load_breast_cancer()
    x = data.data.astype(np.float32)
    return make_pipeline(StandardScaler(), MLPClassifier((24,), max_iter=2, random_state=0, **options)), x, data.target


def written(model: Any, x: Any, path: Path, zipmap: bool | None = False) -> Path:
    options = None if zipmap is None else {"zipmap": zipmap}
    onnx.save(skl2onnx.to_onnx(model, x[:1], options=options), path)
    return path


@pytest.mark.parametrize("outputs", [None, ["probabilities"]], ids=["with the class", "probabilities"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_classifier_trains(activation: str, outputs: list[str] | None, tmp_path: Path) -> None:
    model, x, y = classifier("digits", activation=activation)
    path = written(model.fit(x, y), x, tmp_path / "net.onnx")
    training = make_training_model(path, target="digit", outputs=outputs, lr=0.005)
    trains(training, {"X": x, "digit": y}, tmp_path / "trained.onnx")


def test_a_classifier_of_two_classes_gives_probabilities(tmp_path: Path) -> None:
    """They are of a Sigmoid and what it leaves, which the loss finds."""
    model, x, y = classifier("cancer", activation="logistic")
    path = written(model.fit(x, y), x, tmp_path / "net.onnx")
    training = make_training_model(path, target="kind", lr=0.02)
    trains(training, {"X": x, "kind": y}, tmp_path / "trained.onnx")


def test_a_regressor_trains(tmp_path: Path) -> None:
    data = datasets.load_diabetes()
    x, y = data.data.astype(np.float32), (data.target / 100).astype(np.float32)
    model = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(16,), max_iter=2, random_state=0))
    path = written(model.fit(x, y), x, tmp_path / "net.onnx", zipmap=None)
    training = make_training_model(path, loss="mse", target="progress", lr=0.01)
    trains(training, {"X": x, "progress": y[:, None]}, tmp_path / "trained.onnx")


def test_a_map_of_probabilities_is_refused_with_the_way_out(tmp_path: Path) -> None:
    model, x, y = classifier("digits")
    path = written(model.fit(x, y), x, tmp_path / "net.onnx", zipmap=None)
    with pytest.raises(UnsupportedError, match=r"ZipMap.*options=\{'zipmap': False\}"):
        make_training_model(path)
