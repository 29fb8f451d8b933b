"""`Algorithm`: what the algorithm graph of one TrainingInfoProto is put together from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TrainingInfoProto, ValueInfoProto, helper, numpy_helper

from compiler.errors import InputError, shown
from compiler.frontend.names import Names, ai_onnx_version
from compiler.frontend.shape_inference import for_inference

DOMAIN = "ai.onnx.preview.training"
"""The domain of Gradient and of the standard's optimizers."""

Dims = Sequence[int | str | None]


class Algorithm:
    """Nodes, initializers, inputs, outputs and bindings of an algorithm that goes with an inference model.

    opset: version of ai.onnx that the model imports, and its nodes are written in. dtype: TensorProto element type of
    the floats that training computes with. Names are made free in the inference graph and in the algorithm.
    renamed: what users know by name and found its name taken: that name, and the one it got.
    """

    def __init__(self, model: ModelProto, dtype: int = TensorProto.FLOAT):
        self.opset = ai_onnx_version(model)
        self.dtype = dtype
        self.names = Names(model.graph)
        self._types: dict[str, tuple[int, Dims]] = {
            t.name: (t.data_type, tuple(t.dims)) for t in model.graph.initializer
        }
        self._parts = GraphProto(name="training")
        self._constants: dict[tuple[object, ...], str] = {}
        self._bindings: list[tuple[str, str]] = []
        self._scopes: list[str] = []
        self.renamed: list[tuple[str, str]] = []

    @property
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes so far."""
        return list(self._parts.node)

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the inputs so far."""
        return [v.name for v in self._parts.input]

    @property
    def initializers(self) -> Mapping[str, TensorProto]:
        """The initializers so far, constants and variables."""
        return {t.name: t for t in self._parts.initializer}

    @property
    def bound(self) -> Sequence[str]:
        """Names of the variables that are bound so far."""
        return [key for key, _ in self._bindings]

    @contextmanager
    def scope(self, prefix: str) -> Iterator[None]:
        """Nodes made inside get names that start with `prefix/`, so that viewers can group them."""
        self._scopes.append(prefix)
        try:
            yield
        finally:
            self._scopes.pop()

    def public(self, name: str) -> str:
        """A free name for what users know by name: this one, or that with a number, which is recorded."""
        got = self.names.fresh(name)
        if got != name:
            self.renamed.append((name, got))
        return got

    def node(self, op: str, inputs: Sequence[str], hint: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output, whose name is returned: `hint`, or that with a number if it is taken."""
        return self.nodes_of(op, inputs, [hint], domain, **attributes)[0]

    def nodes_of(
        self, op: str, inputs: Sequence[str], hints: Sequence[str], domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node with an output for each hint; an empty hint leaves the output out."""
        outputs = [self.names.fresh(hint) if hint else "" for hint in hints]
        name = "/".join([*self._scopes, next(v for v in outputs if v)])
        self._parts.node.append(helper.make_node(op, list(inputs), outputs, name, domain=domain, **attributes))
        return outputs

    def add(self, node: NodeProto) -> None:
        """A finished node, whose outputs have names that `names.fresh` gave; its name gets the scope."""
        node.name = "/".join([*self._scopes, node.name or next(v for v in node.output if v)])
        self._parts.node.append(node)

    def const(self, value: npt.ArrayLike, hint: str, dtype: int | None = None) -> str:
        """An initializer that never changes, of the training float unless `dtype` is another; equal ones are shared.

        InputError: a number that is too large for the type.
        """
        array = self._array(value, dtype)
        if array.dtype.kind == "f" and (np.isfinite(np.asarray(value, np.float64)) & ~np.isfinite(array)).any():
            raise InputError(f"{hint} comes to {shown(value)}, which {array.dtype} cannot hold: give smaller numbers")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._initializer(self.names.fresh(hint), array)
        return self._constants[key]

    def state(self, name: str, value: npt.ArrayLike, dtype: int | None = None) -> str:
        """An initializer that `update` will bind: a variable of the algorithm, with its first value."""
        return self._initializer(self.public(name), self._array(value, dtype))

    def update(self, variable: str, value: str) -> None:
        """Bind a variable (of `state`, or an initializer of the model) to the value that it takes after the step."""
        made = {v for node in self._parts.node for v in node.output}
        if value not in made or any(value == v.name for v in self._parts.output):
            value = self.node("Identity", [value], f"{variable}.next")
            made.add(value)
        usual = f"{variable}.next"
        if usual in self.names and usual not in made:
            self.renamed.append((usual, value))
        elem_type, shape = self._types[variable]
        self._parts.output.append(helper.make_tensor_value_info(value, elem_type, shape))
        self._bindings.append((variable, value))

    def input(self, name: str, elem_type: int, shape: Dims | None, default: npt.ArrayLike | None = None) -> str:
        """An input of the step; the name that it got. default: what it is where a call does not give it."""
        name = self.public(name)
        if default is not None:
            self._initializer(name, self._array(default, elem_type))
        self._parts.input.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def output(self, name: str, elem_type: int | None = None, shape: Dims | None = ()) -> None:
        """Make a value an output of the step, by default a scalar of the training float."""
        self._parts.output.append(helper.make_tensor_value_info(name, elem_type or self.dtype, shape))

    def describe(self, name: str, elem_type: int, shape: Dims | None) -> None:
        """The type of a value that ONNX does not infer."""
        self._parts.value_info.append(helper.make_tensor_value_info(name, elem_type, shape))

    def axes(self, axes: Sequence[int], since: int = 13) -> tuple[list[str], dict[str, Any]]:
        """Axes of Squeeze, Unsqueeze, ReduceSum (since 13) or other reductions (18): operands and attributes."""
        if self.opset < since:
            return [], {"axes": list(axes)}
        return [self.const(list(axes), "axes", TensorProto.INT64)], {}

    def reduce(self, op: str, value: str, hint: str, axes: Sequence[int] | None = None, keepdims: bool = False) -> str:
        """ReduceSum, ReduceMean, ReduceMax, ... over some axes, or all."""
        operands, attributes = ([], {}) if axes is None else self.axes(axes, 13 if op == "ReduceSum" else 18)
        return self.node(op, [value, *operands], hint, keepdims=int(keepdims), **attributes)

    def unsqueeze(self, value: str, axes: Sequence[int], hint: str) -> str:
        """Unsqueeze; axes count in the result."""
        operands, attributes = self.axes(axes)
        return self.node("Unsqueeze", [value, *operands], hint, **attributes)

    def behind(self, model: ModelProto) -> ModelProto:
        """What shape inference needs of the inference model with the nodes so far behind its own."""
        joined = for_inference(model)
        joined.graph.node.extend(self._parts.node)
        joined.graph.input.extend(self._parts.input)
        joined.graph.initializer.extend(self._parts.initializer)
        return joined

    def training_info(
        self, initialization: GraphProto | None = None, bindings: Sequence[tuple[str, str]] = ()
    ) -> TrainingInfoProto:
        """The finished message."""
        graph = GraphProto()
        graph.CopyFrom(self._parts)
        return helper.make_training_info(graph, self._bindings, initialization, list(bindings) or None)

    def _array(self, value: npt.ArrayLike, dtype: int | None) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            return np.asarray(value, helper.tensor_dtype_to_np_dtype(self.dtype if dtype is None else dtype))

    def _initializer(self, name: str, array: npt.NDArray[Any]) -> str:
        tensor = numpy_helper.from_array(array, name)
        self._types[name] = (tensor.data_type, tuple(tensor.dims))
        self._parts.initializer.append(tensor)
        return name


def dims_of(value: ValueInfoProto) -> list[int | str | None] | None:
    """Dims as declared: numbers, symbols, None where nothing is said; None for an unknown rank."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
