"""Calls that run together, block by block: what one leaves in the cache the next one finds there.

A product and the loops on its result (bias, activation, residual, mask), the gradient of an activation and the product
that reads it, the product for the gradient of a weight and the optimizer's step: where their items belong together (see
`Placed.ratio`), a thread takes a block of rows through all of them before it goes on to the next one. It also needs
no barrier in between. Each item is computed as ever, so the bits do not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import lcm

from compiler.codegen.spans import Placed

LEAST, SHARES = 8, 4
"""Blocks that a strip has at least, and for each thread: what threads share out evenly enough."""

BYTES = 1 << 16
"""Of the largest value, a block has about so many at least: a call takes a while, and it stays in the cache. A smaller
value stays there anyway."""

AHEAD = 12
"""Calls behind the first one that are looked at."""


@dataclass(frozen=True)
class Strip:
    """Calls that run together, or one alone. steps: how many items of each are a block; blocks: 0 for one alone."""

    calls: Sequence[Placed]
    steps: Sequence[int] = ()
    blocks: int = 0


def strips(calls: Sequence[Placed], threads: int) -> Iterator[Strip]:
    """All of these calls, in an order that gives the same results."""
    rest = deque(calls)
    while rest:
        found = _Search(rest.popleft(), max(LEAST, SHARES * threads))
        for c in islice(rest, AHEAD if found.strip.calls[0].step else 0):
            found.look_at(c)
        if not found.strip.blocks:
            yield found.strip
            continue
        yield from strips(found.early, threads)
        yield found.strip
        for _ in range(len(found.strip.calls) - 1 + len(found.early) + len(found.late)):
            rest.popleft()
        rest.extendleft(reversed(found.late))


class _Search:
    """The calls that can run together with the first one, and those in between.

    least: blocks of a strip. rates: groups of items of each call for one of the first. early: calls that can run before
    them; late: behind them.
    """

    def __init__(self, first: Placed, least: int) -> None:
        self.strip, self.rates, self.least = Strip([first]), [Fraction(1)], least
        self.early: list[Placed] = []
        self.late: list[Placed] = []

    def look_at(self, c: Placed) -> None:
        """Take the next call in."""
        waits = any(c.meets(other) for other in self.late)
        rate = self._rate(c) if c.step and not waits else None
        strip = self._cut([*self.strip.calls, c], [*self.rates, rate]) if rate is not None else None
        if rate is not None and strip is not None:
            self.strip = strip
            self.rates.append(rate)
        elif waits or any(c.meets(other) for other in self.strip.calls):
            self.late.append(c)
        else:
            self.early.append(c)

    def _rate(self, c: Placed) -> Fraction | None:
        """Groups of items of a call for one of the first, if it can join."""
        found: set[Fraction] = set()
        for other, rate in zip(self.strip.calls, self.rates, strict=True):
            if c.meets(other):
                ratio = other.ratio(c)
                if ratio is None:
                    return None
                found.add(ratio * rate)
        return found.pop() if len(found) == 1 else None

    def _cut(self, calls: Sequence[Placed], rates: Sequence[Fraction]) -> Strip | None:
        """These calls as a strip, if they can be one."""
        whole = lcm(*(r.denominator for r in rates))
        unit = [int(r * whole) for r in rates]
        most = max(s.piece * step for c, step in zip(calls, unit, strict=True) for s in c.spans)
        blocks = -(-calls[0].groups // unit[0])
        if most * blocks < BYTES:
            return None
        times = max(1, min(-(-BYTES // most), blocks // self.least))
        steps = [times * step * c.call.together for c, step in zip(calls, unit, strict=True)]
        counts = {-(-c.call.n // step) for c, step in zip(calls, steps, strict=True)}
        return Strip(calls, steps, counts.pop()) if len(counts) == 1 and min(counts) >= self.least else None
