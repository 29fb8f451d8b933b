"""sgd_rows: a step of the rows that were read has the bits of one with the gradient of the whole table."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.support import has_kernel
from compiler.errors import InputError
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph
from compiler.ir.types import Tensor
from compiler.passes.fuse_optimizer import SMALL
from compiler.passes.pipeline import passes, run
from compiler.passes.sgd_rows import ELEMENTS, ROWS
from tests.codegen.definition import check_definition
from tests.codegen.graphs import Running
from tests.codegen.runner import NodeRun, Reported, make_node, run_op
from tests.validate import validate

RATES = (0.1, 0.0, -0.0, -0.3, 3e38, 1e-45, np.inf, np.nan)
FEW = st.integers(0, 40)


def tables(seed: int, rows: int, inner: tuple[int, ...], of: tuple[int, ...], dtype: Any, index: Any) -> list[Any]:
    """(table, gradients, indices); among the numbers are zeros of both signs, and some that are not normal."""
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((rows, *inner)).astype(dtype), rng.standard_normal((*of, *inner)).astype(dtype)
    for a in (x, dy):
        a[rng.random(a.shape) < 0.2] = -0.0
        a[rng.random(a.shape) < 0.1] *= dtype(1e-40)
    return [x, dy, rng.integers(-rows, rows, of).astype(index)]


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 70000),
    st.sampled_from([(), (1,), (3,), (2, 5), (67,)]),
    st.one_of(st.tuples(), st.tuples(FEW), st.tuples(FEW, st.integers(1, 9))),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from(RATES),
)
def test_the_kernel_has_the_bits_of_its_definition(
    seed: int, rows: int, inner: tuple[int, ...], of: tuple[int, ...], dtype: Any, index: Any, rate: float
) -> None:
    rows = min(rows, 200000 // prod(inner))
    x, dy, at = tables(seed, rows, inner, of, dtype, index)
    at = at % max(1, rows // 2) if seed % 2 else at  # many are equal
    r = np.asarray(rate, dtype)
    (got,) = run_op("onnxc.SgdRows", r, x, dy, np.asarray(at))
    (gradient,) = run_op("onnxc.GatherGrad", dy, np.asarray(at), axis=0, shape=x.shape)
    b = Builder()
    names = [b.input(n, Tensor(a).type) for n, a in (("rate", r), ("x", x), ("g", gradient))]
    b.output("y", b.op("onnxc.SgdStep", names[0], "", "", "", *names[1:]))
    want = Running(b.build())({"rate": r, "x": x, "g": gradient})["y"]
    assert got.tobytes() == want.tobytes()


def test_against_the_definition() -> None:
    x, dy, at = tables(0, 300, (4, 3), (5, 7), np.float64, np.int32)
    check_definition("onnxc.SgdRows", np.array(0.1), x, dy, at)
    check_definition("onnxc.SgdRows", np.array(0.1), x[:1], dy, at * 0)
    check_definition("onnxc.SgdRows", np.array(-0.1), x, dy[:0], at[:0])


def test_wrong_indices_are_reported_and_stay_inside_memory() -> None:
    x, dy, _ = tables(0, 300, (4,), (3,), np.float32, np.int64)
    for wrong in (300, -301, 2**40):
        node, types, feeds, known = make_node("onnxc.SgdRows", np.float32(0.1), x, dy, np.array([1, wrong, 299]))
        node_run = NodeRun(node, types, feeds, known)
        node_run.reset()
        with pytest.raises(Reported, match=r"index out of range \[-300, 300\).*element 1"):
            node_run.run(3)
        node_run.calls, node_run._entries = node_run.calls[1:], node_run._entries[1:]
        node_run._records = node_run._records[1:]
        node_run.reset()
        node_run.run(2)
        node_run.check()


def embedding(
    dtype: Any = np.float32,
    of: tuple[int, ...] = (6, 5),
    inner: tuple[int, ...] = (8,),
    *,
    bag: str = "",
    rate: float | None = None,
    decay: float = 0.0,
    outputs: tuple[str, ...] = (),
    times: int = 1,
) -> Graph:
    """A table of random rows, read by index (`times` times, a `bag` of rows reduced), its loss, gradient and update."""
    b, rng = Builder("embedding"), np.random.default_rng(0)
    count, width = prod(of), prod(inner)
    rows = max(ROWS * count, ELEMENTS * count // width, SMALL // width + 1)
    w = b.state("w", rng.standard_normal((rows, *inner)).astype(dtype))
    lr = b.input("lr", Tensor(np.zeros((), dtype)).type) if rate is None else b.scalar(rate, w)
    losses = []
    for i in range(times):
        at = b.input(f"at{i}", Tensor(np.zeros(of, np.int64)).type)
        y = b.op("Gather", w, at, axis=0)
        y = b.op(bag, y, b.ints([1]), keepdims=0) if bag else y
        losses.append(b.op("ReduceSum", b.op("Mul", y, b.op("Tanh", y)), keepdims=0))
    loss = losses[0] if times == 1 else b.op("Sum", *losses)
    (g,) = b.add(GRADIENT, [loss, w, w], {"xs": 1, "zs": 0}, ["g"])
    change = b.op("Add", g, b.op("Mul", b.scalar(decay, w), w)) if decay else g
    b.update(w, b.op("Sub", w, b.op("Mul", lr, change), name="w.next"))
    b.output("loss", loss)
    for v in outputs:
        b.output(v, v)
    return b.build()


def lowered(graph: Graph, *, dense: bool = False) -> Graph:
    return run(graph, [p for p in passes(has_kernel) if not (dense and p.name == "sgd_rows")])


def by_rows(graph: Graph) -> int:
    return sum(node.op == "onnxc.SgdRows" for node in graph.nodes)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"dtype": np.float64},
        {"of": (30,)},
        {"of": (2, 3, 5)},
        {"inner": (3, 4)},
        {"inner": ()},
        {"bag": "ReduceSum"},
        {"bag": "ReduceMean"},
        {"rate": 0.05},
        {"outputs": ("w",)},
        {"outputs": ("w.next",)},
    ],
    ids=str,
)
def test_steps_have_the_bits_of_dense_ones(form: dict[str, Any]) -> None:
    graph = embedding(**form)
    rows, dense = lowered(graph), lowered(graph, dense=True)
    assert (by_rows(rows), by_rows(dense)) == (1, 0)
    n, dtype = rows.states["w"].array.shape[0], rows.states["w"].array.dtype
    of = graph.type("at0").shape
    rng = np.random.default_rng(1)
    runs = [Running(dense), *(Running(rows, threads) for threads in (1, 2, 3))]
    if "w" not in form.get("outputs", ()):  # else the new table needs memory, as the gradient does
        assert all(
            r.code.layout.arena_bytes < graph.type("w").nbytes < runs[0].code.layout.arena_bytes for r in runs[1:]
        )
    for rate in (0.1, 0.3, -0.2):
        at = rng.integers(-n, n, of)
        at.reshape(-1)[::3] = at.reshape(-1)[0]
        feeds = {"at0": at} | ({} if "rate" in form else {"lr": dtype.type(rate)})
        want, *results = (r(feeds) for r in runs)
        for result, r in zip(results, runs[1:], strict=True):
            assert r.state["w"].tobytes() == runs[0].state["w"].tobytes()
            assert {v: a.tobytes() for v, a in result.items()} == {v: a.tobytes() for v, a in want.items()}


@pytest.mark.parametrize("form", [{"outputs": ("g",)}, {"decay": 0.01}, {"times": 2}], ids=str)
def test_other_steps_stay_dense(form: dict[str, Any]) -> None:
    graph = embedding(**form)
    assert lowered(graph) == lowered(graph, dense=True)


def test_a_table_that_is_also_the_head_stays_dense() -> None:
    b = Builder("tied")
    w = b.state("w", np.ones((5000, 8), np.float32))
    at = b.input("at", Tensor(np.zeros(4, np.int64)).type)
    scores = b.op("MatMul", b.op("Gather", w, at, axis=0), b.op("Transpose", w, perm=(1, 0)))
    b.output("loss", loss := b.op("ReduceSum", b.op("Tanh", scores), keepdims=0))
    (g,) = b.add(GRADIENT, [loss, w, w], {"xs": 1, "zs": 0})
    b.update(w, b.op("Sub", w, b.op("Mul", b.scalar(0.1, w), g)))
    assert not by_rows(lowered(b.build()))


def test_a_refused_step_writes_nothing() -> None:
    graph = lowered(embedding())
    step = Running(graph, 2)
    before, n = step.state["w"].copy(), graph.type("w").shape[0]
    at = np.zeros((6, 5), np.int64)
    at[4, 3] = n
    with pytest.raises(InputError, match="out of range"):
        step({"at0": at, "lr": np.float32(1)})
    assert step.state["w"].tobytes() == before.tobytes()


def test_exported() -> None:
    graph = embedding()
    at = np.random.default_rng(0).integers(0, 9, (6, 5))
    validate(lowered(graph, dense=True), lowered(graph), {"at0": at, "lr": np.float32(0.1)})
