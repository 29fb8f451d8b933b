"""The step of a training model as the standard defines it, without any of our code, to check ours with."""

from __future__ import annotations

import onnx
from onnx import ModelProto


def concatenation(model: ModelProto, index: int = 0) -> ModelProto:
    """Inference graph and algorithm of one TrainingInfoProto, put together as a plain model."""
    step = onnx.ModelProto()
    step.CopyFrom(model)
    del step.training_info[:]
    algorithm = model.training_info[index].algorithm
    for field in ("input", "initializer", "sparse_initializer", "output", "node", "value_info"):
        getattr(step.graph, field).extend(getattr(algorithm, field))
    return step
