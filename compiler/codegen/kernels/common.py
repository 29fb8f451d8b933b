"""What lowerings of several families share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from compiler.codegen.calls import Site, Temp
from compiler.codegen.native import ITEMSIZE, Primitive, inline, per_target, primitive
from compiler.errors import Problem, UnsupportedError
from compiler.ir.builder import where
from compiler.ir.types import TensorType
from compiler.ir.windows import Window

NO_AXIS = Window(1, 1, 1, 1, 0, 0, 1)
"""The windows along an axis that a convolution or pool does not have."""


def item_size(t: TensorType) -> int:
    """Bytes of an element."""
    return ITEMSIZE[t.dtype]


def normalized(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + rank if axis < 0 else axis


def place(site: Site) -> str:
    """Where the node stands, for an error."""
    return where(site.node)


def read_only(memory: Temp) -> Temp:
    """Temporary memory that earlier calls wrote, as an argument of a call that reads it."""
    return Temp(memory.key, memory.nbytes, writes=False)


def known_ints(site: Site, i: int, what: str) -> tuple[int, ...]:
    """The i-th input's integers. UnsupportedError if they are not known when the model is compiled."""
    values = site.ints(i)
    if values is None:
        problem = Problem(
            f"the {what} of a {site.node.op} are computed while the model runs",
            place(site),
            "make them constants, or give the inputs they come from as `static`",
        )
        raise UnsupportedError(problem)
    return values


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Elements before an axis, along it and behind it: the tensor as outer x n x inner."""
    outer = inner = 1
    for n in shape[:axis]:
        outer *= n
    for n in shape[axis + 1 :]:
        inner *= n
    return outer, shape[axis], inner


def in_space(site: Site, axes: Sequence[Window]) -> tuple[Window, Window, Window]:
    """The windows along d, h and w, missing axes in front. UnsupportedError if there are more than three."""
    if len(axes) > 3:
        raise UnsupportedError(Problem(f"{site.node.op} over {len(axes)} axes", place(site), "at most 3 are supported"))
    d, h, w = (*(NO_AXIS,) * (3 - len(axes)), *axes)
    return d, h, w


def _extremum(operation: str, plain: Any) -> Primitive[[Any, Any], Any]:
    """Of two floats; NaN if either is. As an intrinsic, so that LLVM knows it as a reduction and vectorizes it."""

    def lowering(tc: Any, x: Any, y: Any) -> Any:
        if x != y or not isinstance(x, types.Float):
            return None
        kind = {32: ir.FloatType(), 64: ir.DoubleType()}[x.bitwidth]

        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            f = b.module.declare_intrinsic(f"llvm.{operation}.f{x.bitwidth}", (), ir.FunctionType(kind, [kind] * 2))
            return b.call(f, a, fastmath=("nsz",))

        return x(x, y), gen

    return primitive(lowering)(plain)


def larger(x: Any, y: Any) -> Any:
    """The larger of two floats of one type; NaN if either is."""
    return x if x > y or x != x else y


def smaller(x: Any, y: Any) -> Any:
    """The smaller of two floats of one type; NaN if either is."""
    return x if x < y or x != x else y


fmax, fmin = _extremum("maximum", larger), _extremum("minimum", smaller)


@inline
def _larger_integer(x: Any, y: Any) -> Any:
    return x if x > y else y


@inline
def _smaller_integer(x: Any, y: Any) -> Any:
    return x if x < y else y


def extremum(dtype: str, largest: bool) -> Any:
    """For kernels: the larger (smaller) of two elements of this dtype; NaN if either is."""
    if kind_of(dtype) == "float":
        return fmax if largest else fmin
    return _larger_integer if largest else _smaller_integer


@inline
def above(x: Any, best: Any) -> Any:
    """Whether x replaces the largest so far: it is larger, or the first NaN."""
    return (x > best) | ((x != x) & (best == best))


@inline
def below(x: Any, best: Any) -> Any:
    """Whether x replaces the smallest so far: it is smaller, or the first NaN."""
    return (x < best) | ((x != x) & (best == best))


@inline
def add(x: Any, y: Any) -> Any:
    """The sum."""
    return x + y


@inline
def multiply(x: Any, y: Any) -> Any:
    """The product."""
    return x * y


@inline
def square_of_difference(x: Any, m: Any) -> Any:
    """What the variance of elements x with mean m sums up."""
    d = x - m
    return d * d


@per_target
def kind_of(dtype: str) -> str:
    """'float', 'signed' or 'unsigned' (bool too)."""
    return {"f": "float", "b": "float" if dtype == "bf16" else "unsigned", "i": "signed", "u": "unsigned"}[dtype[0]]
