"""Whether a step is surely brief, so that nobody minds that the thread which calls it keeps what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compiler.codegen.calls import Arg, In, Listing, Out, Temp
from compiler.codegen.units import Statement
from compiler.ir.types import TensorType

MOST = 1 << 20
"""The operations of a step that is brief. They take less than a millisecond; an interpreter's turn is five."""


def is_brief(statements: Iterable[Statement], types: Mapping[str, TensorType]) -> bool:
    """Whether a step of these statements is brief, whatever it computes; one with a loop is not.

    A call that touches n bytes does about n²/64 operations at most: so many are in a product of two matrices or a
    convolution in which every element of one operand, 4 bytes each, meets every one of the other.
    """
    operations = 0
    for s in statements:
        if s.kind == "while":
            return False
        if s.call is not None:
            operations += sum(_touched(a, types) for a in s.call.args) ** 2 // 64
    return operations <= MOST


def _touched(a: Arg, types: Mapping[str, TensorType]) -> int:
    """Bytes of values and shared memory behind an argument."""
    match a:
        case In(v, _) | Out(v, _):
            return types[v].nbytes
        case Temp(_, nbytes, _):
            return nbytes
        case Listing(items):
            return sum(_touched(i, types) for i in items)
    return 0
