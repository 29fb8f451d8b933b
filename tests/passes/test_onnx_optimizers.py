"""ONNX's Adam, Adagrad and Momentum against numpy's evaluation of the formulas in their schemas, T = 0 and T > 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.passes.pipeline import passes, run
from tests.validate import run as evaluate

Array = npt.NDArray[np.floating[Any]]
DTYPES = {"f32": np.float32, "f64": np.float64}


def adam(r: Array, t: int, x: Array, g: Array, v: Array, h: Array, a: dict[str, float]) -> tuple[Array, ...]:
    g = a["norm_coefficient"] * x + g
    v = a["alpha"] * v + (1 - a["alpha"]) * g
    h = a["beta"] * h + (1 - a["beta"]) * g * g
    r = r * np.sqrt(1 - a["beta"] ** t) / (1 - a["alpha"] ** t) if t > 0 else r
    x = x - r * v / (np.sqrt(h) + a["epsilon"])
    return (1 - a["norm_coefficient_post"]) * x, v, h


def adagrad(r: Array, t: int, x: Array, g: Array, h: Array, a: dict[str, float]) -> tuple[Array, ...]:
    r = r / (1 + t * a["decay_factor"])
    g = a["norm_coefficient"] * x + g
    h = h + g * g
    return x - r * g / (np.sqrt(h) + a["epsilon"]), h


def momentum(r: Array, t: int, x: Array, g: Array, v: Array, a: dict[str, Any]) -> tuple[Array, ...]:
    g = a["norm_coefficient"] * x + g
    v = a["alpha"] * v + (a["beta"] if t > 0 else 1) * g
    return (x - r * v if a["mode"] == "standard" else x - r * (g + a["alpha"] * v)), v


CASES: dict[str, tuple[str, Callable[..., tuple[Array, ...]], int, dict[str, Any]]] = {
    "adam": (
        "Adam",
        adam,
        4,
        {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0},
    ),
    "adam_decay": (
        "Adam",
        adam,
        4,
        {"alpha": 0.5, "beta": 0.25, "epsilon": 0.125, "norm_coefficient": 0.25, "norm_coefficient_post": 0.5},
    ),
    "adagrad": ("Adagrad", adagrad, 3, {"norm_coefficient": 0.0, "decay_factor": 0.0, "epsilon": 1e-6}),
    "adagrad_decay": ("Adagrad", adagrad, 3, {"norm_coefficient": 0.25, "decay_factor": 0.125, "epsilon": 0.5}),
    "momentum": (
        "Momentum",
        momentum,
        3,
        {"alpha": 0.9, "beta": 0.125, "norm_coefficient": 0.25, "mode": "standard"},
    ),
    "nesterov": (
        "Momentum",
        momentum,
        3,
        {"alpha": 0.9, "beta": 0.125, "norm_coefficient": 0.25, "mode": "nesterov"},
    ),
    "momentum_plain": (
        "Momentum",
        momentum,
        3,
        {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"},
    ),
}


def graph_of(op: str, roles: int, attrs: dict[str, Any], rate: str, xs: list[TensorType]) -> Graph:
    b = Builder("optimizer")
    operands = [b.input("R", TensorType(rate)), b.input("T", TensorType("i64"))]
    operands += [b.input(f"{'xgvh'[k]}{i}", t) for k in range(roles) for i, t in enumerate(xs)]
    results = b.add(f"ai.onnx.preview.training.{op}", operands, attrs, (roles - 1) * len(xs))
    for v in results:
        b.output(v, v)
    return b.build()


def only_steps(node: Any, types: Any) -> bool:
    return not node.op.startswith("ai.onnx.preview")


@pytest.mark.parametrize("rate", ["f32", "f64"])
@pytest.mark.parametrize("dtypes", [["f32"], ["f64"], ["f32", "f32", "f64"]], ids="-".join)
@pytest.mark.parametrize("name", CASES)
def test_formula(name: str, dtypes: list[str], rate: str) -> None:
    op, formula, roles, attrs = CASES[name]
    shapes = [(3, 2), (5,), ()]
    types = [TensorType(d, shapes[i]) for i, d in enumerate(dtypes)]
    graph = graph_of(op, roles, attrs, rate, types)
    lowered = run(graph, passes(only_steps))
    assert not any(n.op.startswith("ai.onnx") for n in lowered.nodes)
    # attributes are float32 in the file; the formulas take them as they are there
    exact = {k: float(np.float32(a)) if isinstance(a, float) else a for k, a in attrs.items()}
    rng = np.random.default_rng(0)
    for t in (0, 1, 2, 1000):
        r = np.asarray(0.1, DTYPES[rate])
        feeds: dict[str, Any] = {"R": r, "T": np.asarray(t, np.int64)}
        feeds |= {
            f"{'xgvh'[k]}{i}": np.asarray(rng.uniform(0.1, 1, y.shape), DTYPES[y.dtype])
            for k in range(roles)
            for i, y in enumerate(types)
        }
        expected = []
        for i in range(len(types)):
            tensors = [feeds[f"{'xgvh'[k]}{i}"].astype(np.float64) for k in range(roles)]
            expected.append(formula(r.astype(np.float64), t, *tensors, exact))
        for evaluator in ("ort", "reference"):
            found = list(evaluate(lowered, feeds, evaluator=evaluator).values())
            for k in range(roles - 1):
                for i, y in enumerate(types):
                    actual = found[k * len(types) + i]
                    assert actual.dtype == DTYPES[y.dtype]
                    np.testing.assert_allclose(
                        actual,
                        expected[i][k],
                        rtol=2e-7 if y.dtype == "f32" else 1e-14,
                        atol=2e-7 if y.dtype == "f32" else 1e-14,
                    )


def test_known_time() -> None:
    """A constant R and T leave no arithmetic on scalars."""
    b = Builder("known")
    x, g, v = (b.input(n, TensorType("f32", (3,))) for n in "xgv")
    rate, time = b.const(np.array(0.5, np.float32)), b.const(np.array(3, np.int64))
    attrs = {"alpha": 0.5, "beta": 0.25, "norm_coefficient": 0.0, "mode": "nesterov"}
    results = b.add("ai.onnx.preview.training.Momentum", [rate, time, x, g, v], attrs, 2)
    b.output("x", results[0])
    lowered = run(b.build(), passes(only_steps))
    (node,) = lowered.nodes
    scalars = [float(lowered.consts[s].array) for s in node.inputs[:4]]
    assert (node.op, scalars) == ("onnxc.MomentumStep", [0.5, 0.25, 0.25, 0.5])
