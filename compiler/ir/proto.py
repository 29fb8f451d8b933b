"""IR nodes and types <-> ONNX protobuf messages; reading a list of ONNX nodes into a builder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from compiler.ir.graph import Attr, Node
from compiler.ir.types import Tensor, TensorType, dtype_from_onnx, onnx_dtype

CANONICAL_OPSET = 28
"""The ai.onnx opset whose meaning the IR's nodes have."""

TRAINING_DOMAIN = "ai.onnx.preview.training"
INTERNAL_DOMAIN = "onnxc"

OUTPUTS, UPDATES = "onnxc.outputs", "onnxc.updates"
"""Keys of the metadata of a model that is a whole step: JSON objects, public name of an output -> output of the model,
and state -> output that is its next value."""

OPTIONAL_FIRST = {"Loop": 2}
"""Op -> operands before its variadic ones that may be absent, but keep their places."""

OPSETS = {"": CANONICAL_OPSET, TRAINING_DOMAIN: 1}
"""Version of each standard domain that the IR speaks."""


@cache
def schema(op: str) -> onnx.defs.OpSchema | None:
    """The ONNX schema of an IR op at the canonical opset; None for an unknown or internal op."""
    domain, _, name = op.rpartition(".")
    if domain not in OPSETS or not onnx.defs.has(name, OPSETS[domain], domain):
        return None
    return onnx.defs.get_schema(name, OPSETS[domain], domain)


@cache
def default(op: str, attribute: str) -> Attr:
    """The schema's default of an attribute; None if it has none."""
    s = schema(op)
    if s is None or attribute not in s.attributes:
        return None
    value = s.attributes[attribute].default_value
    return attr_from_proto(value) if value.type != AttributeProto.UNDEFINED else None


def op_name(domain: str, op_type: str) -> str:
    """ONNX (domain, op_type) -> IR op name."""
    return f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type


def attr_from_proto(a: AttributeProto) -> Attr:
    """Value of an attribute that is no graph. ValueError for a kind that the IR has not (sparse tensor, type, ...)."""
    match a.type:
        case AttributeProto.INT:
            return int(a.i)
        case AttributeProto.FLOAT:
            return float(a.f)
        case AttributeProto.STRING:
            return a.s.decode("utf-8")
        case AttributeProto.INTS:
            return tuple(map(int, a.ints))
        case AttributeProto.FLOATS:
            return tuple(map(float, a.floats))
        case AttributeProto.STRINGS:
            return tuple(s.decode("utf-8") for s in a.strings)
        case AttributeProto.TENSOR:
            return tensor_from_proto(a.t)
    raise ValueError(f"attribute {a.name!r} of kind {AttributeProto.AttributeType.Name(a.type)} is not supported")


def tensor_from_proto(t: TensorProto) -> Tensor:
    """ValueError for a tensor that is malformed or has an element type that onnxc has not."""
    if dtype_from_onnx(t.data_type) is None:
        raise ValueError(f"tensor {t.name!r} of element type {element_type_name(t.data_type)} is not supported")
    try:
        return Tensor(numpy_helper.to_array(t))
    except (ValueError, TypeError) as e:
        raise ValueError(f"tensor {t.name!r} is malformed: {e}") from e


def element_type_name(elem_type: int) -> str:
    """A name for messages, also for numbers that are no element type."""
    try:
        return str(TensorProto.DataType.Name(elem_type))
    except ValueError:
        return str(elem_type)


def tensor_to_proto(t: Tensor, name: str = "") -> TensorProto:
    """The inverse of `tensor_from_proto`."""
    return numpy_helper.from_array(t.array, name)


def type_to_proto(t: TensorType) -> TypeProto:
    """The inverse of `type_from_proto`."""
    return helper.make_tensor_type_proto(onnx_dtype(t.dtype), t.shape)


def type_from_proto(t: TypeProto) -> TensorType | None:
    """The static tensor type; None if it is no tensor, of an unsupported element type, or not static."""
    if not t.HasField("tensor_type") or not t.tensor_type.HasField("shape"):
        return None
    dtype = dtype_from_onnx(t.tensor_type.elem_type)
    dims = t.tensor_type.shape.dim
    if dtype is None or not all(d.HasField("dim_value") for d in dims):
        return None
    return TensorType(dtype, tuple(d.dim_value for d in dims))


def attr_to_proto(op: str, name: str, value: Attr) -> AttributeProto:
    """An attribute that is no graph; the schema decides the kind of an empty list."""
    if isinstance(value, Tensor):
        return helper.make_attribute(name, tensor_to_proto(value))
    s = schema(op)
    declared: Any = s.attributes[name].type if s is not None and name in s.attributes else None
    kind: int | None = None if declared is None else declared.value
    if kind is None and value == ():
        kind = AttributeProto.INTS
    return helper.make_attribute(name, list(value) if isinstance(value, tuple) else value, attr_type=kind)


def node_to_proto(node: Node, attrs: Iterable[AttributeProto] = ()) -> NodeProto:
    """A standard or internal node without bodies; `attrs` are added (graph attributes, made by the caller)."""
    p = NodeProto(op_type=node.op_type, domain=node.domain, input=node.inputs, output=node.outputs)
    if node.origin:
        p.name = str(node.origin)
    p.attribute.extend(attr_to_proto(node.op, k, v) for k, v in node.attrs.items() if k not in node.bodies)
    p.attribute.extend(attrs)
    return p


def attrs_from_node(p: NodeProto, outer: Mapping[str, AttributeProto] | None = None) -> dict[str, Attr]:
    """Attributes of an ONNX node but its graphs. `outer` resolves references to a function's attributes."""
    attrs: dict[str, Attr] = {}
    for a in p.attribute:
        if a.ref_attr_name:
            if outer is None or a.ref_attr_name not in outer:
                continue  # an optional attribute that the caller did not give
            value = outer[a.ref_attr_name]
            if value.type != AttributeProto.GRAPH:
                attrs[a.name] = attr_from_proto(value)
        elif a.type != AttributeProto.GRAPH:
            attrs[a.name] = attr_from_proto(a)
    return attrs


def constant_of(p: NodeProto, attrs: Mapping[str, Attr]) -> Tensor:
    """Value of an ONNX Constant node, whichever attribute holds it. ValueError for strings and sparse tensors."""
    if isinstance(t := attrs.get("value"), Tensor):
        return t
    for name, dtype in (("value_float", "f4"), ("value_floats", "f4"), ("value_int", "i8"), ("value_ints", "i8")):
        if name in attrs:
            return Tensor(np.array(attrs[name], dtype))
    raise ValueError("a Constant of strings or of a sparse tensor is not supported")
