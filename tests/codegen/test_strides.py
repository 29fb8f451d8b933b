"""Views with strides, and operands that a loop packs once: same results, and no copies."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.plan import make_plan
from compiler.codegen.strides import reshaped
from compiler.codegen.units import Unit
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import Tensor, TensorType
from tests.codegen.test_graphs import check, f32, normal


def kernels(graph: Graph) -> list[str]:
    return [s.call.kernel.name for s in make_plan(graph).statements if s.call is not None]


def ints(g: Builder, *values: int) -> str:
    return g.ints(values)


def split(g: Builder, v: str, axis: int, count: int) -> tuple[str, ...]:
    return g.add("Split", [v], {"axis": axis, "num_outputs": count}, [f"part{i}" for i in range(count)])


def attention(batch: int, time: int, heads: int, size: int) -> Graph:
    g = Builder()
    qkv = g.input("x", f32(batch, time, 3 * heads * size))
    shape = ints(g, batch, time, heads, size)
    q, k, v = (g.op("Reshape", p, shape) for p in split(g, qkv, 2, 3))
    q, v = (g.op("Transpose", p, perm=(0, 2, 1, 3)) for p in (q, v))
    weights = g.op("MatMul", q, g.op("Transpose", k, perm=(0, 2, 3, 1)))
    g.output("y", g.op("MatMul", weights, v))
    return g.build()


@pytest.mark.parametrize(("batch", "time", "heads", "size"), [(2, 9, 3, 8), (1, 7, 1, 16), (2, 70, 2, 96)])
def test_attention_reads_its_operands_where_they_are(batch: int, time: int, heads: int, size: int) -> None:
    graph = attention(batch, time, heads, size)
    assert set(kernels(graph)) <= {"gemm", "small_gemm"}
    check(graph, {"x": normal(batch, time, 3 * heads * size) / 8}, steps=1)


def test_gates_are_read_in_one_loop() -> None:
    g = Builder()
    a, b = split(g, g.input("x", f32(5, 32)), 1, 2)
    g.output("y", g.op("Mul", g.op("Tanh", a), g.op("Sigmoid", g.op("Add", b, g.input("bias", f32(16))))))
    graph = g.build()
    assert len(kernels(graph)) == 1
    check(graph, {"x": normal(5, 32), "bias": normal(16)})


def test_what_a_reader_cannot_follow_is_copied() -> None:
    g = Builder()
    x = g.input("x", f32(4, 6, 8))
    a, b = split(g, x, 1, 2)
    g.output("soft", g.op("Softmax", a, axis=-1))  # the parts of the first half do not follow each other
    g.output("mul", g.op("Mul", b, b))
    turned = g.op("Transpose", x, perm=(2, 0, 1))
    g.output("exp", g.op("Exp", turned))  # no long run of neighbours
    g.output("itself", g.op("Transpose", x, perm=(1, 0, 2)))
    g.output("back", g.op("Reshape", g.op("Transpose", x, perm=(0, 2, 1)), ints(g, 48, 4)))
    graph = g.build()
    assert sum(name.startswith(("copy", "transpose")) for name in kernels(graph)) == 4
    check(graph, {"x": normal(4, 6, 8)})


def test_parts_that_are_dense_go_everywhere() -> None:
    g = Builder()
    a, b = split(g, g.input("x", f32(6, 40)), 0, 2)
    g.output("y", g.op("Add", g.op("Softmax", a, axis=1), g.op("LogSoftmax", b, axis=0)))
    graph = g.build()
    assert not [name for name in kernels(graph) if name.startswith("copy")]
    check(graph, {"x": normal(6, 40)})


def test_a_part_is_not_overwritten_in_place() -> None:
    """The other parts of its memory are read later."""
    g = Builder()
    a, b = split(g, g.op("Exp", g.input("x", f32(4, 32))), 1, 2)
    first = g.op("MatMul", g.op("Neg", a), g.input("w", f32(16, 16)))
    g.output("y", g.op("Add", first, b))
    check(g.build(), {"x": normal(4, 32), "w": normal(16, 16)})


def test_old_value_of_a_state_is_read_through_a_view_before_it_changes() -> None:
    g = Builder()
    w = g.state("w", Tensor(normal(32, 24)))
    g.output("y", g.op("MatMul", g.input("x", f32(8, 24)), g.op("Transpose", w, perm=(1, 0))))
    g.update("w", g.op("Mul", w, w))
    check(g.build(), {"x": normal(8, 24)})


@pytest.mark.parametrize("by", [1, 2, -1])
def test_slices(by: int) -> None:
    g = Builder()
    x = g.input("x", f32(7, 40))
    rows = g.op("Slice", x, ints(g, 1 if by > 0 else 5), ints(g, 6 if by > 0 else 0), ints(g, 0), ints(g, by))
    part = g.op("Slice", rows, ints(g, -33), ints(g, 100), ints(g, -1))
    g.output("y", g.op("MatMul", part, g.op("Transpose", part, perm=(1, 0))))
    g.output("z", g.op("Relu", part))
    graph = g.build()
    assert not [name for name in kernels(graph) if name.startswith("copy")]
    check(graph, {"x": normal(7, 40)})


def test_copies_read_through_views() -> None:
    g = Builder()
    x = g.input("x", f32(3, 4, 5))
    turned = g.op("Transpose", x, perm=(2, 0, 1))
    g.output("concat", g.op("Concat", turned, g.op("Transpose", turned, perm=(0, 1, 2)), axis=2))
    g.output("wide", g.op("Expand", turned, ints(g, 2, 5, 3, 4)))
    graph = g.build()
    assert len(kernels(graph)) == 3  # one for each operand of Concat, one for Expand
    check(graph, {"x": normal(3, 4, 5)})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_reshaped_is_what_numpy_does_without_a_copy(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(4, 6), (2, 3, 4), (2, 1, 6, 2), (12,), (1, 1), (3, 4, 2)]))
    base = np.arange(np.prod(shape)).reshape(shape)
    a = base.transpose(data.draw(st.sampled_from(list(permutations(range(len(shape)))))))
    cuts = tuple(slice(data.draw(st.integers(0, n - 1)), None) for n in a.shape)
    a = a[cuts]
    sizes = [n for n in range(1, a.size + 1) if a.size % n == 0]
    first = data.draw(st.sampled_from(sizes))
    to = data.draw(st.sampled_from([(first, a.size // first), (a.size,), (1, first, a.size // first)]))
    got = reshaped(a.shape, [s // 8 for s in a.strides], to)
    view = a.view()
    try:
        view.shape = to
    except AttributeError:
        assert got is None
        return
    assert got is not None
    again = np.lib.stride_tricks.as_strided(a, to, [8 * s for s in got])
    np.testing.assert_array_equal(again, a.reshape(to))


def recurrence(trans: int) -> Graph:
    """h = tanh(h @ w + x) over 5 steps, w of 40 x 40."""
    body = Builder()
    h, x, w = body.input("h", f32(6, 40)), body.input("x", f32(6, 40)), body.capture("w", f32(40, 40))
    new = body.op("Tanh", body.op("Gemm", h, w, x, transB=trans))
    body.output("h_out", new)
    g = Builder()
    start, xs, weights = g.input("start", f32(6, 40)), g.input("xs", f32(5, 6, 40)), g.input("weights", f32(40, 40))
    (last,) = g.add("Scan", [start, xs], {"body": body.build(), "num_scan_inputs": 1}, ["last"], [weights])
    g.output("last", last)
    return g.build()


@pytest.mark.parametrize("trans", [0, 1])
def test_a_loop_packs_a_weight_once(trans: int) -> None:
    graph = recurrence(trans)
    (cycle,) = [u.cycle for u in make_plan(graph).schedule.units if u.cycle is not None]
    assert "pack_panels" in names(cycle.before)
    assert "pack_panels" not in names(cycle.body)
    check(graph, {"start": normal(6, 40), "xs": normal(5, 6, 40), "weights": normal(40, 40) / 6})


def names(units: list[Unit]) -> list[str]:
    return [c.kernel.name for u in units for c in u.calls]


def test_types_of_views_keep_their_names() -> None:
    """A view is a value like others: it can be fetched, which makes a copy."""
    g = Builder()
    a, b = split(g, g.input("x", TensorType("i32", (4, 20))), 1, 2)
    g.output("a", a)
    g.output("sum", g.op("Add", a, b))
    check(g.build(), {"x": np.arange(80, dtype=np.int32).reshape(4, 20)})
