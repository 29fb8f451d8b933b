"""Elementwise work inside the kernels of reductions: the same bits, an operand without memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler.codegen import join, offsets
from compiler.codegen.build import compile_graph
from compiler.codegen.native.guard import guarded
from compiler.codegen.plan import make_plan
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from tests.codegen.graphs import Running
from tests.codegen.test_graphs import check, f32
from tests.codegen.test_join import bits, feeds, kernels

Chain = Callable[[Builder, str, str], str]


def reduction(
    chain: Chain,
    shape: tuple[int, ...] = (40, 600),
    axes: tuple[int, ...] = (1,),
    op: str = "Mean",
    dtype: str = "f32",
    keepdims: int = 1,
) -> Graph:
    """A reduction of `chain(builder, x, y)`. x and y are results too, so that nothing can lie over them."""
    g = Builder()
    x, y = (g.input(n, TensorType(dtype, shape)) for n in "xy")
    for v in (x, y):
        g.output(f"{v}.kept", v)
    g.output("z", g.op(f"Reduce{op}", chain(g, x, y), g.ints(axes), keepdims=keepdims))
    return g.build()


def apart(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> tuple[dict[str, bytes], int]:
    """Bits and size of a graph whose reductions compute no elements."""
    with monkeypatch.context() as patch:
        patch.setattr(join, "REDUCTIONS", frozenset())
        assert any(name.startswith("loop") for name in kernels(graph))
        return bits(graph), make_plan(graph).layout.arena_bytes


def is_joined(graph: Graph) -> bool:
    return not any(name.startswith("loop") for name in kernels(graph))


def joins(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> int:
    """It is joined, with the bits of a loop of its own, on several threads too; how many bytes less it takes."""
    assert is_joined(graph)
    before, size = apart(monkeypatch, graph)
    assert bits(graph) == before
    assert bits(graph, 2) == before
    return size - make_plan(graph).layout.arena_bytes


def squared_error(g: Builder, x: str, y: str) -> str:
    d = g.op("Sub", x, y)
    return g.op("Mul", d, d)


def _broadcast(*shape: int) -> Chain:
    def chain(g: Builder, x: str, y: str) -> str:
        return g.op("Abs", g.op("Sub", g.op("Mul", x, g.input("b", TensorType(g.type(x).dtype, shape))), y))

    return chain


def _masked(g: Builder, x: str, y: str) -> str:
    return g.op("Where", g.op("Greater", x, y), x, g.scalar(0, x))


def _multiply_add(g: Builder, x: str, y: str) -> str:
    """What LLVM would fuse with the sum of the reduction, were it one expression."""
    return g.op("Mul", x, g.op("Add", g.op("Mul", x, y), y))


def _strided(g: Builder, x: str, y: str) -> str:
    rows, columns = g.type(x).shape
    wide = g.op("Softmax", g.input("wide", f32(rows, columns + 8)))
    g.output("wide.kept", "wide")
    part = g.op("Slice", wide, g.ints([4]), g.ints([columns + 4]), g.ints([1]))
    return g.op("Mul", g.op("Sub", x, part), y)


CHAINS: dict[str, Chain] = {
    "squared error": squared_error,
    "square": lambda g, x, y: g.op("Mul", x, x),
    "masked": _masked,
    "multiply-add": _multiply_add,
    "tanh": lambda g, x, y: g.op("Mul", g.op("Tanh", x), y),
    "scalar": _broadcast(),
    "row": _broadcast(600),
    "column": _broadcast(40, 1),
    "strided": _strided,
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("op", ["Mean", "L2"])
def test_work_is_joined(name: str, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = reduction(CHAINS[name], op=op)
    assert joins(graph, monkeypatch) > 4 * 40 * 600 - 4096
    check(graph, feeds(graph), steps=1)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((70001,), (0,)),  # in parts
    ((300, 700), (0, 1)),
    ((16, 512), (1,)),
    ((17, 1025), (-1,)),
    ((20, 3, 700), (2,)),
    ((20, 30, 70), (1, 2)),
    ((2, 1, 70000), (1, 2)),
    ((4, 5, 1, 2100), (3,)),
]


@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = reduction(squared_error, shape, axes, "Sum", keepdims=keepdims)
    assert joins(graph, monkeypatch) > 0


def test_operands_that_are_broadcast_along_several_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    for own in [(5, 1, 130), (1, 4, 1), (7, 1, 1, 130), (7, 5, 4, 1), (5, 4, 130), (1, 1, 1, 1), (7, 1, 4, 1)]:
        joins(reduction(_broadcast(*own), (7, 5, 4, 130), (2, 3)), monkeypatch)
        wide = tuple(520 if n == 130 else n for n in own)
        joins(reduction(_broadcast(*wide), (7, 5, 4, 520), (0, 1, 2, 3)), monkeypatch)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_floats(op: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape, axes in (((18, 1100), (1,)), ((66000,), (0,))):
        joins(reduction(squared_error, shape, axes, op, dtype), monkeypatch)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "SumSquare", "L1"])
@pytest.mark.parametrize("dtype", ["i32", "i64", "u32", "u64"])
def test_integers(op: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(g: Builder, x: str, y: str) -> str:
        return g.op("Add", g.op("Mul", x, x), y)

    joins(reduction(chain, (18, 1100), (1,), op, dtype), monkeypatch)


def test_booleans_and_narrow_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    joins(reduction(lambda g, x, y: g.op("Greater", x, y), (18, 1100), (1,), "Max"), monkeypatch)
    joins(reduction(lambda g, x, y: g.op("Cast", g.op("Mul", x, y), to=3), (18, 1100), (1,), "Min"), monkeypatch)


def test_a_reshaped_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(g: Builder, x: str, y: str) -> str:
        return g.op("Reshape", squared_error(g, x, y), g.ints([20, -1]))

    assert joins(reduction(chain), monkeypatch) >= 4 * 40 * 600


def test_what_others_read_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Builder()
    x, y = g.input("x", f32(40, 600)), g.input("y", f32(40, 600))
    v = squared_error(g, g.op("Softmax", x), y)
    g.output("z", g.op("ReduceMean", v, g.ints([1])))
    g.output("kept", v)
    g.output("also read", g.op("Softmax", v))
    graph = g.build()
    joins(graph, monkeypatch)
    check(graph, feeds(graph), steps=1)
    assert any(v in taken for taken in make_plan(graph).memory.inplace.values())  # over one of its operands


def test_other_results_of_the_group_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(g: Builder, x: str, y: str) -> str:
        d = g.op("Sub", x, y)
        g.output("difference", d)
        return g.op("Mul", d, d)

    assert joins(reduction(chain), monkeypatch) >= 4 * 40 * 600


def test_one_of_two_reductions_takes_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(g: Builder, x: str, y: str) -> str:
        v = squared_error(g, x, y)
        g.output("largest", g.op("ReduceMax", v, g.ints([0, 1])))
        return v

    joins(reduction(chain), monkeypatch)


def test_a_training_step_of_a_squared_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference is read by the gradient too: only its square has no memory."""
    g = Builder()
    x, t = g.input("x", f32(256, 16)), g.input("t", f32(256, 300))
    w = g.state("w", np.full((16, 300), 0.1, np.float32))
    d = g.op("Sub", g.op("MatMul", x, w), t)
    g.output("loss", g.op("ReduceMean", g.op("Mul", d, d), g.ints([0, 1]), keepdims=0))
    slope = g.op("Mul", d, g.scalar(2 / (256 * 300), d))
    gradient = g.op("MatMul", g.op("Transpose", x, perm=(1, 0)), slope)
    g.output("norm", g.op("ReduceL2", g.op("Mul", gradient, g.scalar(0.5, gradient)), g.ints([0, 1]), keepdims=0))
    g.update("w", g.op("Sub", w, gradient))
    graph = g.build()
    check(graph, feeds(graph))
    before, _ = apart(monkeypatch, graph)
    assert bits(graph) == bits(graph, 2) == before
    assert len(kernels(graph)) < len(_apart_kernels(monkeypatch, graph))


