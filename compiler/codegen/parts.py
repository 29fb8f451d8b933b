"""Operands of a Concat that are computed where they lie in its result, instead of being copied there.

That is possible where an operand is one block of the result, which is so if all axes before the one that they are joined
along have one element. The result then has its memory from the first of these operands on, to the last reader of it
or of any of them. So it is done where the whole plan takes no more memory by it.
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
    """Make parts of the values that can be. place: gives all values of the schedule memory, with the parts so far.

    Of each Concat the operand that is computed last comes first: one that has to wait for it may cost more than its copy.
    """
    updates, results = ({s.root(v) for v in values} for values in (graph.updates.values(), graph.results))
    found: dict[str, _Part] = {}
    for part in sorted(_candidates(s.units, s, results, updates), key=lambda p: p.wait):
        found.setdefault(part.value, part)
    last = {p.whole: p for p in reversed(found.values())}
    memory = place()
    for parts in (list(last.values()), [p for p in found.values() if p is not last[p.whole]]):
        memory = _with(parts, s, memory, place)
    return memory


def _candidates(units: Sequence[Unit], s: Schedule, kept: set[str], bound: set[str]) -> Iterator[_Part]:
    """Of these units and the ones in them. kept: values that stay to the end; bound: those that may lie over others."""
    computed: dict[str, int] = {}
    for at, u in enumerate(units):
        for nested in u.inner:
            carried = {s.root(v) for pair in u.cycle.carried for v in pair} if u.cycle else set()
            yield from _candidates(nested, s, kept | carried, bound | carried)
        if u.nodes and u.nodes[0].op == "Concat" and s.root(u.writes[0]) not in bound:
            for call in u.calls:
                src, dst, *_ = call.args
                if call.kernel is copy_bytes and isinstance(src, In) and isinstance(dst, Out):
                    value = s.root(src.value)
                    if value in computed and value not in kept and s.is_whole(src.value):
                        yield _Part(value, dst.value, dst.offset, at - computed[value])
        if not u.inner and u.step is None:
            computed.update((v, at) for v in u.writes)


def _with(parts: Sequence[_Part], s: Schedule, memory: Memory, place: Callable[[], Memory]) -> Memory:
    """The memory with these parts, or with some of them, if it is not larger than without."""
    if not parts:
        return memory
    for p in parts:
        s.views[p.value], s.parts[p.value] = p.whole, p.offset
    placed = place()
    if placed.arena_bytes <= memory.arena_bytes:
        return placed
    for p in parts:
        del s.views[p.value], s.parts[p.value]
    middle = len(parts) // 2
    for some in (parts[:middle], parts[middle:]) if middle else ():
        memory = _with(some, s, memory, place)
    return memory
