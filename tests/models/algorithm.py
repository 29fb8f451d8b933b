"""What a TrainingInfoProto.algorithm is put together from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "ai.onnx.preview.training"


@dataclass(frozen=True)
class Variable:
    """A tensor that training changes; `dtype` is the TensorProto number."""

    name: str
    dtype: int
    shape: tuple[int, ...]

    def zeros(self) -> npt.NDArray[np.generic]:
        """An array of its type."""
        return np.zeros(self.shape, helper.tensor_dtype_to_np_dtype(self.dtype))


@dataclass
class Algorithm:
    """The parts of an algorithm graph so far. `opset` is the version of ai.onnx that its nodes are written in."""

    opset: int
    dtype: int = TensorProto.FLOAT
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    values: list[onnx.ValueInfoProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    binding: list[tuple[str, str]] = field(default_factory=list)

    def node(self, op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output, which is returned and gives the node its name."""
        self.nodes.append(helper.make_node(op, inputs, [output], output, domain=domain, **attributes))
        return output

    def tensor(self, name: str, value: npt.ArrayLike, dtype: int | None = None) -> str:
        """An initializer, of the model's float type unless told otherwise."""
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(self.dtype if dtype is None else dtype))
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def update(self, variable: Variable, value: str) -> None:
        """Makes `value` an output, and binds the variable to it."""
        self.outputs.append(helper.make_tensor_value_info(value, variable.dtype, variable.shape))
        self.binding.append((variable.name, value))

    def counter(self, name: str) -> tuple[str, str]:
        """A variable that counts steps from 0: its names before and after the increment. Made at the first call."""
        after = f"{name}.next"
        if all(tensor.name != name for tensor in self.initializers):
            self.tensor(name, 0, TensorProto.INT64)
            self.node("Add", [name, self.tensor(f"{name}.one", 1, TensorProto.INT64)], after)
            self.update(Variable(name, TensorProto.INT64, ()), after)
        return name, after

    def training_info(self, name: str) -> onnx.TrainingInfoProto:
        """The finished message, without initialization."""
        graph = helper.make_graph(
            self.nodes, name, self.inputs, self.outputs, self.initializers, value_info=self.values
        )
        return helper.make_training_info(graph, self.binding, None, None)
