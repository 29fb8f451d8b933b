"""Graph -> native step: plan, emit, compile, load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.codegen.emit import Emitted, emit
from compiler.codegen.native import load
from compiler.codegen.native.modes import checked
from compiler.codegen.plan import Plan, make_plan
from compiler.ir.graph import Graph
from compiler.ir.types import AnyArray, TensorType
from compiler.runtime.layout import Layout


@dataclass(frozen=True)
class Compiled:
    """A graph in machine code in this process.

    address: of `void step(int64 table, int64 thread, int64 threads)`; const: contents of the const block; checked:
    whether it tests every access, so that it runs within `guarded` only.
    """

    graph: Graph
    layout: Layout
    const: AnyArray
    address: int
    source: str
    checked: bool


def plan_and_emit(
    graph: Graph, threads: int = 1, states: Mapping[str, TensorType] | None = None
) -> tuple[Plan, Emitted]:
    """Everything but machine code; arguments as for `make_plan`. UnsupportedError lists the nodes without a kernel."""
    plan = make_plan(graph, threads, states)
    return plan, emit(plan)


def compile_graph(graph: Graph, threads: int = 1, states: Mapping[str, TensorType] | None = None) -> Compiled:
    """Compile a graph for this machine; what the cache has is not compiled again. BuildError, UnsupportedError."""
    plan, emitted = plan_and_emit(graph, threads, states)
    address = load([emitted.step])[emitted.step.symbol]
    return Compiled(graph, plan.layout, plan.const, address, emitted.source, checked())
