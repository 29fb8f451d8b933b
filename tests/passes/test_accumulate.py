"""accumulate: sums over steps stand next to their terms, and products are added by their own kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.accumulate import accumulate
from tests.validate import random_feeds, validate

ROWS, COLUMNS = 5, 3


def graph_of(term: Callable[[Builder, str, str], str], anew: Callable[[Builder, str], str] | None = None) -> Graph:
    """S' = Where(anew, 0, S) + term(a, b), at the end behind other nodes; a: [4, ROWS], b: [4, COLUMNS]."""
    b = Builder()
    x, y = b.input("a", TensorType("f32", (4, ROWS))), b.input("b", TensorType("f32", (4, COLUMNS)))
    count = b.state("count", np.array(0))
    total = b.state("S", np.ones((ROWS, COLUMNS), np.float32))
    t = term(b, x, y)
    b.output("later", b.op("Exp", x, name="later"))
    b.update(count, b.op("Add", count, b.const(np.array(1)), name="count.next"))
    flag = anew(b, count) if anew else b.op("Equal", b.op("Mod", count, b.const(np.array(2))), b.const(np.array(0)))
    kept = b.op("Where", flag, b.const(np.zeros((), np.float32)), total)
    b.update(total, b.op("Add", kept, t, name="S.next"))
    return b.build()


def gemm(b: Builder, x: str, y: str) -> str:
    return b.op("Gemm", x, y, transA=1, alpha=0.5, beta=3.0, name="product")


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def check(graph: Graph) -> Graph:
    changed = accumulate(graph)
    verify(changed)
    for count in (0, 1):
        validate(graph, changed, random_feeds(graph), {"count": np.array(count)})
    return changed


def test_a_product_is_added_where_it_was_computed() -> None:
    changed = check(graph_of(gemm))
    assert ops(changed) == ["Mod", "Equal", "onnxc.AddProduct", "Exp", "Add"]
    assert changed.updates["S"] == "S.next"


def test_other_terms_are_added_as_soon_as_they_are_there() -> None:
    def term(b: Builder, x: str, y: str) -> str:
        return b.op("Relu", gemm(b, x, y))

    assert ops(check(graph_of(term))) == ["Mod", "Equal", "Gemm", "Relu", "Where", "Add", "Exp", "Add"]


def test_a_product_that_something_else_reads_stays() -> None:
    def term(b: Builder, x: str, y: str) -> str:
        g = gemm(b, x, y)
        b.output("gradient", g)
        return g

    assert ops(check(graph_of(term))) == ["Mod", "Equal", "Gemm", "Where", "Add", "Exp", "Add"]


def test_a_product_with_a_matrix_of_its_own_stays() -> None:
    def term(b: Builder, x: str, y: str) -> str:
        return b.op("Gemm", x, y, b.const(np.ones(COLUMNS, np.float32)), transA=1)

    assert "Gemm" in ops(check(graph_of(term)))


@pytest.mark.parametrize("late", ["tensor", "elements"])
def test_what_hangs_on_tensors_or_chooses_by_element_stays(late: str) -> None:
    def anew(b: Builder, count: str) -> str:
        if late == "tensor":
            return b.op(
                "Greater", b.op("ReduceSum", b.op("Abs", "later"), keepdims=0), b.const(np.zeros((), np.float32))
            )
        return b.const(np.eye(ROWS, COLUMNS) > 0)

    graph = graph_of(gemm, anew)
    assert accumulate(graph) is graph


def test_one_sum_of_two_states() -> None:
    b = Builder()
    anew = b.input("anew", TensorType("bool", ()))
    states = [b.state(name, np.full((ROWS, COLUMNS), i, np.float32)) for i, name in enumerate("ST", 1)]
    kept = [b.op("Where", anew, b.const(np.zeros((), np.float32)), s) for s in states]
    both = b.op("Add", *kept, name="both")
    for s in states:
        b.update(s, both)
    graph = b.build()
    changed = accumulate(graph)
    verify(changed)
    for flag in (False, True):
        validate(graph, changed, {"anew": np.array(flag)})
    assert sorted(ops(changed)) == ["Add", "Where", "Where"]
