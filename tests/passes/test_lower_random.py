"""Random operators: the generator's published answers, the same bits everywhere, and the right distributions."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, sqrt

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.evaluate import is_random
from compiler.ir.graph import Graph
from compiler.ir.types import AnyArray, TensorType
from compiler.passes.cse import cse
from compiler.passes.lower_random import SEED, STEP, Role, lower_random
from compiler.passes.pipeline import passes, run
from tests.validate import Results
from tests.validate import run as evaluate

# Random123's known answers for threefry2x32, 20 rounds: counter, key, result
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize("evaluator", ["ort", "reference"])
def test_known_answers(evaluator: str) -> None:
    b = Builder()
    words = [b.input(n, TensorType("u32", (3,))) for n in ("k0", "k1", "x0", "x1")]
    for name, v in zip(("y0", "y1"), b.add("onnxc.Threefry", words, outputs=2), strict=True):
        b.output(name, v)
    counters, keys, answers = (np.array(column, np.uint32).T for column in zip(*KNOWN, strict=True))
    feeds = dict(zip(("k0", "k1", "x0", "x1"), (*keys, *counters), strict=True))
    found = evaluate(b.build(), feeds, evaluator=evaluator)
    np.testing.assert_array_equal([found["y0"], found["y1"]], answers)


def drawn(
    op: str, attrs: Mapping[str, object], *operands: AnyArray, role: Role = "step", seed: int = 0, step: int = 0
) -> AnyArray:
    """What a node draws, after lowering."""
    b = Builder()
    inputs = [b.const(np.asarray(a)) for a in operands]
    (v,) = b.add(op, inputs, attrs)
    b.output("v", v)
    graph = lower_random(b.build(), role, seed)
    states = {SEED: np.int64(seed), STEP: np.int64(step)}
    return evaluate(graph, {}, {k: v for k, v in states.items() if k in graph.states})["v"]


def uniform_distance(u: AnyArray) -> float:
    """Kolmogorov's distance of a sample from the uniform distribution on [0, 1], times the root of its size."""
    u = np.sort(np.asarray(u, np.float64).ravel())
    ranks = np.arange(1, u.size + 1) / u.size
    return float(max(np.max(ranks - u), np.max(u - ranks + 1 / u.size)) * np.sqrt(u.size))


N = 100_000


@pytest.mark.parametrize("dtype", [1, 11])
def test_uniform(dtype: int) -> None:
    u = drawn("RandomUniform", {"shape": (N,), "low": -2.0, "high": 3.0, "dtype": dtype})
    assert u.min() >= -2
    assert u.max() <= 3
    assert uniform_distance((u + 2) / 5) < 1.6  # exceeded by one sample in a hundred; this one is always the same
    assert len(np.unique(u)) > 0.99 * N


