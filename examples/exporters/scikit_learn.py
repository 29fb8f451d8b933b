"""Networks of scikit-learn, by skl2onnx: `python -m examples.exporters.scikit_learn [FOLDER]`.

A pipeline that scales and classifies, fitted for two passes, is trained further; so is one for a number.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import compiler
from examples.exporters.common import TRAINED_ON, digits, train

warnings.simplefilter("ignore", ConvergenceWarning)  # two passes are all that is wanted


def main(folder: Path) -> None:
    """Fit a little, export, make a training model, train and compare."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = digits()
    x = images.reshape(-1, 64)

    classifier = make_pipeline(StandardScaler(), MLPClassifier((32,), max_iter=2, random_state=0))
    classifier.fit(x[:TRAINED_ON], labels[:TRAINED_ON])
    onnx.save(to_onnx(classifier, x[:1], options={"zipmap": False}), folder / "classifier.onnx")
    training = compiler.make_training_model(folder / "classifier.onnx", outputs=["probabilities"], target="digit")
    train(training, {"X": x, "digit": labels}, folder / "trained.onnx")

    # how dark the middle of an image is, from its border
    border = images.copy()
    border[:, 2:6, 2:6] = 0
    x, dark = border.reshape(-1, 64), images[:, 2:6, 2:6].mean((1, 2), dtype=np.float32)[:, None]
    regressor = MLPRegressor(hidden_layer_sizes=(32,), max_iter=2, random_state=0)
    regressor.fit(x[:TRAINED_ON], dark[:TRAINED_ON, 0])
    onnx.save(to_onnx(regressor, x[:1]), folder / "regressor.onnx")
    training = compiler.make_training_model(folder / "regressor.onnx", loss="mse", target="dark")
    train(training, {"X": x, "dark": dark}, folder / "trained.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
