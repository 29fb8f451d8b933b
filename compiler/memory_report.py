"""What a step takes of memory, without compiling it: the bytes of its plan, and the values at its peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from compiler.api import Model, checked_threads, loaded
from compiler.codegen.footprint import footprint
from compiler.codegen.plan import make_plan
from compiler.codegen.support import has_kernel
from compiler.errors import checked_flag, checked_names
from compiler.fitting import checked_limit, fitted
from compiler.ir.types import TensorType
from compiler.passes.pipeline import passes, run
from compiler.passes.recompute import least, peak_of
from compiler.passes.repeating import RULE
from compiler.runtime.layout import MemoryUse
from compiler.specialize import as_typed, returning, state_types


@dataclass(frozen=True)
class Held:
    """A value that is in memory at the peak, or "" for working memory of a kernel; nbytes: with padding."""

    name: str
    nbytes: int
    type: TensorType | None


@dataclass(frozen=True)
class MemoryReport:
    """The plan of a step.

    use: bytes by block. peak: what is in the arena when it is fullest, the largest first. recomputed: operators that
    are computed again. least: the smallest `memory_limit` that can be reached, if it was asked for.
    """

    use: MemoryUse
    peak: tuple[Held, ...]
    recomputed: int
    least: int | None


def memory(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    threads: int | None = None,
    algorithm: int | None = None,
    max_trip: int | None = None,
    straight_through: bool = False,
    outputs: Sequence[str] | None = None,
    memory_limit: int | None = None,
    smallest: bool = False,
) -> MemoryReport:
    """What `compile` with the same arguments allocates for a step; all symbolic dims must be bound.

    smallest: look also for the smallest `memory_limit`. CompileError, InputError as for `compile`.
    """
    count, limit = checked_threads(threads), checked_limit(memory_limit)
    straight_through, smallest = checked_flag("straight_through", straight_through), checked_flag("smallest", smallest)
    source, arrays = loaded(model, dims, static, max_trip)
    typed = {n: as_typed(source, n, a) for n, a in arrays.items()}
    graph = source.graph("step", dict(dims or {}), typed, algorithm)
    if outputs is not None:
        graph = returning(graph, checked_names("outputs", outputs))
    graph = run(graph, passes(has_kernel, "step", 0, straight_through))
    states = state_types(source, algorithm)
    smallest_limit = least(graph, partial(footprint, threads=count, states=states)) if smallest else None
    graph = fitted(graph, limit, count, states)
    held = peak_of(footprint(graph, count, states))
    return MemoryReport(
        make_plan(graph, count, states).layout.memory,
        tuple(Held(v, nbytes, graph.types.get(v)) for v, nbytes in held),
        sum(node.origin.rule == RULE for node in graph.nodes),
        smallest_limit,
    )
