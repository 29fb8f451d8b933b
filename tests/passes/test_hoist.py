"""What does not change in a loop leaves it; what could fail, or draws, stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.cse import cse
from compiler.passes.dce import dce
from compiler.passes.hoist import hoist
from tests.gradcheck import run, with_gradients
from tests.passes.gradients.test_control_flow import choose, graph_of, loop, loops, random, scan


def hoisted(graph: Graph) -> Graph:
    changed = dce(cse(hoist(graph)))
    verify(changed)
    return changed


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def layer(b: Builder, i: str, go: str, s: str, w: str) -> Sequence[str]:
    """One step with a weight as exporters write it."""
    w = b.op("Mul", b.op("Transpose", w, perm=(1, 0)), b.scalar(0.5, w))
    return [go, b.op("Tanh", b.op("MatMul", s, w)), w]


def test_weights_are_prepared_once() -> None:
    feeds = {"s": random(2, 3), "w": random(3, 3, seed=1)}
    graph = graph_of(lambda b, s, w: loop(b, layer, [s], b.const(np.array(4)), captures={"w": w}), feeds)
    changed = hoisted(graph)
    assert ops(changed) == ["Transpose", "Mul", "Loop"]
    assert ops(loops(changed)[0].attrs["body"])[:2] == ["MatMul", "Tanh"]
    for name, expected in run(graph, feeds).items():
        np.testing.assert_array_equal(run(changed, feeds)[name], expected)


def test_forward_and_backward_share_what_leaves_them() -> None:
    feeds = {"s": random(2, 3), "w": random(3, 3, seed=1)}
    graph = graph_of(lambda b, s, w: loop(b, layer, [s], b.const(np.array(4)), captures={"w": w})[:1], feeds)
    expanded = with_gradients(graph, "out0", ["s", "w"])
    changed = hoisted(expanded)
    assert ops(changed).count("Mul") == 2  # the weight, and its gradient
    for name, expected in run(expanded, feeds).items():
        np.testing.assert_allclose(run(changed, feeds)[name], expected, rtol=1e-12)


def test_a_loop_that_may_not_run_keeps_its_nodes() -> None:
    """A wrong index is an error only if it is used."""

    def step(b: Builder, i: str, go: str, s: str, w: str, k: str) -> Sequence[str]:
        return [go, b.op("Add", s, b.op("Gather", w, k))]

    feeds = {"n": np.array(0), "s": random(3), "w": random(2, 3), "k": np.array(7)}

    def emit(b: Builder, n: str, s: str, w: str, k: str) -> Sequence[str]:
        return loop(b, step, [s], n, captures={"w": w, "k": k})

    graph = graph_of(emit, feeds)
    assert ops(hoisted(graph)) == ["Loop"]
    np.testing.assert_array_equal(run(hoisted(graph), feeds)["out0"], feeds["s"])


def test_through_all_loops_but_not_out_of_a_branch() -> None:
    def emit(b: Builder, c: str, s: str, x: str, w: str) -> Sequence[str]:
        def inner(b: Builder, s: str, x: str, w: str, c: str) -> Sequence[str]:
            def then(b: Builder, s: str, w: str) -> Sequence[str]:
                return [b.op("MatMul", s, b.op("Cos", w))]

            def other(b: Builder, s: str, w: str) -> Sequence[str]:
                return [b.op("Neg", s)]

            s = b.op("Add", b.op("MatMul", s, b.op("Exp", w)), x)
            return choose(b, c, then, other, {"s": s, "w": w})

        def step(b: Builder, i: str, go: str, s: str, x: str, w: str, c: str) -> Sequence[str]:
            return [go, *scan(b, inner, [s], [x], captures={"w": w, "c": c})]

        return loop(b, step, [s], b.const(np.array(2)), captures={"x": x, "w": w, "c": c})

    feeds = {"c": np.array(True), "s": random(2, 3), "x": random(4, 2, 3, seed=1), "w": random(3, 3, seed=2)}
    graph = graph_of(emit, feeds)
    changed = hoisted(graph)
    assert ops(changed) == ["Exp", "Loop"]
    np.testing.assert_array_equal(run(changed, feeds)["out0"], run(graph, feeds)["out0"])


def test_random_numbers_stay() -> None:
    def step(b: Builder, i: str, go: str, s: str, w: str) -> Sequence[str]:
        return [go, b.op("Add", s, b.op("RandomNormalLike", w))]

    b = Builder()
    s, w = b.input("s", TensorType("f32", (2,))), b.input("w", TensorType("f32", (2,)))
    b.output("y", loop(b, step, [s], b.const(np.array(2)), captures={"w": w})[0])
    assert ops(hoisted(b.build())) == ["Loop"]
