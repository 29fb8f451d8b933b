"""fuse_attention: what it finds, what it leaves, that it keeps the values, and the memory that it saves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

import compiler
from compiler.codegen.support import has_kernel
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes import attention_spelling
from compiler.passes.fuse_attention import fuse_attention
from compiler.passes.gradients import expand_gradients
from compiler.passes.pipeline import passes, run
from tests.codegen.graphs import Running
from tests.validate import random_feeds, validate

QUERIES, KEYS, SIZE, WIDTH = 6, 9, 4, 5
CAUSAL = np.tril(np.ones((QUERIES, KEYS), bool))
LEAST = float(np.finfo(np.float32).min)

Scores = Callable[[Builder, str, str], str]


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_spelling, "LARGE", 0)


def turned(b: Builder, k: str) -> str:
    rank = len(b.shape(k))
    return b.op("Transpose", k, perm=(*range(rank - 2), rank - 1, rank - 2))


def plain(b: Builder, q: str, k: str) -> str:
    return b.op("MatMul", q, turned(b, k))


def number(b: Builder, x: float) -> str:
    return b.const(np.float32(x))


def scale_on_both(b: Builder, q: str, k: str) -> str:
    """As PyTorch's exporters write it."""
    root = number(b, math.sqrt(1 / math.sqrt(SIZE)))
    return b.op("MatMul", b.op("Mul", q, root), b.op("Mul", turned(b, k), root))


def one_transposition(b: Builder, q: str, k: str) -> str:
    """Keys [B, S, H, d] come as [B, H, d, S] in one step."""
    flat = b.op("Transpose", k, perm=(0, 2, 1, 3))
    return b.op("MatMul", q, b.op("Transpose", flat, perm=(0, 2, 3, 1)))


def reshaped_between(b: Builder, q: str, k: str) -> str:
    rows = b.op("Transpose", b.op("Reshape", k, b.ints((6, KEYS, SIZE))), perm=(0, 2, 1))
    return b.op("MatMul", q, b.op("Reshape", rows, b.ints((2, 3, SIZE, KEYS))))


def where(mask: Any, hidden: float, swapped: bool = False) -> Scores:
    def emit(b: Builder, q: str, k: str) -> str:
        scores, low = b.op("Div", plain(b, q, k), number(b, 2)), number(b, hidden)
        return b.op("Where", b.const(mask), *((low, scores) if swapped else (scores, low)))

    return emit


def given(name: str, t: TensorType, emit: Callable[[Builder, str, str], str]) -> Scores:
    """emit(b, scores, input `name`)."""
    return lambda b, q, k: emit(b, plain(b, q, k), b.input(name, t))


def made_of_constants(b: Builder, q: str, k: str) -> str:
    ones = b.op("Expand", b.const(np.array(True)), b.ints((QUERIES, KEYS)))
    lower = b.op("Trilu", ones, upper=0)
    bias = b.op("Where", lower, number(b, 0), number(b, -np.inf))
    return b.op("Add", b.op("Mul", number(b, 0.5), plain(b, q, k)), bias)


def two_masks(b: Builder, q: str, k: str) -> str:
    padding = b.input("padding", TensorType("f32", (2, 1, 1, KEYS)))
    return b.op("Add", padding, where(CAUSAL, -np.inf)(b, q, k))


SPELLINGS: dict[str, Scores] = {
    "no scale": plain,
    "scores divided": lambda b, q, k: b.op("Div", plain(b, q, k), number(b, 2)),
    "scores multiplied, twice": lambda b, q, k: b.op("Mul", number(b, 3), b.op("Mul", plain(b, q, k), number(b, 0.2))),
    "scale on q": lambda b, q, k: plain(b, b.op("Div", q, number(b, 2)), k),
    "scale on both": scale_on_both,
    "one transposition": one_transposition,
    "reshaped between": reshaped_between,
    "causal": where(CAUSAL, -np.inf),
    "causal, by a number": where(CAUSAL, -1e4),
    "causal, masked_fill": where(~CAUSAL, LEAST, swapped=True),
    "causal, made of constants": made_of_constants,
    "padding": given("mask", TensorType("f32", (2, 1, 1, KEYS)), lambda b, s, m: b.op("Add", s, m)),
    "padding, before": given("mask", TensorType("f32", (QUERIES, KEYS)), lambda b, s, m: b.op("Add", m, s)),
    "a condition": given(
        "mask", TensorType("bool", (2, 1, 1, KEYS)), lambda b, s, m: b.op("Where", m, s, number(b, -np.inf))
    ),
    "two masks": two_masks,
}


