"""Arguments of calls and assignments as arrays of the type that the model has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from compiler.errors import InputError, did_you_mean
from compiler.runtime.arrays import as_plain
from compiler.runtime.layout import BITS, ML_DTYPES, NUMPY
from compiler.runtime.memory import Array


def as_array(what: str, value: Any, dtype: str) -> Array:
    """`value` as an array of this element type in any byte order; what is one is not copied, of whatever library it is.

    Numbers, and lists of them, take the type if it holds their values: integers must be in its range, a float becomes
    no integer. Arrays must have the type. bf16 and types of at most 8 bits are arrays of ml_dtypes, or their bits (of
    integers: their values) in the type that the runtime gives them in. InputError.
    """
    wanted = np.dtype(NUMPY[dtype])
    array = as_plain(what, value)
    if array.dtype == wanted:
        if dtype in BITS and not _in_range(array, dtype):
            raise InputError(
                f"{what} is {_shown(array)}, the model takes {ML_DTYPES[dtype]}: beyond its {BITS[dtype]} bits"
            )
        return array
    if dtype in ML_DTYPES and array.dtype.name == ML_DTYPES[dtype]:
        return _stored(array, dtype)
    if array.dtype.newbyteorder("=") == wanted:
        return array
    name = ML_DTYPES.get(dtype, wanted.name)
    if not isinstance(value, (bool, int, float, list, tuple, np.generic)):
        cast = f".astype(ml_dtypes.{name})" if dtype in ML_DTYPES else f".astype({name!r})"
        raise InputError(f"{what} is {array.dtype}, the model takes {name}: convert it, as with {cast}")
    if array.size == 0:  # of an empty list, which says nothing
        return array.astype(wanted)
    converted = held(array, dtype)
    if converted is None and _coded(dtype):
        raise InputError(f"{what} must be an array of ml_dtypes.{name}: convert it, as with np.array(..., {name})")
    if converted is None:
        raise InputError(f"{what} is {_shown(array)}: the model takes {name}, which cannot hold that")
    return converted


def held(array: Array, dtype: str) -> Array | None:
    """The numbers as elements of another type; None if that cannot hold them.

    Integers must be in its range; a float becomes no integer; floats may be rounded, but not to infinity. For floats
    of at most 8 bits the array must have the type, or be their bits.
    """
    wanted = np.dtype(NUMPY[dtype])
    if array.dtype.name == ML_DTYPES.get(dtype):
        return _stored(array, dtype)
    if _coded(dtype):
        return array if array.dtype == wanted and (dtype not in BITS or _in_range(array, dtype)) else None
    kind = "f" if dtype == "bf16" else wanted.kind
    allowed = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}[kind]
    if array.dtype.kind not in allowed:
        return None
    if kind in "iu" and array.dtype.kind != "b" and not _in_range(array, dtype):
        return None
    if kind != "f":
        return array.astype(wanted)
    with np.errstate(over="ignore"):
        converted = array.astype(np.float32 if dtype == "bf16" else wanted)
    if not np.array_equal(np.isfinite(converted), np.isfinite(array)):
        return None
    return _bf16_bits(converted) if dtype == "bf16" else converted


def _coded(dtype: str) -> bool:
    """Whether it is a floating-point type of at most 8 bits: a byte of memory is a code."""
    return dtype[0] == "f" and dtype in ML_DTYPES


def _in_range(array: Array, dtype: str) -> bool:
    """Whether integers are in the range of the bytes (words) of a type."""
    if not array.size:
        return True
    info = np.iinfo(NUMPY[dtype])
    unused = info.bits - BITS.get(dtype, info.bits)
    return int(array.min()) >= info.min >> unused and int(array.max()) <= info.max >> unused


def _stored(array: Array, dtype: str) -> Array:
    """An array of ml_dtypes as it lies in memory. ml_dtypes takes any bits beyond those of an element."""
    view = array.view(NUMPY[dtype])
    unused = 8 - BITS.get(dtype, 8)
    return np.asarray((view << unused) >> unused) if unused else view


def _bf16_bits(array: Array) -> Array:
    """Bits of float32 numbers rounded to nearest even."""
    bits = array.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _shown(array: Array) -> str:
    if array.size == 1:
        return repr(array.item())
    return f"{array.dtype}, from {array.min()} to {array.max()}" if array.dtype.kind in "biuf" else str(array.dtype)


def check_names(
    given: Collection[str], known: Iterable[str], optional: Collection[str], hints: Mapping[str, str]
) -> None:
    """InputError if inputs are missing or unknown, all of them at once. hints: what else names stand for."""
    wanted = list(known)
    missing = [n for n in wanted if n not in given and n not in optional]
    extra = [n for n in given if n not in wanted]
    if missing or extra:
        parts = [f"missing input {n!r}" for n in missing]
        parts += [f"unknown input {n!r}{f' ({hints[n]})' if n in hints else did_you_mean(n, missing)}" for n in extra]
        raise InputError(f"{', '.join(parts)}; the inputs are {', '.join(map(repr, wanted)) or 'none'}")


def check_shape(what: str, array: Array, shape: tuple[int, ...]) -> None:
    """InputError: another shape."""
    if array.shape != shape:
        raise InputError(f"{what} has shape {list(array.shape)}, the model takes {list(shape)}")
