"""The passes in order, and running them: verified after each, observed by whoever wants to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

from compiler.errors import Problem, UnsupportedError, VerifyError
from compiler.ir.graph import Graph, Program
from compiler.ir.verify import verify
from compiler.passes.accumulate import accumulate
from compiler.passes.bodies import HasKernel, expand_bodies
from compiler.passes.cse import cse
from compiler.passes.dce import dce
from compiler.passes.evaluation import for_evaluation
from compiler.passes.fold import fold_constants
from compiler.passes.fuse_attention import fuse_attention
from compiler.passes.fuse_optimizer import fuse_optimizer
from compiler.passes.gradients import expand_gradients
from compiler.passes.hoist import hoist
from compiler.passes.lower_random import Role, lower_random
from compiler.passes.sgd_rows import sgd_rows

Observer = Callable[[str, Graph], None]
"""Called with the name of each pass and the graph after it."""


class Pass(NamedTuple):
    """A named function from graph to graph, which leaves its argument as it is."""

    name: str
    run: Callable[[Graph], Graph]


def passes(
    has_kernel: HasKernel, role: Role = "step", seed: int = 0, straight_through: bool = False
) -> tuple[Pass, ...]:
    """The pipeline. Nothing else runs, and nothing in another order.

    has_kernel: what code generation can compute. role: what the graph is to its program. seed: of the random stream.
    straight_through: gradients look through roundings.
    """
    return (
        # Before all else: what only updates need is neither looked at nor differentiated.
        *([Pass("for_evaluation", for_evaluation)] if role == "evaluate" else []),
        # Conditions, axes and shapes become constants, which the next passes look at.
        Pass("fold_constants", fold_constants),
        # Draws get their numbers before differentiation copies nodes.
        Pass("lower_random", partial(lower_random, role=role, seed=seed)),
        # Dropout is a mask now; a fused node has a gradient of its own.
        Pass("fuse_attention", fuse_attention),
        Pass("expand_gradients", partial(expand_gradients, look_through=straight_through)),
        Pass("expand_bodies", partial(expand_bodies, has_kernel=has_kernel)),
        # Definitions compute shapes and axes with nodes; only now nothing is evaluated again at other shapes.
        Pass("fold_expanded", fold_constants),
        # The backward pass of a loop has computed some of it outside already: cse merges the two.
        Pass("hoist", hoist),
        Pass("cse", cse),
        Pass("dce", dce),
        # Gradients that nothing else reads are no values any more, but terms of sums.
        Pass("accumulate", accumulate),
        # Behind these: a step's place depends on who else still reads the old values.
        Pass("fuse_optimizer", fuse_optimizer),
        # Only steps know that the gradient is of no other use.
        Pass("sgd_rows", sgd_rows),
    )


PASS_NAMES = tuple(p.name for p in passes(lambda node, types: True))
"""The names of the passes in order, as the command's `--after` takes them."""


def run(graph: Graph, passes: Sequence[Pass], observe: Observer | None = None, *, until: str | None = None) -> Graph:
    """The graph after these passes, or after the one named `until`. Each result is verified, then observed.

    VerifyError before the first pass: the graph is malformed. After a pass: a defect of that pass, which the message
    names. UnsupportedError of a pass goes through. KeyError: no pass has the name `until`.
    """
    if until is not None and until not in {p.name for p in passes}:
        raise KeyError(until)
    verify(graph)
    for name, change in passes:
        changed = change(graph)
        if changed is not graph:
            graph = changed
            _verify_after(name, graph)
        if observe is not None:
            observe(name, graph)
        if name == until:
            break
    return graph


def _verify_after(name: str, graph: Graph) -> None:
    try:
        verify(graph)
    except VerifyError as e:
        raise VerifyError(
            Problem(f"pass {name} made a wrong graph: {p.what}", p.where, "please report this") for p in e.problems
        ) from e


def run_program(
    program: Program,
    has_kernel: HasKernel,
    *,
    seed: int = 0,
    straight_through: bool = False,
    until: str | None = None,
    observe: Callable[[str, str, Graph], None] | None = None,
) -> Program:
    """A program with the pipeline run on each of its graphs; `observe(role, pass, graph)` after each pass.

    Problems of all graphs are collected: UnsupportedError lists them together.
    """
    problems: dict[Problem, None] = {}
    done: dict[str, Graph] = {}
    for role, graph in program.graphs().items():
        watch = partial(observe, role) if observe else None
        try:
            done[role] = run(graph, passes(has_kernel, cast(Role, role), seed, straight_through), watch, until=until)
        except UnsupportedError as e:
            problems.update(dict.fromkeys(e.problems))
    if problems:
        raise UnsupportedError(problems)
    return Program(done["step"], done.get("infer"), done.get("initialize"))
