"""Slopes of a training model's loss, by evaluators of others: onnx.reference in float64, or onnxruntime in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.models.concatenation import concatenation

Array = npt.NDArray[Any]
Loss = Callable[[Mapping[str, Array]], float]
"""The loss at these parameters, the others as in the model."""


class Erf(OpRun):
    """onnx.reference has one in float32 only."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    """onnx.reference has one in float32 only."""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1 + np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))),)


def forward(model: onnx.ModelProto) -> onnx.ModelProto:
    """The inference graph and the loss of a training model, without gradients and updates."""
    step = concatenation(model)
    needed, nodes = {"loss"}, []
    for node in reversed(step.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= {*node.input, *_captured(node)}
    del step.graph.node[:]
    step.graph.node.extend(reversed(nodes))
    kept = [t for t in step.graph.initializer if t.name in needed]
    del step.graph.initializer[:]
    step.graph.initializer.extend(kept)
    del step.graph.output[:]
    step.graph.output.append(onnx.helper.make_tensor_value_info("loss", TensorProto.FLOAT, None))
    for domain in [o for o in step.opset_import if o.domain not in ("", "ai.onnx")]:
        step.opset_import.remove(domain)
    return step


def _captured(node: NodeProto) -> Iterable[str]:
    for a in node.attribute:
        for inner in a.g.node:
            yield from (*inner.input, *_captured(inner))


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that computes in float64 what the model computes in float32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    _widen(wide.graph)
    return wide


def _widen(graph: GraphProto) -> None:
    del graph.value_info[:]
    for t in graph.initializer:
        _widen_tensor(t)
    for v in (*graph.input, *graph.output):
        if v.type.tensor_type.elem_type == TensorProto.FLOAT:
            v.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for a in node.attribute:
            if a.HasField("t"):
                _widen_tensor(a.t)
            if a.HasField("g"):
                _widen(a.g)
            if node.op_type == "Cast" and a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = TensorProto.DOUBLE


def _widen_tensor(t: TensorProto) -> None:
    if t.data_type == TensorProto.FLOAT:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))


def exact_loss(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Loss:
    """The loss of a training model by onnx.reference in float64."""
    wide = in_float64(forward(model))
    evaluator = ReferenceEvaluator(wide, new_ops=[Erf, Gelu])
    names = {v.name for v in wide.graph.input}
    fixed = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in feeds.items() if n in names}

    def loss(parameters: Mapping[str, Array]) -> float:
        evaluator.rt_inits_.update(parameters)
        with np.errstate(all="ignore"):
            return float(np.reshape(evaluator.run(None, fixed)[0], ()))

    return loss


def rough_loss(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Loss:
    """The loss of a training model by onnxruntime in float32, its parameters as inputs."""
    step = forward(model)
    initial = {t.name: numpy_helper.to_array(t) for t in step.graph.initializer}
    known = {v.name for v in step.graph.input}
    step.graph.input.extend(
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in initial.items()
        if n not in known and a.dtype == np.float32
    )
    session = onnxruntime.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {v.name for v in session.get_inputs()}
    fixed = {n: a for n, a in feeds.items() if n in names}

    def loss(parameters: Mapping[str, Array]) -> float:
        given = {n: a.astype(np.float32) for n, a in parameters.items()}
        return float(np.reshape(session.run(None, {**fixed, **given})[0], ()))

    return loss


def slope(loss: Loss, name: str, at: Array, direction: Array, step: float) -> float:
    """The derivative of the loss along a direction of one parameter, by central differences."""
    ahead, behind = (loss({name: at + k * step * direction}) for k in (1, -1))
    loss({name: at})  # an evaluator that keeps parameters is back at the start
    return (ahead - behind) / (2 * step)
