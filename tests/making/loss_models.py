"""Small inference models to put losses on, and their losses and gradients without compiling kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import compiler
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from tests.models.concatenation import concatenation
from tests.slopes import forward

Array = npt.NDArray[Any]
FEATURES = 3


def linear(
    shape: Sequence[int | str],
    end: Sequence[tuple[str, Mapping[str, Any]]] = (),
    opset: int = 17,
    dtype: int = TensorProto.DOUBLE,
    scale: float = 1.0,
) -> onnx.ModelProto:
    """`y0` of that shape (the last axis is that of the weights), then to `y` nodes (op, attributes), or Identity."""
    array = np.random.default_rng(5).normal(size=(FEATURES, shape[-1])) * scale
    w = numpy_helper.from_array(array.astype(helper.tensor_dtype_to_np_dtype(dtype)), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y0"])]
    for i, (op, attributes) in enumerate(end or [("Identity", {})]):
        nodes.append(helper.make_node(op, [f"y{i}"], [f"y{i + 1}"], **attributes))
    nodes[-1].output[0] = "y"
    x = helper.make_tensor_value_info("x", dtype, [*shape[:-1], FEATURES])
    y = helper.make_tensor_value_info("y", dtype, [None] * len(shape))
    graph = helper.make_graph(nodes, "linear", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def checked(model: onnx.ModelProto) -> onnx.ModelProto:
    """A training model, after our check and that of onnx."""
    assert compiler.check(model) == ()
    onnx.checker.check_model(concatenation(model), full_check=True)
    return model


def output(model: onnx.ModelProto, feeds: Mapping[str, Array], name: str = "y0") -> Array:
    """A value of an inference model, by onnx.reference."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.opset_import[0].version = max(17, copy.opset_import[0].version)  # the oldest that onnx.reference has
    del copy.graph.output[:]
    copy.graph.output.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, None))
    names = {v.name for v in copy.graph.input}
    return np.asarray(ReferenceEvaluator(copy).run(None, {n: a for n, a in feeds.items() if n in names})[0])


def loss_by_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> float:
    """The loss of a training model, as it is written, by onnx.reference."""
    return float(np.reshape(ReferenceEvaluator(forward(model)).run(None, dict(feeds))[0], ()))


def step_graph(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Graph:
    """The step in the IR, with gradients as operators."""
    dims: dict[str, int] = {}
    for v in (*model.graph.input, *model.training_info[0].algorithm.input):
        for d, size in zip(v.type.tensor_type.shape.dim, feeds[v.name].shape, strict=True):
            dims |= {d.dim_param: size} if d.dim_param else {}
    return compiler.api.program(model, dims=dims, until="expand_gradients").step


def step_by_interpreter(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All values of a step, by the definition of each node of the IR."""
    return interpret(step_graph(model, feeds), feeds)
