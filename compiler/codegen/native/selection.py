"""One of two values, where a condition decides.

Where the result goes to the place of one of the operands, LLVM would store only the elements that change, under a mask:
on some processors that takes ten times as long as storing all. It does not where the value is frozen, which else
changes nothing.
"""

from typing import Any

from llvmlite import ir
from numba import types

from compiler.codegen.native.primitive import primitive


def _freeze(b: Any, value: Any) -> Any:
    instruction = ir.Instruction(b.block, value.type, "freeze", [value])  # the builder has no method for it
    b._insert(instruction)
    return instruction


def _frozen_lowering(tc: Any, x: Any) -> Any:
    kind = types.unliteral(x)
    return kind(kind), lambda cx, b, s, a: _freeze(b, a[0])


@primitive(_frozen_lowering)
def frozen(x: Any) -> Any:
    """As it is, for a store to the place of one of the operands that x was chosen from."""
    return x


def _select_lowering(tc: Any, condition: Any, x: Any, y: Any) -> Any:
    kind = tc.unify_types(types.unliteral(x), types.unliteral(y))
    if not isinstance(kind, (types.Number, types.Boolean)):
        return None
    return kind(types.boolean, kind, kind), lambda cx, b, s, a: _freeze(b, b.select(*a))


@primitive(_select_lowering)
def select(condition: Any, x: Any, y: Any) -> Any:
    """Both computed: x if condition, else y. Not for the extremum of a loop, which is no vector if it is frozen."""
    return x if condition else y
