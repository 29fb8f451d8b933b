"""What a graph takes of memory, and when: for those who change it so that it takes less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.codegen.memory import positions
from compiler.codegen.plan import make_plan
from compiler.codegen.units import Unit
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType


@dataclass(frozen=True)
class Footprint:
    """See `compiler.passes.repeating.Plan`."""

    total: int
    position: Mapping[str, int]
    lives: Sequence[tuple[str, int, int, int]]
    roots: Mapping[str, str]
    fixed: frozenset[str]


def footprint(graph: Graph, threads: int = 1, states: Mapping[str, TensorType] | None = None) -> Footprint:
    """Of the plan that `make_plan` makes of the same arguments. UnsupportedError."""
    plan = make_plan(graph, threads, states)
    position: dict[str, int] = {}
    for at, u in enumerate(positions(plan.schedule.units)):
        position.update((v, at) for node in u.nodes for v in node.results if v in graph.types)
    return Footprint(
        plan.layout.memory.total,
        position,
        [(life.value, life.nbytes, life.start, life.end) for life in plan.memory.lives],
        {v: plan.schedule.root(v) for v in graph.types},
        frozenset(_fixed(plan.schedule.units)),
    )


def _fixed(units: Sequence[Unit]) -> Iterator[str]:
    for u in units:
        if u.checks or u.inner or u.step is not None:
            yield from (v for node in u.nodes for v in node.results)
