"""Definitions of ops by simpler ones: bodies of ONNX's own functions, and of the ops of domain onnxc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx import AttributeProto, FunctionProto

from compiler.ir.builder import INTERNAL_OPS, BodyFunction, Builder
from compiler.ir.graph import Graph, Node
from compiler.ir.proto import CANONICAL_OPSET, attr_to_proto, default, node_to_proto, schema, type_to_proto
from compiler.ir.reading import read_nodes
from compiler.ir.types import TensorType


def has_body(op: str) -> bool:
    """Whether an op is defined by simpler ones."""
    if op in INTERNAL_OPS:
        return True
    s: Any = schema(op)  # onnx's type stubs lack what it knows of functions
    return s is not None and bool(s.has_function or s.has_context_dependent_function)


def expand(b: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
    """Emit the definition of `node` into `b` on these inputs; gives its outputs by position ('' where unused).

    KeyError if the op has no definition.
    """
    internal: BodyFunction | None = INTERNAL_OPS.get(node.op)
    if internal is not None:
        return internal(b, inputs, node.attrs)
    return expand_function(b, node, inputs)


def expand_function(b: Builder, node: Node, inputs: Sequence[str]) -> Sequence[str]:
    """Emit ONNX's own definition of `node`, as `expand` does. KeyError if there is none."""
    function = _function(node, [b.type(v) if v else None for v in inputs])
    names = dict(zip(function.input, inputs, strict=False))
    names.update((formal, "") for formal in function.input[len(inputs) :])
    outer: dict[str, AttributeProto] = {a.name: a for a in function.attribute_proto}
    for name in function.attribute:
        if (value := node.attr(name, default(node.op, name))) is not None:
            outer[name] = attr_to_proto(node.op, name, value)
    for p in function.attribute_proto:
        if (value := node.attr(p.name)) is not None:
            outer[p.name] = attr_to_proto(node.op, p.name, value)
    names[""] = ""
    read_nodes(b, function.node, names, outer, node.origin)
    return [names.get(v, "") for v in function.output]


def _function(node: Node, types: Sequence[TensorType | None]) -> FunctionProto:
    """ONNX's definition of a standard op, the newest that the canonical opset has."""
    s: Any = schema(node.op)
    if s is None or not (s.has_function or s.has_context_dependent_function):
        raise KeyError(node.op)
    if s.has_function:
        version = max(v for v in s.function_opset_versions if v <= CANONICAL_OPSET)
        return _parsed(s.get_function_with_opset_version(version))
    version = max(v for v in s.context_dependent_function_opset_versions if v <= CANONICAL_OPSET)
    # an absent trailing output must be absent in the node as well: definitions look at their number
    call = node_to_proto(Node(node.op, node.inputs, node.outputs, node.attrs))
    given = [type_to_proto(t).SerializeToString() for t in types if t is not None]
    return _parsed(s.get_context_dependent_function_with_opset_version(version, call.SerializeToString(), given))


def _parsed(serialized: bytes) -> FunctionProto:
    function = FunctionProto()
    function.ParseFromString(serialized)
    return function


def body_graph(node: Node, types: Sequence[TensorType | None]) -> Graph:
    """The definition of `node` for operands of these types as a graph: inputs in0, in1, .. (those present)."""
    b = Builder(node.op_type)
    inputs = [b.input(f"in{i}", t) if t else "" for i, t in enumerate(types)]
    for i, v in enumerate(expand(b, node, inputs)):
        if v:
            b.output(f"out{i}", v)
    return b.build()


def internal(name: str) -> Callable[[BodyFunction], BodyFunction]:
    """Register the definition of `onnxc.<name>`."""

    def register(body: BodyFunction) -> BodyFunction:
        INTERNAL_OPS[f"onnxc.{name}"] = body
        return body

    return register
