"""Loops in machine code: what they compute, for any number of threads; where their values live; what stops them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.errors import InputError
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from compiler.ir.types import TensorType
from compiler.passes.pipeline import passes, run
from tests.codegen.graphs import Running
from tests.codegen.random_loops import random_loops
from tests.models.loops import loops

F32, I64, BOOL = TensorType("f32"), TensorType("i64"), TensorType("bool")
ROW = TensorType("f32", (3,))


def agrees(graph: Graph, feeds: dict[str, np.ndarray], threads: tuple[int, ...] = (1, 2, 3)) -> Running:
    """Compare with the interpreter, and the bits for each number of threads."""
    graph = run(graph, passes(lambda node, types: True))
    values = interpret(graph, feeds)
    first: dict[str, np.ndarray] = {}
    for count in threads:
        step = Running(graph, count)
        for _ in range(3):
            found = step(feeds)
            for name, v in graph.outputs.items():
                np.testing.assert_allclose(found[name], values[v], rtol=1e-5, atol=1e-6)
                np.testing.assert_array_equal(found[name], first.setdefault(name, found[name]))
    return step


@pytest.mark.parametrize("seed", range(6))
def test_random_loops(seed: int) -> None:
    """Nested Loops, Scans and Ifs that carry on, swap, capture and stack whatever there is."""
    rng = np.random.default_rng(seed)
    agrees(random_loops(seed), {f"x{i}": np.float32(rng.normal(size=3)) for i in range(3)} | {"n": np.array(2)})


def loop_in_a_branch() -> Graph:
    """Rows of a Scan, which are results of an If in it, one branch of which is a Loop."""
    inner = Builder("inner")
    inner.input("i", I64)
    go, p = inner.input("go", BOOL), inner.input("p", ROW)
    inner.output("go", go)
    inner.output("p", inner.op("Add", p, inner.capture("e", ROW)))
    bodies = {}
    for name in ("then_branch", "else_branch"):
        branch = Builder(name)
        e = branch.capture("e", ROW)
        count = branch.const(np.array(2))
        looped = name == "then_branch" and branch.add("Loop", [count, "", e], {"body": inner.build()}, 1, [e])[0]
        branch.output("y", looped or branch.op("Neg", e))
        bodies[name] = branch.build()
    body = Builder("body")
    e = body.input("e", ROW)
    positive = body.op("Greater", body.op("ReduceSum", e, keepdims=0), body.const(np.float32(0)))
    body.output("row", body.add("If", [positive], bodies, 1, [e])[0])
    b = Builder("g")
    attrs = {"body": body.build(), "num_scan_inputs": 1}
    b.output("rows", b.add("Scan", [b.input("x", TensorType("f32", (4, 3)))], attrs, 1)[0])
    return b.build()


def test_a_loop_in_a_branch_writes_the_row_of_a_loop_around() -> None:
    """What it carries on lies in a slice that moves; the next value of that has a place of its own."""
    x = np.float32([[1, 2, 3], [-1, -2, 1], [0, 3, 1], [2, 0, 1]])
    step = agrees(loop_in_a_branch(), {"x": x})
    np.testing.assert_array_equal(step({"x": x[::-1]})["rows"], np.where([[1], [1], [0], [1]], 3, -1) * x[::-1])


def counting(most: int | None, *, limit: bool = False, condition: bool = False) -> Graph:
    """A Loop over v + v, which may end by its run-time trip count or condition, or when the sum is 50."""
    body = Builder("body")
    body.input("i", I64)
    body.input("go", BOOL)
    v = body.input("v", ROW)
    new = body.op("Add", v, v)
    body.output("go", body.op("Less", body.op("ReduceSum", new, keepdims=0), body.const(np.float32(50))))
    body.output("v", new)
    b = Builder("g")
    count = b.input("m", I64) if limit else "" if most is None else b.const(np.array(most))
    first = b.input("c", BOOL) if condition else ""
    b.output("y", b.add("Loop", [count, first, b.input("v", ROW)], {"body": body.build()})[0])
    return b.build()


def test_ends_at_run_time() -> None:
    step = Running(counting(None, limit=True, condition=True), 2)
    for m, c, factor in ((9, True, 32), (2, True, 4), (0, True, 1), (-3, True, 1), (5, False, 1)):
        y = step({"v": np.ones(3, np.float32), "m": np.array(m), "c": np.array(c)})["y"]
        np.testing.assert_array_equal(y, np.full(3, factor, np.float32))


def test_a_new_value_is_computed_where_the_old_one_was() -> None:
    step = agrees(counting(None), {"v": np.ones(3, np.float32)}, (1,))
    assert step.code.source.count("copy_bytes(table") == 1  # the initial value
    (slot,) = step.code.layout.inputs
    np.testing.assert_array_equal(step({slot.name: np.ones(3, np.float32)})["y"], [32, 32, 32])


def test_a_swap_is_a_parallel_assignment() -> None:
    body = Builder("body")
    i, go = body.input("i", I64), body.input("go", BOOL)
    x, y, _ = (body.input(v, ROW) for v in "xyz")
    for name, v in zip("cxyzr", (go, y, x, body.op("Reshape", x, body.ints([3])), x), strict=True):
        body.output(name, v)
    body.output("n", body.op("Identity", i))
    b = Builder("g")
    initial = [b.input(v, ROW) for v in "xyz"]
    for name, v in zip(
        "xyzrn", b.add("Loop", [b.const(np.array(3)), "", *initial], {"body": body.build()}, 5), strict=True
    ):
        b.output(name, v)
    found = agrees(b.build(), {v: np.full(3, k, np.float32) for k, v in enumerate("xyz")})(
        {v: np.full(3, k, np.float32) for k, v in enumerate("xyz")}
    )
    assert [found[v][0] for v in "xyz"] == [1, 0, 0]
    np.testing.assert_array_equal(found["r"][:, 0], [0, 1, 0])
    np.testing.assert_array_equal(found["n"], [0, 1, 2])


def test_results_of_branches_lie_in_the_outputs() -> None:
    """Only what a branch does not compute itself is copied."""
    b = Builder("g")
    x, c = b.input("x", ROW), b.input("c", BOOL)
    then, other = Builder("then"), Builder("other")
    v = then.capture("v", ROW)
    y = then.op("Tanh", v)
    for name, value in (("y", y), ("again", y), ("z", then.op("Reshape", then.op("Neg", v), then.ints([3])))):
        then.output(name, value)
    v = other.capture("v", ROW)
    for name in ("y", "again", "z"):
        other.output(name, v)
    bodies = {"then_branch": then.build(), "else_branch": other.build()}
    for name, value in zip(("y", "again", "z"), b.add("If", [c], bodies, 3, [x]), strict=True):
        b.output(name, value)
    for flag in (True, False):
        step = agrees(b.build(), {"x": np.float32([1, 2, 3]), "c": np.array(flag)})
    assert step.code.source.count("copy_bytes(table") == 1 + 3


def slices_of_slices() -> Graph:
    """Scans in Scans, forwards and backwards, over slices, stacking slices of slices."""
    inner = Builder("inner")
    s, e = inner.input("s", ROW), inner.input("e", ROW)
    t = inner.op("Add", s, e)
    for name, v in (("t", t), ("row", inner.op("Mul", t, e)), ("e", e)):
        inner.output(name, v)
    body = Builder("body")
    i, go = body.input("i", I64), body.input("go", BOOL)
    s = body.input("s", ROW)
    whole = body.op("Gather", body.capture("x", TensorType("f32", (2, 4, 3))), i, axis=0)
    attrs = {
        "body": inner.build(),
        "num_scan_inputs": 1,
        "scan_input_directions": [1],
        "scan_output_directions": [1, 0],
    }
    t, rows, same = body.add("Scan", [s, whole], attrs, 3)
    outer = Builder("outer")
    a, b = outer.input("a", ROW), outer.input("b", TensorType("f32", (4, 3)))
    for name, v in zip("xyz", outer.add("Scan", [a, b], attrs, 3), strict=True):
        outer.output(name, v)
    more = body.op("Less", body.op("ReduceSum", rows, keepdims=0), body.const(np.float32(1e9)))
    for name, v in (("go", go), ("t", t), ("rows", rows), ("same", same), ("more", more)):
        body.output(name, v)
    g = Builder("g")
    x, first = g.input("x", TensorType("f32", (2, 4, 3))), g.input("s", ROW)
    g.output("y", g.add("Scan", [first, x], {"body": outer.build(), "num_scan_inputs": 1}, 3)[0])
    found = g.add("Scan", [first, x], {**attrs, "body": outer.build()}, 3)
    found += g.add("Loop", [g.const(np.array(2)), "", first], {"body": body.build()}, 4, [x])
    for k, v in enumerate(found):
        g.output(f"o{k}", v)
    return g.build()


def test_slices_of_slices() -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": np.float32(rng.normal(size=(2, 4, 3))), "s": np.float32([1, 2, 3])}
    step = agrees(slices_of_slices(), feeds)
    source = step.code.source
    assert source.count("copy_slice(table") < 10  # only what is stacked as it came
    found, again = step(feeds), step(feeds)
    for name, a in found.items():  # the addresses are those of the first iteration again
        np.testing.assert_array_equal(a, again[name])


def gathering() -> Graph:
    """State w += the sum over a Scan of rows of a table; the indices are scanned, so they are tested in the body."""
    body = Builder("body")
    s, i = body.input("s", ROW), body.input("i", I64)
    row = body.op("Gather", body.capture("table", TensorType("f32", (5, 3))), i, axis=0)
    body.output("s", body.op("Add", s, row))
    b = Builder("g")
    table, indices = b.input("table", TensorType("f32", (5, 3))), b.input("indices", TensorType("i64", (4,)))
    w = b.state("w", np.zeros(3, np.float32))
    attrs = {"body": body.build(), "num_scan_inputs": 1}
    (total,) = b.add("Scan", [w, indices], attrs, 1, [table])
    b.output("total", total)
    b.update("w", total)
    return b.build()


def test_a_wrong_index_in_a_body_changes_no_state() -> None:
    step = Running(gathering(), 2)
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    step({"table": table, "indices": np.array([0, 1, -1, 4])})
    wanted = table[[0, 1, -1, 4]].sum(0)
    np.testing.assert_array_equal(step.state["w"], wanted)
    for bad in (5, -6, 2**40):
        with pytest.raises(InputError, match=r"Gather: index out of range \[-5, 5\)"):
            step({"table": table, "indices": np.array([0, bad, 1, 2])})
        np.testing.assert_array_equal(step.state["w"], wanted)
    step({"table": table, "indices": np.array([0, 1, -1, 4])})
    np.testing.assert_array_equal(step.state["w"], 2 * wanted)


def test_a_loop_that_waits_for_a_wrong_index_ends() -> None:
    """It would end at an element that is 0, but its index is wrong: nothing that it reads can be trusted."""
    body = Builder("body")
    body.input("i", I64)
    body.input("go", BOOL)
    at = body.input("at", I64)
    value = body.op("Gather", body.capture("table", TensorType("f32", (5,))), at, axis=0)
    body.output("go", body.op("Not", body.op("Equal", value, body.const(np.float32(0)))))
    body.output("at", body.op("Add", at, body.const(np.array(1))))
    b = Builder("g")
    table = b.input("table", TensorType("f32", (5,)))
    b.output("at", b.add("Loop", ["", "", b.input("at", I64)], {"body": body.build()}, 1, [table])[0])
    step = Running(b.build(), 2)
    assert step({"table": np.float32([1, 1, 1, 0, 1]), "at": np.array(0)})["at"] == 4
    with pytest.raises(InputError, match="index out of range"):
        step({"table": np.ones(5, np.float32), "at": np.array(0)})


def test_a_library_runs_loops(tmp_path: Path) -> None:
    model = loops()
    compiler.build(model, tmp_path / "artifact", threads=2)
    feeds = {"x": np.float32(np.arange(12).reshape(4, 3)) / 8, "n": np.array(3), "k": np.array([2, 0])}
    for threads in (1, 2):
        here, there = compiler.compile(model, threads=threads), compiler.load(tmp_path / "artifact", threads=threads)
        for _ in range(2):
            found, wanted = there(feeds), here(feeds)
            assert found.keys() == wanted.keys()
            for name, a in wanted.items():
                np.testing.assert_array_equal(found[name], a)
