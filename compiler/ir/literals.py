"""Names and constants as they are written in IR text, both directions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import numpy as np

from compiler.ir.types import FLOATS, NARROW_FLOATS, AnyArray, Tensor, TensorType, limits, numpy_dtype

INLINE_LIMIT = 16
"""Elements up to which a constant stands in the text."""

ABSENT = "_"
"""An absent operand or output. A value of that name is quoted."""

BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_./]*")
"""A name that needs no quotes."""

WORDS = {"true": True, "false": False, "inf": float("inf"), "nan": float("nan")}

Nested = str | int | float | bool | list["Nested"]
"""An element (str: bits in hex), or a list of such."""


def name_text(name: str, reserved: str = ABSENT) -> str:
    """A name, in quotes where it could be taken for something else."""
    return name if BARE.fullmatch(name) and name != reserved else string_text(name)


def phrase_text(words: str) -> str:
    """Words with single spaces between them, in quotes where one of them is no bare name."""
    return words if all(BARE.fullmatch(word) for word in words.split(" ")) else string_text(words)


def string_text(s: str) -> str:
    """A JSON string; of the characters outside ASCII only those that do not print are escaped."""
    inner = (c if c.isprintable() and c not in '"\\' else json.dumps(c)[1:-1] for c in s)
    return f'"{"".join(inner)}"'


def float_text(x: AnyArray | np.generic | float, dtype: str = "f32") -> str:
    """The shortest decimal that reads back with the same bits; `0x` and the bits if none does (NaN payloads).

    Of types with up to 8 bits and a mantissa the number itself, which is as short.
    """
    scalar = np.asarray(x, numpy_dtype(dtype))
    value, limit = float(scalar), 17 if dtype == "f64" else 9
    if dtype in NARROW_FLOATS and dtype != "f8e8m0" and np.isfinite(value):
        return repr(value)
    for digits in range(1, limit + 1):
        rounded = float(f"{value:.{digits}g}")
        with np.errstate(over="ignore"):
            again = np.asarray(rounded).astype(scalar.dtype)
        if _bits(again) == _bits(scalar):
            return repr(rounded)
    if np.isnan(scalar) and _bits(np.asarray(-np.float64("nan")).astype(scalar.dtype)) == _bits(scalar):
        return "-nan"
    return f"0x{_bits(scalar):x}"


def _bits(a: AnyArray) -> int:
    return int.from_bytes(a.tobytes(), "little")


def elements_text(t: Tensor) -> str:
    """The elements of a small tensor: `0.1`, `[1, 2]`, `[[1, 2], [3, 4]]`; `[]` if there are none."""
    if t.type.size == 0:
        return "[]"
    return _nested_text(iter([_element_text(e, t.type.dtype) for e in t.array.reshape(-1)]), t.type.shape)


def _element_text(e: np.generic, dtype: str) -> str:
    if dtype == "bool":
        return "true" if e else "false"
    return float_text(e, dtype) if dtype in FLOATS else str(int(e))


def _nested_text(elements: Iterator[str], shape: Sequence[int]) -> str:
    if not shape:
        return next(elements)
    return f"[{', '.join(_nested_text(elements, shape[1:]) for _ in range(shape[0]))}]"


def tensor_from(value: Nested, t: TensorType) -> Tensor:
    """The inverse of `elements_text`. ValueError says what does not fit the type."""
    if t.size == 0:
        if value != []:
            raise ValueError(f"a tensor of type {t} has no elements: write []")
        return Tensor(np.zeros(t.shape, numpy_dtype(t.dtype)))
    flat = [_element(e, t.dtype) for e in _flat(value, t.shape, t)]
    return Tensor(np.concatenate(flat).reshape(t.shape))


def _flat(value: Nested, shape: Sequence[int], t: TensorType) -> Iterator[Nested]:
    if not shape:
        yield value
        return
    if not isinstance(value, list) or len(value) != shape[0]:
        found = f"a list of {len(value)}" if isinstance(value, list) else "one element"
        raise ValueError(f"the elements do not fit the type {t}: found {found} in place of a list of {shape[0]}")
    for inner in value:
        yield from _flat(inner, shape[1:], t)


def _element(value: Nested, dtype: str) -> AnyArray:
    """One element as an array of one, of exactly the bits that were written."""
    kind = numpy_dtype(dtype)
    if isinstance(value, list):
        raise ValueError("a list where an element is expected")
    if isinstance(value, bool) or dtype == "bool":
        if not (isinstance(value, bool) and dtype == "bool"):
            raise ValueError(f"{str(value).lower()} is no element of type {dtype}")
        return np.array([value])
    if isinstance(value, str):
        bits = int(value, 16)
        if dtype not in FLOATS or bits >> 8 * kind.itemsize:
            raise ValueError(f"{value} is no element of type {dtype}")
        return np.frombuffer(bits.to_bytes(kind.itemsize, "little"), kind)
    if dtype in FLOATS:
        if isinstance(value, int) and abs(value) > 2**1000:
            raise ValueError(f"{value} is out of the range of {dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            element: AnyArray = np.array([float(value)]).astype(kind)
        if np.isnan(element[0]) != np.isnan(value) or (np.isinf(value) and np.isfinite(element[0])):
            raise ValueError(f"{value} is no element of type {dtype}")
        return element
    least, most = limits(dtype)
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{value} is no element of type {dtype}")
    return np.array([value], kind)
