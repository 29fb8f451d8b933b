"""Public models of others, to try training on. They are not part of this repository: ONNXC_ZOO names their folder."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from compiler import make_training_model
from tests.models.losses import CLASS_LOSSES

needs_zoo = pytest.mark.skipif("ONNXC_ZOO" not in os.environ, reason="ONNXC_ZOO names no folder with the public models")


def zoo_folder() -> Path:
    """The folder of ONNXC_ZOO."""
    return Path(os.environ["ONNXC_ZOO"])


@dataclass(frozen=True)
class ZooModel:
    """A file, and how to train it."""

    file: str
    inputs: Mapping[str, tuple[int, ...]]
    output_shape: tuple[int, ...]
    loss: str = "cross_entropy"
    output: str | None = None
    below: int = 2  # values of integer inputs are below this
    batch_norm: str = "auto"
    bind: Mapping[str, int] = field(default_factory=dict)

    def inference(self) -> onnx.ModelProto:
        """The model as published."""
        return onnx.load(zoo_folder() / f"{self.file}.onnx")

    def training(self, optimizer: str = "sgd", lr: float = 1e-3, **options: Any) -> onnx.ModelProto:
        """A training model: a step takes the inputs and `label`."""
        return make_training_model(
            self.inference(),
            loss=self.loss,
            optimizer=optimizer,
            lr=lr,
            output=self.output,
            target="label",
            batch=None,
            **{"batch_norm": self.batch_norm, **options},
        )

    def feeds(self, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Random inputs of one step, the label included."""
        random = np.random.default_rng(seed)
        types = {value.name: value.type.tensor_type.elem_type for value in self.inference().graph.input}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, shape in self.inputs.items():
            dtype = helper.tensor_dtype_to_np_dtype(types[name])
            floats = dtype.kind == "f"
            arrays[name] = (random.random(shape) if floats else random.integers(0, self.below, shape)).astype(dtype)
        if self.loss in CLASS_LOSSES:
            arrays["label"] = random.integers(0, self.output_shape[-1], self.output_shape[:-1], np.int64)
        else:
            arrays["label"] = random.random(self.output_shape, np.float32)
        return arrays


_TOKENS = ("input_ids", "attention_mask", "token_type_ids")

ZOO = {
    model.file: model
    for model in (
        ZooModel("03_lenet_relu", {"input.1": (1, 3, 32, 32)}, (1, 2)),
        # One of its BatchNormalizations is over vectors: the statistics of one sample would leave nothing of them.
        ZooModel("04_cnn_bn_mnist", {"input.1": (1, 1, 28, 28)}, (1, 10), "nll", batch_norm="frozen"),
        ZooModel("05_mnist8_cntk", {"Input3": (1, 1, 28, 28)}, (1, 10)),
        ZooModel("07_resnet8_bn", {"input": (1, 3, 32, 32)}, (1, 10)),
        ZooModel("13_conv_ae", {"input": (1, 16, 16)}, (1, 16, 16), "mse"),
        ZooModel("16_bilstm_text", {"input": (4, 32)}, (4, 32, 2), below=256, bind={"batch": 4, "length": 32}),
        ZooModel(
            "18_tinybert",
            dict.fromkeys(_TOKENS, (4, 16)),
            (4, 50),
            output="output_1",
            bind={"batch": 4, "sequence": 16},
        ),
        ZooModel("20_cct", {"input": (1, 3, 32, 32)}, (1, 10)),
        ZooModel("r4_keras_lstm", {"input": (1, 5, 1)}, (1, 1), "mse"),
        ZooModel("r8_textcnn", {"input": (1, 2, 24)}, (24,), "bce", below=139, bind={"seq_len": 24}),
        ZooModel("r11_ae_ref", {"input": (1, 128)}, (1, 128), "mse"),
        # It declares 789444 rows of output for any number of rows of input.
        ZooModel("r13_bn_opset6", {"0": (64, 16)}, (64, 5), bind={"N": 64}),
    )
}