def model(
    scores: Scores, batch: tuple[int, ...] = (2, 3), finish: Callable[[Builder, str], str] | None = None
) -> Builder:
    """q, k, v as states; `loss`, and their gradients as updates. finish(b, weights) -> what v is multiplied with."""
    b = Builder()
    random = np.random.default_rng(0)
    shapes = {"q": (QUERIES, SIZE), "k": (KEYS, SIZE), "v": (KEYS, WIDTH)}
    q, k, v = (b.state(n, random.standard_normal((*batch, *s)).astype("f4")) for n, s in shapes.items())
    weights = b.op("Softmax", scores(b, q, k), axis=-1, name="weights")
    y = b.op("MatMul", finish(b, weights) if finish else weights, v, name="y")
    target = b.input("target", TensorType("f32", b.shape(y)))
    loss = b.op("ReduceSum", b.op("Mul", b.op("Mul", y, y), target), keepdims=0, name="loss")
    gradients = b.add(GRADIENT, [loss, q, k, v, q, k, v], {"xs": 3, "zs": 0}, ["dq", "dk", "dv"])
    b.output("loss", loss)
    b.output("y", y)
    for state, d in zip((q, k, v), gradients, strict=True):
        b.update(state, d)
    return b


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if n.op in ("Softmax", "MatMul", "onnxc.Attention")]


def check(graph: Graph) -> Graph:
    """The graph with one node of attention, after comparing values and gradients by onnxruntime, and compiled."""
    fused = fuse_attention(graph)
    verify(fused)
    assert ops(fused) == ["onnxc.Attention"]
    assert fuse_attention(fused) is fused
    feeds = random_feeds(graph)
    if "mask" in feeds:  # each row sees a key
        feeds["mask"][..., 0] = feeds["mask"][..., 0] * 0 + 1
    before, after = expand_gradients(graph), expand_gradients(fused)
    assert [n.op for n in after.nodes].count("onnxc.AttentionGrad") == 1
    validate(before, after, feeds, atol=1e-5)
    lowered = [run(g, passes(has_kernel)) for g in (before, fused)]
    assert [n.op for n in lowered[1].nodes if "Attention" in n.op] == ["onnxc.Attention", "onnxc.AttentionGrad"]
    runs = [Running(g) for g in lowered]
    old, new = (r(feeds) for r in runs)
    for name in old:
        np.testing.assert_allclose(new[name], old[name], rtol=2e-5, atol=1e-5, err_msg=name)
    for name, state in runs[0].state.items():
        np.testing.assert_allclose(runs[1].state[name], state, rtol=2e-5, atol=1e-5, err_msg=name)
    return fused


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    fused = check(model(SPELLINGS[name]).build())
    (node,) = (n for n in fused.nodes if n.op == "onnxc.Attention")
    assert (len(node.inputs) > 3) == any(word in name for word in ("causal", "padding", "condition", "masks"))
    if "causal" in name:
        bias = fused.constant(node.inputs[3])
        assert bias is not None
        np.testing.assert_array_equal(bias, np.where(CAUSAL, 0, -np.inf))
    scales = {"no scale": 1, "scores multiplied, twice": np.float32(0.6), "scores divided": 0.5, "scale on q": 0.5}
    if name in scales:
        assert node.attr("scale", 1) == pytest.approx(scales[name], rel=1e-6)


@pytest.mark.parametrize("batch", [(), (1,), (1, 2, 3)])
def test_batch_axes(batch: tuple[int, ...]) -> None:
    check(model(where(CAUSAL, -np.inf), batch).build())


def test_rows_of_nan_that_become_zeros() -> None:
    """PyTorch's exporters do so for a mask of booleans; a query without a key has gradients, too."""
    t = TensorType("bool", (2, 1, QUERIES, KEYS))

    def finish(b: Builder, weights: str) -> str:
        return b.op("Where", b.op("IsNaN", weights), number(b, 0), weights)

    graph = model(
        given("mask", t, lambda b, s, m: b.op("Add", s, b.op("Where", m, number(b, 0), number(b, -np.inf)))),
        finish=finish,
    ).build()
    fused = check(graph)
    feeds = random_feeds(graph)
    feeds["mask"][0, 0, 2] = False
    got = Running(run(fused, passes(has_kernel)))
    assert not got(feeds)["y"][0, :, 2].any()
    assert all(np.isfinite(a).all() for a in got.state.values())


