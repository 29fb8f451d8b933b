"""Models that are an optimizer only: the gradients are inputs of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler.frontend.making.emit import DOMAIN, Algorithm
from compiler.frontend.making.optimizers import Added, OptimizerSpec, Parameter, add_optimizer

Array = npt.NDArray[Any]


def model_of(weights: Mapping[str, Array], opset: int = 20) -> onnx.ModelProto:
    """An inference model that gives the sums of some initializers."""
    tensors = [numpy_helper.from_array(w, name) for name, w in weights.items()]
    nodes = [helper.make_node("ReduceSum", [t.name], [f"{t.name}.all"], keepdims=0) for t in tensors]
    outputs = [helper.make_tensor_value_info(f"{t.name}.all", t.data_type, []) for t in tensors]
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "weights", [], outputs, tensors)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def with_optimizers(
    weights: Mapping[str, Array], specs: Sequence[tuple[Sequence[str], OptimizerSpec]], opset: int = 20
) -> tuple[onnx.ModelProto, list[Added]]:
    """The training model in which each spec updates some of the weights, from the inputs `W.gradient`."""
    model = model_of(weights, opset)
    dtypes = {helper.np_dtype_to_tensor_dtype(w.dtype) for w in weights.values()}
    a = Algorithm(model, dtypes.pop() if len(dtypes) == 1 else TensorProto.DOUBLE)
    added = []
    for names, spec in specs:
        parameters = [
            Parameter(n, weights[n].shape, helper.np_dtype_to_tensor_dtype(weights[n].dtype), weights[n]) for n in names
        ]
        gradients = {p.name: a.input(f"{p.name}.gradient", p.elem_type, p.shape) for p in parameters}
        if spec.accumulate > 1:
            for p in parameters:
                part = a.const(1 / spec.accumulate, "part", p.elem_type)
                gradients[p.name] = a.node("Mul", [gradients[p.name], part], f"{p.name}.part")
        added.append(add_optimizer(a, parameters, gradients, spec))
        a.output(a.node("Identity", [added[-1].rate], f"{names[0]}.rate"))
    model.training_info.append(a.training_info())
    return model, added


def random_gradients(weights: Mapping[str, Array], steps: int, seed: int = 0) -> list[dict[str, Array]]:
    """Gradients for each step, of different sizes."""
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=steps))
    return [
        {name: np.asarray(rng.normal(size=w.shape) * scale, w.dtype) for name, w in weights.items()} for scale in scales
    ]
