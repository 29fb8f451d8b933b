"""Calls that run together block by block: which do, in what order, and that nothing comes out different."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen import strips as strips_module
from compiler.codegen.build import compile_graph
from compiler.codegen.calls import Call
from compiler.codegen.kernels import gemm_tile
from compiler.codegen.kernels.gemm_tile import TOGETHER, rows_together
from compiler.codegen.native import kernel, tile_for
from compiler.codegen.spans import Placed, Span
from compiler.codegen.strips import LEAST, SHARES, Strip, strips
from compiler.codegen.support import has_kernel
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.passes.pipeline import passes, run
from tests.codegen.graphs import Running

RANDOM = np.random.default_rng(0)


@kernel
def nothing(lo: int, hi: int) -> None:
    """Is never run."""


# --- the order ---------------------------------------------------------------------------------------------

ROOM = 96


@st.composite
def placed(draw: st.DrawFn) -> list[Placed]:
    """Calls on a little memory, of which each goes through some in pieces and touches some as a whole."""
    made = []
    for _ in range(draw(st.integers(1, 9))):
        groups = draw(st.sampled_from([2, 8, 16]))
        together = draw(st.sampled_from([1, 3]))
        spans = []
        for _ in range(draw(st.integers(1, 3))):
            start, written = 16 * draw(st.integers(0, 5)), draw(st.booleans())
            if draw(st.integers(0, 3)):
                spans.append(Span(0, start, start + 16, written, 16 // groups))
            else:
                spans.append(Span(0, start, start + draw(st.sampled_from([8, 16])), written))
        step = 1 if any(s.piece for s in spans) else 0
        call = Placed(Call(nothing, groups * together, (), together=together), 0, step, spans, [])
        if all(a is b or a.ratio(b) == 1 for a, b in call.meetings(call)):  # else its own items would meet
            made.append(call)
    return made


def act(memory: list[int], c: Placed, items: range) -> None:
    """What a call does, if it is the most it may do: all that it writes depends on all that it reads."""
    for item in items:
        group = item // c.call.together
        mine = [
            range(s.start + group * s.piece, s.start + (group + 1) * s.piece) if s.piece else range(s.start, s.end)
            for s in c.spans
        ]
        read = [own for s, own in zip(c.spans, mine, strict=True) if s.piece or not s.written]
        seen = hash((id(c), item, *(memory[at] for own in read for at in own)))
        for s, own in zip(c.spans, mine, strict=True):
            for at in own if s.written else ():  # where items write without telling which bytes, any order will do
                memory[at] = hash((memory[at], seen, at)) if s.piece else memory[at] + seen


def in_order(found: list[Strip]) -> Iterator[tuple[Placed, range]]:
    for strip in found:
        if not strip.blocks:
            (c,) = strip.calls
            yield c, range(c.call.n)
        for block in range(strip.blocks):
            for c, step in zip(strip.calls, strip.steps, strict=True):
                yield c, range(block * step, min(c.call.n, (block + 1) * step))


def cut(calls: list[Placed], threads: int = 1) -> list[Strip]:
    """The strips of calls, however little memory they go through."""
    with patch.object(strips_module, "BYTES", 1):
        return list(strips(calls, threads))


@settings(max_examples=400, deadline=None)
@given(placed())
def test_the_order_of_strips_gives_what_the_order_of_calls_does(calls: list[Placed]) -> None:
    found = cut(calls)
    assert sorted(id(c) for strip in found for c in strip.calls) == sorted(map(id, calls))
    expected, memory = list(range(ROOM)), list(range(ROOM))
    for c in calls:
        act(expected, c, range(c.call.n))
    done: dict[int, int] = {}
    for c, items in in_order(found):
        act(memory, c, items)
        done[id(c)] = done.get(id(c), 0) + len(items)
    assert memory == expected
    assert all(done[id(c)] == c.call.n for c in calls)


@settings(max_examples=400, deadline=None)
@given(placed())
def test_blocks_of_a_strip_do_not_meet(calls: list[Placed]) -> None:
    """Threads take blocks in any order."""
    for strip in cut(calls):
        memories = []
        for order in (range(strip.blocks), reversed(range(strip.blocks))):
            memory = list(range(ROOM))
            for block in order:
                for c, step in zip(strip.calls, strip.steps, strict=True):
                    act(memory, c, range(block * step, min(c.call.n, (block + 1) * step)))
            memories.append(memory)
        assert memories[0] == memories[1]


@pytest.mark.parametrize("m", [*range(1, 200, 7), 256, 512, 1000, 4096, 16384])
@pytest.mark.parametrize("tile", [(14, 12), (6, 4), (14, 14), (8, 6)])
def test_rows_together(m: int, tile: tuple[int, int]) -> None:
    rows = rows_together(m, *tile)
    if rows:
        assert -(-m // rows) >= gemm_tile.SHARES
        assert TOGETHER[0] * tile[1] <= rows * tile[0]
        assert rows <= TOGETHER[1]
        tiles = -(-rows // tile[0])
        assert rows >= tiles * tile[1], "some tile would be empty"
    else:
        assert m <= gemm_tile.SHARES * (TOGETHER[0] + tile[0])


# --- whole graphs ------------------------------------------------------------------------------------------


def f32(*shape: int) -> TensorType:
    return TensorType("f32", shape)


def normal(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 0.1).astype(np.float32)


def outcome(graph: Graph, feeds: Mapping[str, Any], threads: int) -> bytes:
    """The bits of all outputs and states after two steps."""
    running = Running(graph, threads)
    return b"".join(a.tobytes() for _ in range(2) for a in (*running(feeds).values(), *running.state.values()))


def parts(graph: Graph) -> list[list[str]]:
    """The kernels of each strip, by name without numbers."""
    found: list[list[str]] = []
    for line in compile_graph(graph, 1).source.split("\n"):
        if "for block in share(" in line:
            found.append([])
        elif name := re.match(r" +(\w+?)(_\d+)?_part\(table", line):
            found[-1].append(name[1])
    return found


def roomy() -> Builder:
    """A graph that needs a lot of memory at first, so that later on there is enough for what is done with to stay."""
    g = Builder()
    large = g.input("large", f32(4, 1 << 18))
    g.output("sum", g.op("ReduceSum", g.op("Softmax", g.op("Softmax", large))))
    return g


LARGE = np.zeros((4, 1 << 18), np.float32)


def same_bits(graph: Graph, feeds: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The strips of a graph, once it has the same results as without, on any number of threads."""
    monkeypatch.setattr(strips_module, "BYTES", 1 << 12)
    found = [strip for strip in parts(graph) if "softmax" not in strip[0]]
    feeds = {"large": LARGE, **feeds}
    bits = {outcome(graph, feeds, threads) for threads in (1, 2, 3)}
    with monkeypatch.context() as m:
        m.setattr(strips_module, "LEAST", 1 << 60)
        assert not parts(graph)
        bits.add(outcome(graph, feeds, 1))
    assert len(bits) == 1
    return found


