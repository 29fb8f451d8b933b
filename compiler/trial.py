"""What is wrong with a model, told without machine code: the frontend, the passes and the plan at some sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from compiler.codegen.build import plan_and_emit
from compiler.codegen.support import has_kernel
from compiler.errors import CompileError
from compiler.frontend import Source
from compiler.frontend.attempts import TRIED_SIZES, trial_dims
from compiler.frontend.report import Report
from compiler.ir.builder import GRADIENT, where
from compiler.ir.evaluate import RANDOM_OPS
from compiler.ir.graph import Graph, Node
from compiler.ir.types import AnyArray, Tensor
from compiler.passes.lower_random import Role
from compiler.passes.pipeline import passes, run

ROUNDINGS = frozenset({"Round", "QuantizeLinear"})
"""What gradients pass only if they are told to look through."""

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


def untrained(step: Graph, straight_through: bool = False) -> tuple[str, ...]:
    """Notes on variables that a step updates, but whose gradients are 0 whatever the data are.

    step: as imported; one with a problem has no notes. straight_through: gradients look through roundings.
    """
    taken = [n for n in step.nodes if n.op == GRADIENT and any(n.outputs)]
    still = _still(step, taken, straight_through)
    moved = frozenset() if straight_through or not still else still - _still(step, taken, True)
    notes = []
    for v in step.updates:
        if v not in still:
            continue
        what = f"the gradient by {v!r} is 0 whatever the data are, so it is not trained: "
        ys = [n.inputs[0] for n in taken if v in _wanted(n)]
        between = _between(step, v, ys)
        rounding = next((n for n in between if n.op in ROUNDINGS), None)
        if v in moved and rounding is not None:
            notes.append(
                f"{what}{rounding.op} rounds on the way, in {where(rounding)}; straight_through=True trains it"
            )
        elif not between and v not in ys:
            notes.append(f"{what}{', '.join(map(repr, dict.fromkeys(ys)))} does not depend on it")
        else:
            notes.append(f"{what}no way from it to {', '.join(map(repr, dict.fromkeys(ys)))} has a slope")
    return tuple(notes)


def _wanted(gradient: Node) -> dict[str, str]:
    """For each x of a Gradient node the gradient by it."""
    return dict(zip(gradient.inputs[1 : 1 + gradient.attr("xs", 0)], gradient.outputs, strict=False))


def _still(step: Graph, taken: Sequence[Node], straight_through: bool) -> frozenset[str]:
    """The variables whose gradients, all of them, are zeros once they are written out."""
    gradients = [(v, out) for n in taken for v, out in _wanted(n).items() if out and v in step.updates]
    if not gradients:
        return frozenset()
    outputs = {out: out for _, out in gradients}
    asked = Graph(step.name, step.types, step.inputs, step.states, step.consts, step.captures, step.nodes, outputs, {})
    try:
        expanded = run(asked, passes(has_kernel, straight_through=straight_through), until="expand_gradients")
    except CompileError:
        return frozenset()
    moving = {v for v, out in gradients if not _is_zeros(expanded, expanded.outputs[out])}
    return frozenset(v for v, _ in gradients) - moving


def _is_zeros(g: Graph, v: str) -> bool:
    """Whether a value is a constant of zeros, as `expand_gradients` writes it."""
    array, node = g.constant(v), g.producer(v)
    if array is not None or node is None:
        return array is not None and not array.any()
    if node.op == "ConstantOfShape":
        filled = node.attr("value", None)
        return not isinstance(filled, Tensor) or not filled.array.any()
    return node.op in ("Identity", "Cast") and _is_zeros(g, node.inputs[0])


def _between(step: Graph, x: str, ys: Sequence[str]) -> list[Node]:
    """The nodes on the ways from x to one of ys, in program order."""
    reached, ahead = {x}, []
    for n in step.nodes:
        if n.op != GRADIENT and reached.intersection(n.reads):
            reached.update(n.results)
            ahead.append(n)
    behind = set(ys)
    found = []
    for n in reversed(ahead):
        if behind.intersection(n.results):
            behind.update(n.reads)
            found.append(n)
    return found[::-1]
