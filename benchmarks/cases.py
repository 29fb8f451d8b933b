"""A workload as files in a folder, which workers read that have neither onnx nor onnxc."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import compiler
from benchmarks.workloads import WORKLOADS, Workload

LEARNING_RATE = 1e-3


def training_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The training model: mean cross-entropy with `label`, PyTorch's Adam."""
    return compiler.make_training_model(model, loss="cross_entropy", optimizer="adam", lr=LEARNING_RATE, batch=None)


def write_case(name: str, folder: Path) -> onnx.ModelProto:
    """Writes inference.onnx, training.onnx, weights.npz (by name), batch.npz (x, label), case.json; gives the first."""
    workload = WORKLOADS[name]
    model = workload.build()
    training = training_model(model)
    onnx.save(model, folder / "inference.onnx")
    onnx.save(training, folder / "training.onnx")
    facts = {"name": name, "trainable": trainable(training), "learning_rate": LEARNING_RATE}
    (folder / "case.json").write_text(json.dumps(facts), encoding="utf-8")
    _save(folder / "weights.npz", {t.name: numpy_helper.to_array(t) for t in model.graph.initializer})
    _save(folder / "batch.npz", batch(workload, model))
    return model


def trainable(training: onnx.ModelProto) -> list[str]:
    """Names of the initializers that a training model takes the loss's gradient with respect to."""
    initializers = {t.name for t in training.graph.initializer}
    nodes = [n for n in training.training_info[0].algorithm.node if n.op_type == "Gradient"]
    names = [s.decode() for n in nodes for a in n.attribute if a.name == "xs" for s in a.strings]
    return [name for name in names if name in initializers]


def batch(workload: Workload, model: onnx.ModelProto) -> dict[str, npt.NDArray[Any]]:
    """The one batch that all steps are on, from a fixed seed: `x`, and `label` i64 of the logits' dims but classes."""
    random = np.random.default_rng(1)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    logits = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    if workload.tokens:
        x: npt.NDArray[Any] = random.integers(0, workload.tokens, shape)
    else:
        x = random.standard_normal(shape).astype(np.float32)
    return {"x": x, "label": random.integers(0, workload.classes, [logits[0], *logits[2:]])}


def _save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **arrays)
