"""Operands of a Concat along an inner axis that a fused loop computes: same bits, no copies, no more memory."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from compiler.codegen.footprint import footprint
from compiler.codegen.plan import make_plan
from compiler.errors import MemoryLimitError
from compiler.fitting import fitted
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from tests.codegen.test_graphs import f32
from tests.codegen.test_parts import compare, copies, saved, softmax
from tests.codegen.test_strides import kernels


def gates(*sizes: int, axis: int, rest: tuple[int, ...] = ()) -> tuple[Builder, list[str]]:
    """Values that loops make, of these sizes along an axis."""
    g = Builder()
    lead = (3, 2)[:axis]
    return g, [g.op("Tanh", g.input(f"x{i}", f32(*lead, n, *rest))) for i, n in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "axis", "rest"), [((16, 16), 1, ()), ((8, 40, 9), 1, ()), ((1, 2), 1, (3, 3)), ((5, 9), 2, (8,))]
)
def test_loops_write_where_the_result_is(sizes: tuple[int, ...], axis: int, rest: tuple[int, ...]) -> None:
    g, made = gates(*sizes, axis=axis, rest=rest)
    g.output("y", softmax(g, g.op("Concat", *made, axis=axis)))
    graph = g.build()
    assert copies(make_plan(graph)) == 0
    assert {*make_plan(graph).schedule.strided} == {*made}
    saved(graph)
    compare(graph)


def test_rows_that_are_too_short_are_copied() -> None:
    g, made = gates(7, 9, axis=1)
    g.output("y", softmax(g, g.op("Concat", *made, axis=1)))
    graph = g.build()
    assert {*make_plan(graph).schedule.parts} == {made[1]}
    compare(graph)


@pytest.mark.parametrize("code", [TensorProto.INT8, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.DOUBLE])
def test_any_type(code: int) -> None:
    g = Builder()
    x = g.input("x", f32(5, 11))
    made = [g.op("Cast", g.op("Mul", x, g.scalar(k, x)), to=code) for k in (1, 2, 3)]
    g.output("y", g.op("Concat", *made, axis=1))
    graph = g.build()
    assert kernels(graph) == ["loop_mul_cast_mul_cast_mul_cast"]
    compare(graph)


def test_loops_read_a_part_and_others_make_it_be_copied() -> None:
    g = Builder()
    x, w = g.input("x", f32(4, 16)), g.input("w", f32(16, 16))
    a, b, c = (g.op(op, x) for op in ("Exp", "Tanh", "Sigmoid"))
    whole = softmax(g, g.op("Concat", a, b, c, axis=1))
    g.output("whole", whole)
    g.output("loop", g.op("Mul", a, g.op("MatMul", x, w)))
    g.output("kernel", softmax(g, b))
    g.output("product", g.op("MatMul", g.op("Concat", c, x, axis=1), g.input("v", f32(32, 8))))
    graph = g.build()
    assert {*make_plan(graph).schedule.parts} == {a}
    compare(graph)


def test_the_same_value_twice_is_copied_twice() -> None:
    g, (a, b) = gates(8, 8, axis=1)
    g.output("y", softmax(g, g.op("Concat", a, b, a, axis=1)))
    graph = g.build()
    assert {*make_plan(graph).schedule.parts} == {b}
    compare(graph)


def test_results_are_no_parts() -> None:
    g, (a, b) = gates(8, 8, axis=1)
    g.output("a", a)
    g.output("y", softmax(g, g.op("Concat", a, b, axis=1)))
    graph = g.build()
    assert {*make_plan(graph).schedule.parts} == {b}
    compare(graph)


def test_a_result_with_strided_parts_is_a_block_of_another() -> None:
    g, (a, b) = gates(8, 24, axis=1)
    inner = g.op("Concat", a, b, axis=1)
    other = g.op("Concat", g.op("Neg", b), g.op("Exp", a), axis=1)
    g.output("y", softmax(g, g.op("Concat", inner, other, axis=0)))
    graph = g.build()
    assert copies(make_plan(graph)) == 0
    compare(graph)


def test_a_result_with_strided_parts_is_copied_to_an_inner_one() -> None:
    g, (a, b) = gates(8, 24, axis=1)
    inner = g.op("Concat", a, b, axis=1)
    g.output("y", softmax(g, g.op("Concat", inner, g.op("Exp", inner), axis=1)))
    graph = g.build()
    assert inner not in make_plan(graph).schedule.parts
    compare(graph)


def test_reshaped_operands() -> None:
    """Where the strides of the value itself can be said."""
    g = Builder()
    x = g.input("x", f32(3, 4, 16))
    flat = g.op("Reshape", g.op("Exp", x), g.ints((12, 16)))
    turned = g.op("Reshape", g.op("Tanh", x), g.ints((6, 32)))
    g.output("y", softmax(g, g.op("Concat", flat, g.op("Reshape", turned, g.ints((12, 16))), axis=1)))
    graph = g.build()
    assert len(make_plan(graph).schedule.parts) == 2
    compare(graph)


def test_channels_of_images() -> None:
    """The gradient of a Concat of activations reads them where they are."""
    g = Builder()
    x, z = g.input("x", f32(2, 3, 5, 5)), g.input("z", f32(2, 4, 5, 5))
    a, b = g.op("Relu", x), g.op("Sigmoid", z)
    whole = softmax(g, g.op("Concat", a, b, axis=1))
    da, db = g.add("Split", [whole, g.ints((3, 4))], {"axis": 1}, 2)
    g.output("dx", g.op("Where", g.op("Greater", a, g.scalar(0, a)), da, g.scalar(0, a)))
    g.output("dz", g.op("Mul", db, g.op("Mul", b, g.op("Sub", g.scalar(1, b), b))))
    graph = g.build()
    assert copies(make_plan(graph)) == 0
    saved(graph)
    compare(graph)


@pytest.mark.parametrize("outer", ["row", "carried"])
def test_bodies_of_loops(outer: str) -> None:
    """The result may be a slice of what is stacked, and a part be read when the next value is made."""
    body = Builder()
    h, x, w = body.input("h", f32(2, 16)), body.input("x", f32(2, 16)), body.capture("w", f32(32, 16))
    a, b = body.op("Tanh", body.op("Add", h, x)), body.op("Sigmoid", body.op("Sub", h, x))
    whole = body.op("Concat", a, b, axis=1)
    new = body.op("Add", body.op("MatMul", whole, w), a)
    body.output("h_out", new)
    body.output("row", whole if outer == "row" else new)
    g = Builder()
    start, xs, weights = g.input("start", f32(2, 16)), g.input("xs", f32(4, 2, 16)), g.input("weights", f32(32, 16))
    made = g.add("Scan", [start, xs], {"body": body.build(), "num_scan_inputs": 1}, ["last", "rows"], [weights])
    for v in made:
        g.output(v, v)
    graph = g.build()
    assert len(make_plan(graph).schedule.parts) == 2
    assert kernels(graph).count("copy_rows") == 0
    compare(graph)


def grow(draw: st.DrawFn, g: Builder, values: list[str]) -> None:
    """Add values of three axes, made by loops, kernels, views and Concat along each axis."""

    def pick() -> str:
        return values[-1 - draw(st.integers(0, min(6, len(values) - 1)))]

    for _ in range(draw(st.integers(4, 14))):
        v = pick()
        shape = g.type(v).shape
        match draw(
            st.sampled_from(["add", "concat", "concat", "concat", "flat", "neg", "product", "slice", "softmax"])
        ):
            case "add":
                same = [w for w in values if g.type(w).shape == shape]
                values.append(g.op("Add", v, draw(st.sampled_from(same))))
            case "concat":
                axis = draw(st.integers(0, 2))
                rest = shape[:axis] + shape[axis + 1 :]
                fit = [w for w in values if (s := g.type(w).shape)[:axis] + s[axis + 1 :] == rest]
                some = [v, *(draw(st.sampled_from(fit)) for _ in range(draw(st.integers(0, 2))))]
                some += [g.op("Neg", v)] if draw(st.booleans()) else []
                if sum(g.type(w).size for w in some) <= 2000:
                    values.append(g.op("Concat", *some, axis=axis))
            case "flat":
                flat = g.op("Reshape", v, g.ints((shape[0] * shape[1], shape[2])))
                values.append(g.op("Reshape", flat, g.ints((1, shape[0] * shape[1], shape[2]))))
            case "neg":
                values.append(g.op("Neg", v))
            case "product":
                turned = g.op("Transpose", v, perm=(0, 2, 1))
                values.append(g.op("MatMul", softmax(g, g.op("MatMul", v, turned)), v))
            case "slice":
                axis = draw(st.integers(0, 2))
                start = draw(st.integers(0, shape[axis] - 1))
                values.append(g.op("Slice", v, g.ints((start,)), g.ints((shape[axis],)), g.ints((axis,))))
            case "softmax":
                values.append(softmax(g, v))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Some of the values are results."""
    g = Builder()
    sizes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 4, 8, 9]))
    values = [g.input(f"x{i}", f32(*draw(sizes))) for i in range(3)]
    grow(draw, g, values)
    for i, v in enumerate(dict.fromkeys([values[-1], *(draw(st.sampled_from(values)) for _ in range(2))])):
        g.output(f"y{i}", v)
    return g.build()


