"""Which elementwise nodes share a loop: the gates of recurrent layers, and what a loop takes in for nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from compiler.codegen.grouping import MAX_POINTERS, group_elementwise
from compiler.codegen.plan import make_plan
from compiler.codegen.schedule import schedule
from compiler.codegen.support import has_kernel
from compiler.codegen.units import Unit
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.passes.pipeline import passes
from compiler.passes.pipeline import run as run_passes
from tests.codegen.test_graphs import check, f32, normal
from tests.gradcheck import scalar, with_gradients
from tests.passes.gradients.test_recurrent import graph_of, operands


def loops(graph: Graph, keep: set[str] | None = None) -> list[str]:
    """The nodes of each loop."""
    groups = group_elementwise(graph, set(graph.results) if keep is None else keep)
    return [" ".join(n.op for n in group.nodes) for group in groups]


def body_of_gradient(op: str, direction: str = "forward", **attrs: int) -> list[tuple[int, int]]:
    """Loops and copies in an iteration of each loop of a layer's gradient."""
    given = operands(op, direction, absent="p" if op == "LSTM" else "", sizes=(5, 4, 3, 16), dtype=np.float32)
    graph, feeds = graph_of(op, {"direction": direction, **attrs}, given)
    loss = scalar(graph, list(graph.outputs), np.random.default_rng(0), square=True)
    xs = [x for x, a in feeds.items() if a.dtype.kind == "f"]
    compiled = with_gradients(loss, "loss", xs, expand=lambda g: run_passes(g, passes(has_kernel)))
    units = make_plan(compiled).schedule.units
    cycles = [u.cycle for u in units if u.cycle is not None]
    return [(sum(u.group is not None for u in c.body), _copies(c.body)) for c in cycles[len(cycles) // 2 :]]


def _copies(units: list[Unit]) -> int:
    return sum(c.kernel.name == "copy_rows" for u in units for c in u.calls)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize(("op", "count"), [("RNN", 1), ("GRU", 3), ("LSTM", 1)])
def test_gradients_of_gates_are_one_loop(op: str, count: int, direction: str) -> None:
    """Of a GRU there are two products between them."""
    assert body_of_gradient(op, direction) == [(count, 0)] * (2 if direction == "bidirectional" else 1)


def test_a_gru_with_one_product_has_a_loop_less() -> None:
    assert body_of_gradient("GRU", linear_before_reset=1) == [(2, 0)]


def product(g: Builder, x: str) -> str:
    return g.op("MatMul", x, x)


def test_operands_of_a_concat_that_read_the_same_are_one_loop() -> None:
    g = Builder()
    x, y, z = (g.input(v, f32(8, 8)) for v in "xyz")
    made = [g.op("Mul", x, y), g.op("Exp", x), g.op("Neg", z)]
    g.output("whole", g.op("Concat", *made, axis=1))
    assert loops(g.build()) == ["Mul Exp", "Neg"]


def test_a_later_loop_that_spares_a_result_is_taken_in() -> None:
    g = Builder()
    x, y = g.input("x", f32(8, 8)), g.input("y", f32(8, 8))
    t = g.op("Add", x, y)
    g.output("deep", product(g, g.op("Exp", t)))
    g.output("late", g.op("Mul", t, y))
    graph = g.build()
    assert loops(graph) == ["Add Exp Mul"]
    check(graph, {"x": normal(8, 8) / 4, "y": normal(8, 8) / 4})


@pytest.mark.parametrize("why", ["another reads it", "it reads more", "it is larger", "it is no result"])
def test_other_loops_stay_apart(why: str) -> None:
    g = Builder()
    x, y, z = (g.input(v, f32(8, 8)) for v in "xyz")
    t = g.op("Add", x, y)
    g.output("deep", product(g, product(g, g.op("Exp", t))))
    if why == "another reads it":
        g.output("other", product(g, t))
    late = g.op("Mul", t, product(g, z) if why == "it reads more" else y)
    if why == "it is larger":
        late = g.op("Cast", late, to=TensorProto.DOUBLE)
    g.output("late", g.op("Softmax", late, axis=0) if why == "it is no result" else late)
    first, second = loops(g.build())
    assert first == "Add Exp"
    assert second.startswith("Mul")


def test_results_that_nobody_reads_wait_for_a_loop() -> None:
    g = Builder()
    x, y = g.input("x", f32(8, 8)), g.input("y", f32(8, 8))
    g.output("early", g.op("Neg", x))
    g.output("deep", product(g, g.op("Mul", x, product(g, y))))
    assert loops(g.build()) == ["Neg Mul"]


def test_a_loop_has_so_many_operands_at_most() -> None:
    g = Builder()
    x = g.input("x", f32(8, 8))
    made = [g.op("Mul", x, g.input(f"y{i}", f32(8, 8))) for i in range(MAX_POINTERS)]
    g.output("whole", g.op("Concat", *made, axis=1))
    groups = group_elementwise(g.build(), set())
    assert 1 < len(groups) < MAX_POINTERS
    assert all(len(group.inputs) + len(group.outputs) <= MAX_POINTERS for group in groups)


def tangle(seed: int) -> Graph:
    """Many values of one shape, made of each other by loops, kernels and views."""
    r, g = random.Random(seed), Builder()
    values = [g.input(f"x{i}", f32(8, 8)) for i in range(3)]

    def pick() -> str:
        return values[-1 - min(len(values) - 1, int(r.expovariate(0.15)))]

    for _ in range(r.randint(5, 60)):
        match r.randrange(12):
            case 0:
                values.append(g.op("Softmax", pick(), axis=-1))
            case 1:
                values.append(g.op("MatMul", pick(), g.op("Softmax", pick(), axis=-1)))
            case 2:
                values.append(g.op("Mul", pick(), g.op("ReduceMean", pick(), g.ints((1,)), keepdims=1)))
            case 3:
                whole = g.op("Tanh", g.op("Concat", g.op("Neg", pick()), g.op("Tanh", pick()), axis=1))
                values += g.add("Split", [whole], {"axis": 1, "num_outputs": 2}, ["left", "right"])
            case 4 | 5:
                values.append(g.op("Tanh", pick()))
            case _:
                values.append(g.op(r.choice(["Add", "Mul", "Sub"]), g.op("Tanh", pick()), pick()))
    for i in range(r.randint(1, 4)):
        g.output(f"y{i}", values[-1 - r.randint(0, min(6, len(values) - 1))])
    return g.build()


@settings(max_examples=200)
@given(st.integers(0, 10**6))
def test_no_loop_waits_for_itself(seed: int) -> None:
    graph = tangle(seed)
    elementwise = sorted(id(n) for group in group_elementwise(graph, set(graph.results)) for n in group.nodes)
    assert elementwise == sorted(set(elementwise))
    schedule(graph)  # (it asserts that there is an order)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(seed: int) -> None:
    graph = tangle(seed)
    check(graph, {v: normal(8, 8) for v in graph.inputs}, steps=1)


def test_a_loop_does_not_wait_for_the_place_of_what_it_took_in() -> None:
    g = Builder()
    x, y = g.input("x", f32(8, 8)), g.input("y", f32(8, 8))
    t = g.op("Add", x, y)
    g.output("deep", product(g, g.op("Exp", t)))
    g.output("other", product(g, y))
    g.output("late", g.op("Mul", t, y))
    assert [len(u.nodes) for u in schedule(g.build()).units] == [3, 1, 1]
