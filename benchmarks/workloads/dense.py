"""Dense networks."""

from __future__ import annotations

import onnx

from benchmarks.workloads.layers import Layers


def tiny() -> onnx.ModelProto:
    """4-16-3 with Tanh: what a step costs that has next to nothing to compute."""
    net = Layers()
    hidden = net.node("Tanh", [net.dense("x", "fc1", 4, 16)], "act1")
    net.dense(hidden, "fc2", 16, 3, "logits")
    return net.model("tiny", [16, 4], [16, 3])


def mlp() -> onnx.ModelProto:
    """784-512-256-10 with Relu: half the time is the optimizer's."""
    net = Layers()
    hidden = net.relu(net.dense("x", "fc1", 784, 512))
    hidden = net.relu(net.dense(hidden, "fc2", 512, 256))
    net.dense(hidden, "fc3", 256, 10, "logits")
    return net.model("mlp", [64, 784], [64, 10])
