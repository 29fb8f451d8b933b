"""Offsets in one block for pieces of memory whose lifetimes are known: the best of what some heuristics find.

Best fit in the order of time reuses a piece at once and leaves little behind where sizes repeat. Placing the largest
first, each at the lowest offset that is free over its whole life, keeps small pieces from splitting the room of large
ones (Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020: "greedy by size"); of equal
size those that begin or end first, or the largest products of size and life. None is the best for all models.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable

import numpy as np

MOST = 10_000
"""Pieces up to which the largest are tried first: the time that it takes grows with the square of their number."""


class Pieces:
    """Pieces that are taken and given back in the order of time, by number."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._events: list[tuple[bool, int]] = []

    def take(self, size: int) -> int:
        """The number of a new piece of `size` bytes."""
        piece = len(self._sizes)
        self._sizes.append(size)
        self._begins.append(len(self._events))
        self._ends.append(sys.maxsize)
        self._events.append((True, piece))
        return piece

    def give(self, piece: int) -> None:
        """Free a piece that was taken before; what is never given back lives to the end."""
        self._ends[piece] = len(self._events)
        self._events.append((False, piece))

    def least(self) -> int:
        """Bytes of all pieces that live at once, at most: no offsets need less."""
        live = most = 0
        for taken, piece in self._events:
            live += self._sizes[piece] if taken else -self._sizes[piece]
            most = max(most, live)
        return most

    def offsets(self, start: int) -> tuple[list[int], int]:
        """The offset of each piece, from `start` on, and where the last one ends."""
        best, least = self._in_time(start), start + self.least()
        if len(self._sizes) <= MOST:
            for key in (self._early, self._ending, self._area):
                if best[1] > least:  # (the first of those that are equal)
                    best = min(best, self._largest_first(start, key), key=lambda found: found[1])
        return best

    def _early(self, piece: int) -> tuple[int, int]:
        return -self._sizes[piece], self._begins[piece]

    def _ending(self, piece: int) -> tuple[int, int]:
        return -self._sizes[piece], self._ends[piece]

    def _area(self, piece: int) -> tuple[int, int]:
        return -self._sizes[piece] * (min(self._ends[piece], len(self._events)) - self._begins[piece]), piece

    def _in_time(self, start: int) -> tuple[list[int], int]:
        room, found = _BestFit(start), [0] * len(self._sizes)
        for taken, piece in self._events:
            if taken:
                found[piece] = room.take(self._sizes[piece])
            else:
                room.give(found[piece], self._sizes[piece])
        return found, room.top

    def _largest_first(self, start: int, key: Callable[[int], tuple[int, int]]) -> tuple[list[int], int]:
        n = len(self._sizes)
        found, top = [start] * n, start
        # those placed so far, in the order of their offsets
        lows, highs, begins, ends = (np.zeros(n, np.int64) for _ in range(4))
        for count, i in enumerate(sorted(range(n), key=key)):
            meets = (begins[:count] < self._ends[i]) & (ends[:count] > self._begins[i])
            at = start
            if meets.any():
                reached = np.maximum.accumulate(highs[:count][meets])
                gaps = np.append(lows[:count][meets][1:], sys.maxsize) - reached
                first = int(lows[:count][meets][0])
                at = start if first - start >= self._sizes[i] else int(reached[np.argmax(gaps >= self._sizes[i])])
            found[i], top = at, max(top, at + self._sizes[i])
            k = int(np.searchsorted(lows[:count], at))
            for values, new in (
                (lows, at),
                (highs, at + self._sizes[i]),
                (begins, self._begins[i]),
                (ends, self._ends[i]),
            ):
                values[k + 1 : count + 1] = values[k:count].copy()
                values[k] = new
        return found, top


class _BestFit:
    """Free pieces in order, of which neighbours merge."""

    def __init__(self, start: int) -> None:
        self.top = start
        self._free: list[tuple[int, int]] = []  # (offset, size), by offset

    def take(self, size: int) -> int:
        """The offset of `size` bytes: the smallest free piece that is large enough, else new memory at the top."""
        best = min((f for f in self._free if f[1] >= size), key=lambda f: f[1], default=None)
        if best is not None:
            i = bisect.bisect_left(self._free, best)
            if best[1] == size:
                del self._free[i]
            else:
                self._free[i] = (best[0] + size, best[1] - size)
            return best[0]
        grown = self._free and sum(self._free[-1]) == self.top  # the piece at the top is too small, but can grow
        offset = self._free.pop()[0] if grown else self.top
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a piece taken before."""
        i = bisect.bisect_left(self._free, (offset, 0))
        if i < len(self._free) and offset + size == self._free[i][0]:
            size += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == offset:
            before = self._free.pop(i - 1)
            offset, size = before[0], before[1] + size
            i -= 1
        self._free.insert(i, (offset, size))
