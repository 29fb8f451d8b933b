"""Elementwise work inside the kernels of batch normalization: the same bits, fewer loops, no more memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.codegen import join
from compiler.codegen.build import compile_graph
from compiler.codegen.plan import make_plan
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType, numpy_dtype
from tests.codegen.graphs import Running
from tests.codegen.test_bounds import vector_operations
from tests.codegen.test_graphs import check, f32

Make = Callable[..., Graph]
SHAPES = [(3, 5, 7, 6), (2, 3, 40, 30), (6, 70)]


def kernels(graph: Graph) -> list[str]:
    return [s.call.kernel.name for s in make_plan(graph).statements if s.call is not None]


def feeds(graph: Graph) -> dict[str, Any]:
    random, found = np.random.default_rng(1), {}
    for n in graph.inputs:
        t, a = graph.type(n), random.standard_normal(graph.type(n).shape).astype(np.float32)
        found[n] = (a.view(np.uint32) >> 16).astype(np.uint16) if t.dtype == "bf16" else a.astype(numpy_dtype(t.dtype))
    return found


def bits(graph: Graph, threads: int = 1) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in Running(graph, threads)(feeds(graph)).items()}


def same_bits_as_apart(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are those of loops of their own, on several threads too, and it takes no more memory."""
    joined, size = bits(graph), make_plan(graph).layout.arena_bytes
    assert bits(graph, 3) == joined
    with monkeypatch.context() as patch:
        patch.setattr(join, "BEHIND", frozenset())
        patch.setattr(join, "BEFORE", frozenset())
        assert any(name.startswith("loop") for name in kernels(graph))
        assert bits(graph) == joined
        assert size <= make_plan(graph).layout.arena_bytes


def forward(shape: tuple[int, ...], tail: Callable[[Builder, str, str], str], dtype: str = "f32") -> Graph:
    """A result of `tail(builder, y, r)`: of y, a normalized x, and another tensor r of its shape."""
    g = Builder()
    x, r = (g.input(n, TensorType(dtype, shape)) for n in "xr")
    scale, bias = (g.input(n, TensorType(dtype, (shape[1],))) for n in ("scale", "bias"))
    y, mean, variance = g.add("onnxc.BatchNorm", [x, scale, bias], {"epsilon": 1e-5}, ["y", "mean", "variance"])
    g.output("z", tail(g, y, r))
    g.output("mean", mean)
    g.output("variance", variance)
    g.output("x.read", g.op("GlobalAveragePool" if len(shape) > 2 else "Softmax", x))
    return g.build()


def _per_channel(g: Builder, y: str, r: str) -> str:
    shape = g.type(y).shape
    factor = g.input("factor", f32(1, shape[1], *(1 for _ in shape[2:])))
    return g.op("Mul", g.op("Add", y, g.input("shift", f32())), factor)


def _kept(g: Builder, y: str, r: str) -> str:
    g.output("y.kept", y)
    return g.op("Tanh", g.op("Sub", r, y))


def _several(g: Builder, y: str, r: str) -> str:
    size = g.op("Abs", y)
    g.output("mask", g.op("Greater", size, r))
    g.output("wide", g.op("Cast", size, to=11))
    return g.op("Neg", size)


TAILS: dict[str, Callable[[Builder, str, str], str]] = {
    "relu": lambda g, y, r: g.op("Relu", y),
    "leaky": lambda g, y, r: g.op("LeakyRelu", y, alpha=0.1),
    "relu6": lambda g, y, r: g.op("Clip", y, g.scalar(0, y), g.scalar(6, y)),
    "hard swish": lambda g, y, r: g.op("HardSwish", y),
    "swish": lambda g, y, r: g.op("Mul", y, g.op("Sigmoid", y)),
    "residual": lambda g, y, r: g.op("Relu", g.op("Add", y, r)),
    "multiply-add": lambda g, y, r: g.op("Add", g.op("Mul", y, r), r),
    "per channel": _per_channel,
    "kept": _kept,
    "several": _several,
}


def backward(shape: tuple[int, ...], head: Callable[[Builder, str, str], str], dtype: str = "f32") -> Graph:
    """Gradients of a normalization by `head(builder, g, a)`: of a gradient g and a tensor a of its shape.

    g and a are results of products, so that their memory is free afterwards.
    """
    g = Builder()
    x = g.input("x", TensorType(dtype, shape))
    given = [g.op("Softmax", g.input(n, TensorType(dtype, shape))) for n in "ga"]
    statistics = [g.input(n, TensorType(dtype, (shape[1],))) for n in ("scale", "mean", "inv")]
    dy = head(g, *given)
    results = g.add("onnxc.BatchNormGrad", [dy, x, *statistics], {}, ["dx", "dscale", "dbias"])
    for v in results:
        g.output(v, v)
    return g.build()


def _mask(g: Builder, dy: str, a: str) -> str:
    return g.op("Where", g.op("Greater", a, g.scalar(0.15, a)), dy, g.scalar(0, dy))


def _read_twice(g: Builder, dy: str, a: str) -> str:
    masked = _mask(g, dy, a)
    g.output("masked", masked)
    return masked


def _also_sum(g: Builder, dy: str, a: str) -> str:
    total = g.op("Add", dy, a)
    g.output("total", total)
    return _mask(g, total, a)


HEADS: dict[str, Callable[[Builder, str, str], str]] = {
    "mask": _mask,
    "product": lambda g, dy, a: g.op("Mul", dy, a),
    "sum": lambda g, dy, a: _mask(g, g.op("Add", dy, a), a),
    "long": lambda g, dy, a: g.op("Mul", dy, g.op("Tanh", a)),
    "read twice": _read_twice,
    "several": _also_sum,
}


