"""`compiler.backend`, onnxc as an `onnx.backend.base.Backend`: for ONNX's own test suite, and for tools that take any.

    rep = compiler.backend.prepare(model)
    outputs = rep.run([x, y])

`prepare` checks the model; the first `run` compiles it for the shapes of its arrays. Dropout in training mode draws the
mask that ONNX's reference implementation draws (NumPy's MT19937 with the node's seed, the same one at each run), which
is what the suite expects; `compiler.compile` has its own generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper, shape_inference
from onnx.backend.base import Backend as _Base
from onnx.backend.base import BackendRep

from compiler.api import compile as compile_model
from compiler.errors import InputError
from compiler.frontend import load as load_source
from compiler.ir.proto import OPSETS
from compiler.ir.types import dtype_from_onnx, numpy_dtype
from compiler.runtime.layout import ML_DTYPES
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction


class Rep(BackendRep):
    """A prepared model."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._steps: dict[bytes, StepFunction] = {}
        load_source(model)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Outputs in the model's order.

        inputs: arrays by position (those with a default value may be left out), or by name. InputError, CompileError
        as of a step.
        """
        graph = self._model.graph
        feeds = inputs if isinstance(inputs, Mapping) else self._named(inputs)
        found = self._step_for(feeds)({n: np.asarray(a) for n, a in feeds.items()})
        results = []
        for o in graph.output:
            dtype = dtype_from_onnx(o.type.tensor_type.elem_type)
            results.append(found[o.name].view(numpy_dtype(dtype)) if dtype in ML_DTYPES else found[o.name])
        return tuple(results)

    def _step_for(self, feeds: Mapping[str, Any]) -> StepFunction:
        """One step for all calls, or with Dropout in training mode one for each mask."""
        model = _with_reference_dropout(self._model, feeds)
        key = b"" if model is self._model else model.SerializeToString()
        if key not in self._steps:
            self._steps[key] = compile_model(model)
        return self._steps[key]

    def _named(self, inputs: Sequence[Any]) -> dict[str, Any]:
        defaults = {t.name for t in self._model.graph.initializer}
        names = [i.name for i in self._model.graph.input]
        if len(inputs) != len(names):
            names = [n for n in names if n not in defaults]
        if len(inputs) != len(names):
            raise InputError(f"the model has {len(names)} inputs ({', '.join(names)}), {len(inputs)} were given")
        return dict(zip(names, inputs, strict=True))


class Backend(_Base):
    """What `compiler.backend` is: see the module's text."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> Rep:
        """Check a model for running. CompileError lists all that is wrong with it or not supported."""
        if not cls.supports_device(device):
            raise InputError(f"device {device!r} is not supported: CPU is")
        return Rep(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """CPU only."""
        return device.partition(":")[0] == "CPU"

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """Outputs of one node on arrays by position, at the opset `opset_version` (by default the newest)."""
        names = [n for n in node.input if n]
        arrays = dict(zip(names, map(np.asarray, inputs), strict=True))
        types = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in arrays.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        opset = helper.make_opsetid(node.domain, kwargs.get("opset_version", OPSETS.get(node.domain, 1)))
        graph = helper.make_graph([node], "node", types, outputs)
        model = helper.make_model(graph, opset_imports=[opset])
        return cls.run_model(shape_inference.infer_shapes(model, data_prop=True), arrays, device)


def _with_reference_dropout(model: ModelProto, feeds: Mapping[str, Any]) -> ModelProto:
    """The model with training Dropout of graph inputs as a product with the reference implementation's mask."""
    if not any(node.op_type == "Dropout" for node in model.graph.node):
        return model
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values |= {n: np.asarray(a) for n, a in feeds.items()}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            values[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    changed = ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    for node in model.graph.node:
        training = node.op_type == "Dropout" and len(node.input) > 2 and bool(values.get(node.input[2], False))
        changed.graph.node.extend(_masked(node, values) if training and node.input[0] in values else [node])
    return changed


def _masked(node: NodeProto, values: Mapping[str, Array]) -> list[NodeProto]:
    data = values[node.input[0]]
    ratio = float(values[node.input[1]]) if node.input[1] else 0.5
    seed = next((a.i for a in node.attribute if a.name == "seed"), 0)
    kept = np.random.RandomState(seed).uniform(0, 1.0, data.shape) >= ratio
    scale = (kept / (1 - ratio)).astype(data.dtype)
    name = f"{node.output[0]}/scale"
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(scale)),
        helper.make_node("Mul", [node.input[0], name], [node.output[0]]),
    ]
    if len(node.output) > 1:
        nodes.append(helper.make_node("Constant", [], [node.output[1]], value=numpy_helper.from_array(kept)))
    return nodes
