"""Arrays of any library as NumPy's: views of their memory, not copies.

What offers the array interface, `__array__` or a buffer NumPy takes by itself, and the rest by DLPack. DLPack is read
here for the types that NumPy lacks (bfloat16, float8), which no other way shows; the layout of its structures is that
of https://dmlc.github.io/dlpack/latest/c_api.html, in the form before versions, which all exporters give by default.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.runtime.memory import Array

_HOST = {1: "CPU", 3: "pinned memory of CUDA", 11: "pinned memory of ROCm", 13: "managed memory of CUDA"}
"""DLPack's numbers of the memory that this process can read."""

_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 12: "external", 14: "oneAPI", 15: "WebGPU"}

_CODES = {
    (4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz", (14, 8): "float8_e8m0fnu",
}  # fmt: skip
"""DLPack's code and bits of types that NumPy lacks -> their name in ml_dtypes."""


def as_plain(what: str, value: Any) -> Array:
    """Any array-like as a NumPy array, which shares its memory where that can be; numbers and lists become arrays.

    Types that NumPy lacks are those of ml_dtypes if the process has loaded it (the compiler does), else their bits.
    InputError: no array, one in the memory of another device, or one that NumPy cannot see as it is.
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array, and the model knows no masks: fill it first, as with .filled(0)")
    _check_device(what, value)
    if getattr(value, "requires_grad", False) is True:
        raise InputError(
            f"{what} is a tensor that requires grad, and its gradient would end here: give it with .detach()"
        )
    told: Exception | None = None
    for read in _ways(value):
        try:
            return read(value)
        except TypeError as e:  # PyTorch's word for a type that NumPy lacks: DLPack may show it
            told = told or e
        except (ValueError, RuntimeError, BufferError) as e:  # a ragged list; a library that refuses
            told = told or e
            break
    raise InputError(f"{what} is no array: {told}") from told


def _ways(value: Any) -> list[Callable[[Any], Array]]:
    """How a value is read, the first that works. NumPy would make an object of what it has no protocol for."""
    if not hasattr(value, "__dlpack__"):
        return [np.asarray]
    seen = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    return [np.asarray, _by_dlpack] if seen else [_by_dlpack]


def _check_device(what: str, value: Any) -> None:
    """InputError: the array is in memory that this process cannot read."""
    try:
        kind = int(value.__dlpack_device__()[0])
    except AttributeError:
        kind = 2 if hasattr(value, "__cuda_array_interface__") else 1
    except (TypeError, ValueError, RuntimeError, BufferError):  # what it is, the array says when it is asked for
        return
    if kind not in _HOST:
        where = _DEVICES.get(kind, f"number {kind} of DLPack")
        raise InputError(f"{what} is in the memory of a device ({where}): copy it to the CPU first, as with .cpu()")


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Memory:
    """Memory that a capsule of DLPack keeps alive, as NumPy's array interface; it frees it when nobody uses it."""

    def __init__(self, capsule: object, interface: Mapping[str, Any]) -> None:
        self._capsule, self.__array_interface__ = capsule, dict(interface)


def _by_dlpack(value: Any) -> Array:
    """A view of an array by DLPack. TypeError, ValueError, RuntimeError, BufferError: it cannot be."""
    capsule = value.__dlpack__()
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    name = _CODES.get((tensor.dtype.code, tensor.dtype.bits))
    if name is None or tensor.dtype.lanes != 1:
        return np.from_dlpack(value)
    size = tensor.dtype.bits // 8
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] * size for i in range(tensor.ndim)) if tensor.strides else None
    if not prod(shape):  # there may be no memory
        bits = np.empty(shape, f"u{size}")
    else:
        # read-only: the exporter cannot say in this form whether writing is allowed
        where = (int(tensor.data) + tensor.byte_offset, True)
        about = {"version": 3, "typestr": f"<u{size}", "shape": shape, "strides": strides, "data": where}
        bits = np.asarray(_Memory(capsule, about))
    try:
        return bits.view(np.dtype(name))
    except TypeError:  # ml_dtypes is not loaded
        return bits
