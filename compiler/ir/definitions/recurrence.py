"""A linear recurrence along an axis: what the gradient of running products is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.bodies import internal
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError


def shifted(b: Builder, x: str, axis: int, by: int) -> str:
    """X moved along an axis by so many places, zeros behind it; backwards if `by` is negative."""
    rank, n = len(b.shape(x)), b.shape(x)[axis]
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = by, -by
    if abs(by) >= n:
        return b.full(0, b.type(x))
    low, high = max(-by, 0), n - max(by, 0)
    part = b.op("Slice", x, b.ints([low]), b.ints([high]), b.ints([axis]))
    return b.op("Pad", part, b.ints([max(p, 0) for p in pads]))


@internal("LinearRecurrence")
def linear_recurrence(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """(a, b) of one type -> s with s[i] = a[i] s[i-1] + b[i] along `axis`, s[-1] being 0; from the end if `reverse`.

    By doubling: after a round, s[i] is what the last 1, 2, 4, .. elements make of 0, and a[i] the product of theirs.
    """
    a, s = inputs
    if b.type(a) != b.type(s):
        raise InferenceError("the factors and the terms of LinearRecurrence differ in type")
    axis, by = attrs["axis"], 1
    if not -len(b.shape(s)) <= axis < len(b.shape(s)):
        raise InferenceError(f"axis {axis} is out of range")
    axis %= len(b.shape(s))
    while by < b.shape(s)[axis]:
        move = -by if attrs.get("reverse", 0) else by
        s = b.op("Add", b.op("Mul", a, shifted(b, s, axis, move)), s)
        by *= 2
        if by < b.shape(s)[axis]:
            a = b.op("Mul", a, shifted(b, a, axis, move))
    return [s if s != inputs[1] else b.op("Identity", s)]
