"""The memory that calls touch: what has to wait for a barrier, and what may run block by block."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from compiler.codegen.calls import Call
from compiler.ir.graph import Node


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, end) of a block that a call touches. piece: as of `In`."""

    block: int
    start: int
    end: int
    written: bool
    piece: int = 0

    def ratio(self, other: Span) -> Fraction | None:
        """How many groups of items of the other's call touch what one of this one's call does, if it can be said."""
        same = (self.block, self.start, self.end) == (other.block, other.start, other.end)
        return Fraction(self.piece, other.piece) if same and self.piece and other.piece else None


class Touched:
    """The memory that calls since the last barrier read and wrote, as disjoint ranges in order, for each block."""

    def __init__(self) -> None:
        self._ranges: dict[tuple[int, bool], tuple[list[int], list[int]]] = {}  # (block, written) -> starts, ends

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def meets(self, span: Span) -> bool:
        """Whether threads could meet in this span: one side writes what the other reads or writes."""
        return any(self._overlaps(span, written) for written in ((True, False) if span.written else (True,)))

    def _overlaps(self, span: Span, written: bool) -> bool:
        starts, ends = self._ranges.get((span.block, written), ((), ()))
        i = bisect.bisect_right(ends, span.start)  # the first range that ends behind the span's start
        return i < len(starts) and starts[i] < span.end

    def add(self, span: Span) -> None:
        """Count a span as touched."""
        starts, ends = self._ranges.setdefault((span.block, span.written), ([], []))
        i, j = bisect.bisect_left(ends, span.start), bisect.bisect_right(starts, span.end)
        start, end = (min(span.start, starts[i]), max(span.end, ends[j - 1])) if i < j else (span.start, span.end)
        starts[i:j], ends[i:j] = [start], [end]


@dataclass(frozen=True)
class Placed:
    """A call as it was given memory.

    word: where its record is in the table; step: where the word is that says how many items are a block, 0 for none.
    nodes: what it computes, with others of the same list.
    """

    call: Call
    word: int
    step: int
    spans: Sequence[Span]
    nodes: list[Node]

    @property
    def groups(self) -> int:
        """How many groups of items there are that go together."""
        return -(-self.call.n // self.call.together)

    @cached_property
    def written(self) -> list[Span]:
        """The memory that it writes."""
        return [s for s in self.spans if s.written]

    def meetings(self, other: Placed) -> Iterator[tuple[Span, Span]]:
        """Where the order of the two calls matters: spans of both."""
        for a in self.spans:
            for b in other.spans if a.written else other.written:
                if a.block == b.block and a.start < b.end and b.start < a.end:
                    yield a, b

    def meets(self, other: Placed) -> bool:
        """Whether the order of the two calls matters."""
        return any(True for _ in self.meetings(other))

    def ratio(self, other: Placed) -> Fraction | None:
        """How many groups of items of the other call belong to one of this; None: they wait for all of the other.

        They belong together if the calls meet in nothing but what both go through piece by piece, at the same rate.
        """
        found = {a.ratio(b) for a, b in self.meetings(other)}
        return found.pop() if len(found) == 1 else None
