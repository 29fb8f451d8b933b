"""Gradient accumulation in place: what is in memory, what is skipped, and that the numbers are right all the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import compiler
from compiler.codegen.plan import make_plan
from compiler.errors import InputError
from tests.making.formulas import Array

BATCH, MANY, CLASSES = 6, 800, 7


def network(*sizes: int, convolution: bool = False, batch: int = BATCH) -> onnx.ModelProto:
    """Dense layers with Tanh between them; `convolution`: one of 3x3 taps before, on an image of one channel."""
    rng = np.random.default_rng(0)
    shape = [batch, 1, sizes[0], 1] if convolution else [batch, sizes[0]]
    weights = {f"W{i}": rng.normal(size=(m, n)) / np.sqrt(m) for i, (m, n) in enumerate(pairwise(sizes))}
    weights |= {f"b{i}": rng.normal(size=n) for i, n in enumerate(sizes[1:])}
    nodes, value = [], "x"
    if convolution:
        weights["K"] = rng.normal(size=(1, 1, 3, 3))
        nodes = [
            helper.make_node("Conv", ["x", "K"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Flatten", ["c"], ["f"]),
        ]
        value = "f"
    last = len(sizes) - 2
    for i in range(len(sizes) - 1):
        nodes.append(helper.make_node("Gemm", [value, f"W{i}", f"b{i}"], [value := "y" if i == last else f"h{i}"]))
        if i < last:
            nodes.append(helper.make_node("Tanh", [value], [value := f"t{i}"]))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, [batch, CLASSES])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)


def step_of(model: onnx.ModelProto, accumulate: int, threads: int = 1, **options: Any) -> compiler.StepFunction:
    made = compiler.make_training_model(model, loss="cross_entropy", batch=None, accumulate=accumulate, **options)
    return compiler.compile(made, threads=threads)


def feeds(step: int, width: int, image: bool = False, batch: int = BATCH) -> dict[str, Array]:
    rng = np.random.default_rng(step)
    x = rng.normal(size=(batch, 1, width, 1) if image else (batch, width)).astype(np.float32)
    return {"x": x, "label": rng.integers(0, CLASSES, batch)}


def states(step: compiler.StepFunction) -> dict[str, Array]:
    return {name: np.array(v) for name, v in step.state.items()}


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam"}, {"optimizer": "adam", "clip_norm": 1.0}], ids=str)
def test_products_have_no_gradient_in_memory(options: dict[str, Any]) -> None:
    """The arena shrinks by the largest gradient, and holds less than a tenth of all of them."""
    sizes = (512, 256, 128, CLASSES)
    model = network(*sizes)
    weights = [4 * m * n for m, n in pairwise(sizes)]
    once, several = step_of(model, 1, **options), step_of(model, 4, **options)
    assert several.memory.arena <= once.memory.arena - max(weights) + 4 * BATCH * sum(sizes)
    assert several.memory.arena < sum(weights) / 10
    memory = make_plan(several.graph).memory
    assert {f"W{i}.accumulated" for i in range(3)} <= memory.committed
    assert {f"{p}{i}" for p in "Wb" for i in range(3)} <= memory.committed
    assert not [life for life in memory.lives if life.nbytes >= weights[1]]


@pytest.mark.parametrize(
    "options", [{"optimizer": "sgd"}, {"optimizer": "adamw", "clip_norm": 0.1, "average": 0.9}], ids=str
)
@pytest.mark.parametrize(("batch", "sizes"), [(BATCH, (70, 50, 35, CLASSES)), (MANY, (33, 17, CLASSES))])
def test_sums_of_gradients(batch: int, sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    """Against the gradients of steps without accumulation; products have edges, and one or several blocks of terms."""
    model, every = network(*sizes, convolution=True, batch=batch), 3
    step, gradients = step_of(model, every, **options), step_of(model, 1, optimizer="sgd", lr=0.0)
    names = [n for n in gradients.state if f"{n}.accumulated" in step.state]
    assert len(names) == 2 * len(sizes) - 1
    before = states(step)
    for i in range(2 * every):
        given = feeds(i, sizes[0], image=True, batch=batch)
        for n in names:
            gradients.state[n] = before[n]
        parts = gradients(**given, fetch=[f"{n}.gradient" for n in names])
        step(**given)
        after = states(step)
        for n in names:
            old = 0 if i % every == 0 else before[f"{n}.accumulated"]
            want = old + parts[f"{n}.gradient"] / every
            np.testing.assert_allclose(after[f"{n}.accumulated"], want, rtol=1e-4, atol=1e-6, err_msg=n)
        if (i + 1) % every:
            kept = [n for n in after if not n.endswith(".accumulated") and n != "iteration"]
            assert all(after[n].tobytes() == before[n].tobytes() for n in kept)
        else:
            assert all((after[n] != before[n]).any() for n in names)
        before = after


def test_any_number_of_threads_gives_the_same_bits() -> None:
    found = []
    for threads in (1, 2, 3):
        step = step_of(network(70, 300, CLASSES), 2, threads, optimizer="adam")
        for i in range(5):
            step(**feeds(i, 70))
        found.append({n: v.tobytes() for n, v in states(step).items()})
    assert found[0] == found[1] == found[2]


def test_what_is_not_finite_reaches_parameters_at_the_update_and_is_forgotten_behind_it() -> None:
    step = step_of(network(20, CLASSES), 2)
    before = states(step)
    bad = feeds(0, 20)
    bad["x"][0, 0] = np.inf
    step(**bad)
    assert states(step)["W0"].tobytes() == before["W0"].tobytes()
    assert not np.isfinite(step.state["W0.accumulated"]).all()
    step(**feeds(1, 20))
    assert not np.isfinite(step.state["W0"]).all()
    for n in ("W0", "b0"):
        step.state[n] = before[n]
    step(**feeds(2, 20))
    assert np.isfinite(step.state["W0.accumulated"]).all()


def test_a_refused_step_adds_nothing() -> None:
    step = step_of(network(20, CLASSES), 2)
    step(**feeds(0, 20))
    before = states(step)
    with pytest.raises(InputError, match="out of range"):
        step(**{**feeds(1, 20), "label": np.full(BATCH, CLASSES)})
    assert {n: v.tobytes() for n, v in states(step).items()} == {n: v.tobytes() for n, v in before.items()}