@pytest.mark.parametrize("dtype", [1, 11])
def test_normal(dtype: int) -> None:
    z = drawn("RandomNormal", {"shape": (N // 4, 4), "mean": 1.0, "scale": 2.0, "dtype": dtype})
    assert np.isfinite(z).all()
    probability = np.array([0.5 * (1 + erf((x - 1) / 2 / sqrt(2))) for x in z.ravel()])
    assert uniform_distance(probability) < 1.6
    assert np.abs(np.corrcoef(z.T) - np.eye(4)).max() < 0.03


def test_narrow_types() -> None:
    z = drawn("RandomNormal", {"shape": (N,), "dtype": 10})
    assert z.dtype == np.float16
    assert abs(float(z.astype(np.float64).std()) - 1) < 0.02


def test_bernoulli() -> None:
    p = np.array([0.0, 0.25, 0.75, 1.0], np.float32)
    hits = drawn("Bernoulli", {"dtype": 7}, np.tile(p, (N // 4, 1)))
    assert hits.dtype == np.int64
    np.testing.assert_allclose(hits.mean(0), p, atol=0.01)
    assert not hits[:, 0].any()
    assert hits[:, 3].all()


def test_multinomial() -> None:
    p = np.array([0.1, 0.0, 0.3, 0.6])
    with np.errstate(divide="ignore"):
        sample = drawn("Multinomial", {"sample_size": N, "dtype": 7}, np.log([p]).astype(np.float32))
    np.testing.assert_allclose(np.bincount(sample[0], minlength=4) / N, p, atol=0.01)


def test_streams() -> None:
    """Seed, step, draw and role make other numbers; everything equal makes equal ones."""
    attrs = {"shape": (N,)}
    base = drawn("RandomUniform", attrs)
    np.testing.assert_array_equal(base, drawn("RandomUniform", attrs))
    own = {**attrs, "seed": 0.0}
    others = [
        drawn("RandomUniform", attrs, seed=1),
        drawn("RandomUniform", attrs, seed=2**32),
        drawn("RandomUniform", attrs, seed=-1),
        drawn("RandomUniform", attrs, step=1),
        drawn("RandomUniform", attrs, step=2**32),
        drawn("RandomUniform", attrs, role="initialize"),
        drawn("RandomUniform", own),
        drawn("RandomUniform", {**attrs, "seed": 0.5}),
        drawn("RandomUniform", own, step=1),
    ]
    for i, sample in enumerate([base, *others]):
        for other in others[i:]:
            assert abs(np.corrcoef(sample, other)[0, 1]) < 0.02
    np.testing.assert_array_equal(others[6], drawn("RandomUniform", own, seed=5))
    assert not np.array_equal(others[5], drawn("RandomUniform", attrs, role="initialize", seed=1))


def test_hidden_state() -> None:
    def graph(role: Role) -> Graph:
        b = Builder()
        b.output("u", b.op("RandomUniform", shape=(2,)))
        b.output("v", b.op("RandomUniform", shape=(2,)))
        return lower_random(b.build(), role, seed=9)

    step, infer, initialize = (graph(role) for role in ("step", "infer", "initialize"))
    assert list(step.states) == list(infer.states) == [SEED, STEP]
    assert step.states[SEED].array == 9
    assert list(step.updates) == [STEP]
    assert not infer.updates
    assert list(initialize.states) == [SEED]
    assert not initialize.updates
    first = evaluate(step, {})
    assert first.updates[STEP] == 1
    assert not np.array_equal(first["u"], first["v"])
    np.testing.assert_array_equal(evaluate(infer, {})["u"], first["u"])
    assert lower_random(step) is step


def dropout(ratio: AnyArray | None, mode: AnyArray | None, feed: bool = False) -> Graph:
    b = Builder()
    x = b.input("x", TensorType("f32", (1000,)))
    operands = [x]
    for name, array in (("ratio", ratio), ("mode", mode)):
        if array is None:
            operands.append("")
        else:
            dtype = "bool" if name == "mode" else "f32"
            operands.append(b.input(name, TensorType(dtype)) if feed else b.const(array))
    y, mask = b.add("Dropout", operands, {}, 2)
    b.output("y", y)
    b.output("mask", mask)
    return b.build()


@pytest.mark.parametrize("feed", [False, True], ids=["constant", "fed"])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.999])
def test_dropout_training(ratio: float, feed: bool) -> None:
    p, on, off = np.array(ratio, np.float32), np.array(True), np.array(False)
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)

    def outcome(mode: AnyArray) -> Results:
        feeds = {"x": x, **({"ratio": p, "mode": mode} if feed else {})}
        return evaluate(lower_random(dropout(p, mode, feed)), feeds)

    found = outcome(on)
    kept = found["mask"]
    assert abs(kept.mean() - (1 - ratio)) < 0.05
    np.testing.assert_array_equal(found["y"], np.where(kept, x * np.float32(1 / (1 - p)), 0))
    rest = outcome(off)
    np.testing.assert_array_equal(rest["y"], x)
    assert rest["mask"].all()


def test_dropout_inference_is_nothing() -> None:
    for graph in (dropout(None, None), dropout(np.array(0.3, np.float32), np.array(False))):
        assert not run(graph, passes(lambda node, types: True)).nodes


def test_a_gradient_sees_the_same_mask() -> None:
    """Also where the forward part is evaluated again, at another point and of another size."""
    for n in (6, 4):
        b = Builder()
        x, other = b.input("x", TensorType("f32", (6,))), b.input("other", TensorType("f32", (n,)))
        (y,) = b.add("Dropout", [x, b.const(np.array(0.5, np.float32)), b.const(np.array(True))], {})
        loss = b.op("ReduceSum", b.op("Mul", y, y), keepdims=0)
        (d,) = b.add("ai.onnx.preview.training.Gradient", [loss, x, other], {"xs": 1, "zs": 0})
        b.output("y", y)
        b.output("d", d)
        graph = run(b.build(), passes(lambda node, types: True))
        assert not any(map(is_random, graph.nodes))
        found = evaluate(graph, {"x": np.ones(6, np.float32), "other": np.full(n, 3, np.float32)})
        np.testing.assert_array_equal(found["d"], 2 * 3 * found["y"][:n] ** 2)


def test_copies_of_a_draw_merge_and_two_draws_do_not() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (8,)))
    for name in "ab":
        b.output(name, b.op("RandomUniformLike", x))
    graph = lower_random(b.build())
    assert len([n for n in cse(graph).nodes if n.op == "onnxc.RandomBits"]) == 2
    b = Builder()
    names = b.sources_of(graph)
    for _ in range(2):
        for node in graph.nodes:
            b.copy(node, names, graph)
    b.bind(graph, names)
    assert len([n for n in cse(b.build()).nodes if n.op == "onnxc.RandomBits"]) == 2