CASES: dict[str, tuple[Make, Callable[[Builder, str, str], str], tuple[int, ...]]] = {
    f"{make.__name__}, {name}, {len(shape)} axes of {shape[-1]}": (make, work[name], shape)
    for make, work, others in ((forward, TAILS, ("residual", "per channel")), (backward, HEADS, ("sum", "long")))
    for shape in SHAPES
    for name in (work if shape == SHAPES[0] else others)
}


@pytest.mark.parametrize("case", CASES)
def test_work_is_joined(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, work, shape = CASES[case]
    graph = make(shape, work)
    assert not [k for k in kernels(graph) if k.startswith("loop")]
    if shape == SHAPES[0]:
        check(graph, feeds(graph), steps=1)
    same_bits_as_apart(graph, monkeypatch)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_other_floats(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same_bits_as_apart(forward((3, 4, 6, 5), TAILS["residual"], dtype), monkeypatch)
    same_bits_as_apart(backward((3, 4, 6, 5), HEADS["sum"], dtype), monkeypatch)
    same_bits_as_apart(backward((3, 4, 6, 5), HEADS["long"], dtype), monkeypatch)


def test_a_mask_and_the_gradient_lie_where_their_operands_did() -> None:
    graph = backward((4, 3, 50, 50), _mask)
    plan = make_plan(graph)
    value = 4 * 4 * 3 * 50 * 50
    inputs = 3 * value  # x, g and a; Softmaxes of two of them take as much, and become the masked gradient and dx
    assert plan.layout.arena_bytes < inputs + 2.1 * value


@pytest.mark.parametrize(("graph", "wanted"), [(forward, {"fmul", "fcmp"}), (backward, {"select", "fcmp", "fadd"})])
def test_vectors(graph: Callable[..., Graph], wanted: set[str]) -> None:
    joined = graph((3, 5, 7, 6), TAILS["relu"] if graph is forward else _mask)
    (kernel,) = {s.call.kernel for s in make_plan(joined).statements if s.call and "batch" in s.call.kernel.name}
    assert wanted <= vector_operations(kernel)


def test_two_gradients_share_what_the_first_one_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    def head(g: Builder, dy: str, a: str) -> str:
        masked = _mask(g, dy, a)
        other = g.input("other", f32(3, 5, 7, 6))
        statistics = [g.input(n, f32(5)) for n in ("scale2", "mean2", "inv2")]
        for v in g.add("onnxc.BatchNormGrad", [masked, other, *statistics], {}, ["dx2", "dscale2", "dbias2"]):
            g.output(v, v)
        return masked

    graph = backward((3, 5, 7, 6), head)
    assert kernels(graph).count("batch_norm_grad_planes") == 2
    assert not [k for k in kernels(graph) if k.startswith("loop")]
    same_bits_as_apart(graph, monkeypatch)


def test_two_normalizations_that_are_added() -> None:
    def tail(g: Builder, y: str, r: str) -> str:
        z, _, _ = g.add("onnxc.BatchNorm", [r, "scale", "bias"], {"epsilon": 1e-5}, ["z", "mean2", "variance2"])
        return g.op("Relu", g.op("Add", y, z))

    graph = forward((3, 5, 7, 6), tail)
    assert kernels(graph).count("batch_norm_planes") == 2
    assert not [k for k in kernels(graph) if k.startswith("loop")]
    check(graph, feeds(graph), steps=1)


def _excitation(g: Builder, y: str, r: str) -> str:
    return g.op("Mul", y, g.op("GlobalAveragePool", y))


def _statistics(g: Builder, y: str, r: str) -> str:
    centre = g.op("Reshape", "mean", g.ints((1, 5, 1, 1)))
    return g.op("Add", y, centre)


def _turned(g: Builder, y: str, r: str) -> str:
    return g.op("Add", y, g.op("Transpose", g.input("t", f32(6, 7, 5, 3)), perm=(3, 2, 1, 0)))


def _row(g: Builder, y: str, r: str) -> str:
    return g.op("Add", y, g.input("row", f32(6)))


def _later(g: Builder, y: str, r: str) -> str:
    g.output("middle", g.op("Softmax", y))
    return g.op("Add", y, g.op("Softmax", r))


@pytest.mark.parametrize("tail", [_excitation, _statistics, _row, _later])
def test_what_cannot_run_there_stays_a_loop(tail: Callable[[Builder, str, str], str]) -> None:
    graph = forward((3, 5, 7, 6), tail)
    assert [k for k in kernels(graph) if k.startswith("loop")]
    check(graph, feeds(graph), steps=1)


def test_what_is_transposed_is_read_as_it_lies() -> None:
    graph = forward((3, 5, 7, 6), _turned)
    check(graph, feeds(graph), steps=1)


def test_no_elements() -> None:
    for shape in [(0, 3, 4), (2, 0, 4), (2, 3, 0)]:
        graph = forward(shape, lambda g, y, r: g.op("Relu", g.op("Add", y, r)))
        assert Running(graph)(feeds(graph))["z"].shape == shape


def test_the_source_shows_the_work() -> None:
    code = compile_graph(forward((3, 5, 7, 6), TAILS["residual"]))
    lines = code.source.split("\n")
    call = next(i for i, line in enumerate(lines) if line.startswith("    batch_norm_planes("))
    above = [line.split(" = ")[1].partition("(")[0] for line in lines[call - 4 : call] if line.startswith("    # ")]
    assert above == ["onnxc.BatchNorm", "Add", "Relu"]
    assert any(line.startswith("def then_add_relu(value, table, first, i, channel):") for line in lines)
