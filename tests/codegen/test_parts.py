"""Operands of a Concat that are computed where they lie in its result: same bits, no copies, no more memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from compiler.codegen import parts, plan
from compiler.codegen.emit import emit
from compiler.codegen.footprint import footprint
from compiler.codegen.memory import place
from compiler.codegen.plan import Plan, make_plan
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from compiler.passes.recompute import peak_of
from compiler.runtime.layout import padded
from tests.codegen.graphs import Running
from tests.codegen.test_graphs import check, f32, normal

ROWS = 64


@contextmanager
def without_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "place_parts", lambda graph, s, place: place())
        yield


def copies(p: Plan) -> int:
    return sum(s.call is not None and s.call.kernel.name.startswith("copy") for s in p.statements)


def saved(graph: Graph) -> int:
    """Bytes of the arena that parts save: never less than none."""
    with without_parts():
        before = make_plan(graph)
    after = make_plan(graph)
    assert after.layout.arena_bytes <= before.layout.arena_bytes
    assert copies(after) <= copies(before)
    return before.layout.arena_bytes - after.layout.arena_bytes


def compare(graph: Graph) -> None:
    """Same bits with parts and without, on one and two threads; those of the interpreter nearly."""
    feeds = {v: normal(*t.shape) for v, t in ((v, graph.type(v)) for v in graph.inputs)}
    meant = interpret(graph, feeds, {})
    with without_parts():
        want = Running(graph)(feeds)
    for public, v in graph.outputs.items():
        np.testing.assert_allclose(want[public], meant[v], rtol=1e-3, atol=1e-5)
    for threads in (1, 2):
        got = Running(graph, threads)(feeds)
        assert all(got[v].tobytes() == a.tobytes() for v, a in want.items())


def softmax(g: Builder, x: str) -> str:
    """A value that a kernel makes and no loop takes in."""
    return g.op("Softmax", x, axis=-1)


def joined(*sizes: int, axis: int = 0, lead: tuple[int, ...] = ()) -> Graph:
    g = Builder()
    w = g.input("w", f32(1, ROWS))
    made = [g.op("MatMul", g.input(f"x{i}", f32(*lead, n, 1)), w) for i, n in enumerate(sizes)]
    g.output("y", g.op("Exp", g.op("Concat", *made, axis=axis)))  # (over its operand)
    return g.build()


@pytest.mark.parametrize("sizes", [(40, 40), (3, 50, 1, 7)])
def test_operands_lie_in_the_result(sizes: tuple[int, ...]) -> None:
    graph = joined(*sizes)
    assert copies(make_plan(graph)) == 0
    others = sum(padded(graph.type(v).nbytes) for v in graph.inputs)  # which are read while the result has its memory
    assert saved(graph) == sum(padded(4 * ROWS * n) for n in sizes) - others
    compare(graph)


def test_the_source_shows_no_copy() -> None:
    graph = joined(40, 40)
    source = emit(make_plan(graph)).source
    assert "Concat" in source
    assert "copy" not in source
    with without_parts():
        assert "copy_bytes(table" in emit(make_plan(graph)).source


def test_axes_of_one_element_may_come_before() -> None:
    graph = joined(4, 9, axis=2, lead=(1, 1))
    assert copies(make_plan(graph)) == 0
    compare(graph)


def test_parts_of_an_inner_axis_are_copied() -> None:
    graph = joined(4, 9, axis=1, lead=(2,))
    assert copies(make_plan(graph)) == 2
    assert saved(graph) == 0
    compare(graph)


@pytest.mark.parametrize("code", [TensorProto.INT8, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.DOUBLE])
def test_parts_begin_anywhere(code: int) -> None:
    """An address is a multiple of the element's size only."""
    g = Builder()
    x = g.input("x", f32(17, 55))
    made = [g.op("Cast", g.op("Mul", x, g.scalar(k, x)), to=code) for k in (1, 2, 3)]
    g.output("y", g.op("Concat", *made, axis=0))
    graph = g.build()
    assert copies(make_plan(graph)) == 0
    compare(graph)


def test_only_what_does_not_qualify_is_copied() -> None:
    g = Builder()
    x = g.input("x", f32(16, ROWS))
    a, b = softmax(g, x), g.op("LogSoftmax", x, axis=-1)
    constant = g.const(normal(3, ROWS))
    g.output("b", b)  # (a result)
    whole = g.op("Concat", a, x, constant, a, g.op("Reshape", softmax(g, b), g.ints((16, ROWS))), b, axis=0)
    g.output("y", g.op("CumSum", whole, g.const(np.array(0))))
    graph = g.build()
    assert copies(make_plan(graph)) == 4
    compare(graph)


