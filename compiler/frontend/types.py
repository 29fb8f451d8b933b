"""Types of graph inputs as the file declares them: an element type, and dims that may be symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onnx import ValueInfoProto

from compiler.frontend.report import Report
from compiler.ir.proto import element_type_name
from compiler.ir.types import TensorType, dtype_from_onnx

Dims = tuple[int | str, ...]


class InputType(NamedTuple):
    """Element type and dims of a graph input; a dim that is a string is a symbol, which `dims` binds."""

    dtype: str
    dims: Dims

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbolic dims, each once."""
        return tuple(dict.fromkeys(d for d in self.dims if isinstance(d, str)))

    def bind(self, dims: Mapping[str, int]) -> TensorType:
        """The static type. KeyError for a symbol that is not bound."""
        return TensorType(self.dtype, tuple(dims[d] if isinstance(d, str) else d for d in self.dims))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def input_type(v: ValueInfoProto) -> InputType:
    """The type of a graph input that has passed `check_input`. A dim without a name is called `input[axis]`."""
    dtype = dtype_from_onnx(v.type.tensor_type.elem_type)
    assert dtype is not None
    dims = v.type.tensor_type.shape.dim
    return InputType(
        dtype,
        tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or f"{v.name}[{i}]" for i, d in enumerate(dims)),
    )


def allows(v: ValueInfoProto, t: TensorType) -> bool:
    """Whether a declaration may mean this type: symbols, and what it leaves out, stand for anything."""
    tensor = v.type.tensor_type
    if v.type.WhichOneof("value") != "tensor_type" or tensor.elem_type == 0:
        return True
    if dtype_from_onnx(tensor.elem_type) != t.dtype:
        return False
    dims = tensor.shape.dim
    if not tensor.HasField("shape"):
        return True
    return len(dims) == t.rank and all(
        not d.HasField("dim_value") or d.dim_value == n for d, n in zip(dims, t.shape, strict=True)
    )


def declared_type(v: ValueInfoProto) -> InputType:
    """A declared type for messages; dims without name are `?`."""
    tensor = v.type.tensor_type
    dims = (d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return InputType(dtype_from_onnx(tensor.elem_type) or element_type_name(tensor.elem_type), tuple(dims))


def is_tensor(v: ValueInfoProto) -> bool:
    """Whether a graph input is a tensor of known rank and of a supported element type."""
    tensor = v.type.tensor_type
    return tensor.HasField("shape") and dtype_from_onnx(tensor.elem_type) is not None


def check_input(v: ValueInfoProto, where: str, report: Report) -> None:
    """Report a graph input that is no tensor of known rank and of a supported element type (see `is_tensor`)."""
    kind = v.type.WhichOneof("value")
    tensor = v.type.tensor_type
    if kind is None:
        report.malformed(f"input {v.name!r} has no type", where, "declare it as a tensor")
    elif kind != "tensor_type":
        report.unsupported(f"input {v.name!r} is a {kind.removesuffix('_type')}, not a tensor", where, "make it one")
    elif tensor.elem_type == 0:
        report.malformed(f"input {v.name!r} has no element type", where, "declare it")
    elif dtype_from_onnx(tensor.elem_type) is None:
        what = f"input {v.name!r} has elements of type {element_type_name(tensor.elem_type)}"
        report.unsupported(what, where, "cast them to a numeric type that numpy has")
    elif not tensor.HasField("shape"):
        remedy = "declare its dims; those that vary may be symbols"
        report.unsupported(f"input {v.name!r} has no shape, so its rank is unknown", where, remedy)
    elif any(d.HasField("dim_value") and d.dim_value < 0 for d in tensor.shape.dim):
        report.malformed(f"input {v.name!r} has a negative dim", where, "use a symbol (dim_param) for it")


def check_body_input(v: ValueInfoProto, where: str, report: Report) -> None:
    """Report an input of a nested graph that is no numeric tensor. Its type follows from what it is given."""
    kind, elem_type = v.type.WhichOneof("value"), v.type.tensor_type.elem_type
    if kind not in (None, "tensor_type"):
        report.unsupported(f"input {v.name!r} is a {kind.removesuffix('_type')}, not a tensor", where)
        report.stop = True
    elif elem_type and dtype_from_onnx(elem_type) is None:
        what = f"input {v.name!r} has elements of type {element_type_name(elem_type)}"
        report.unsupported(what, where, "cast them to a numeric type that numpy has")
        report.stop = True
