"""Whole graphs through plan, emit and machine code, against the reference interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from compiler.codegen.fuse import Loop, broadcast_strides, collapse
from compiler.codegen.grouping import MAX_NODES, group_elementwise
from compiler.codegen.kernels.strided import copy_bytes
from compiler.codegen.plan import make_plan
from compiler.errors import InputError, UnsupportedError
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from compiler.ir.types import TensorType
from tests.codegen.graphs import Running

RANDOM = np.random.default_rng(0)


def f32(*shape: int) -> TensorType:
    return TensorType("f32", shape)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def check(graph: Graph, feeds: Mapping[str, Any], steps: int = 2) -> None:
    """Outputs and states of several steps agree with the interpreter, with the same bits on 1, 2 and 3 threads."""
    bits = set()
    for threads in (1, 2, 3):
        run = Running(graph, threads)
        states: dict[str, Any] = {n: t.array for n, t in graph.states.items()}
        seen = []
        for _ in range(steps):
            got = run(feeds)
            want = interpret(graph, feeds, states)
            for public, v in graph.outputs.items():
                np.testing.assert_allclose(got[public], want[v], rtol=2e-6, atol=1e-6, err_msg=public)
            states = {n: want[graph.updates.get(n, n)] for n in states}
            for n, a in states.items():
                np.testing.assert_allclose(run.state[n], a, rtol=2e-6, atol=1e-6, err_msg=n)
            seen += [a.tobytes() for a in (*got.values(), *run.state.values())]
        bits.add(b"".join(seen))
    assert len(bits) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((), ()), ((5,), ()), ((1,), (1, 1)), ((3, 4), (4,)), ((3, 4), (3, 1)), ((2, 3, 4), (3, 1)),
        ((2, 3, 4, 5), (1, 3, 1, 5)), ((2, 1, 4), (3, 1)), ((0, 4), (4,)), ((7, 33), (7, 33)), ((2, 3, 0), (3, 1)),
    ],
)  # fmt: skip
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    g = Builder()
    x, y = g.input("x", f32(*a)), g.input("y", f32(*b))
    z = g.op("Sub", g.op("Mul", x, y), y)
    g.output("z", z)
    g.output("n", g.op("Less", z, g.scalar(0.25, z)))
    check(g.build(), {"x": normal(*a), "y": normal(*b)})


def test_collapse_merges_axes_that_are_one_for_all_operands() -> None:
    dense, row, scalar = (12, 4, 1), (0, 0, 1), (0, 0, 0)
    assert collapse((2, 3, 4), [dense, row]) == Loop((6, 4), ((4, 1), (0, 1)))
    assert collapse((2, 3, 4), [dense, dense, scalar]).extents == (24,)
    assert collapse((2, 3, 4), [(0, 1, 0)]).extents == (2, 3, 4)
    assert collapse((2, 3, 4), [dense, (24, 8, 1)]) == Loop((6, 4), ((4, 1), (8, 1)))
    assert collapse((1, 1), [(0, 0)]).extents == (1,)
    assert broadcast_strides(f32(3, 1), (1, 1), 3) == (0, 1, 0)


def test_a_chain_is_one_loop_and_a_mask_runs_with_its_reader() -> None:
    g = Builder()
    x, w = g.input("x", f32(4, 8)), g.input("w", f32(8, 8))
    h = g.op("Relu", g.op("Add", x, x))
    m = g.op("Greater", h, g.scalar(0, h))
    y = g.op("MatMul", h, w)
    g.output("y", g.op("Where", m, y, g.scalar(0, y)))
    groups = group_elementwise(g.build(), set())
    assert [[n.op for n in group.nodes] for group in groups] == [["Add", "Relu"], ["Greater", "Where"]]


def test_long_chains_are_cut_and_still_right() -> None:
    g = Builder()
    v = x = g.input("x", f32(9))
    for i in range(2 * MAX_NODES + 5):
        v = g.op("Add", g.op("Mul", v, g.scalar(0.5, v)), x) if i % 3 else g.op("Neg", v)
    g.output("y", v)
    graph = g.build()
    assert len(group_elementwise(graph, set())) > 1
    check(graph, {"x": normal(9)})


def test_many_operands_do_not_make_loops_wait_for_each_other() -> None:
    g = Builder()
    inputs = [g.input(f"x{i}", f32(6)) for i in range(40)]
    left, right = inputs[0], inputs[1]
    for a in inputs[2:]:
        left, right = g.op("Add", right, a), g.op("Sub", left, a)
    g.output("y", g.op("Mul", left, right))
    check(g.build(), {f"x{i}": normal(6) for i in range(40)})


def test_updates_are_a_parallel_assignment() -> None:
    g = Builder()
    a, b, c = (g.state(n, normal(5)) for n in "abc")
    x = g.input("x", f32(5))
    total = g.op("Add", a, x)
    g.update(a, b)
    g.update(b, a)
    g.update(c, total)
    g.output("old", a)
    g.output("new", total)
    check(g.build(), {"x": normal(5)})


def test_one_value_may_update_two_states_and_a_view_of_a_state_another() -> None:
    g = Builder()
    a, b = g.state("a", normal(2, 3)), g.state("b", normal(2, 3))
    flat = g.state("flat", normal(6))
    x = g.op("Mul", a, b)
    g.update(a, x)
    g.update(b, x)
    g.update(flat, g.op("Reshape", a, g.ints([6])))
    check(g.build(), {})


def test_old_state_read_late_is_not_overwritten_early() -> None:
    g = Builder()
    w = g.state("w", normal(4, 4))
    step = g.op("Sub", w, g.op("Mul", w, g.scalar(0.5, w)))
    late = g.op("MatMul", step, g.op("Transpose", w))
    g.output("late", g.op("Add", late, w))
    g.update(w, step)
    check(g.build(), {})


def test_memory_is_reused() -> None:
    g = Builder()
    v = g.input("x", f32(64, 64))
    for _ in range(50):
        v = g.op("Relu", g.op("MatMul", v, v))
    g.output("y", v)
    assert Running(g.build()).code.layout.arena_bytes < 8 * 64 * 64 * 4


@pytest.mark.parametrize("condition", [True, False])
def test_if_at_run_time(condition: bool) -> None:
    outer = Builder()
    c, x = outer.input("c", TensorType("bool")), outer.input("x", f32(3, 4))
    w = outer.state("w", normal(3, 4))
    bodies = []
    for op in ("Mul", "Sub"):
        inner = Builder()
        a, b = inner.capture("a", f32(3, 4)), inner.capture("b", f32(3, 4))
        inner.output("r", inner.op(op, inner.op("Exp", a), b))
        inner.output("s", b)
        bodies.append(inner.build())
    r, s = outer.add("If", [c], {"then_branch": bodies[0], "else_branch": bodies[1]}, 2, [x, w])
    outer.output("y", outer.op("Add", r, s))
    outer.update(w, r)
    check(outer.build(), {"c": np.array(condition), "x": normal(3, 4)})


def test_of_checks_that_fail_the_first_is_told() -> None:
    g = Builder()
    i = g.input("i", TensorType("i64", (2,)))
    for k in range(3):
        g.output(f"y{k}", g.op("Gather", g.input(f"x{k}", f32(3 + k)), i, axis=0, name=f"y{k}"))
    run = Running(g.build())
    feeds = {f"x{k}": normal(3 + k) for k in range(3)}
    for wrong, first, within in ((9, 0, 3), (4, 0, 3), (3, 0, 3)):
        with pytest.raises(InputError, match=rf"\[-{within}, {within}\).*'y{first}'"):
            run({**feeds, "i": np.array([0, wrong])})


@pytest.mark.parametrize("factor", ["left", "right", "both"])
def test_a_product_is_not_added_where_its_factor_is(factor: str) -> None:
    g = Builder()
    s, x, anew = g.state("s", 0.1 * normal(40, 40)), g.input("x", f32(40, 40)), g.input("anew", TensorType("bool"))
    a, b = {"left": (s, x), "right": (x, s), "both": (s, s)}[factor]
    g.update(s, g.op("onnxc.AddProduct", a, b, s, anew))
    check(g.build(), {"x": 0.1 * normal(40, 40), "anew": np.array(False)})


def test_a_bad_index_leaves_the_state_alone() -> None:
    g = Builder()
    w = g.state("w", normal(3))
    i = g.input("i", TensorType("i64", (2,)))
    g.update(w, g.op("Add", w, g.scalar(1, w)))
    g.output("y", g.op("Gather", w, i, axis=0))
    run = Running(g.build())
    before = run.state["w"].copy()
    with pytest.raises(InputError, match="out of range"):
        run({"i": np.array([0, 3])})
    assert np.array_equal(run.state["w"], before)
    run({"i": np.array([0, -3])})
    assert np.array_equal(run.state["w"], before + 1)


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("read", ["", "by the scatter", "later"])
def test_a_scatter_over_its_data(state: bool, read: str) -> None:
    """In place where nobody else reads the data, as updates neither: then there is nothing to copy."""
    g, n = Builder(), 40
    i, x = g.input("i", TensorType("i64", (n, n))), g.input("x", f32(n, n))
    factor = g.const(np.round(normal(n, n)))
    data = g.state("w", np.round(normal(n, n))) if state else g.op("MatMul", x, factor)
    new = g.op("ScatterElements", data, i, data if read == "by the scatter" else x, axis=1)
    if state:
        g.update("w", new)
    g.output("product", g.op("MatMul", new, factor))
    if read == "later":
        g.output("other", g.op("MatMul", data, factor))
    graph = g.build()
    check(graph, {"i": np.argsort(RANDOM.random((n, n)), 1), "x": np.round(normal(n, n))})
    copied = sum(s.call is not None and s.call.kernel is copy_bytes for s in make_plan(graph).statements)
    assert copied == (0 if not read else 2 if state else 1)  # of a state the new value is copied back


def test_all_nodes_without_a_kernel_are_named() -> None:
    g = Builder()
    x = g.input("x", TensorType("f32", (4, 4)))
    g.output("d", g.op("Einsum", x, equation="ii"))
    g.output("u", g.op("Einsum", g.op("Neg", x), equation="ij->ji"))
    with pytest.raises(UnsupportedError) as e:
        Running(g.build())
    assert len(e.value.problems) == 2


@pytest.mark.parametrize("sizes", [True, False])
def test_a_split_may_leave_parts_out(sizes: bool) -> None:
    g = Builder()
    x = g.input("x", f32(3, 7))
    operands = [x, g.ints([3, 3, 1])] if sizes else [x]
    a, _, c = g.add("Split", operands, {"axis": 1} | ({} if sizes else {"num_outputs": 3}), ["a", "", "c"])
    g.output("a", a)
    g.output("c", c)
    check(g.build(), {"x": normal(3, 7)}, steps=1)
