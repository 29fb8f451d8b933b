"""Calls that run together, block by block: what one leaves in the cache the next one finds there.

A product and the loops on its result (bias, activation, residual, mask), the gradient of an activation and the product
that reads it, the product for the gradient of a weight and the optimizer's step: where their items belong together (see
`Placed.ratio`), a thread takes a block of rows through all of them before it goes on to the next one. It also needs
no barrier in between. Each item is computed as ever, so the bits do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from compiler.codegen.calls import Temp
from compiler.codegen.spans import Placed
from compiler.codegen.units import writes

LEAST = 8
"""Blocks that a strip has at least: what threads share out evenly enough."""

BYTES = 1 << 16
"""Of the largest value, a block has about so many at least: a call takes a while, and it stays in the cache."""


MOST = 16
"""Calls of a strip: more need more operands than stay in the cache, and each is compared with all before it."""


@dataclass(frozen=True)
class Strip:
    """Calls that run together, or one alone. steps: how many items of each are a block; blocks: 0 for one alone."""

    calls: Sequence[Placed]
    steps: Sequence[int] = ()
    blocks: int = 0


def strips(calls: Sequence[Placed]) -> Iterator[Strip]:
    """Calls in a row, in an order that gives the same results: packing of operands may come before a strip."""
    current: list[Placed] = []
    rates: list[Fraction] = []  # items of each call for one of the first
    for c in calls:
        rate = _rate(c, current, rates) if len(current) < MOST else None
        if rate is not None:
            current.append(c)
            rates.append(rate)
        elif _packs(c) and not any(c.meets(other) for other in current):
            yield Strip([c])
        else:
            yield from _cut(current, rates)
            current, rates = [c], [Fraction(1)]
    yield from _cut(current, rates)


def _rate(c: Placed, current: Sequence[Placed], rates: Sequence[Fraction]) -> Fraction | None:
    """Items of a call for one of the first in a strip, if it can join."""
    found: set[Fraction] = set()
    for other, rate in zip(current, rates, strict=True):
        if c.meets(other):
            ratio = other.ratio(c)
            if ratio is None:
                return None
            found.add(ratio * rate)
    return found.pop() if len(found) == 1 else None


def _packs(c: Placed) -> bool:
    """Whether a call writes only memory that the calls of its node work in."""
    return not c.call.check and not writes(c.call) and any(isinstance(a, Temp) for a in c.call.args)


def _cut(calls: Sequence[Placed], rates: Sequence[Fraction]) -> Iterator[Strip]:
    """These calls as a strip if they can be one, else alone."""
    if len(calls) > 1:
        whole = lcm(*(r.denominator for r in rates))
        unit = [int(r * whole) for r in rates]
        most = max(s.piece * step for c, step in zip(calls, unit, strict=True) for s in c.spans)
        blocks = -(-calls[0].call.n // unit[0])
        times = max(1, min(-(-BYTES // most), blocks // LEAST))
        steps = [times * step for step in unit]
        counts = {-(-c.call.n // step) for c, step in zip(calls, steps, strict=True)}
        if len(counts) == 1 and min(counts) >= LEAST:
            yield Strip(calls, steps, counts.pop())
            return
    yield from (Strip([c]) for c in calls)
