"""Resize: along each axis, a constant sparse matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.resizing import Axis, Taps, resize_attr, resized_axes, taps
from compiler.ir.types import AnyArray, numpy_dtype, onnx_dtype

_GATHER_COST = 64, 16
"""Products of a matrix multiplication that take as long as reading an element by index, about: alone, and in a row."""

_ROW = 16
"""Elements that are read at once."""

_LARGEST_MATRIX = 2**22
"""Elements of a constant matrix."""


def _present(b: Builder, v: str) -> AnyArray | None:
    """The array of an operand that is neither absent nor empty."""
    if not v or b.type(v).size == 0:
        return None
    array = b.known(v)
    if array is None:
        raise InferenceError(f"{v!r} is not known at compile time")
    return array


def _along(b: Builder, x: str, axis: int, t: Taps) -> str:
    """Apply the taps of one axis."""
    shape = b.shape(x)
    size, (out, count) = shape[axis], t.indices.shape
    if t.picks:
        times = out // size
        if np.array_equal(t.indices[:, 0], np.repeat(np.arange(size), times)):
            return _repeated(b, x, axis, times)
        return b.op("Gather", x, b.const(t.indices[:, 0]), axis=axis)
    dtype = numpy_dtype(b.type(x).dtype)
    in_rows = prod(shape[axis + 1 :]) >= _ROW
    if size <= _GATHER_COST[in_rows] * count and size * out <= _LARGEST_MATRIX:
        return _times_matrix(b, x, axis, t.matrix(size).astype(dtype))
    total = ""
    for k in range(count):
        column = t.weights[:, k].astype(dtype).reshape(out, *(1 for _ in shape[axis + 1 :]))
        term = b.op("Mul", b.op("Gather", x, b.const(t.indices[:, k]), axis=axis), b.const(column))
        total = b.op("Add", total, term) if total else term
    return total


def _repeated(b: Builder, x: str, axis: int, times: int) -> str:
    """Every element several times: faster than by index, and its gradient is a sum."""
    shape = b.shape(x)
    before, after = shape[: axis + 1], shape[axis + 1 :]
    wide = b.op("Expand", b.op("Reshape", x, b.ints([*before, 1, *after])), b.ints([*before, times, *after]))
    return b.op("Reshape", wide, b.ints([*shape[:axis], shape[axis] * times, *after]))


def _times_matrix(b: Builder, x: str, axis: int, matrix: AnyArray) -> str:
    """The matrix [out, size] applied along an axis."""
    shape = b.shape(x)
    before, size, after = shape[:axis], shape[axis], shape[axis + 1 :]
    rows, inner = prod(before), prod(after)
    if inner == 1:
        flat = b.op("Reshape", x, b.ints([rows, size]))
        y = b.op("MatMul", flat, b.const(np.ascontiguousarray(matrix.T)))
    else:
        y = b.op("MatMul", b.const(matrix), b.op("Reshape", x, b.ints([rows, size, inner])))
    return b.op("Reshape", y, b.ints([*before, len(matrix), *after]))


def resize(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """(x, roi?, scales?, sizes?) -> x with other extents. Integers are interpolated as reals, then rounded to even."""
    x, roi, scales, sizes = (*inputs, "", "", "")[:4]
    narrow = b.type(x)
    axes = resized_axes(narrow.shape, attrs, *(_present(b, v) for v in (roi, scales, sizes)))
    if any(a.out == 0 for a in axes) or narrow.size == 0:
        shape = list(narrow.shape)
        for a in axes:
            shape[a.axis] = a.out
        return [b.full(0, type(narrow)(narrow.dtype, tuple(shape)))]
    todo = [(a, taps(a, attrs)) for a in axes if not _untouched(a)]
    exact = narrow.is_float or all(t.picks for _, t in todo)
    if not exact:
        wide = "f32" if numpy_dtype(narrow.dtype).itemsize < 4 else "f64"
        x = b.op("Cast", x, to=onnx_dtype(wide))
    for a, t in sorted(todo, key=lambda pair: pair[0].out / pair[0].size):  # the axes that shrink first
        x = _along(b, x, a.axis, t)
    for a, t in todo:
        if t.outside.any():
            mask = b.const(t.outside.reshape(-1, *(1 for _ in b.shape(x)[a.axis + 1 :])))
            x = b.op("Where", mask, b.scalar(resize_attr(attrs, "extrapolation_value"), x), x)
    if not exact:
        limits = np.iinfo(str(numpy_dtype(narrow.dtype)))
        x = b.op("Clip", b.op("Round", x), b.scalar(limits.min, x), b.scalar(limits.max, x))
        x = b.op("Cast", x, to=onnx_dtype(narrow.dtype))
    return [x if x != inputs[0] else b.op("Identity", x)]


def _untouched(a: Axis) -> bool:
    """Whether an axis stays as it is."""
    return a.scale == 1 and a.out == a.size and a.roi == (0.0, 1.0)


INTERNAL_OPS["Resize"] = resize
