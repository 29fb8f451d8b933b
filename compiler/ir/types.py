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

# short name -> (numpy dtype, ONNX element type). The names are those of the IR text. In memory an element of less than
# 8 bits takes a byte; files pack them.
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
    "f8e4m3fn": (np.dtype(ml_dtypes.float8_e4m3fn), TensorProto.FLOAT8E4M3FN),
    "f8e4m3fnuz": (np.dtype(ml_dtypes.float8_e4m3fnuz), TensorProto.FLOAT8E4M3FNUZ),
    "f8e5m2": (np.dtype(ml_dtypes.float8_e5m2), TensorProto.FLOAT8E5M2),
    "f8e5m2fnuz": (np.dtype(ml_dtypes.float8_e5m2fnuz), TensorProto.FLOAT8E5M2FNUZ),
    "f8e8m0": (np.dtype(ml_dtypes.float8_e8m0fnu), TensorProto.FLOAT8E8M0),
    "f6e2m3": (np.dtype(ml_dtypes.float6_e2m3fn), TensorProto.FLOAT6E2M3),
    "f6e3m2": (np.dtype(ml_dtypes.float6_e3m2fn), TensorProto.FLOAT6E3M2),
    "f4e2m1": (np.dtype(ml_dtypes.float4_e2m1fn), TensorProto.FLOAT4E2M1),
    "i4": (np.dtype(ml_dtypes.int4), TensorProto.INT4),
    "u4": (np.dtype(ml_dtypes.uint4), TensorProto.UINT4),
    "i2": (np.dtype(ml_dtypes.int2), TensorProto.INT2),
    "u2": (np.dtype(ml_dtypes.uint2), TensorProto.UINT2),
}
_BY_NUMPY = {dtype: name for name, (dtype, _) in _DTYPES.items()}
_BY_ONNX = {elem: name for name, (_, elem) in _DTYPES.items()}

DTYPES: tuple[str, ...] = tuple(_DTYPES)
NARROW_FLOATS = frozenset(n for n in _DTYPES if n.startswith(("f8", "f6", "f4")) and n != "f64")
NARROW_INTEGERS = frozenset({"i4", "u4", "i2", "u2"})
NARROW = NARROW_FLOATS | NARROW_INTEGERS
"""Types that are cast to and from, moved and quantized to; nothing is computed in them."""
FLOATS = frozenset({"f32", "f64", "f16", "bf16"}) | NARROW_FLOATS
INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}) | NARROW_INTEGERS

_BITS = {n: int(n[1]) for n in NARROW}


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """'f32' -> numpy.float32. KeyError for an unknown name."""
    return _DTYPES[dtype][0]


def onnx_dtype(dtype: str) -> int:
    """'f32' -> TensorProto.FLOAT."""
    return _DTYPES[dtype][1]


def packed_nbytes(dtype: str, size: int) -> int:
    """Bytes of `size` elements in a file, where types of less than 8 bits are packed."""
    return -(-size * _BITS[dtype] // 8) if dtype in _BITS else size * numpy_dtype(dtype).itemsize


def limits(dtype: str) -> tuple[int, int]:
    """The least and the largest value of an integer type."""
    bits = int(dtype[1:])
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype.startswith("i") else (0, 2**bits - 1)


def largest(dtype: str) -> float:
    """The largest finite number of a floating-point type of at most 8 bits."""
    numbers = np.arange(2 ** _BITS[dtype]).astype(np.uint8).view(numpy_dtype(dtype)).astype(np.float64)
    return float(numbers[np.isfinite(numbers)].max())


def canonical(array: AnyArray, dtype: str) -> AnyArray:
    """The array with the unused bits of elements of less than 8 bits as the sign of an integer, else 0.

    ml_dtypes takes any bits there, and unpacked files have zeros.
    """
    unused = 8 - _BITS.get(dtype, 8)
    if not unused:
        return array
    bits = array.view(np.int8 if dtype.startswith("i") else np.uint8)
    clean: AnyArray = np.asarray((bits << unused) >> unused)
    return array if np.array_equal(clean, bits) else clean.view(array.dtype)


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

    @property
    def slope(self) -> TensorType:
        """Type in which gradients by such values are added up: f32 for floats of at most 8 bits, else its own."""
        return TensorType("f32", self.shape) if self.dtype in NARROW_FLOATS else self

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Tensor:
    """A read-only array that compares and hashes by dtype, shape and bits. A contiguous array is not copied."""

    def __init__(self, array: AnyArray | float | int | bool):
        a: AnyArray = np.asarray(array)
        if a.dtype.byteorder == ">":
            a = a.astype(a.dtype.newbyteorder("<"))
        a = a if a.flags.c_contiguous else np.ascontiguousarray(a).reshape(a.shape)
        dtype = dtype_of(a)
        view = canonical(a, dtype).view()
        view.flags.writeable = False
        self.array: AnyArray = view
        self.type = TensorType(dtype, view.shape)

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