def test_a_value_is_a_part_of_one_result() -> None:
    g = Builder()
    x = g.input("x", f32(16, ROWS))
    a, b = softmax(g, x), g.op("LogSoftmax", x, axis=-1)
    g.output("y", softmax(g, g.op("Concat", a, b, axis=0)))
    g.output("z", softmax(g, g.op("Concat", b, a, axis=0)))
    graph = g.build()
    assert copies(make_plan(graph)) == 2
    compare(graph)


def test_a_result_may_be_a_part_itself_and_be_fetched() -> None:
    g = Builder()
    x = g.input("x", f32(16, ROWS))
    inner = g.op("Concat", softmax(g, x), g.op("LogSoftmax", x, axis=-1), axis=0)
    outer = g.op("Concat", inner, g.op("CumSum", x, g.const(np.array(1))), axis=0)
    g.output("outer", outer)
    graph = g.build()
    assert copies(make_plan(graph)) == 0
    compare(graph)


def test_parts_have_readers_of_their_own() -> None:
    """None of them is overwritten by a loop that reads it last, and all are there till the end."""
    g = Builder()
    x = g.input("x", f32(16, ROWS))
    a, b = softmax(g, x), g.op("LogSoftmax", x, axis=-1)
    whole = softmax(g, g.op("Concat", a, b, axis=0))
    early = softmax(g, g.op("Mul", a, a))
    g.output("y", whole)
    g.output("z", g.op("Sub", g.op("Exp", b), early))
    graph = g.build()
    compare(graph)
    saved(graph)


def test_what_would_wait_too_long_is_copied() -> None:
    """A small early operand does not hold the memory of a large result while something else needs it."""
    g = Builder()
    x = g.input("x", f32(1, ROWS))
    small = softmax(g, x)
    wide = softmax(g, g.op("Expand", g.input("w", f32(1, ROWS)), g.ints((512, ROWS))))
    for _ in range(2):
        wide = softmax(g, wide)
    row = g.op("ReduceSum", wide, g.ints((0,)), keepdims=1)
    large = softmax(g, g.op("Expand", g.op("Add", row, row), g.ints((600, ROWS))))
    g.output("s", g.op("ReduceSum", g.op("Concat", small, large, axis=0), g.ints((0,))))
    graph = g.build()
    p = make_plan(graph)
    assert copies(p) >= 1
    assert set(p.schedule.parts) == {large}
    saved(graph)
    compare(graph)


def test_updates_stay_in_their_state() -> None:
    """A result that is a new state lies over the old one instead; what updates a state is no part."""
    g = Builder()
    x = g.input("x", f32(4, ROWS))
    w, v = g.state("w", normal(8, ROWS)), g.state("v", normal(4, ROWS))
    a, b = softmax(g, x), g.op("LogSoftmax", x, axis=-1)
    g.update(w, g.op("Concat", a, b, axis=0))
    c = g.op("CumSum", g.op("Sub", x, v), g.const(np.array(0)))
    g.update(v, c)
    g.output("y", softmax(g, g.op("Concat", c, softmax(g, b), axis=0)))
    graph = g.build()
    p = make_plan(graph)
    assert {"w", "v"} <= p.memory.committed
    assert c not in p.schedule.parts
    check(graph, {"x": normal(4, ROWS)})


def loop(outer: str) -> Graph:
    """Scan: two halves of the carried value, renewed, are joined; rows are stacked of their sum."""
    body = Builder()
    h, x, w = body.input("h", f32(2, ROWS)), body.input("x", f32(2, ROWS)), body.capture("w", f32(1, ROWS))
    total = softmax(body, body.op("Add", h, x))
    other = body.op("LogSoftmax", body.op("Sub", total, w), axis=-1)
    whole = body.op("Concat", total, w, other, axis=0)
    kept = body.op("CumSum", whole, body.const(np.array(0)))
    body.output("h_out", {"row": other, "carried": total, "inside": body.op("Neg", other)}[outer])
    body.output("row", whole if outer == "row" else kept)
    g = Builder()
    start, xs, weights = (
        g.input("start", f32(2, ROWS)),
        g.input("xs", f32(4, 2, ROWS)),
        g.input("weights", f32(1, ROWS)),
    )
    made = g.add("Scan", [start, xs], {"body": body.build(), "num_scan_inputs": 1}, ["last", "rows"], [weights])
    for v in made:
        g.output(v, v)
    return g.build()