def test_in_float64_the_scale_keeps_its_digits() -> None:
    b = Builder()
    q, k = (b.input(n, TensorType("f64", (2, 7, 3))) for n in "qk")
    scores = b.op("Div", b.op("MatMul", q, turned(b, k)), b.const(np.float64(math.sqrt(3))))
    b.output("y", b.op("MatMul", b.op("Softmax", scores, axis=-1), k))
    graph = b.build()
    fused = fuse_attention(graph)
    assert ops(fused) == ["onnxc.Attention"]
    validate(graph, fused, random_feeds(graph), rtol=1e-13, atol=1e-14)


def shared(b: Builder, q: str, k: str) -> str:
    scores = plain(b, q, k)
    b.output("kept", scores)
    return scores


def read_twice(b: Builder, q: str, k: str) -> str:
    scores = plain(b, q, k)
    b.output("kept", b.op("ReduceMax", scores, keepdims=0))
    return scores


def trained_bias(b: Builder, q: str, k: str) -> str:
    """Of q: it has a gradient."""
    return b.op("Add", plain(b, q, k), b.op("ReduceSum", q, b.ints([-1]), keepdims=1))


NOT: dict[str, Scores] = {
    "an output": shared,
    "another reader": read_twice,
    "a bias with a gradient": trained_bias,
    "a number that hides little": where(CAUSAL, -100.0),
    "a row without a key": where(CAUSAL & (np.arange(QUERIES) != 2)[:, None], LEAST),
    "a row without a key, of -inf": where(CAUSAL & (np.arange(QUERIES) != 2)[:, None], -np.inf),
    "a condition and a number": given(
        "mask", TensorType("bool", (2, 1, 1, KEYS)), lambda b, s, m: b.op("Where", m, s, number(b, LEAST))
    ),
    "a number beside another mask": lambda b, q, k: b.op(
        "Add", where(CAUSAL, LEAST)(b, q, k), b.input("padding", TensorType("f32", (2, 1, 1, KEYS)))
    ),
    "a scale that is computed": lambda b, q, k: b.op("Mul", plain(b, q, k), b.input("s", TensorType("f32"))),
    "a scale for each head": lambda b, q, k: b.op("Mul", plain(b, q, k), b.const(np.ones((3, 1, 1), "f4"))),
    "a cap": lambda b, q, k: b.op("Tanh", plain(b, q, k)),
}


@pytest.mark.parametrize("name", NOT)
def test_what_stays(name: str) -> None:
    graph = model(NOT[name]).build()
    assert fuse_attention(graph) is graph


def test_dropout_stays() -> None:
    graph = model(plain, finish=lambda b, w: b.op("Dropout", w, number(b, 0.5), b.const(np.array(True)))).build()
    lowered = run(graph, passes(has_kernel))
    assert "Softmax" in ops(lowered)
    assert "onnxc.Attention" not in ops(lowered)


def test_points_of_differentiation_stay() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (3, 9, 4)))
    scores = plain(b, x, x)
    y = b.op("MatMul", b.op("Softmax", scores, axis=-1), x)
    (d,) = b.add(GRADIENT, [b.op("ReduceSum", y, keepdims=0), scores, scores], {"xs": 1, "zs": 0}, ["d"])
    b.output("d", d)
    graph = b.build()
    assert fuse_attention(graph) is graph


def test_weights_of_weights_stay() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (3, 9, 4)))
    weights = b.op("Softmax", plain(b, x, x), axis=-1)
    b.output("y", b.op("MatMul", weights, weights))
    graph = b.build()
    assert fuse_attention(graph) is graph


@pytest.mark.parametrize("axis", [1, -2])
def test_the_softmax_is_along_the_keys(axis: int) -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (3, 9, 4)))
    b.output("y", b.op("MatMul", b.op("Softmax", plain(b, x, x), axis=axis), x))
    graph = b.build()
    assert fuse_attention(graph) is graph


def test_small_scores_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model(plain).build()
    nbytes = 4 * 2 * 3 * QUERIES * KEYS
    for least, fused in ((nbytes, False), (nbytes - 1, True)):
        monkeypatch.setattr(attention_spelling, "LARGE", least)
        assert (fuse_attention(graph) is not graph) == fused


