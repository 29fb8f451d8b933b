"""fuse_optimizer: what shares a node, and where steps stand."""

from __future__ import annotations

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.fuse_optimizer import SMALL, fuse_optimizer
from tests.validate import random_feeds, validate


def sgd(b: Builder, w: str, g: str, lr: str) -> str:
    b.update(w, new := b.op("Sub", w, b.op("Mul", lr, g), name=f"{w}.next"))
    return new


def steps(graph: Graph) -> list[tuple[str, ...]]:
    """The results of each step node, in order."""
    return [n.outputs for n in graph.nodes if n.op.endswith("Step")]


def state(b: Builder, name: str, *shape: int) -> str:
    return b.state(name, np.ones(shape, np.float32))


def test_small_share_large_do_not() -> None:
    b = Builder()
    lr = b.input("lr", TensorType("f32"))
    sizes = {"a": 3, "b": SMALL, "c": SMALL + 1, "d": 5}
    for name, n in sizes.items():
        sgd(b, state(b, name, n), b.input(f"g{name}", TensorType("f32", (n,))), lr)
    graph = b.build()
    fused = fuse_optimizer(graph)
    verify(fused)
    assert sorted(steps(fused)) == [("a.next", "b.next", "d.next"), ("c.next",)]
    validate(graph, fused, {**random_feeds(graph), "lr": np.float32(0.1)})


def test_other_scalars_or_dtypes_do_not_share() -> None:
    b = Builder()
    lr, other = b.input("lr", TensorType("f32")), b.input("other", TensorType("f32"))
    wide = b.input("wide", TensorType("f64"))
    for name, rate in (("a", lr), ("b", other), ("c", lr)):
        sgd(b, state(b, name, 2), b.input(f"g{name}", TensorType("f32", (2,))), rate)
    sgd(b, b.state("d", np.ones(2)), b.input("gd", TensorType("f64", (2,))), wide)
    fused = fuse_optimizer(b.build())
    assert sorted(steps(fused)) == [("a.next", "c.next"), ("b.next",), ("d.next",)]


def test_a_step_stands_behind_the_last_reader_of_the_old_value() -> None:
    """Both gradients exist early; the old weights are still read (by the data gradient) later on."""
    b = Builder()
    n = 200
    lr, x = b.input("lr", TensorType("f32")), b.input("x", TensorType("f32", (n, n)))
    w = state(b, "w", n, n)
    g = b.op("MatMul", x, x, name="g")
    back = b.op("MatMul", g, w, name="back")
    late = b.op("Relu", back, name="late")
    sgd(b, w, g, lr)
    b.output("late", late)
    fused = fuse_optimizer(b.build())
    assert [n.outputs[0] for n in fused.nodes] == ["g", "back", "w.next", "late"]


def test_a_step_stands_before_the_readers_of_its_results() -> None:
    """Two algorithms: the second reads what the first updated, so that the small ones may not share a node."""
    b = Builder()
    lr = b.input("lr", TensorType("f32"))
    w, z = state(b, "w", 3), state(b, "z", 3)
    new = sgd(b, w, b.op("Exp", z, name="gw"), lr)
    sgd(b, z, b.op("Exp", new, name="gz"), lr)
    graph = b.build()
    fused = fuse_optimizer(graph)
    verify(fused)
    assert steps(fused) == [("w.next",), ("z.next",)]
    validate(graph, fused, {"lr": np.float32(0.1)})


def test_a_step_on_a_step() -> None:
    """The gradient of one is a result of the other: the second stays arithmetic."""
    b = Builder()
    lr = b.input("lr", TensorType("f32"))
    w, z = state(b, "w", 3), state(b, "z", 3)
    new = sgd(b, w, b.input("g", TensorType("f32", (3,))), lr)
    sgd(b, z, new, lr)
    graph = b.build()
    fused = fuse_optimizer(graph)
    verify(fused)
    assert len(steps(fused)) == 1
    validate(graph, fused, {**random_feeds(graph), "lr": np.float32(0.1)})


def test_onnx_nodes_on_onnx_nodes() -> None:
    b = Builder()
    r, t = b.input("R", TensorType("f32")), b.input("T", TensorType("i64"))
    w, z, v, u = (state(b, name, 3) for name in "wzvu")
    g = b.input("g", TensorType("f32", (3,)))
    attrs = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"}
    new, new_v = b.add("ai.onnx.preview.training.Momentum", [r, t, w, g, v], attrs, ["w.next", "v.next"])
    new_z, new_u = b.add("ai.onnx.preview.training.Momentum", [r, t, z, new, u], attrs, ["z.next", "u.next"])
    for s, value in ((w, new), (v, new_v), (z, new_z), (u, new_u)):
        b.update(s, value)
    graph = b.build()
    from compiler.passes.bodies import expand_bodies
    from compiler.passes.cse import cse

    lowered = cse(expand_bodies(graph, lambda node, types: node.domain != "ai.onnx.preview.training"))
    fused = fuse_optimizer(lowered)
    verify(fused)
    assert steps(fused) == [("w.next", "v.next"), ("z.next", "u.next")]
    validate(graph, fused, {**random_feeds(graph), "R": np.float32(0.1)})


def test_kept_intermediates() -> None:
    """A value that the step computes inside is computed beside it if something else needs it."""
    b = Builder()
    lr, g = b.input("lr", TensorType("f32")), b.input("g", TensorType("f32", (3,)))
    w = state(b, "w", 3)
    change = b.op("Mul", lr, g, name="change")
    b.update(w, b.op("Sub", w, change, name="w.next"))
    b.output("change", change)
    graph = b.build()
    fused = fuse_optimizer(graph)
    assert [n.outputs[0] for n in fused.nodes] == ["change", "w.next"]
    validate(graph, fused, {**random_feeds(graph), "lr": np.float32(0.1)})


def test_a_swap_is_no_update() -> None:
    b = Builder()
    w, z = state(b, "w", 3), state(b, "z", 3)
    b.update(w, z)
    b.update(z, w)
    graph = b.build()
    assert fuse_optimizer(graph) == graph