@pytest.mark.parametrize("outer", ["row", "carried", "inside"])
def test_bodies_of_loops(outer: str) -> None:
    graph = loop(outer)
    p = make_plan(graph)
    names = {v.rpartition("/")[2] for v in p.schedule.parts}
    assert len(names) == {"row": 1, "carried": 1, "inside": 2}[outer]
    compare(graph)


def branch(ops: tuple[str, str], captures: dict[str, str]) -> Graph:
    body = Builder()
    given = {v: body.capture(v, f32(2, ROWS)) for v in captures}
    body.output(
        "y",
        body.op(
            "Concat", *(body.op(op, v, axis=-1) for op, v in zip(ops, given.values(), strict=True)), given["b"], axis=0
        ),
    )
    return body.build()


@pytest.mark.parametrize("condition", [False, True])
def test_branches(condition: bool) -> None:
    """The result of a branch has parts, too; what is computed before it is copied."""
    g = Builder()
    x = g.input("x", f32(2, ROWS))
    computed = {"a": softmax(g, x), "b": g.op("LogSoftmax", x, axis=-1)}
    bodies = {
        "then_branch": branch(("Softmax", "LogSoftmax"), computed),
        "else_branch": branch(("LogSoftmax", "Softmax"), computed),
    }
    flag = g.op("Less", g.op("ReduceMax", x, keepdims=0), g.scalar(1e9 if condition else -1e9, x))
    (y,) = g.add("If", [flag], bodies, ["y"], list(computed.values()))
    g.output("y", g.op("Softmax", y, axis=0))
    graph = g.build()
    p = make_plan(graph)
    assert len(p.schedule.parts) == 4
    assert not set(computed.values()) & set(p.schedule.parts)
    compare(graph)


def test_a_plan_can_be_placed_again() -> None:
    graph = joined(4, 4)
    p = make_plan(graph)
    states = {v: t.type for v, t in graph.states.items()}
    assert place(graph, p.schedule, 0, states).lives == p.memory.lives
    assert parts.place_parts(graph, p.schedule, lambda: p.memory) is p.memory


def test_memory_is_told_of_the_result() -> None:
    graph = joined(4, 4)
    found = footprint(graph)
    (whole,) = [n.outputs[0] for n in graph.nodes if n.op == "Concat"]
    assert dict(peak_of(found))[whole] == padded(4 * ROWS * 8)
    assert all(found.roots[v] == whole for n in graph.nodes if n.op == "Concat" for v in n.inputs)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Values of some rows, made by Softmax, Add, Slice, Reshape, Neg and Concat; some are results."""
    g = Builder()
    values = [g.input(f"x{i}", f32(draw(st.integers(1, 3)), 5)) for i in range(2)]

    def pick() -> str:
        return values[-1 - draw(st.integers(0, min(5, len(values) - 1)))]

    for _ in range(draw(st.integers(4, 14))):
        v = pick()
        rows = g.type(v).shape[0]
        match draw(st.sampled_from(["add", "concat", "concat", "neg", "reshape", "slice", "softmax", "sum"])):
            case "add":
                same = [w for w in values if g.type(w).shape == g.type(v).shape]
                values.append(g.op("Add", v, draw(st.sampled_from(same))))
            case "concat":
                some = [v, *(pick() for _ in range(draw(st.integers(1, 3))))]
                if sum(g.type(w).shape[0] for w in some) <= 40:
                    values.append(g.op("Concat", *some, axis=0))
            case "neg":
                values.append(g.op("Neg", v))
            case "reshape":
                flat = g.op("Reshape", v, g.ints((rows * 5,)))
                values.append(g.op("Reshape", flat, g.ints((rows, 5))))
            case "slice":
                start = draw(st.integers(0, rows - 1))
                stop = draw(st.integers(start + 1, rows))
                values.append(g.op("Slice", v, g.ints((start,)), g.ints((stop,)), g.ints((0,))))
            case "softmax":
                values.append(softmax(g, v))
            case "sum":
                values.append(g.op("CumSum", v, g.const(np.array(1))))
    for i, v in enumerate(dict.fromkeys([values[-1], pick(), pick()])):
        g.output(f"y{i}", v)
    return g.build()


@settings(max_examples=60)
@given(graphs())
def test_random_graphs(graph: Graph) -> None:
    saved(graph)
    compare(graph)
