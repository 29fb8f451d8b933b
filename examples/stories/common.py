"""What the stories share: a network from the text of ONNX, and stock onnxruntime."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime


def network(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    """An inference model from the text form of ONNX, in which weights and constants have types but no values.

    `name (inputs) => (outputs) <weights> {nodes}`. The weights become initializers of zeros: their first values are
    drawn by the initialization graph that `make_training_model(..., initialize=...)` adds.
    """
    model = onnx.parser.parse_model(text)
    for weight in model.graph.value_info:
        shape = [d.dim_value for d in weight.type.tensor_type.shape.dim]
        value = np.broadcast_to(constants.get(weight.name, np.zeros(())), shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, weight.name))
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    return model


def in_onnxruntime(path: Path, **inputs: Any) -> np.ndarray:
    """The first output of an exported model, as stock onnxruntime computes it. Nothing of onnxc is used."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, inputs)[0]
    return result


def folder() -> Path:
    """Where the command line wants the files, else demo/stories."""
    found = Path(sys.argv[1] if len(sys.argv) > 1 else "demo/stories")
    found.mkdir(parents=True, exist_ok=True)
    return found
