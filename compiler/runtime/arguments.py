"""Arguments of calls and assignments as arrays of the type that the model has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.runtime.layout import NUMPY
from compiler.runtime.memory import Array


def as_array(what: str, value: Any, dtype: str) -> Array:
    """`value` as an array of this element type in native byte order, not copied where it is one.

    Numbers, and lists of them, take the type if it holds their values: integers must be in its range, a float becomes
    no integer. Arrays must have the type. bf16 are arrays of ml_dtypes, or their bits as uint16. InputError.
    """
    wanted = np.dtype(NUMPY[dtype])
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is a masked array, and the model knows no masks: fill it first, as with .filled(0)")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as e:  # a ragged list; an array of another library that refuses
        raise InputError(f"{what} is no array: {e}") from e
    if array.dtype == wanted:
        return array
    if dtype == "bf16" and array.dtype.name == "bfloat16":
        return array.view(wanted)
    if array.dtype.newbyteorder("=") == wanted:
        return array.astype(wanted)
    name = "bfloat16" if dtype == "bf16" else wanted.name
    if not isinstance(value, (bool, int, float, list, tuple, np.generic)):
        cast = ".astype(ml_dtypes.bfloat16)" if dtype == "bf16" else f".astype({name!r})"
        raise InputError(f"{what} is {array.dtype}, the model takes {name}: convert it, as with {cast}")
    if array.size == 0:  # of an empty list, which says nothing
        return array.astype(wanted)
    converted = held(array, dtype)
    if converted is None:
        raise InputError(f"{what} is {_shown(array)}: the model takes {name}, which cannot hold that")
    return converted


def held(array: Array, dtype: str) -> Array | None:
    """The numbers as elements of another type; None if that cannot hold them.

    Integers must be in its range; a float becomes no integer; floats may be rounded, but not to infinity.
    """
    wanted = np.dtype(NUMPY[dtype])
    kind = "f" if dtype == "bf16" else wanted.kind
    allowed = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}[kind]
    if array.dtype.kind not in allowed:
        return None
    if kind in "iu" and array.dtype.kind != "b" and array.size:
        limits = np.iinfo(wanted)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            return None
    if kind != "f":
        return array.astype(wanted)
    with np.errstate(over="ignore"):
        converted = array.astype(np.float32 if dtype == "bf16" else wanted)
    if not np.array_equal(np.isfinite(converted), np.isfinite(array)):
        return None
    return _bf16_bits(converted) if dtype == "bf16" else converted


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
        parts += [f"unknown input {n!r}{f' ({hints[n]})' if n in hints else ''}" for n in extra]
        raise InputError(f"{', '.join(parts)}; the inputs are {', '.join(map(repr, wanted)) or 'none'}")


def check_shape(what: str, array: Array, shape: tuple[int, ...]) -> None:
    """InputError: another shape."""
    if array.shape != shape:
        raise InputError(f"{what} has shape {list(array.shape)}, the model takes {list(shape)}")