@pytest.mark.parametrize("rows", [224, 301, 1000])
@pytest.mark.parametrize("columns", [40, 256])
def test_products_with_what_is_around_them(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bias, activation, mask and residual behind a product; before one the gradient of an activation."""
    g = roomy()
    x, mask = g.input("x", f32(rows, 64)), g.input("mask", f32(rows, columns))
    w, v = g.input("w", f32(64, columns)), g.input("v", f32(columns, 64))
    bias, dy = g.input("bias", f32(columns)), g.input("dy", f32(rows, 64))
    hidden = g.op("Mul", g.op("Relu", g.op("Add", g.op("MatMul", x, w), bias)), mask)
    g.output("y", g.op("Add", g.op("MatMul", hidden, v), x))
    dh = g.op("Where", g.op("Greater", mask, g.const(np.float32(0))), g.op("Gemm", dy, v, transB=1), mask)
    g.output("dx", g.op("Gemm", dh, w, transB=1))
    feeds = {"x": normal(rows, 64), "mask": normal(rows, columns), "w": normal(64, columns), "v": normal(columns, 64),
             "bias": normal(columns), "dy": normal(rows, 64)}  # fmt: skip
    found = same_bits(g.build(), feeds, monkeypatch)
    assert [[name.partition("_")[0] for name in strip] for strip in found] == [
        ["gemm", "loop"] * 2,
        ["gemm", "loop", "gemm"],
    ]


def test_a_product_for_a_weight_with_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    g = roomy()
    x, dy = g.input("x", f32(100, 300)), g.input("dy", f32(100, 200))
    w = g.state("w", normal(300, 200))
    rate = g.const(np.float32(0.1))
    g.update(w, g.op("Sub", w, g.op("Mul", g.op("Gemm", x, dy, transA=1), rate)))
    graph = run(g.build(), passes(has_kernel))
    assert graph.nodes[-1].op == "onnxc.SgdStep"
    found = same_bits(graph, {"x": normal(100, 300), "dy": normal(100, 200)}, monkeypatch)
    assert found == [["gemm", "sgd_step"]]


def test_rows_of_a_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    g = roomy()
    x = g.input("x", f32(4, 64, 32))
    q, k, v = (g.op("Transpose", g.op("Reshape", g.op("MatMul", x, g.const(normal(32, 32))), g.ints([4, 64, 4, 8])),
                    perm=[0, 2, 1, 3]) for _ in range(3))  # fmt: skip
    scores = g.op("Div", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), g.const(np.float32(3)))
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
    joined = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints([4, 64, 32]))
    added = g.op("Add", g.op("MatMul", joined, g.const(normal(32, 32))), x)
    y = g.op("LayerNormalization", added, g.const(normal(32)), g.const(normal(32)), axis=-1)
    up = g.op("Gelu", g.op("MatMul", y, g.const(normal(32, 128))))
    g.output("y", g.op("Add", g.op("MatMul", up, g.const(normal(128, 32))), added))
    found = same_bits(g.build(), {"x": normal(4, 64, 32)}, monkeypatch)
    assert found == [
        ["small_gemm", "loop_div", "softmax_rows", "small_gemm"],
        ["gemm", "loop_add", "layer_norm", "gemm", "loop_gelu", "gemm", "loop_add"],
    ]


@pytest.mark.parametrize("images", [8, 9, 70])
@pytest.mark.parametrize("group", [1, 2, 6])
def test_images(images: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution, its activation and the pool behind that."""
    g = roomy()
    x = g.input("x", f32(images, 6, 10, 9))
    y = g.op("Conv", x, g.const(normal(12, 6 // group, 3, 3)), g.const(normal(12)), group=group, pads=[1, 1, 1, 1])
    pooled = g.op("MaxPool", g.op("Relu", y), kernel_shape=[2, 2], strides=[2, 2])
    g.output("y", g.op("Sigmoid", g.op("Conv", pooled, g.const(normal(12, 12 // group, 1, 1)), group=group)))
    found = same_bits(g.build(), {"x": normal(images, 6, 10, 9)}, monkeypatch)
    assert found[0][1:3] == ["loop_relu", "max_pool"]


@pytest.mark.parametrize("images", [8, 11])
@pytest.mark.parametrize("group", [1, 2])
def test_images_in_tiles(images: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd's convolution, forward and backward, between activations; an image may be shared by several items."""
    pads = {"group": group, "pads": [1, 1, 1, 1]}
    w, v = normal(32, 32 // group, 3, 3), normal(32, 32 // group, 3, 3)
    g = roomy()
    x = g.input("x", f32(images, 32, 32, 32))
    y = g.op("Relu", g.op("Conv", x, g.const(w), g.const(normal(32)), **pads))
    g.output("y", g.op("Sigmoid", g.op("Conv", y, g.const(v), **pads)))
    found = same_bits(g.build(), {"x": normal(images, 32, 32, 32)}, monkeypatch)
    assert found == [["winograd", "loop_relu", "winograd", "loop_sigmoid"]]
    g = roomy()
    x, dy = g.input("x", f32(images, 32, 32, 32)), g.input("dy", f32(images, 32, 32, 32))
    dx = g.op("ConvTranspose", g.op("Where", g.op("Greater", x, dy), dy, x), g.const(v), **pads)
    g.output("dx", g.op("Sigmoid", dx))
    found = same_bits(g.build(), {"x": normal(images, 32, 32, 32), "dy": normal(images, 32, 32, 32)}, monkeypatch)
    whole = [["loop_greater_where", "winograd", "loop_sigmoid"]]
    assert found == whole or (found == [] and tile_for("f32").vl < 16)  # else items may go beyond an image


def test_the_weight_of_a_convolution_with_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    g = roomy()
    x, dy = g.input("x", f32(8, 64, 32, 32)), g.input("dy", f32(8, 64, 32, 32))
    w, rate = g.state("w", normal(64, 64, 3, 3)), g.const(np.float32(0.1))
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1], "dilations": [1, 1], "group": 1}
    dw = g.op("onnxc.ConvWeightGrad", dy, x, **window)
    g.update(w, g.op("Sub", w, g.op("Mul", dw, rate)))
    found = same_bits(
        run(g.build(), passes(has_kernel)), {"x": normal(8, 64, 32, 32), "dy": normal(8, 64, 32, 32)}, monkeypatch
    )
    assert found == [["winograd_weight_end", "sgd_step"]]


def test_calls_before_a_strip_are_one_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes between the calls of a strip, and needs none of them, runs before."""
    g = roomy()
    x, other = g.input("x", f32(400, 64)), g.input("other", f32(500, 64))
    w, v = g.input("w", f32(64, 64)), g.input("v", f32(64, 96))
    first = g.op("MatMul", x, w)
    second = g.op("MatMul", other, v)
    g.output("second", g.op("Sigmoid", second))
    g.output("first", g.op("Relu", first))
    feeds = {"x": normal(400, 64), "other": normal(500, 64), "w": normal(64, 64), "v": normal(64, 96)}
    assert same_bits(g.build(), feeds, monkeypatch) == [["gemm", "loop_sigmoid"], ["gemm", "loop_relu"]]


def test_packing_and_sums_in_between_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a bias is a sum of what a strip computes: it waits; packing of a weight comes first."""
    g = roomy()
    x, dy = g.input("x", f32(400, 50)), g.input("dy", f32(400, 300))
    dh = g.op("Where", g.op("Greater", dy, g.const(np.float32(0))), dy, g.const(np.float32(0)))
    g.output("db", g.op("ReduceSum", dh, g.ints([0]), keepdims=0))
    g.output("dx", g.op("MatMul", dh, g.input("w", f32(300, 200))))
    g.output("dw", g.op("Gemm", x, dh, transA=1))
    feeds = {"x": normal(400, 50), "dy": normal(400, 300), "w": normal(300, 200)}
    found = same_bits(g.build(), feeds, monkeypatch)
    assert ["loop_greater_where", "gemm"] in found


@pytest.mark.parametrize(("threads", "least"), [(1, LEAST), (2, LEAST), (4, 4 * SHARES), (32, 32 * SHARES)])
def test_few_blocks_are_no_strip(threads: int, least: int) -> None:
    for blocks in (least - 1, least):
        calls = [Placed(Call(nothing, blocks, ()), 0, 1, [Span(0, 0, 16 * blocks, True, 16)], []) for _ in range(2)]
        assert [s.blocks for s in cut(calls, threads)] == ([blocks] if blocks == least else [0, 0])


def test_what_would_leave_too_few_blocks_stays_out() -> None:
    """Two calls of 32 groups, then one of 4, which is alone."""
    calls = [Placed(Call(nothing, n, ()), 0, 1, [Span(0, 0, 128, True, 128 // n)], []) for n in (32, 32, 4)]
    assert [(len(s.calls), s.blocks) for s in cut(calls)] == [(2, 32), (1, 0)]


def test_small_values_are_no_strip() -> None:
    """They stay in the cache anyway."""
    for size in (strips_module.BYTES // 32 - 8, strips_module.BYTES // 32):
        calls = [Placed(Call(nothing, 32, ()), 0, 1, [Span(0, 0, 32 * size, True, size)], []) for _ in range(2)]
        assert len(list(strips(calls, 1))) == (1 if 32 * size >= strips_module.BYTES else 2)
