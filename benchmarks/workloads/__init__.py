"""The networks that are measured: inference graphs in ONNX, each with a batch; the loss is always cross-entropy.

Weights have the names of the PyTorch modules in `benchmarks.peers.torch`, so that all sides start from the same ones.
Dense weights that MatMul takes are [in, out], and end in `.weight_t`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from benchmarks.workloads import dense, images, sequences


@dataclass(frozen=True)
class Workload:
    """A network and the shape of its batch.

    build: the inference model, `x` -> `logits`, with BatchNormalization in training form. classes: how many kinds of
    labels; tokens: how many kinds of inputs, if those are numbers of tokens, else 0: the inputs are real. about: one
    line for the report.
    """

    build: Callable[[], onnx.ModelProto]
    classes: int
    about: str
    tokens: int = 0


WORKLOADS = {
    "tiny": Workload(dense.tiny, 3, "MLP 4-16-3, batch 16"),
    "mlp": Workload(dense.mlp, 10, "MLP 784-512-256-10, batch 64"),
    "lenet": Workload(images.lenet, 10, "two 3x3 convolutions 32/64, 28x28, batch 64"),
    "resnet8": Workload(images.resnet8, 10, "three residual blocks 16/32/64, 32x32, batch 32"),
    "gpt": Workload(sequences.gpt, 256, "two transformer layers of 128, 8x64 tokens", tokens=256),
    "lstm": Workload(sequences.lstm, 10, "LSTM of 128, 28 steps, batch 32"),
    "depthwise": Workload(images.depthwise, 10, "five depthwise separable blocks 32..256, 32x32, batch 32"),
    "unet": Workload(images.unet, 4, "U-Net 16/32/64, 64x64, batch 8"),
    "wide": Workload(sequences.wide, 256, "one transformer layer of 512, 4x128 tokens", tokens=256),
}
"""Workload by name, in the order of the report."""

SIX = ("tiny", "mlp", "lenet", "resnet8", "gpt", "lstm")
"""The workloads that the geometric mean of the targets is over."""
