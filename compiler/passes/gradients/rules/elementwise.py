"""Elementwise functions of several operands; the driver undoes their broadcasting. Ties: docs/ties.md."""

from __future__ import annotations

from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value


@gradient("Add", "Sum")
def add(r: Call) -> None:
    """Every operand gets dy."""
    for i in range(len(r.node.inputs)):
        r.give(i, r.dy)


@gradient("Sub")
def sub(r: Call) -> None:
    """The first operand gets dy, the second -dy (negated after the sum: that is often smaller)."""
    r.give(0, r.dy)
    r.give(1, lambda: -r.dy.fit(r.x(1).shape))


@gradient("Mul")
def mul(r: Call) -> None:
    """Each operand gets dy times the other one."""
    r.give(0, lambda: r.dy * r.x(1))
    r.give(1, lambda: r.dy * r.x(0))


@gradient("Div")
def div(r: Call) -> None:
    """With y = a / b: dy / b and -dy y / b."""
    quotient = r.dy / r.x(1)
    r.give(0, quotient)
    r.give(1, lambda: -(quotient * r.y()).fit(r.x(1).shape))


@gradient("Mean")
def mean(r: Call) -> None:
    """Every operand gets an equal share of dy."""
    share = r.dy / len(r.node.inputs)
    for i in range(len(r.node.inputs)):
        r.give(i, share)


@gradient("Mod")
def mod(r: Call) -> None:
    """The result is a - b q with an integer q: dy and -q dy."""
    r.give(0, r.dy)
    r.give(1, lambda: -(r.dy * ((r.x(0) - r.y()) / r.x(1)).op("Round")))


@gradient("Where")
def where(r: Call) -> None:
    """The operand that was chosen gets dy."""
    r.give(1, lambda: r.x(0).where(r.dy, 0.0))
    r.give(2, lambda: r.x(0).where(0.0, r.dy))


@gradient("PRelu")
def prelu(r: Call) -> None:
    """The derivative at 0 is the slope."""
    positive = r.x(0) > 0.0
    r.give(0, lambda: positive.where(r.dy, r.dy * r.x(1)))
    r.give(1, lambda: positive.where(0.0, r.dy * r.x(0)))


@gradient("Clip")
def clip(r: Call) -> None:
    """From min to max, both included, x gets dy; min and max get it where they are what comes out."""
    x, dy = r.x(0), r.dy
    above = x >= r.x(1) if r.has(1) else None
    below = x <= r.x(2) if r.has(2) else None
    inside = above & below if above is not None and below is not None else above or below
    r.give(0, lambda: inside.where(dy, 0.0) if inside is not None else dy)
    if r.has(1) and r.wants(1):
        low = x < r.x(1)
        r.give(1, (low & (r.x(1) < r.x(2)) if r.has(2) else low).where(dy, 0.0))
    if r.has(2) and r.wants(2):
        high = x > r.x(2)
        over = high.op("Or", r.x(2) < r.x(1)) if r.has(1) else high
        r.give(2, over.where(dy, 0.0))


@gradient("Max", "Min")
def extremum(r: Call) -> None:
    """The extreme operand gets dy; ties share it evenly."""
    xs, dy = r.xs, r.dy
    if len(xs) == 1:
        r.give(0, dy)
    elif len(xs) == 2:
        for i in sorted(r.wanted):
            x, other = xs[i], xs[1 - i]
            wins = x > other if r.node.op == "Max" else x < other
            r.give(i, wins.where(dy, x.equals(other).where(dy * 0.5, 0.0)))
    else:
        hits = [x.equals(r.y()) for x in xs]
        count = hits[0].cast(dy.dtype)
        for hit in hits[1:]:
            count = count + hit.cast(dy.dtype)
        share = dy / count
        for i in sorted(r.wanted):
            r.give(i, hits[i].where(share, 0.0))


@gradient("Pow")
def power(r: Call) -> None:
    """With y = a^b: dy b a^(b-1), 0 for b = 0; dy y log(a), 0 for a = 0 <= b.

    The special cases replace operands, not results: a later derivative then meets no 0 * inf.
    """
    a, dy = r.x(0), r.dy
    r.give(0, lambda: dy * _derivative_by_base(r, a))
    if r.wants(1):
        b = r.x(1)
        vanishes = a.equals(0.0) & (b >= 0.0)
        # of the type of a, as y is; the exponent may have another
        r.give(1, (dy * r.y() * vanishes.where(1.0, a).op("Log")).cast(b.dtype))


def _derivative_by_base(r: Call, a: Value) -> Value:
    exponent = r.constant(1)
    match exponent.item() if exponent is not None and exponent.size == 1 else None:
        case 1:
            return Value(r.b, r.b.scalar(1, a.name))
        case 2:
            return a * 2.0
        case 3:
            return a * a * 3.0
        case 0.5:
            return 0.5 / r.y()
    b = r.x(1).cast(a.dtype)
    return b * a.op("Pow", b.equals(0.0).where(1.0, b) - 1.0)
