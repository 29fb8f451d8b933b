"""Regression on a table: how far a disease goes in a year, from ten measurements of a patient.

`python -m examples.stories.regression [FOLDER]` trains a small network, keeps its best epoch, and compares it with the
mean and with the linear least-squares fit, on patients that none of them has seen.
"""

from pathlib import Path

import numpy as np
import onnx

import compiler
from examples.stories.common import folder, in_onnxruntime, network

DATA = Path(__file__).parents[1] / "data" / "diabetes.npz"
Arrays = dict[str, np.ndarray]


def mlp(table: np.ndarray, progress: np.ndarray) -> onnx.ModelProto:
    """Ten measurements to the progress of the disease, both in their own units.

    What brings the numbers to a size near 1 and back is part of the model, so whoever runs it need not know it. It does
    not train: `make_training_model` sees that these constants are no weights.
    """
    return network(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        diabetes (float[N, 10] table) => (float[N, 1] progress)
        <float[10] mean, float[10] deviation, float[1] usual, float[1] spread,
         float[10, 16] "hidden.weight", float[16] "hidden.bias", float[16, 1] "last.weight", float[1] "last.bias">
        {
            centered = Sub (table, mean)
            scaled = Div (centered, deviation)
            hidden = Gemm (scaled, "hidden.weight", "hidden.bias")
            bent = Tanh (hidden)
            last = Gemm (bent, "last.weight", "last.bias")
            change = Mul (last, spread)
            progress = Add (change, usual)
        }""",
        mean=table.mean(0),
        deviation=table.std(0),
        usual=progress.mean(),
        spread=progress.std(),
    )


def parts() -> tuple[Arrays, Arrays, Arrays]:
    """256 patients for training, 86 to choose the epoch, 100 for testing; `target` is [N, 1] as the output."""
    with np.load(DATA) as file:
        table, progress = file["table"], file["progress"][:, np.newaxis]
    order = np.random.default_rng(0).permutation(len(table))
    test, validation, train = ({"table": table[r], "target": progress[r]} for r in np.split(order, [100, 186]))
    return train, validation, test


def least_squares(train: Arrays, test: Arrays) -> np.ndarray:
    """The predictions of the best linear function with a constant."""
    design = np.column_stack([train["table"], np.ones(len(train["table"]))]).astype(np.float64)
    solution: np.ndarray = np.linalg.lstsq(design, train["target"], rcond=None)[0]
    prediction: np.ndarray = np.column_stack([test["table"], np.ones(len(test["table"]))]) @ solution
    return prediction


def story(place: Path, epochs: int = 150) -> dict[str, float]:
    """Tells the story; the mean absolute errors by name."""
    train, validation, test = parts()
    training = compiler.make_training_model(
        mlp(train["table"], train["target"]),
        loss="mse",
        optimizer="adamw",
        lr=0.003,
        weight_decay=1.0,
        no_decay="*.bias",
        initialize="xavier",
        seed=1,
    )
    trainer = compiler.Trainer(training, train, validation, metrics=["mae"], batch=64, initialize=True)
    path, best = place / "diabetes.onnx", float("inf")
    for epoch in trainer.run(epochs):
        if epoch.metrics["mae"] < best:
            best, number = epoch.metrics["mae"], epoch.number
            trainer.step.export(path)
    print(f"best after epoch {number}: mean absolute error {best:.1f} of the validation patients")
    known = {name: np.concatenate([train[name], validation[name]]) for name in train}
    predictions = {
        "the mean of all": np.broadcast_to(known["target"].mean(), test["target"].shape),
        "least squares": least_squares(known, test),
        "network": in_onnxruntime(path, table=test["table"]),
    }
    found = {}
    print(f"\n{len(test['target'])} other patients    mean absolute error   R2")
    for name, prediction in predictions.items():
        error = prediction - test["target"]
        found[name] = float(np.abs(error).mean())
        print(f"{name:<20} {found[name]:18.1f}  {1 - (error**2).mean() / test['target'].var():5.2f}")
    return found


if __name__ == "__main__":
    story(folder())