@st.composite
def scans(draw: st.DrawFn) -> Graph:
    """The values are those of an iteration: one of the type of the state is the next one, others are stacked."""
    body, t = Builder(), f32(draw(st.integers(1, 2)), 2, 8)
    values = [body.input("h", t), body.input("x", t), body.capture("w", t)]
    start = [body.op("Add", values[0], values[1]), body.op("Tanh", values[2])]
    values += [*start, body.op("Concat", *start, axis=draw(st.integers(0, 2)))]
    grow(draw, body, values)
    body.output("h_out", body.op("Tanh", draw(st.sampled_from([v for v in values[3:] if body.type(v) == t]))))
    rows = dict.fromkeys([values[-1], draw(st.sampled_from(values[3:]))])
    for i, v in enumerate(rows):
        body.output(f"row{i}", v)
    g = Builder()
    first, xs, weights = g.input("start", t), g.input("xs", f32(3, *t.shape)), g.input("weights", t)
    attrs = {"body": body.build(), "num_scan_inputs": 1}
    for v in g.add("Scan", [first, xs], attrs, ["last", *(f"rows{i}" for i in range(len(rows)))], [weights]):
        g.output(v, v)
    return g.build()


@settings(max_examples=40)
@given(graphs(), st.floats(0.6, 1))
def test_random_graphs(graph: Graph, share: float) -> None:
    saved(graph)
    compare(graph)
    with suppress(MemoryLimitError):
        smaller = fitted(graph, int(share * footprint(graph).total))
        if smaller is not graph:
            compare(smaller)


@settings(max_examples=20)
@given(scans())
def test_random_bodies(graph: Graph) -> None:
    saved(graph)
    compare(graph)
