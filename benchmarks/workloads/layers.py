"""Building networks layer by layer with onnx.helper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20  # the first with Gelu
IR_VERSION = 9  # that of opset 20, which onnxruntime-training 1.19 reads as well


class Layers:
    """Nodes and weights of a network; every method takes and returns names of values.

    Weights are uniform within 1/sqrt(fan in), as PyTorch's layers have them, from a fixed seed.
    """

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    # --- pieces ------------------------------------------------------------------------------------------
    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A node with one output, which is called like the node."""
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def tensor(self, name: str, values: npt.NDArray[Any]) -> str:
        """An initializer."""
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def uniform(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        """A weight within 1/sqrt(fan in), float32."""
        bound = 1 / math.sqrt(fan_in)
        return self.tensor(name, self._random.uniform(-bound, bound, shape).astype(np.float32))

    def normal(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        """A weight of a normal distribution, float32."""
        return self.tensor(name, self._random.normal(0, deviation, shape).astype(np.float32))

    def integers(self, name: str, values: Sequence[int]) -> str:
        """An int64 vector, for shapes and axes."""
        return self.tensor(name, np.array(values, np.int64))

    # --- layers ------------------------------------------------------------------------------------------
    def dense(self, x: str, name: str, inputs: int, outputs: int, output: str | None = None) -> str:
        """[N, inputs] -> [N, outputs], weight [outputs, inputs]."""
        weight = self.uniform(f"{name}.weight", (outputs, inputs), inputs)
        bias = self.uniform(f"{name}.bias", (outputs,), inputs)
        return self.node("Gemm", [x, weight, bias], output or name, transB=1)

    def dense_last(self, x: str, name: str, inputs: int, outputs: int, output: str | None = None) -> str:
        """[..., inputs] -> [..., outputs], weight [inputs, outputs]."""
        weight = self.uniform(f"{name}.weight_t", (inputs, outputs), inputs)
        bias = self.uniform(f"{name}.bias", (outputs,), inputs)
        return self.node("Add", [self.node("MatMul", [x, weight], f"{name}/product"), bias], output or name)

    def conv(
        self,
        x: str,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = True,
        output: str | None = None,
    ) -> str:
        """[N, inputs, H, W] -> [N, outputs, H/stride, W/stride]."""
        fan_in = inputs // groups * kernel * kernel
        operands = [x, self.uniform(f"{name}.weight", (outputs, inputs // groups, kernel, kernel), fan_in)]
        if bias:
            operands.append(self.uniform(f"{name}.bias", (outputs,), fan_in))
        pad = kernel // 2
        attributes = {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2, "group": groups}
        return self.node("Conv", operands, output or name, **attributes)

    def up(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """[N, inputs, H, W] -> [N, outputs, 2H, 2W] by a transposed convolution, weight [inputs, outputs, 2, 2]."""
        weight = self.uniform(f"{name}.weight", (inputs, outputs, 2, 2), outputs * 4)
        bias = self.uniform(f"{name}.bias", (outputs,), outputs * 4)
        return self.node("ConvTranspose", [x, weight, bias], name, kernel_shape=[2, 2], strides=[2, 2])

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        """In training form; running statistics `.running_mean` and `.running_var`, momentum 0.9 of the old."""
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        values = {"weight": ones, "bias": zeros, "running_mean": zeros, "running_var": ones}
        operands = [x, *(self.tensor(f"{name}.{key}", value) for key, value in values.items())]
        outputs = [name, f"{name}.running_mean.next", f"{name}.running_var.next"]
        self.nodes.append(
            helper.make_node("BatchNormalization", operands, outputs, name, training_mode=1, momentum=0.9)
        )
        return name

    def layer_norm(self, x: str, name: str, size: int) -> str:
        """Over the last axis."""
        weight = self.tensor(f"{name}.weight", np.ones(size, np.float32))
        bias = self.tensor(f"{name}.bias", np.zeros(size, np.float32))
        return self.node("LayerNormalization", [x, weight, bias], name)

    def relu(self, x: str) -> str:
        """Relu."""
        return self.node("Relu", [x], f"{x}/relu")

    def pool(self, x: str) -> str:
        """2x2 maximum."""
        return self.node("MaxPool", [x], f"{x}/pool", kernel_shape=[2, 2], strides=[2, 2])

    def global_mean(self, x: str) -> str:
        """[N, C, H, W] -> [N, C]."""
        return self.node("Flatten", [self.node("GlobalAveragePool", [x], f"{x}/mean")], "features")

    # --- the whole ---------------------------------------------------------------------------------------
    def model(
        self, name: str, shape: Sequence[int], logits: Sequence[int], elem_type: int = TensorProto.FLOAT
    ) -> onnx.ModelProto:
        """The model from `x` to `logits`."""
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("x", elem_type, shape)],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, logits)],
            self.initializers,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="onnxc benchmarks")
