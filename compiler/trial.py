"""What is wrong with a model, told without machine code: the frontend, the passes and the plan at some sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from compiler.codegen.build import plan_and_emit
from compiler.codegen.support import has_kernel
from compiler.errors import CompileError
from compiler.frontend import Source
from compiler.frontend.report import Report
from compiler.frontend.source import TRIED_SIZES, trial_dims
from compiler.ir.evaluate import RANDOM_OPS
from compiler.ir.graph import Graph, Node
from compiler.ir.types import AnyArray
from compiler.passes.lower_random import Role
from compiler.passes.pipeline import passes, run

LAST_TO_REFUSE = "expand_bodies"
"""The passes behind this one take whatever it gives."""


def blockers(graphs: Mapping[str, Graph]) -> Report:
    """What keeps graphs from becoming code. graphs: by role, as imported; they keep the rules of the IR."""
    report = Report()
    for role, graph in graphs.items():
        try:
            plan_and_emit(run(graph, passes(has_kernel, cast(Role, role))))
        except CompileError as e:
            report.add(e)
    return report


def unsupported(graphs: Mapping[str, Graph]) -> Report:
    """The part of `blockers` that is quickly found: what has neither a kernel nor a definition, or no derivative."""
    report = Report()
    for role, graph in graphs.items():
        if all(_runs(n, graph) for n in graph.nodes):
            continue  # as most initializations
        try:
            run(graph, passes(has_kernel, cast(Role, role)), until=LAST_TO_REFUSE)
        except CompileError as e:
            report.add(e)
    return report


def _runs(node: Node, graph: Graph) -> bool:
    """Whether a node surely becomes code: has a kernel, or is a draw, whose definition has kernels."""
    types = [graph.type(v) if v else None for v in node.inputs]
    return not node.bodies and (node.op in RANDOM_OPS or has_kernel(node, types))


def wrong_at_every_size(
    source: Source, dims: Mapping[str, int], static: Mapping[str, AnyArray], algorithm: int | None
) -> Report:
    """The problems that a model has whatever its open sizes are: the very same ones at each size that is tried.

    Messages about shapes tell the shapes, so what an open size takes part in is another problem at each size. Sizes
    at which the graphs have types tell more than the others, where what depends on a bad node is missing. InputError.
    """
    typed, later = [], []
    is_open = not set(source.symbols) <= set(dims)
    for size in TRIED_SIZES if is_open else TRIED_SIZES[:1]:
        attempt = source.attempt(trial_dims(source, size, dims, static), static, algorithm)
        # inference is a part of the step
        found = unsupported({role: g for role, g in attempt.graphs.items() if role != "infer"})
        if not attempt.report and not found:
            return found
        if attempt.report:
            found.merge(attempt.report)
            typed.append(found)
        else:
            later.append(found)
    first, *others = later or typed
    return first.common(others)
