"""What lowerings of several families share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from compiler.codegen.calls import Site
from compiler.codegen.native import ITEMSIZE, Primitive, primitive
from compiler.errors import Problem, UnsupportedError
from compiler.ir.types import TensorType


def item_size(t: TensorType) -> int:
    """Bytes of an element."""
    return ITEMSIZE[t.dtype]


def normalized(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + rank if axis < 0 else axis


def known_ints(site: Site, i: int, what: str) -> tuple[int, ...]:
    """The i-th input's integers. UnsupportedError if they are not known when the model is compiled."""
    values = site.ints(i)
    if values is None:
        problem = Problem(
            f"the {what} of a {site.node.op} are computed while the model runs",
            str(site.node.origin) or f"the node that makes {site.node.outputs[0]}",
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


@cache
def kind_of(dtype: str) -> str:
    """'float', 'signed' or 'unsigned' (bool too)."""
    return {"f": "float", "b": "float" if dtype == "bf16" else "unsigned", "i": "signed", "u": "unsigned"}[dtype[0]]
