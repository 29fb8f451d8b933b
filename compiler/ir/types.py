"""Element types, tensor types and constant tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import prod

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import TensorProto

AnyArray = npt.NDArray[np.generic]

# short name -> (numpy dtype, ONNX element type). The names are those of the IR text.
_DTYPES: dict[str, tuple[np.dtype[np.generic], int]] = {
    "f32": (np.dtype(np.float32), TensorProto.FLOAT),
    "f64": (np.dtype(np.float64), TensorProto.DOUBLE),
    "f16": (np.dtype(np.float16), TensorProto.FLOAT16),
    "bf16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16),
    "i8": (np.dtype(np.int8), TensorProto.INT8),
    "i16": (np.dtype(np.int16), TensorProto.INT16),
    "i32": (np.dtype(np.int32), TensorProto.INT32),
    "i64": (np.dtype(np.int64), TensorProto.INT64),
    "u8": (np.dtype(np.uint8), TensorProto.UINT8),
    "u16": (np.dtype(np.uint16), TensorProto.UINT16),
    "u32": (np.dtype(np.uint32), TensorProto.UINT32),
    "u64": (np.dtype(np.uint64), TensorProto.UINT64),
    "bool": (np.dtype(np.bool_), TensorProto.BOOL),
}
_BY_NUMPY = {dtype: name for name, (dtype, _) in _DTYPES.items()}
_BY_ONNX = {elem: name for name, (_, elem) in _DTYPES.items()}

DTYPES: tuple[str, ...] = tuple(_DTYPES)
FLOATS = frozenset({"f32", "f64", "f16", "bf16"})
INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """'f32' -> numpy.float32. KeyError for an unknown name."""
    return _DTYPES[dtype][0]


def onnx_dtype(dtype: str) -> int:
    """'f32' -> TensorProto.FLOAT."""
    return _DTYPES[dtype][1]


def dtype_of(array: AnyArray) -> str:
    """The short name of an array's dtype; TypeError if tensors of it are not supported."""
    name = _BY_NUMPY.get(array.dtype.newbyteorder("=")) if array.dtype.kind != "V" else _BY_NUMPY.get(array.dtype)
    if name is None:
        raise TypeError(f"arrays of {array.dtype} are not supported")
    return name


def dtype_from_onnx(elem_type: int) -> str | None:
    """TensorProto.FLOAT -> 'f32'; None for an element type that onnxc has no tensors of (strings, complex, ...)."""
    return _BY_ONNX.get(elem_type)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and static shape of a value; `f32[64,10]` in text. ValueError for an unknown element type."""

    dtype: str
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"{self.dtype!r} is no element type")

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * numpy_dtype(self.dtype).itemsize

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype in FLOATS

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Tensor:
    """A read-only array that compares and hashes by dtype, shape and bits. Never copies an array that is contiguous."""

    def __init__(self, array: AnyArray | float | int | bool):
        a: AnyArray = np.asarray(array)
        if a.dtype.byteorder == ">":
            a = a.astype(a.dtype.newbyteorder("<"))
        a = a if a.flags.c_contiguous else np.ascontiguousarray(a).reshape(a.shape)
        view = a.view()
        view.flags.writeable = False
        self.array: AnyArray = view
        self.type = TensorType(dtype_of(view), view.shape)

    @cached_property
    def digest(self) -> str:
        """sha256 of type and bytes, in hex."""
        h = hashlib.sha256(str(self.type).encode())
        h.update(self.array.reshape(-1).view(np.uint8).data)
        return h.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return self is other or (
            self.type == other.type
            and np.array_equal(self.array.reshape(-1).view(np.uint8), other.array.reshape(-1).view(np.uint8))
        )

    def __hash__(self) -> int:
        return hash((self.type, self.array.tobytes() if self.array.nbytes <= 1024 else self.digest))

    def __repr__(self) -> str:
        return f"Tensor({self.type})"
