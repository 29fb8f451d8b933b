"""Operands of a Concat that are computed where they lie in its result, instead of being copied there.

That is possible where an operand is one block of the result, which is so if all axes before the one that they are
joined along have one element. The result then has its memory from the first of these operands on, to the last reader of
it or of any of them. So it is done where the whole plan takes no more memory by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compiler.codegen.calls import In, Out
from compiler.codegen.kernels.strided import copy_bytes
from compiler.codegen.memory import Memory
from compiler.codegen.units import Schedule, Unit
from compiler.ir.graph import Graph


@dataclass(frozen=True)
class _Part:
    """A value that may lie in another one, `offset` bytes behind its start. wait: units between their computations."""

    value: str
    whole: str
    offset: int
    wait: int


def place_parts(graph: Graph, s: Schedule, place: Callable[[], Memory]) -> Memory:
    """Make parts of the values that can be. place: gives all values of the schedule memory, with the parts so far."""
    updates, results = ({s.root(v) for v in values} for values in (graph.updates.values(), graph.results))
    seen: set[str] = set()
    groups = []
    for found in _candidates(s.units, s, results, updates):
        group = []
        for part in found:
            if part.value not in seen:  # (it can lie in one place only)
                seen.add(part.value)
                group.append(part)
        groups += [sorted(group, key=lambda part: part.wait)] if group else []
    return _with(groups, s, place(), place)


def _candidates(units: Sequence[Unit], s: Schedule, kept: set[str], bound: set[str]) -> Iterator[list[_Part]]:
    """Of each Concat in these units and the ones in them.

    kept: values that are there to the end, alone; bound: those that may have to lie over others.
    """
    computed: dict[str, int] = {}
    for at, u in enumerate(units):
        for nested in u.inner:
            carried = {s.root(v) for pair in u.cycle.carried for v in pair} if u.cycle else set()
            yield from _candidates(nested, s, kept | carried, bound | carried)
        if u.nodes and u.nodes[0].op == "Concat" and s.root(u.writes[0]) not in bound:
            found = []
            for call in u.calls:
                src, dst, *_ = call.args
                if call.kernel is copy_bytes and isinstance(src, In) and isinstance(dst, Out):
                    value = s.root(src.value)
                    if value in computed and value not in kept and s.is_whole(src.value):
                        found.append(_Part(value, dst.value, dst.offset, at - computed[value]))
            yield found
        if not u.inner and u.step is None:
            computed.update((v, at) for v in u.writes)


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
    placed = place()
    if placed.arena_bytes <= memory.arena_bytes:
        return placed
    for p in parts:
        del s.views[p.value], s.parts[p.value]
    if len(groups) > 1:
        middle = len(groups) // 2
        for half in (groups[:middle], groups[middle:]):
            memory = _with(half, s, memory, place)
    elif len(parts) > 1:
        for p in parts:
            memory = _with([[p]], s, memory, place)
    return memory
