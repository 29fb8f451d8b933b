"""Gradients as kernels: every operator on the official tests' inputs, by all its inputs and by each alone.

That the rules are right is checked elsewhere (tests/passes/gradients). Here is what only compiled code can get wrong:
the kernel of a backward operator, above all where some of its results are not wanted because an operand is frozen.
"""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.support import has_kernel
from compiler.ir.graph import Graph
from compiler.passes.pipeline import passes
from compiler.passes.pipeline import run as run_passes
from tests.codegen.graphs import Running
from tests.gradcheck import Array, run, scalar, with_gradients
from tests.passes.gradients.cases import Case, cases_of
from tests.passes.gradients.test_official import OPS, OUTPUTS, SKIPPED

CASES_EACH = 3
"""How many official cases of an operator: more have the same kernels at other shapes. The first has most operands."""


def cases(op: str) -> list[Case]:
    """The official cases of an operator that have most operands, as they are: at kinks and ties, too."""
    skipped = [part for parts in SKIPPED.values() for part in parts]
    found = [c for c in cases_of(op, 0.0) if not any(part in c.name for part in skipped)]
    found = [c for c in found if any(c.graph.type(v).dtype == "f64" for v in c.graph.outputs.values())]
    return sorted(found, key=lambda c: -len(c.xs))[:CASES_EACH]


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(OPS))
def test_kernels_give_the_gradients_of_the_rules(op: str) -> None:
    assert check(op, cases(op)[:1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", sorted(OPS))
def test_kernels_of_other_cases(op: str) -> None:
    check(op, cases(op)[1:])


def check(op: str, some: list[Case]) -> int:
    """Compare the gradients of these cases; gives how many graphs were compiled."""
    checked = 0
    for case in some:
        outputs = [o for o, v in case.graph.outputs.items() if case.graph.type(v).dtype == "f64"]
        loss = scalar(case.graph, outputs[: OUTPUTS.get(op)], np.random.default_rng(0), square=True)
        expected = run(with_gradients(loss, "loss", case.xs), case.feeds)
        wanted = {x: expected[f"d{i}"] for i, x in enumerate(case.xs)}
        for xs in [case.xs, *([x] for x in case.xs if len(case.xs) > 1)]:
            compare(compiled(case, xs, loss), {x: wanted[x] for x in xs}, f"{case.name} by {', '.join(xs)}")
            checked += 1
    return checked


def compiled(case: Case, xs: list[str], loss: Graph) -> dict[str, Array]:
    """The gradients by inputs xs, from machine code."""
    graph = with_gradients(loss, "loss", xs, expand=lambda g: run_passes(g, passes(has_kernel)))
    found = Running(graph)({v: case.feeds[v] for v in graph.inputs})
    return {x: found[f"d{i}"] for i, x in enumerate(xs)}


def compare(found: dict[str, Array], wanted: dict[str, Array], what: str) -> None:
    for x, want in wanted.items():
        size = np.abs(want[np.isfinite(want)]).max(initial=1)
        np.testing.assert_allclose(found[x], want, rtol=1e-7, atol=1e-9 * size, err_msg=f"{what}: {x}")
