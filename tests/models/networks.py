"""Small networks with random weights. Dense weights are [out, in], as PyTorch's exporter writes them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tests.models.training import attach_training

OPSET = 21
IR_VERSION = 10  # that of opset 21; any onnxruntime of the last years loads it


class _Layers:
    """Nodes and weights of a network, layer by layer; every method takes and returns the name of a value."""

    def __init__(self, dtype: npt.DTypeLike, seed: int, opset: int) -> None:
        self.opset = opset
        self.dtype = np.dtype(dtype)
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def _parameters(self, name: str, shape: tuple[int, ...]) -> list[str]:
        """Weight and bias, uniform within 1/sqrt(fan in)."""
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        names = {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        for key, dims in names.items():
            values = self.random.uniform(-bound, bound, dims).astype(self.dtype)
            self.weights.append(numpy_helper.from_array(values, key))
        return list(names)

    def dense(self, value: str, name: str, inputs: int, outputs: int, output: str | None = None) -> str:
        return self.node("Gemm", [value, *self._parameters(name, (outputs, inputs))], output or name, transB=1)

    def conv(self, value: str, name: str, inputs: int, outputs: int) -> str:
        parameters = self._parameters(name, (outputs, inputs, 3, 3))
        return self.node("Conv", [value, *parameters], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def pool(self, value: str, name: str) -> str:
        return self.node("MaxPool", [value], name, kernel_shape=[2, 2], strides=[2, 2])

    def model(self, name: str, input_dims: Sequence[int | str], output_dims: Sequence[int | str]) -> onnx.ModelProto:
        """The model from `x` to `logits`."""
        elem_type = helper.np_dtype_to_tensor_dtype(self.dtype)
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", elem_type, input_dims)],
            [helper.make_tensor_value_info("logits", elem_type, output_dims)],
            self.weights,
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSION,
            producer_name="onnxc tests",
        )


def mlp_inference(
    sizes: Sequence[int] = (784, 512, 256, 10),
    *,
    batch: int | str = "N",
    activation: str = "Relu",
    dtype: npt.DTypeLike = np.float32,
    seed: int = 0,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Dense layers with an activation between them: x [batch, sizes[0]] -> logits [batch, sizes[-1]]."""
    layers = _Layers(dtype, seed, opset)
    value, last = "x", len(sizes) - 1
    for number in range(1, last):
        hidden = layers.dense(value, f"fc{number}", sizes[number - 1], sizes[number])
        value = layers.node(activation, [hidden], f"act{number}")
    layers.dense(value, f"fc{last}", sizes[-2], sizes[-1], "logits")
    return layers.model("mlp", [batch, sizes[0]], [batch, sizes[-1]])


def lenet_inference(
    *, batch: int | str = "N", dtype: npt.DTypeLike = np.float32, seed: int = 0, opset: int = OPSET
) -> onnx.ModelProto:
    """Two 3x3 convolutions (32, 64), each with Relu and 2x2 pooling, and dense 128: x [batch,1,28,28] -> logits."""
    layers = _Layers(dtype, seed, opset)
    value = layers.conv("x", "conv1", 1, 32)
    value = layers.pool(layers.node("Relu", [value], "act1"), "pool1")
    value = layers.conv(value, "conv2", 32, 64)
    value = layers.pool(layers.node("Relu", [value], "act2"), "pool2")
    value = layers.node("Flatten", [value], "features")
    value = layers.node("Relu", [layers.dense(value, "fc1", 64 * 7 * 7, 128)], "act3")
    layers.dense(value, "fc2", 128, 10, "logits")
    return layers.model("lenet", [batch, 1, 28, 28], [batch, 10])


def mlp(
    sizes: Sequence[int] = (784, 512, 256, 10),
    *,
    batch: int | str = "N",
    activation: str = "Relu",
    dtype: npt.DTypeLike = np.float32,
    seed: int = 0,
    opset: int = OPSET,
    **training: Any,
) -> onnx.ModelProto:
    """A training model of `mlp_inference`; `training` goes to `attach_training`."""
    model = mlp_inference(sizes, batch=batch, activation=activation, dtype=dtype, seed=seed, opset=opset)
    return attach_training(model, **training)


def tiny(
    *, batch: int | str = "N", dtype: npt.DTypeLike = np.float32, seed: int = 0, opset: int = OPSET, **training: Any
) -> onnx.ModelProto:
    """The smallest network that has everything: 4-16-3 with Tanh; `training` goes to `attach_training`."""
    return mlp((4, 16, 3), batch=batch, activation="Tanh", dtype=dtype, seed=seed, opset=opset, **training)


def lenet(
    *, batch: int | str = "N", dtype: npt.DTypeLike = np.float32, seed: int = 0, opset: int = OPSET, **training: Any
) -> onnx.ModelProto:
    """A training model of `lenet_inference`; `training` goes to `attach_training`."""
    return attach_training(lenet_inference(batch=batch, dtype=dtype, seed=seed, opset=opset), **training)
