"""Operands of a Concat that are computed where they lie in its result, instead of being copied there.

Any kernel can do so where an operand is one block of the result: if all axes before the one that they are joined along
have one element. Other operands lie there with strides; fused loops can write such a one, if only fused loops read it.
The result then has its memory from the first of these operands on, to the last reader of it or of any of them. So it is
done where the whole plan takes no more memory by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compiler.codegen.calls import Call, In, Out, contiguous
from compiler.codegen.memory import Memory, positions
from compiler.codegen.strides import has_runs, is_dense, reshaped
from compiler.codegen.units import Schedule, Strided, Unit, reads
from compiler.ir.graph import Graph


@dataclass(frozen=True)
class _Part:
    """A value that may lie in another one, `offset` bytes behind its start. wait: units between their computations.

    strides: those of its elements there, if they do not follow each other. copy: the call of the unit `by` that is not
    needed then.
    """

    value: str
    whole: str
    offset: int
    strides: tuple[int, ...]
    wait: int
    by: Unit
    copy: Call


def place_parts(graph: Graph, s: Schedule, place: Callable[[], Memory]) -> Memory:
    """Make parts of the values that can be. place: gives all values of the schedule memory, with the parts so far."""
    seen: set[str] = set()
    groups = []
    for found in _Candidates(graph, s).all():
        group = []
        for part in found:
            if part.value not in seen:  # (it can lie in one place only)
                seen.add(part.value)
                group.append(part)
        groups += [sorted(group, key=lambda part: part.wait)] if group else []
    groups.sort(key=lambda group: group[0].by in s.units)  # those within loops, which run many times, come first
    memory = _with(groups, s, place(), place)
    for p in (p for group in groups for p in group if p.value in s.parts):
        p.by.calls = [c for c in p.by.calls if c is not p.copy]
    return memory


class _Candidates:
    """The values of a schedule that may be parts."""

    def __init__(self, graph: Graph, s: Schedule) -> None:
        self.s = s
        self.bound = {s.root(v) for v in graph.updates.values()}
        """Values that may have to lie over others."""
        self.kept = {s.root(v) for v in graph.results}
        """Values that are there to the end, alone."""
        self.readers: dict[str, list[tuple[Unit, str]]] = {}
        """Of each value: the units that read it, and as which view of it."""
        for u in positions(s.units):
            for v in u.reads:
                self.readers.setdefault(s.root(v), []).append((u, v))

    def all(self) -> Iterator[list[_Part]]:
        """Those of each Concat."""
        return self._within(self.s.units, self.kept, self.bound)

    def _within(self, units: Sequence[Unit], kept: set[str], bound: set[str]) -> Iterator[list[_Part]]:
        """Of each Concat in these units and the ones in them."""
        s = self.s
        computed: dict[str, int] = {}
        for at, u in enumerate(units):
            for nested in u.inner:
                carried = {s.root(v) for pair in u.cycle.carried for v in pair} if u.cycle else set()
                yield from self._within(nested, kept | carried, bound | carried)
            if u.nodes and u.nodes[0].op == "Concat" and s.root(u.writes[0]) not in bound:
                found = []
                for call in u.calls:
                    src, dst, *_ = call.args
                    if isinstance(src, In) and isinstance(dst, Out):
                        value = s.root(src.value)
                        if value in computed and value not in kept and s.is_whole(src.value):
                            strides = self._strides(u, src.value, value, units[computed[value]])
                            if strides is not None:
                                wait = at - computed[value]
                                found.append(_Part(value, dst.value, dst.offset, strides, wait, u, call))
                yield found
            if not u.inner and u.step is None:
                computed.update((v, at) for v in u.writes)

    def _strides(self, u: Unit, operand: str, value: str, by: Unit) -> tuple[int, ...] | None:
        """How the elements of a value would lie where `u` joins it, as an operand; () if they follow each other.

        None: they would lie in a way in which the unit that makes the value, or a reader, cannot follow.
        """
        types = self.s.types
        given, t = types[operand], types[value]
        steps = contiguous(types[u.writes[0]].shape)
        if is_dense(given.shape, steps):
            return ()
        strides = reshaped(given.shape, steps, t.shape) if given.dtype == t.dtype else None
        if strides is None or not has_runs(t.shape, strides) or not _is_loop(by):
            return None
        once = sum(reads(c).count(operand) for c in u.calls) == 1
        others = [(r, v) for r, v in self.readers[value] if (r, v) != (u, operand)]
        return strides if once and all(_is_loop(r) and v == value for r, v in others) else None


def _is_loop(u: Unit) -> bool:
    return u.group is not None and u.join is None


def _with(groups: Sequence[Sequence[_Part]], s: Schedule, memory: Memory, place: Callable[[], Memory]) -> Memory:
    """The memory with the parts of these groups, or with some of them, if it is not larger than without.

    Where it is, half of the groups are tried; of one group each part, the one that waits least first: others that have
    to wait for it may cost more than their copies.
    """
    parts = [p for group in groups for p in group]
    if not parts:
        return memory
    for p in parts:
        s.views[p.value], s.parts[p.value] = p.whole, p.offset
        if p.strides:
            s.strided[p.value] = Strided(p.whole, 0, p.strides)
    placed = place()
    if placed.arena_bytes <= memory.arena_bytes:
        return placed
    for p in parts:
        del s.views[p.value], s.parts[p.value]
        s.strided.pop(p.value, None)
    if len(groups) > 1:
        middle = len(groups) // 2
        for half in (groups[:middle], groups[middle:]):
            memory = _with(half, s, memory, place)
    elif len(parts) > 1:
        for p in parts:
            memory = _with([[p]], s, memory, place)
    return memory
