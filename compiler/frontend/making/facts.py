"""`Facts`: who makes and who reads a value of an inference graph, what type it has, and which values are constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from compiler.errors import ModelError, Problem
from compiler.frontend.making.emit import dims_of
from compiler.frontend.names import ai_onnx_version
from compiler.frontend.shape_inference import for_inference
from compiler.frontend.walk import all_nodes, reads
from compiler.ir.types import AnyArray

Dims = list[int | str | None]


class Facts:
    """What is known of the main graph of a model, which must not change while this is in use.

    producer: value -> node. readers: value -> (node, position) for each operand, nested graphs included.
    initializers: by name, without those in sparse form. sparse: element types of these. inputs: names of what is fed.
    """

    def __init__(self, model: ModelProto):
        self.model = model
        self.opset = ai_onnx_version(model)
        graph = model.graph
        self.initializers = {t.name: t for t in graph.initializer}
        self.sparse = {s.values.name: s.values.data_type for s in graph.sparse_initializer}
        self.inputs = [v.name for v in graph.input if v.name not in {*self.initializers, *self.sparse}]
        self.outputs = [v.name for v in graph.output]
        self.producer: dict[str, NodeProto] = {v: node for node in graph.node for v in node.output if v}
        self.readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        for node in all_nodes(graph):
            for position, v in enumerate(node.input):
                if v:
                    self.readers[v].append((node, position))

    @cached_property
    def types(self) -> Mapping[str, tuple[int, Dims | None]]:
        """Element type and dims of values, as far as inference gets.

        What the file says of outputs and inner values may be wrong: it counts only where inference knows less.
        ModelError: inference fails.
        """
        bare = for_inference(self.model)
        bare.graph.output.extend(self.model.graph.output)
        for output in bare.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        try:
            inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
        except (onnx.shape_inference.InferenceError, RuntimeError) as e:
            raise ModelError(Problem(f"the types of the model cannot be inferred: {e}", "the graph")) from e
        found: dict[str, tuple[int, Dims | None]] = {}
        for v in (*inferred.input, *inferred.value_info, *inferred.output):
            if v.type.HasField("tensor_type"):
                found[v.name] = (v.type.tensor_type.elem_type, dims_of(v))
        for t in self.initializers.values():
            found[t.name] = (t.data_type, list(t.dims))
        known = {d for v in self.model.graph.input for d in dims_of(v) or [] if isinstance(d, str)}
        for v in self.model.graph.output:
            if v.name in found and v.type.HasField("tensor_type"):
                found[v.name] = found[v.name][0], _better(found[v.name][1], dims_of(v), known)
        return found

    def elem_type(self, value: str) -> int:
        """The element type; UNDEFINED if it is not known."""
        return self.types[value][0] if value in self.types else TensorProto.UNDEFINED

    def dims(self, value: str) -> Dims | None:
        """The dims; None if not even the rank is known."""
        return self.types[value][1] if value in self.types else None

    def constant(self, value: str) -> AnyArray | None:
        """The value of an initializer that nobody feeds or of a Constant node, seen through Identity; else None."""
        value = self.origin(value)
        if value in self.initializers:
            return numpy_helper.to_array(self.initializers[value])
        node = self.producer.get(value)
        return constant_of(node) if node is not None and node.op_type == "Constant" else None

    def origin(self, value: str) -> str:
        """The value that this one is by Identity, if by any."""
        while (node := self.producer.get(value)) is not None and node.op_type == "Identity":
            value = node.input[0]
        return value

    def upstream(self, values: Iterable[str]) -> set[str]:
        """The values that some values are computed from, and those themselves."""
        found: set[str] = set()
        stack = list(values)
        while stack:
            v = stack.pop()
            if v not in found:
                found.add(v)
                if v in self.producer:
                    stack.extend(reads(self.producer[v]))
        return found


def _better(inferred: Dims | None, declared: Dims | None, symbols: set[str]) -> Dims | None:
    """Inferred dims, those that are not known taken from the declared ones. symbols: of the inputs."""
    if inferred is None or declared is None or len(inferred) != len(declared):
        return declared if inferred is None else inferred
    return [
        d if isinstance(d, int) or d in symbols or said not in symbols else said
        for d, said in zip(inferred, declared, strict=True)
    ]


def constant_of(node: NodeProto) -> AnyArray | None:
    """The value of a Constant node; None for strings and sparse tensors."""
    for a in node.attribute:
        match a.name:
            case "value":
                return numpy_helper.to_array(a.t)
            case "value_float":
                return np.array(a.f, np.float32)
            case "value_floats":
                return np.array(a.floats, np.float32)
            case "value_int":
                return np.array(a.i, np.int64)
            case "value_ints":
                return np.array(a.ints, np.int64)
    return None


def attribute(node: NodeProto, name: str, default: object = None) -> object:
    """The value of an attribute."""
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def int_attribute(node: NodeProto, name: str, default: int) -> int:
    """The value of an attribute that is a number."""
    found = next((a for a in node.attribute if a.name == name and a.type == AttributeProto.INT), None)
    return default if found is None else found.i


def nodes_between(facts: Facts, wanted: set[str]) -> Iterator[NodeProto]:
    """The nodes of the main graph, in order, that make one of some values."""
    return (node for node in facts.model.graph.node if any(v in wanted for v in node.output))
