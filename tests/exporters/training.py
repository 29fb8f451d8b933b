"""Some steps on real data: the loss falls, and another runtime computes of the trained model what we do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

import compiler


def trains(
    training: onnx.ModelProto, data: Mapping[str, npt.NDArray[Any]], path: Path, steps: int = 40, batch: int = 32
) -> None:
    assert compiler.check(training) == ()
    step = compiler.compile(training)
    rng = np.random.default_rng(0)
    size = len(next(iter(data.values())))
    losses = []
    for _ in range(steps):
        rows = rng.choice(size, batch, replace=False)
        losses.append(float(step({name: a[rows] for name, a in data.items()})["loss"]))
    assert np.mean(losses[-5:]) < 0.97 * np.mean(losses[:5])
    step.export(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    some = {v.name: data[v.name][:7] for v in session.get_inputs()}
    ours = step.infer(some)
    for v, theirs in zip(session.get_outputs(), session.run(None, some), strict=True):
        np.testing.assert_allclose(ours[v.name], theirs, rtol=1e-4, atol=2e-5)
