"""Gradients of If, Loop and Scan, first and second order, against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.errors import UnsupportedError
from compiler.ir.bounded import bounded
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph, Node
from compiler.ir.types import TensorType, dtype_of
from compiler.ir.verify import verify
from compiler.passes.fold import fold_constants
from compiler.passes.gradients import RULES, expand_gradients
from tests.gradcheck import check, run, with_gradients

Array = npt.NDArray[Any]
Emit = Callable[..., Sequence[str]]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


def body(
    b: Builder, emit: Emit, inputs: Sequence[TensorType], captures: Mapping[str, str], capturing: bool = True
) -> Graph:
    """A nested graph: emit(builder, *inputs, **captures) gives its outputs."""
    inner = Builder("body")
    given = [inner.input(f"in{i}", t) for i, t in enumerate(inputs)]
    names = {k: inner.capture(k, b.type(v)) for k, v in captures.items()} if capturing else {}
    for i, v in enumerate(emit(inner, *given, **names)):
        copied = v in given or v in names.values() or inner.producer(v) is None
        inner.output(f"out{i}", inner.op("Identity", v) if copied else v)
    return inner.build()


def scan(
    b: Builder,
    emit: Emit,
    initial: Sequence[str],
    sequences: Sequence[str],
    axes: Sequence[int] = (),
    directions: Sequence[int] = (),
    captures: Mapping[str, str] | None = None,
    **attrs: Any,
) -> Sequence[str]:
    axes = axes or [0] * len(sequences)
    slices = [
        TensorType(b.type(v).dtype, tuple(np.delete(b.shape(v), axis).tolist()))
        for v, axis in zip(sequences, axes, strict=True)
    ]
    graph = body(b, emit, [*map(b.type, initial), *slices], captures or {})
    given = {"body": graph, "num_scan_inputs": len(sequences), "scan_input_axes": tuple(axes), **attrs}
    if directions:
        given["scan_input_directions"] = tuple(directions)
    return b.add("Scan", [*initial, *sequences], given, len(graph.outputs), list((captures or {}).values()))


def loop(
    b: Builder,
    emit: Emit,
    initial: Sequence[str],
    count: str = "",
    condition: str = "",
    captures: Mapping[str, str] | None = None,
    outputs: int | None = None,
) -> Sequence[str]:
    types = [TensorType("i64"), TensorType("bool"), *map(b.type, initial)]
    graph = body(b, emit, types, captures or {})
    outputs = len(graph.outputs) - 1 if outputs is None else outputs
    return b.add("Loop", [count, condition, *initial], {"body": graph}, outputs, list((captures or {}).values()))


def choose(b: Builder, condition: str, then: Emit, other: Emit, captures: Mapping[str, str]) -> Sequence[str]:
    branches = [body(b, emit, [], captures) for emit in (then, other)]
    attrs = dict(zip(("then_branch", "else_branch"), branches, strict=True))
    return b.add("If", [condition], attrs, len(branches[0].outputs), list(captures.values()))


def graph_of(emit: Callable[..., Any], feeds: Mapping[str, Array]) -> Graph:
    b = Builder()
    results = emit(b, **{k: b.input(k, TensorType(dtype_of(a), a.shape)) for k, a in feeds.items()})
    for i, v in enumerate([results] if isinstance(results, str) else results):
        b.output(f"out{i}", v)
    graph = b.build()
    verify(graph)
    return graph


def verified(emit: Callable[..., Any], order: int = 2, **feeds: Array) -> Graph:
    graph = graph_of(emit, feeds)
    check(graph, feeds, [k for k, a in feeds.items() if a.dtype == np.float64], order=order)
    return graph


# --- Scan --------------------------------------------------------------------------------------------------
def recurrence(b: Builder, h: str, x: str, w: str) -> Sequence[str]:
    new = b.op("Tanh", b.op("Add", b.op("MatMul", h, w), x))
    return [new, b.op("Mul", new, new)]


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("out", [0, 1])
def test_scan_in_both_directions(direction: int, out: int) -> None:
    def emit(b: Builder, h: str, x: str, w: str) -> Sequence[str]:
        return scan(b, recurrence, [h], [x], directions=[direction], captures={"w": w}, scan_output_directions=(out,))

    verified(emit, h=random(2, 3), x=random(4, 2, 3, seed=1), w=random(3, 3, seed=2))


def test_scan_along_other_axes() -> None:
    def step(b: Builder, total: str, x: str, y: str) -> Sequence[str]:
        total = b.op("Add", total, b.op("Mul", x, y))
        return [total, b.op("Sin", total), b.op("Mul", x, b.op("ReduceSum", total, keepdims=0))]

    def emit(b: Builder, t: str, x: str, y: str) -> Sequence[str]:
        return scan(b, step, [t], [x, y], [1, 2], [1, 0], scan_output_axes=(1, -1), scan_output_directions=(0, 1))

    verified(emit, t=random(2, 3), x=random(2, 5, 3, seed=1), y=random(2, 3, 5, seed=2))


def test_scan_keeps_integers_and_masks() -> None:
    """Carried integers, and Booleans that are computed from floats, are recorded; they have no gradient."""

    def step(b: Builder, count: str, s: str, x: str, flag: str) -> Sequence[str]:
        positive = b.op("Greater", b.op("Exp", x), b.scalar(1, x))
        count = b.op("Add", count, b.scalar(1, count))
        factor = b.op("Cast", count, to=11)
        s = b.op("Where", b.op("And", positive, flag), b.op("Mul", s, factor), b.op("Sub", s, x))
        return [count, s, b.op("Mul", s, factor)]

    def emit(b: Builder, n: str, s: str, x: str, f: str) -> Sequence[str]:
        return scan(b, step, [n, s], [x, f])

    flags = np.array([[True, False], [True, True], [False, True]])
    verified(emit, n=np.array([3]), s=random(2), x=random(3, 2, seed=1), f=flags)


def test_scan_with_captures_used_in_many_ways() -> None:
    def step(b: Builder, s: str, x: str, w: str, v: str, g: str) -> Sequence[str]:
        flat = b.op("Slice", b.op("Transpose", w, perm=(1, 0)), b.ints([0]), b.ints([2]))  # the same in each iteration
        s = b.op("Tanh", b.op("Add", b.op("Gemm", s, w, v, alpha=0.5), b.op("MatMul", x, flat)))
        return [b.op("Mul", s, b.op("Exp", g)), b.op("Gemm", flat, s, transB=1)]

    def emit(b: Builder, s: str, x: str, w: str, v: str, g: str) -> Sequence[str]:
        return scan(b, step, [s], [x], captures={"w": w, "v": v, "g": g})

    verified(emit, s=random(4, 3), x=random(3, 4, 2, seed=1), w=random(3, 3), v=random(3), g=random())


def test_scan_of_nothing() -> None:
    def emit(b: Builder, h: str, x: str, w: str) -> str:
        return scan(b, recurrence, [h], [x], captures={"w": w})[0]

    feeds = {"h": random(2, 3), "x": random(0, 2, 3), "w": random(3, 3)}
    expanded = with_gradients(graph_of(emit, feeds), "out0", ["h", "x", "w"])
    results = run(expanded, feeds)
    assert results["d0"].tolist() == np.ones((2, 3)).tolist()
    assert results["d1"].shape == (0, 2, 3)
    assert not results["d2"].any()


# --- Loop --------------------------------------------------------------------------------------------------
def powers(b: Builder, i: str, go: str, s: str, w: str) -> Sequence[str]:
    """s -> s w + sin(i s); stacks s^2."""
    s = b.op("Add", b.op("MatMul", s, w), b.op("Sin", b.op("Mul", b.op("Cast", i, to=11), s)))
    return [go, s, b.op("Mul", s, s)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_loop_of_known_length(count: int) -> None:
    def emit(b: Builder, s: str, w: str) -> Sequence[str]:
        return loop(b, powers, [s], b.const(np.array(count)), captures={"w": w})

    verified(emit, s=random(2, 3), w=random(3, 3, seed=1))


def test_loop_whose_end_is_known_though_it_is_a_condition() -> None:
    def step(b: Builder, i: str, go: str, n: str, s: str, w: str) -> Sequence[str]:
        n = b.op("Mul", n, b.scalar(2, n))
        return [b.op("Less", n, b.scalar(30, n)), n, b.op("Tanh", b.op("Mul", s, w)), b.op("Mul", s, s)]

    def emit(b: Builder, s: str, w: str) -> Sequence[str]:
        _, last, rows = loop(b, step, [b.const(np.array(3)), s], captures={"w": w})
        return [last, rows]

    verified(emit, s=random(3), w=random(3, seed=1))


def halved(b: Builder, i: str, go: str, s: str, w: str) -> Sequence[str]:
    """Take the root of s - 1 as long as it is above 1: one iteration more would be NaN."""
    s = b.op("Mul", b.op("Sqrt", b.op("Sub", s, b.scalar(1, s))), w)
    return [b.op("Greater", b.op("ReduceMin", s, keepdims=0), b.scalar(1, s)), s]


def ending_at_run_time(b: Builder, s: str, w: str) -> Sequence[str]:
    first = b.op("Greater", b.op("ReduceMin", s, keepdims=0), b.scalar(1, s))
    return loop(b, halved, [s], b.const(np.array(9)), first, captures={"w": w})


@pytest.mark.parametrize(("start", "iterations"), [(300.0, 5), (3.0, 2), (0.0, 0)])
def test_loop_that_ends_at_run_time(start: float, iterations: int) -> None:
    """Nothing is evaluated beyond the end, where the body gives NaN; w is used in the iterations that are made."""
    feeds = {"s": np.array([start, start + 0.5]), "w": np.array([1.1, 1.2])}
    graph = verified(ending_at_run_time, **feeds)
    s, found = feeds["s"], 0
    while np.all(s > 1):
        s, found = np.sqrt(s - 1) * feeds["w"], found + 1
    assert found == iterations
    assert np.allclose(run(graph, feeds)["out0"], s)
    if not iterations:
        results = run(with_gradients(graph, "out0", ["s", "w"]), feeds)
        assert results["d0"].tolist() == [1.0, 1.0]
        assert results["d1"].tolist() == [0.0, 0.0]


def test_loop_bounded_by_max_trip() -> None:
    """Its rows behind the end are 0 and have no gradient; the step still refuses if there are too many iterations."""

    def step(b: Builder, i: str, go: str, s: str, w: str) -> Sequence[str]:
        return [*halved(b, i, go, s, w), b.op("Mul", s, w)]

    def emit(b: Builder, s: str, w: str) -> Sequence[str]:
        graph = body(b, step, [TensorType("i64"), TensorType("bool"), b.type(s)], {"w": w})
        new = bounded(b, Node("Loop", ("", "", s), ("last", "rows"), {"body": graph}, (w,)), 7)
        return [new["last"], new["rows"]]

    feeds = {"s": np.array([300.0, 300.5]), "w": np.array([1.1, 1.2])}
    graph = verified(emit, order=1, **feeds)
    assert run(graph, feeds)["out1"].any(axis=1).tolist() == [True] * 5 + [False] * 2
    expanded = with_gradients(graph, "out1", ["s", "w"])
    assert [n.op for n in expanded.nodes].count("onnxc.Checked") == 2


def test_loop_without_bound_is_refused_with_the_remedy() -> None:
    def emit(b: Builder, s: str, n: str) -> Sequence[str]:
        def step(b: Builder, i: str, go: str, s: str) -> Sequence[str]:
            s = b.op("Mul", s, s)
            return [b.op("Less", b.op("ReduceMax", s, keepdims=0), b.scalar(9, s)), s]

        return loop(b, step, [s], n)

    feeds = {"s": random(2), "n": np.array(3)}
    with pytest.raises(UnsupportedError, match=r"not bounded at compile time.*max_trip=.*'n', its trip"):
        with_gradients(graph_of(emit, feeds), "out0", ["s"])


# --- If ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("condition", [True, False])
def test_if_at_run_time(condition: bool) -> None:
    """A value that only one branch uses has the gradient 0 in the other."""

    def emit(b: Builder, c: str, x: str, w: str, v: str) -> Sequence[str]:
        def then(b: Builder, x: str, w: str, v: str) -> Sequence[str]:
            return [b.op("MatMul", b.op("Tanh", x), w), x]

        def other(b: Builder, x: str, w: str, v: str) -> Sequence[str]:
            return [b.op("Mul", b.op("Exp", x), v), b.const(np.ones((2, 2)))]

        captures = {"x": x, "w": w, "v": v}
        return choose(b, c, then, other, captures)

    feeds = {"c": np.array(condition), "x": random(2, 2), "w": random(2, 2, seed=1), "v": random(2, seed=2)}
    graph = verified(emit, **feeds)
    results = run(with_gradients(graph, "out0", ["x", "w", "v"]), feeds)
    assert bool(results["d1"].any()) == condition
    assert bool(results["d2"].any()) != condition


def test_if_of_which_no_branch_uses_x() -> None:
    def emit(b: Builder, c: str, x: str, v: str) -> Sequence[str]:
        def one(b: Builder, x: str, v: str) -> Sequence[str]:
            return [b.op("Add", b.op("Floor", x), v)]

        return choose(b, c, one, one, {"x": x, "v": v})

    feeds = {"c": np.array(True), "x": random(2), "v": random(2)}
    assert not run(with_gradients(graph_of(emit, feeds), "out0", ["x"]), feeds)["d0"].any()


# --- nested ------------------------------------------------------------------------------------------------
def nested(b: Builder, s: str, x: str, w: str) -> Sequence[str]:
    """A Scan in a Loop, an If in the Scan; w is captured through all of them."""

    def inner(b: Builder, s: str, x: str, w: str, n: str) -> Sequence[str]:
        positive = b.op("Greater", b.op("ReduceSum", x, keepdims=0), b.scalar(0, x))

        def then(b: Builder, s: str, x: str, w: str) -> Sequence[str]:
            return [b.op("Tanh", b.op("Add", b.op("MatMul", s, w), x))]

        def other(b: Builder, s: str, x: str, w: str) -> Sequence[str]:
            return [b.op("Mul", s, b.op("Sigmoid", x))]

        (s,) = choose(b, positive, then, other, {"s": s, "x": x, "w": w})
        return [s, b.op("Mul", s, n)]

    def step(b: Builder, i: str, go: str, s: str, x: str, w: str) -> Sequence[str]:
        n = b.op("Cast", i, to=11)
        s, rows = scan(b, inner, [s], [x], captures={"w": w, "n": n})
        return [go, s, b.op("ReduceSum", rows, b.ints([0]), keepdims=0)]

    return loop(b, step, [s], b.const(np.array(3)), captures={"x": x, "w": w})


def test_nested_loops_and_branches() -> None:
    verified(nested, s=random(2, 3), x=random(4, 2, 3, seed=1), w=random(3, 3, seed=2))


def test_operators_that_need_another_form_in_a_body() -> None:
    """A recurrent layer is a Scan, a loss needs an output more: inside of the body, once."""

    def emit(b: Builder, s: str, w: str, r: str, labels: str) -> Sequence[str]:
        def step(b: Builder, i: str, go: str, s: str, w: str, r: str, labels: str) -> Sequence[str]:
            y = b.add("LSTM", [s, w, r], {"hidden_size": 3}, 1)[0]
            y = b.op("Reshape", y, b.ints(b.shape(s)))
            loss = b.op("SoftmaxCrossEntropyLoss", b.op("Transpose", y, perm=(1, 2, 0)), labels)
            return [go, b.op("Add", s, y), loss]

        return loop(b, step, [s], b.const(np.array(2)), captures={"w": w, "r": r, "labels": labels})

    feeds = {"s": random(2, 2, 3), "w": random(1, 12, 3, seed=1), "r": random(1, 12, 3, seed=2)}
    labels = np.array([[0, 2], [1, 1]])
    graph = verified(emit, order=1, **feeds, labels=labels)
    forward = loops(with_gradients(graph, "out1", ["w"]))[0].attrs["body"]
    assert [n.op for n in forward.nodes].count("SoftmaxCrossEntropyLoss") == 1
    assert len(loops(forward)) == 1


def test_loop_in_a_branch() -> None:
    def emit(b: Builder, c: str, s: str, w: str) -> Sequence[str]:
        def then(b: Builder, s: str, w: str) -> Sequence[str]:
            return loop(b, powers, [s], b.const(np.array(2)), captures={"w": w})[:1]

        def other(b: Builder, s: str, w: str) -> Sequence[str]:
            return [b.op("Neg", s)]

        return choose(b, c, then, other, {"s": s, "w": w})

    verified(emit, c=np.array(True), s=random(2, 2), w=random(2, 2, seed=1))


# --- Gradient nodes ----------------------------------------------------------------------------------------
def test_gradient_node_in_a_body_and_through_it() -> None:
    """Each iteration takes a step of gradient descent; the whole is differentiated by where it starts and by a."""

    def emit(b: Builder, s: str, x: str, a: str) -> Sequence[str]:
        def step(b: Builder, s: str, x: str, a: str) -> Sequence[str]:
            loss = b.op("ReduceSum", b.op("Mul", b.op("Sin", b.op("Mul", s, a)), x), keepdims=0)
            (d,) = b.add(GRADIENT, [loss, s, s], {"xs": 1, "zs": 0})
            return [b.op("Sub", s, d)]

        return scan(b, step, [s], [x], captures={"a": a})

    verified(
        lambda b, **v: scan_expanded(emit, b, **v), order=1, s=random(3), x=random(2, 3, seed=1), a=random(3, seed=2)
    )


def test_gradient_nodes_in_a_body_and_around_it_are_expanded_together() -> None:
    def emit(b: Builder, s: str, x: str) -> Sequence[str]:
        def step(b: Builder, s: str, x: str) -> Sequence[str]:
            loss = b.op("ReduceSum", b.op("Mul", b.op("Sin", s), x), keepdims=0)
            return [*b.add(GRADIENT, [loss, s, s], {"xs": 1, "zs": 0})]

        (y,) = scan(b, step, [s], [x])
        return [y, *b.add(GRADIENT, [y, s, x, s, x], {"xs": 2, "zs": 0}, 2)]

    feeds = {"s": random(3), "x": random(2, 3, seed=1)}
    results = run(expand_gradients(graph_of(emit, feeds)), feeds)
    s, (x0, x1) = feeds["s"], feeds["x"]
    s1 = np.cos(s) * x0
    assert np.allclose(results["out0"], np.cos(s1) * x1)
    assert np.allclose(results["out1"], np.sin(s1) * x1 * np.sin(s) * x0)
    assert np.allclose(results["out2"], [-np.sin(s1) * x1 * np.cos(s), np.cos(s1)])


def scan_expanded(emit: Callable[..., Sequence[str]], b: Builder, **inputs: str) -> Sequence[str]:
    """What emit computes, its Gradient nodes expanded: a graph that can be evaluated."""
    alone = Builder()
    names = {k: alone.input(k, b.type(v)) for k, v in inputs.items()}
    for i, v in enumerate(emit(alone, **names)):
        alone.output(f"out{i}", v)
    return b.inline(expand_gradients(alone.build()), inputs)


def test_what_is_listed_in_zs_is_constant() -> None:
    """y = sum over t of (w + t)^2 x with k = w^2 captured as well: d/dw at constant k."""

    def emit(b: Builder, x: str, w: str) -> Sequence[str]:
        k = b.op("Mul", w, w)
        (y,) = scan(
            b, lambda b, s, x, w, k: [b.op("Add", s, b.op("Mul", b.op("Mul", w, k), x))],
            [b.const(np.zeros(2))], [x], captures={"w": w, "k": k},
        )  # fmt: skip
        free = b.add(GRADIENT, [y, w, w], {"xs": 1, "zs": 0})
        fixed = b.add(GRADIENT, [y, w, k, w, k], {"xs": 1, "zs": 1})
        return [*free, *fixed]

    feeds = {"x": random(3, 2), "w": random(2, seed=1)}
    results = run(expand_gradients(graph_of(emit, feeds)), feeds)
    total = feeds["x"].sum(0)
    assert np.allclose(results["out0"], 3 * feeds["w"] ** 2 * total)
    assert np.allclose(results["out1"], feeds["w"] ** 2 * total)


def test_two_gradients_share_the_forward_loop() -> None:
    """Each needs other values of the iterations: one forward Scan gives them all."""

    def emit(b: Builder, h: str, x: str, w: str) -> Sequence[str]:
        y, rows = scan(b, recurrence, [h], [x], captures={"w": w})
        dw = b.add(GRADIENT, [rows, w, w], {"xs": 1, "zs": 0})
        dx = b.add(GRADIENT, [y, x, h, x, h], {"xs": 2, "zs": 0}, 2)
        return [*dw, *dx]

    feeds = {"h": random(2, 3), "x": random(4, 2, 3, seed=1), "w": random(3, 3, seed=2)}
    graph = graph_of(emit, feeds)
    expanded = expand_gradients(graph)
    verify(expanded)
    assert [n.op for n in expanded.nodes].count("Scan") == 3
    results = run(expanded, feeds)
    forward = graph_of(lambda b, h, x, w: scan(b, recurrence, [h], [x], captures={"w": w}), feeds)
    for i, (y, x) in enumerate([("out1", "w"), ("out0", "x"), ("out0", "h")]):
        alone = run(with_gradients(forward, y, [x]), feeds)
        assert np.allclose(results[f"out{i}"], alone["d0"])


def test_all_problems_in_bodies_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, "Sinh")
    monkeypatch.delitem(RULES, "Cosh")

    def emit(b: Builder, c: str, x: str, s: str) -> Sequence[str]:
        def then(b: Builder, x: str) -> Sequence[str]:
            return [b.op("Sinh", x, name="one")]

        (x,) = choose(b, c, then, then, {"x": x})
        return [*scan(b, lambda b, s, x: [b.op("Add", s, b.op("Cosh", x, name="two"))], [s], [x]), x]

    graph = graph_of(emit, {"c": np.array(True), "x": random(2, 2), "s": random(2)})
    with pytest.raises(UnsupportedError) as e:
        with_gradients(graph, "out0", ["x"])
    told = sorted(f"{p.what} at {p.where}" for p in e.value.problems)
    assert len(told) == 2
    for text, op, name in zip(told, ("Cosh", "Sinh"), ("two", "one"), strict=True):
        assert f"needs {op}, which has no gradient rule at the node that computes {name!r}" in text


# --- what is kept ------------------------------------------------------------------------------------------
def products(graph: Graph) -> int:
    return sum(n.op in ("MatMul", "Gemm") for n in graph.nodes)


def loops(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op in ("Scan", "Loop")]


@pytest.mark.parametrize("direction", [0, 1])
def test_no_product_is_computed_twice_and_weights_get_one_for_all_iterations(direction: int) -> None:
    """Forward: one product in the body. Backward: one, for the state; that for w is outside of the loop."""

    def emit(b: Builder, h: str, x: str, w: str) -> Sequence[str]:
        return scan(
            b, recurrence, [h], [x], captures={"w": w}, directions=[direction], scan_output_directions=(direction,)
        )

    feeds = {"h": random(2, 3), "x": random(4, 2, 3, seed=1), "w": random(3, 3, seed=2)}
    expanded = with_gradients(graph_of(emit, feeds), "out1", ["h", "x", "w"])
    forward, backward = (n.attrs["body"] for n in loops(expanded))
    assert products(forward) == products(backward) == 1
    assert products(expanded) == 1
    assert not any(n.op == "Tanh" for n in backward.nodes)
    kept = set(forward.outputs) - {f"y{i}" for i in range(2)}
    assert len(kept) == 2  # the state before, and Tanh: Add and Mul are not needed


def test_what_never_changes_is_computed_outside() -> None:
    def step(b: Builder, s: str, x: str, w: str) -> Sequence[str]:
        return [b.op("Tanh", b.op("Add", b.op("MatMul", s, b.op("Exp", b.op("Transpose", w, perm=(1, 0)))), x))]

    def emit(b: Builder, s: str, x: str, w: str) -> Sequence[str]:
        return scan(b, step, [s], [x], captures={"w": w})

    feeds = {"s": random(2, 3), "x": random(4, 2, 3, seed=1), "w": random(3, 3, seed=2)}
    expanded = fold_constants(with_gradients(graph_of(emit, feeds), "out0", ["s", "x", "w"]))
    _, backward = (n.attrs["body"] for n in loops(expanded))
    assert not any(n.op in ("Exp", "Transpose") for n in backward.nodes)
