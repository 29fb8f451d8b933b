"""The plan: where barriers are needed, and how its work grows."""

from __future__ import annotations

import cProfile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compiler.codegen.plan import make_plan
from compiler.codegen.spans import Span, Touched
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType

spans = st.builds(
    lambda block, start, size, written: Span(block, start, start + size, written),
    st.integers(0, 1),
    st.integers(0, 60),
    st.integers(1, 9),
    st.booleans(),
)


def meet(a: Span, b: Span) -> bool:
    return (a.written or b.written) and a.block == b.block and a.start < b.end and b.start < a.end


@given(st.lists(spans, max_size=40))
def test_touched_memory_is_that_of_all_spans(given: list[Span]) -> None:
    touched = Touched()
    for i, span in enumerate(given):
        assert touched.meets(span) == any(meet(span, other) for other in given[:i])
        touched.add(span)


def independent(n: int) -> Graph:
    """Kernels that no barrier parts."""
    b = Builder()
    x = b.input("x", TensorType("f32", (4, 4)))
    for i in range(n):
        b.output(f"y{i}", b.op("MatMul", x, b.const(np.full((4, 4), i, np.float32), f"w{i}")))
    return b.build()


def test_growth_is_linear() -> None:
    plans = []
    for n in (100, 1000):
        profile = cProfile.Profile()
        plan = profile.runcall(make_plan, independent(n))
        assert [s.kind for s in plan.statements].count("barrier") == 1
        plans.append(sum(entry.callcount for entry in profile.getstats()))
    assert plans[1] < 11 * plans[0]
