"""Updates that are taken in some steps only: the choice becomes part of the step node, which then has nothing to do."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.fuse_optimizer import fuse_optimizer
from tests.codegen.graphs import Running
from tests.validate import random_feeds, run, validate

SIZE = 37


def momentum(both: bool = True, *, old: bool = False) -> Graph:
    """W and V by heavy ball, if `due`. both: V as well. old: an output reads W's old and new value."""
    b = Builder()
    lr, g, due = (
        b.input("lr", TensorType("f32")),
        b.input("g", TensorType("f32", (SIZE,))),
        b.input("due", TensorType("bool")),
    )
    w, v = (b.state(name, np.ones(SIZE, np.float32)) for name in "wv")
    velocity = b.op("Add", b.op("Mul", b.const(np.float32(0.5)), v), g)
    moved = b.op("Sub", w, b.op("Mul", lr, velocity))
    new = b.op("Where", due, moved, w, name="w.next")
    b.update(w, new)
    b.update(v, b.op("Where", due, velocity, v, name="v.next") if both else velocity)
    if old:
        b.output("change", b.op("Sub", w, new))
    return b.build()


@pytest.mark.parametrize("due", [False, True])
def test_one_choice_for_all_results(due: bool) -> None:
    graph = momentum()
    fused = fuse_optimizer(graph)
    verify(fused)
    (node,) = fused.nodes
    assert (node.op, node.inputs[6], node.outputs) == ("onnxc.MomentumStep", "due", ("w.next", "v.next"))
    validate(graph, fused, {**random_feeds(graph), "due": np.array(due)})


@pytest.mark.parametrize("due", [False, True])
def test_a_choice_for_one_result_only_stays(due: bool) -> None:
    graph = momentum(both=False)
    fused = fuse_optimizer(graph)
    verify(fused)
    assert "Where" in [n.op for n in fused.nodes]
    validate(graph, fused, {**random_feeds(graph), "due": np.array(due)})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("old", [False, True])
def test_compiled(old: bool, threads: int) -> None:
    """In the memory of the old values, and beside it where something reads these later."""
    graph = fuse_optimizer(momentum(old=old))
    assert "onnxc.MomentumStep" in [n.op for n in graph.nodes]
    running = Running(graph, threads)
    for i in range(6):
        feeds = {**random_feeds(graph, seed=i), "due": np.array(i % 3 == 2)}
        states = {n: np.array(v) for n, v in running.state.items()}
        want = run(graph, feeds, states)
        found = running(feeds)
        for n, v in want.items():
            np.testing.assert_allclose(found[n], v, rtol=1e-5, atol=1e-6)
        for n, v in running.state.items():
            np.testing.assert_allclose(v, want.updates[n], rtol=1e-5, atol=1e-6)
            assert i % 3 == 2 or v.tobytes() == states[n].tobytes()
