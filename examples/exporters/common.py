"""What the examples of exporters share: the digits, and training that is checked with another runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

import compiler

Array = npt.NDArray[Any]
DIGITS = Path(__file__).parents[1] / "data" / "digits.npz"
TRAINED_ON = 1347
"""Images for training; the other 450 are for the test."""


def digits() -> tuple[Array, Array]:
    """Images f32[1797,8,8] from 0 to 1, and their classes i64[1797]."""
    data = np.load(DIGITS)
    return data["images"].astype(np.float32) / 16, data["labels"].astype(np.int64)


def train(training: onnx.ModelProto, data: Mapping[str, Array], path: Path, epochs: int = 10, batch: int = 32) -> None:
    """Train on all but the last samples, write the trained model, and compare it in onnxruntime.

    data: arrays by input name of the step, with samples along the first axis. path: of the trained model.
    """
    for problem in compiler.check(training):
        raise SystemExit(f"error: {problem}")
    step = compiler.compile(training, seed=0)
    rng = np.random.default_rng(0)
    means = []
    for _ in range(epochs):
        order = rng.permutation(TRAINED_ON)[: TRAINED_ON // batch * batch].reshape(-1, batch)
        means.append(np.mean([step({name: a[i] for name, a in data.items()})["loss"] for i in order]))
    step.export(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    test = {v.name: data[v.name][TRAINED_ON:] for v in session.get_inputs()}
    theirs = dict(zip([v.name for v in session.get_outputs()], session.run(None, test), strict=True))
    ours = step.infer(test)
    difference = max(float(np.abs(ours[name] - array).max()) for name, array in theirs.items())
    print(f"loss {means[0]:.4f} -> {means[-1]:.4f}, difference to onnxruntime {difference:.0e}")
    (target,) = data.keys() - test.keys()
    scores = next(a for a in theirs.values() if a.dtype == np.float32)
    if data[target].dtype == np.int64:
        print(f"accuracy on the test images {(scores.argmax(-1) == data[target][TRAINED_ON:]).mean():.2%}")
