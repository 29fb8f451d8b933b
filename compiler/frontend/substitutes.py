"""Operators that exporters write and the IR has none of, by others of ai.onnx: `with_substitutes`.

SplitToSequence with SequenceAt   Slice: PyTorch's exporter writes `split` so, if it does not optimize
Scaler                            skl2onnx makes it of a StandardScaler before the network
ArrayFeatureExtractor             with it skl2onnx looks up the class

Those of the main graph are replaced where what they do is known from constants. Formulas are those of ONNX's pages on
these operators; names of results stay.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from compiler.frontend.names import Names
from compiler.frontend.walk import all_nodes
from compiler.ir.types import AnyArray

_ML = "ai.onnx.ml"
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
_OPERATORS = {("", "SplitToSequence"), ("ai.onnx", "SplitToSequence"), (_ML, "Scaler"), (_ML, "ArrayFeatureExtractor")}


class _Graph:
    """What is asked of the main graph, which nobody has checked yet."""

    def __init__(self, model: ModelProto):
        graph = model.graph
        self.names = Names(graph, *(t.algorithm for t in model.training_info))
        self.initializers = {t.name: t for t in graph.initializer}
        self.outputs = {v.name for v in graph.output}
        self.readers: dict[str, list[NodeProto]] = defaultdict(list)
        self.made = {v for node in graph.node for v in node.output}
        self._constants = {node.output[0]: node for node in graph.node if node.op_type == "Constant" and node.output}
        for node in all_nodes(graph):
            for v in dict.fromkeys(node.input):
                self.readers[v].append(node)

    def integers(self, value: str) -> AnyArray | None:
        """A constant of integers; None if it is none, or malformed, which is told by those that check the model."""
        tensor = self.initializers.get(value)
        for a in self._constants[value].attribute if tensor is None and value in self._constants else ():
            if a.name in ("value_int", "value_ints"):
                return np.array(a.i if a.name == "value_int" else a.ints, np.int64)
            tensor = a.t
        if tensor is None or tensor.data_type not in _INTEGERS or uses_external_data(tensor):
            return None
        try:
            return numpy_helper.to_array(tensor)
        except ValueError:
            return None

    def constant(self, array: AnyArray, hint: str) -> NodeProto:
        """A Constant node."""
        return helper.make_node("Constant", [], [self.names.fresh(hint)], value=numpy_helper.from_array(array))


def with_substitutes(model: ModelProto) -> ModelProto:
    """The model with such nodes replaced; if there are none, as it is."""
    if not any((node.domain, node.op_type) in _OPERATORS for node in model.graph.node):
        return model
    graph = _Graph(model)
    made: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        match node.op_type, len(node.input), len(node.output):
            case "Scaler", 1, 1 if node.domain == _ML:
                made |= _scaler(node, graph)
            case "ArrayFeatureExtractor", 2, 1 if node.domain == _ML:
                made |= _extractor(node, graph)
            case "SplitToSequence", 2, 1:
                made |= _parts(node, graph)
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for node in model.graph.node:
        result.graph.node.extend(made.get(node.output[0], [node]) if node.output else [node])
    return result


def _scaler(node: NodeProto, graph: _Graph) -> dict[str, list[NodeProto]]:
    """Y = (X - offset) * scale, in float."""
    (x,), (y,) = node.input, node.output
    numbers = {a.name: np.array(a.floats, np.float32) for a in node.attribute}
    offset = graph.constant(numbers.get("offset", np.zeros(1, np.float32)), f"{y}.offset")
    scale = graph.constant(numbers.get("scale", np.ones(1, np.float32)), f"{y}.scale")
    cast = helper.make_node("Cast", [x], [graph.names.fresh(f"{y}.float")], to=TensorProto.FLOAT)
    centered = helper.make_node("Sub", [cast.output[0], offset.output[0]], [graph.names.fresh(f"{y}.centered")])
    scaled = helper.make_node("Mul", [centered.output[0], scale.output[0]], [y], node.name)
    return {y: [offset, scale, cast, centered, scaled]}


def _extractor(node: NodeProto, graph: _Graph) -> dict[str, list[NodeProto]]:
    """The elements of a constant at all of the indices along its last axis; of a vector, as one row."""
    (x, indices), (z,) = node.input, node.output
    tensor = graph.initializers.get(x)
    if tensor is None or tensor.data_type == TensorProto.STRING:
        return {}
    rank = len(tensor.dims)
    shape = graph.constant(np.array([-1] if rank > 1 else [1, -1], np.int64), f"{z}.shape")
    flat = helper.make_node("Reshape", [indices, shape.output[0]], [graph.names.fresh(f"{z}.indices")])
    return {z: [shape, flat, helper.make_node("Gather", [x, flat.output[0]], [z], node.name, axis=rank - 1)]}


def _parts(node: NodeProto, graph: _Graph) -> dict[str, list[NodeProto]]:
    """Each SequenceAt as a Slice, the SplitToSequence as nothing; empty if that is not how the sequence is used.

    A split that is one number gives parts of that size, the last of which may be smaller.
    """
    (sequence,) = node.output
    split = graph.integers(node.input[1])
    if split is None or split.ndim > 1 or sequence in graph.outputs:
        return {}
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    made: dict[str, list[NodeProto]] = {sequence: []}
    for reader in graph.readers[sequence]:
        if reader.op_type != "SequenceAt" or len(reader.input) != 2 or not graph.made.issuperset(reader.output):
            return {}
        position = graph.integers(reader.input[1])
        span = None if position is None or position.size != 1 else _span(split, int(position.reshape(())))
        if span is None:
            return {}
        y = reader.output[0]
        numbers = {"start": span[0], "end": span[1], "axis": axis}
        operands = [graph.constant(np.array([n], np.int64), f"{y}.{name}") for name, n in numbers.items()]
        part = helper.make_node("Slice", [node.input[0], *(c.output[0] for c in operands)], [y], reader.name)
        made[y] = [*operands, part]
    return made


def _span(split: AnyArray, i: int) -> tuple[int, int] | None:
    """Where part i starts and ends. None: there is no such part, or it depends on the size of all."""
    if split.ndim == 0:
        return None if i < 0 else (i * int(split), (i + 1) * int(split))
    if not -split.size <= i < split.size:
        return None
    end = int(split[: i % split.size + 1].sum())
    return end - int(split[i]), end