@pytest.mark.parametrize(("keys", "fused"), [(KEYS, True), (KEYS - 1, False)])
def test_few_keys_stay(keys: int, fused: bool) -> None:
    """A row of scores is no longer than a key and a value: nothing would be saved."""
    b = Builder()
    q, k, v = (
        b.input(n, TensorType("f32", (2, *s))) for n, s in zip("qkv", ((50, 4), (keys, 4), (keys, 5)), strict=True)
    )
    b.output("y", b.op("MatMul", b.op("Softmax", plain(b, q, k), axis=-1), v))
    graph = b.build()
    assert (fuse_attention(graph) is not graph) == fused


def test_layers_share_their_mask() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (2, KEYS, SIZE)))
    mask = b.const(np.tril(np.ones((KEYS, KEYS), bool)))
    for _ in range(2):
        scores = b.op("Where", mask, plain(b, x, x), number(b, -np.inf))
        x = b.op("MatMul", b.op("Softmax", scores, axis=-1), x)
    b.output("y", x)
    fused = fuse_attention(b.build())
    assert ops(fused) == ["onnxc.Attention"] * 2
    assert len({n.inputs[3] for n in fused.nodes if n.op == "onnxc.Attention"}) == 1


def test_in_a_body() -> None:
    """Of a loop over layers, where any input may have a gradient: only a constant is a mask there."""
    body = Builder("body")
    body.input("i", TensorType("i64"))
    go = body.input("go", TensorType("bool"))
    x = body.input("x", TensorType("f32", (2, 9, 4)))
    body.output("go", body.op("Identity", go))
    mask = body.const(np.tril(np.ones((9, 9), bool)))
    scores = body.op("Where", mask, plain(body, x, x), number(body, -np.inf))
    body.output("x", body.op("MatMul", body.op("Softmax", scores, axis=-1), x))
    b = Builder()
    x = b.input("x", TensorType("f32", (2, 9, 4)))
    (y,) = b.add("Loop", [b.const(np.array(3)), "", x], {"body": body.build()}, ["y"])
    loss = b.op("ReduceSum", b.op("Mul", y, y), keepdims=0)
    (d,) = b.add(GRADIENT, [loss, x, x], {"xs": 1, "zs": 0}, ["d"])
    b.output("y", y)
    b.output("d", d)
    graph = b.build()
    fused = fuse_attention(graph)
    (loop,) = (n for n in fused.nodes if n.op == "Loop")
    assert ops(loop.attrs["body"]) == ["onnxc.Attention"]
    feeds = random_feeds(graph)
    validate(expand_gradients(graph), expand_gradients(fused), feeds, rtol=1e-4, atol=1e-4)


