"""ONNX Runtime's training API, from the same ONNX file; the last release that has it is 1.19.2."""

from __future__ import annotations

import onnx
import onnxruntime
from onnxruntime.training import api, artifacts, onnxblock

from benchmarks.peers import Case, Made

VERSION = str(onnxruntime.__version__)

INPUTS, OUTPUTS = {"LSTM": 7}, {"LayerNormalization": 3, "LSTM": 3}
"""Operators whose gradient in ONNX Runtime goes wrong unless the node has so many inputs (which may be empty) and named
outputs, optional ones included."""


def make_step(case: Case) -> Made:
    """The step: loss and gradients by one session, AdamW without decay by another."""
    model = onnx.load(case.folder / "inference.onnx")
    for node in model.graph.node:
        node.input.extend([""] * (INPUTS.get(node.op_type, 0) - len(node.input)))
        names = [*node.output, *[""] * (OUTPUTS.get(node.op_type, 0) - len(node.output))]
        del node.output[:]
        node.output.extend(name or f"{node.name}/output{i}" for i, name in enumerate(names))
    trainable = set(case.trainable)
    folder = case.folder / f"ort-{case.threads}"
    folder.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        model,
        requires_grad=sorted(trainable),
        frozen_params=[t.name for t in model.graph.initializer if t.name not in trainable],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=onnxblock.optim.AdamW(eps=1e-8),
        artifact_directory=folder,
    )
    session = onnxruntime.SessionOptions()
    session.intra_op_num_threads = case.threads
    state = api.CheckpointState.load_checkpoint(folder / "checkpoint")
    # without the model for evaluation, which is not needed, and refuses a BatchNormalization in training form
    module = api.Module(folder / "training_model.onnx", state, session_options=session)
    optimizer = api.Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(case.learning_rate)
    module.train()
    x, label = case.batch()

    def step() -> float:
        loss = float(module(x, label))
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    return Made(step)