def _apart_kernels(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> list[str]:
    with monkeypatch.context() as patch:
        patch.setattr(join, "REDUCTIONS", frozenset())
        return kernels(graph)


def _later(g: Builder, x: str, y: str) -> str:
    v = squared_error(g, x, y)
    g.output("between", g.op("Softmax", x))
    return v


@pytest.mark.parametrize(
    ("chain", "shape", "axes", "op"),
    [
        (_later, (40, 600), (1,), "Mean"),  # large values in between
        (squared_error, (600, 40), (0,), "Mean"),  # across rows
        (squared_error, (20, 30, 600), (0, 2), "Mean"),  # rows that lie apart
        (squared_error, (40, 100), (1,), "Mean"),  # short rows
        (squared_error, (8, 600), (1,), "Mean"),  # few units
        (_broadcast(10), (8000, 10), (0, 1), "Mean"),  # short runs
        (squared_error, (40, 600), (1,), "LogSumExp"),  # reads twice
        (squared_error, (40, 0), (1,), "Sum"),
        (lambda g, x, y: g.op("BitCast", squared_error(g, x, y), to=6), (40, 600), (1,), "Max"),
    ],
)
def test_what_stays_a_loop(
    chain: Chain, shape: tuple[int, ...], axes: tuple[int, ...], op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = reduction(chain, shape, axes, op)
    assert not is_joined(graph)
    assert bits(graph) == apart(monkeypatch, graph)[0]


def test_no_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reduced: elements are as many as results."""
    graph = reduction(squared_error, (40, 1), (1,), "SumSquare")
    assert not is_joined(graph)


def test_a_checked_kernel_stays_in_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(g: Builder, x: str, y: str) -> str:
        d = g.op("Mul", g.op("Sub", x, y), g.input("row", f32(600)))
        g.output("difference", d)
        return g.op("Mul", d, d)

    monkeypatch.setattr(offsets.Pieces, "give", lambda self, piece: None)
    graph = reduction(chain)
    assert is_joined(graph)
    with guarded() as guard:
        run = Running(graph)
        executable = run._executable
        for block in executable._blocks.values():
            guard.allow((block.address, block.address + block.bytes.nbytes))
        table = executable._table
        guard.allow((table.ctypes.data, table.ctypes.data + table.nbytes))
        outputs = run(feeds(graph))
        assert guard.violations == 0, guard.first
    for name, a in Running(graph)(feeds(graph)).items():  # a checked sum is not in lanes
        np.testing.assert_allclose(outputs[name], a, rtol=1e-5)


def test_the_source_shows_the_work() -> None:
    lines = compile_graph(reduction(squared_error)).source.split("\n")
    call = next(i for i, line in enumerate(lines) if line.startswith("    reduce_rows("))
    above = [line.split(" = ")[1].partition("(")[0] for line in lines[call - 3 : call]]
    assert above == ["Sub", "Mul", "ReduceMean"]
    kernel = next(i for i, line in enumerate(lines) if line.startswith("def reduce_rows("))
    assert "load = from_sub_mul" in lines[kernel - 1]
    assert any(line.startswith("def from_sub_mul(table, room, begin, count):") for line in lines)
