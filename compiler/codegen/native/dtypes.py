"""The element types of memory: their size, their value in kernels, and how they are stored."""

import dataclasses
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types


@dataclasses.dataclass(frozen=True)
class Dtype:
    """One element type.

    name: as in the IR ("f32"); size in bytes; value: the Numba type of a loaded element; storage: the LLVM type in
    memory; numpy: NumPy's name of the stored type. f16 and bf16 load as f32 and round to nearest even when
    stored; bool is a byte that loads as (byte != 0) and stores as 0 or 1. Any other type loads as itself: integers of
    less than 8 bits as an integer of 8 bits in their range, floats of at most 8 bits as their code (see `narrow`).
    """

    name: str
    size: int
    value: Any
    storage: Any
    numpy: str


def _integer(name: str, bits: int, value: Any) -> Dtype:
    return Dtype(name, bits // 8, value, ir.IntType(bits), str(value))


DTYPES: dict[str, Dtype] = {
    d.name: d
    for d in (
        Dtype("f32", 4, types.float32, ir.FloatType(), "float32"),
        Dtype("f64", 8, types.float64, ir.DoubleType(), "float64"),
        Dtype("f16", 2, types.float32, ir.HalfType(), "float16"),
        Dtype("bf16", 2, types.float32, ir.IntType(16), "uint16"),
        _integer("i8", 8, types.int8),
        _integer("i16", 16, types.int16),
        _integer("i32", 32, types.int32),
        _integer("i64", 64, types.int64),
        _integer("u8", 8, types.uint8),
        _integer("u16", 16, types.uint16),
        _integer("u32", 32, types.uint32),
        _integer("u64", 64, types.uint64),
        Dtype("bool", 1, types.boolean, ir.IntType(8), "bool"),
        *(Dtype(n, 1, types.uint8, ir.IntType(8), "uint8") for n in ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")),
        *(Dtype(n, 1, types.uint8, ir.IntType(8), "uint8") for n in ("f8e8m0", "f6e2m3", "f6e3m2", "f4e2m1")),
        *(Dtype(n, 1, types.int8, ir.IntType(8), "int8") for n in ("i4", "i2")),
        *(Dtype(n, 1, types.uint8, ir.IntType(8), "uint8") for n in ("u4", "u2")),
    )
}
ITEMSIZE: dict[str, int] = {name: d.size for name, d in DTYPES.items()}


def dtype(name: str) -> Dtype:
    """The element type called `name`; KeyError names the known ones."""
    if name not in DTYPES:
        raise KeyError(f"no element type {name!r}: one of {', '.join(DTYPES)}")
    return DTYPES[name]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type for an element's storage (bf16: uint16, its bits)."""
    return np.dtype(dtype(name).numpy)