QKV = {"q": (2, 4, 6, 4), "k": (2, 2, 9, 4), "v": (2, 2, 9, 5)}
OPERATORS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], type[np.generic]]] = {
    "plain": ({}, QKV, np.float32),
    "causal": ({"is_causal": 1, "scale": 0.3}, QKV, np.float32),
    "flat": ({"q_num_heads": 2, "kv_num_heads": 2}, {"q": (2, 6, 8), "k": (2, 9, 8), "v": (2, 9, 10)}, np.float32),
    "booleans": ({}, {**QKV, "mask": (2, 1, 6, 9)}, np.bool_),
    "a float mask, causal": ({"is_causal": 1}, {**QKV, "mask": (6, 9)}, np.float32),
    "a short mask": ({}, {**QKV, "mask": (6, 7)}, np.bool_),
    "windows": ({"left_window_size": 2, "right_window_size": 1}, QKV, np.float32),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operator_attention(name: str) -> None:
    attrs, shapes, kind = OPERATORS[name]
    random = np.random.default_rng(0)
    b = Builder()
    feeds: dict[str, Any] = {v: random.standard_normal(s).astype("f4") for v, s in shapes.items()}
    if "mask" in shapes:
        hidden = random.random(shapes["mask"]) < 0.4
        hidden[..., 1, :] = True
        feeds["mask"] = ~hidden if kind is np.bool_ else np.where(hidden, -np.inf, 0.5).astype("f4")
    dtypes = {v: "bool" if v == "mask" and kind is np.bool_ else "f32" for v in shapes}
    names = [b.input(v, TensorType(dtypes[v], s)) for v, s in shapes.items()]
    y, keys, _ = b.add("Attention", names, attrs, 3)
    loss = b.op("ReduceSum", b.op("Mul", y, y), keepdims=0)
    gradients = b.add(GRADIENT, [loss, *names[:3], *names[:3]], {"xs": 3, "zs": 0}, 3)
    for v in (y, keys, *gradients):
        b.output(v, v)
    graph = b.build()
    fused = fuse_attention(graph)
    verify(fused)
    assert [n.op for n in fused.nodes if "Attention" in n.op] == ["onnxc.Attention"]
    validate(expand_gradients(graph), expand_gradients(fused), feeds, rtol=1e-4, atol=1e-5)
    old, new = (Running(run(g, passes(has_kernel)))(feeds) for g in (expand_gradients(graph), fused))
    for v in old:
        np.testing.assert_allclose(new[v], old[v], rtol=1e-4, atol=1e-5, err_msg=v)


@pytest.mark.parametrize("attrs", [{"softcap": 0.5}, {"softmax_precision": 11}])
def test_what_the_operator_attention_has_more(attrs: dict[str, Any]) -> None:
    b = Builder()
    b.output("y", b.op("Attention", *(b.input(v, TensorType("f32", s)) for v, s in QKV.items()), **attrs))
    graph = b.build()
    assert fuse_attention(graph) is graph


def layer(tokens: int, heads: int, size: int) -> Graph:
    """A causal transformer layer without its second half, trained by gradient descent."""
    width = heads * size
    b = Builder()
    random = np.random.default_rng(0)
    x = b.input("x", TensorType("f32", (1, tokens, width)))
    w, u = (b.state(n, random.standard_normal((width, m * width)).astype("f4") / 10) for n, m in (("w", 3), ("u", 1)))
    parts = b.op("Reshape", b.op("MatMul", x, w), b.ints((1, tokens, 3, heads, size)))
    parts = b.op("Transpose", parts, perm=(2, 0, 3, 1, 4))
    q, k, v = (b.op("Gather", parts, b.const(np.array(i)), axis=0) for i in range(3))
    scores = b.op("Div", plain(b, q, k), number(b, math.sqrt(size)))
    scores = b.op("Where", b.const(np.tril(np.ones((tokens, tokens), bool))), scores, number(b, -np.inf))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    mixed = b.op("Reshape", b.op("Transpose", mixed, perm=(0, 2, 1, 3)), b.ints((1, tokens, width)))
    y = b.op("Add", x, b.op("MatMul", mixed, u))
    loss = b.op("ReduceMean", b.op("Mul", y, y), keepdims=0)
    gradients = b.add(GRADIENT, [loss, w, u, w, u], {"xs": 2, "zs": 0}, 2)
    b.output("loss", loss)
    for state, d in zip((w, u), gradients, strict=True):
        b.update(state, b.op("Sub", state, b.op("Mul", d, number(b, 0.1))))
    return b.build()


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1024 tokens: without the scores, a small part; the losses of two steps are the same."""
    graph = layer(1024, 4, 16)
    feeds = random_feeds(graph)
    totals, losses = [], []
    for least in (1 << 60, 2 << 20):
        monkeypatch.setattr(attention_spelling, "LARGE", least)
        step = Running(run(graph, passes(has_kernel)))
        totals.append(step.code.layout.memory.total)
        losses.append([float(step(feeds)["loss"]) for _ in range(2)])
    scores = 4 * 4 * 1024 * 1024
    assert totals[0] > 2 * scores
    assert totals[1] < 0.6 * scores
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_fetched_scores() -> None:
    """A model whose scores are asked for keeps them, in that call."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(v, 1, [2, 9, 4]) for v in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    step = compiler.compile(model)
    x = np.random.default_rng(0).standard_normal((2, 9, 4)).astype("f4")
    got = step({"x": x}, fetch=["scores", "weights"])
    np.testing.assert_allclose(got["scores"], x @ x.transpose(0, 2, 1), rtol=1e-5, atol=1e-6)
    assert ops(step.graph) == ["MatMul", "Softmax", "MatMul"]
    step = compiler.compile(model)
    np.testing.assert_allclose(step({"x": x})["y"], got["y"], rtol=1e-5, atol=1e-6)
    assert ops(step.graph) == ["onnxc.Attention"]
