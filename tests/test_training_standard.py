"""What the standard says of training and ONNX's own suite never runs, by the compiled step: later iterations of each
optimizer, every form of Gradient, algorithms after one another, initialization, state in training mode.

The suite has T = 0, one scalar y, and no training_info.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import compiler
from tests.frontend.small import GRADIENT, make_model, training_info
from tests.passes.test_onnx_optimizers import CASES, DTYPES

TYPES = {"f32": TensorProto.FLOAT, "f64": TensorProto.DOUBLE}
RANDOM = np.random.default_rng(0)


def run(text: str, **feeds: Any) -> dict[str, Any]:
    """One call of a graph in ONNX's text format."""
    return compiler.compile(make_model(text))(feeds)


# --- optimizers ------------------------------------------------------------------------------------------------------
def optimizer_model(name: str, variables: list[tuple[str, tuple[int, ...]]]) -> onnx.ModelProto:
    """One optimizer node over some variables, (dtype, shape) each."""
    op, _, roles, attrs = CASES[name]
    inputs = [helper.make_tensor_value_info("R", TensorProto.FLOAT, [])]
    inputs += [helper.make_tensor_value_info("T", TensorProto.INT64, [])]
    values = [(f"{role}{i}", TYPES[d], s) for role in "xgvh"[:roles] for i, (d, s) in enumerate(variables)]
    inputs += [helper.make_tensor_value_info(*v) for v in values]
    results = [(f"{n}_next", t, s) for n, t, s in values if n[0] != "g"]
    domain = "ai.onnx.preview.training"
    node = helper.make_node(op, [v.name for v in inputs], [n for n, _, _ in results], domain=domain, **attrs)
    graph = helper.make_graph([node], name, inputs, [helper.make_tensor_value_info(*r) for r in results])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, 1)], ir_version=7)


@pytest.mark.parametrize(
    "variables",
    [[("f32", (3, 2))], [("f64", (3, 2))], [("f32", (9,)), ("f64", (2, 2)), ("f32", ())]],
    ids=["f32", "f64", "several"],
)
@pytest.mark.parametrize("name", CASES)
def test_optimizers_at_any_time(name: str, variables: list[tuple[str, tuple[int, ...]]]) -> None:
    _, formula, roles, attrs = CASES[name]
    exact = {k: float(np.float32(a)) if isinstance(a, float) else a for k, a in attrs.items()}
    step = compiler.compile(optimizer_model(name, variables))
    rate = np.float32(0.1)
    for t in (0, 1, 2, 50):
        arrays = {
            f"{role}{i}": np.asarray(RANDOM.uniform(0.1, 1, s), DTYPES[d])
            for role in "xgvh"[:roles]
            for i, (d, s) in enumerate(variables)
        }
        found = step({"R": rate, "T": np.int64(t), **arrays})
        for i, (d, _) in enumerate(variables):
            operands = [arrays[f"{role}{i}"].astype(np.float64) for role in "xgvh"[:roles]]
            tolerance = 1e-6 if d == "f32" else 1e-13
            kept = [role for role in "xgvh"[:roles] if role != "g"]
            for role, want in zip(kept, formula(np.float64(rate), t, *operands, exact), strict=True):
                got = found[f"{role}{i}_next"]
                assert got.dtype == DTYPES[d]
                np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=f"{role}{i} at T = {t}")


# --- Gradient --------------------------------------------------------------------------------------------------------
def test_second_order_of_the_documentation() -> None:
    """The operator's page differentiates a gradient that is a tensor; here with a loss that is quadratic in W."""
    out = run(
        f"""g (double[2,3] X, double[3] W, double[2] L)
        => (double[2,3] dX, double[3] dW, double[2,3] mixed, double[3] dWW) {{
          H = MatMul(X, W)
          E = Sub(H, L)
          S = Mul(E, E)
          O = ReduceSum<keepdims=0>(S)
          dX, dW = {GRADIENT}<xs=["X", "W"], zs=["L"], y="O">(X, W, L)
          mixed, dWW = {GRADIENT}<xs=["X", "W"], zs=["L"], y="dW">(X, W, L)
        }}""",
        **(given := {"X": RANDOM.normal(size=(2, 3)), "W": RANDOM.normal(size=3), "L": RANDOM.normal(size=2)}),
    )
    x, w, label = given.values()
    e = x @ w - label
    np.testing.assert_allclose(out["dX"], 2 * np.outer(e, w))
    np.testing.assert_allclose(out["dW"], 2 * x.T @ e)
    np.testing.assert_allclose(out["dWW"], 2 * x.T @ x @ np.ones(3))  # of the sum of dW
    np.testing.assert_allclose(out["mixed"], 2 * (np.outer(x @ np.ones(3), w) + e[:, None]))


def test_third_order_in_any_order_of_the_nodes() -> None:
    model = make_model(
        f"""g (double[3] x) => (double[3] a, double[3] b, double[3] c) <double four = {{4}}> {{
          y = Pow(x, four)
          a = {GRADIENT}<xs=["x"], y="y">(x)
          b = {GRADIENT}<xs=["x"], y="a">(x)
          c = {GRADIENT}<xs=["x"], y="b">(x)
        }}"""
    )
    x = np.array([-1.0, 0.5, 2.0])
    for _ in range(2):
        out = compiler.compile(model)(x=x)
        for name, want in (("a", 4 * x**3), ("b", 12 * x**2), ("c", 24 * x)):
            np.testing.assert_allclose(out[name], want)
        nodes = list(reversed(model.graph.node))
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def test_another_point_and_another_batch() -> None:
    given = {"x": RANDOM.normal(size=(4, 3)), "other": RANDOM.normal(size=(7, 3)), "w": RANDOM.normal(size=3)}
    out = run(
        f"""g (double[N,3] x, double[M,3] other, double[3] w) => (double[3] here, double[3] there, double[M,3] by_x) {{
          p = Mul(x, w)
          q = Mul(p, p)
          y = ReduceSum<keepdims=0>(q)
          here = {GRADIENT}<xs=["w"], zs=["x"], y="y">(w, x)
          there = {GRADIENT}<xs=["w"], zs=["x"], y="y">(w, other)
          by_x = {GRADIENT}<xs=["x"], zs=["w"], y="y">(other, w)
        }}""",
        **given,
    )
    x, other, w = given.values()
    np.testing.assert_allclose(out["here"], (2 * x**2 * w).sum(0))
    np.testing.assert_allclose(out["there"], (2 * other**2 * w).sum(0))
    np.testing.assert_allclose(out["by_x"], 2 * other * w**2)


def test_intermediate_xs_skipped_outputs_and_an_x_without_path() -> None:
    x, w, u = (RANDOM.normal(size=3) for _ in range(3))
    out = run(
        f"""g (double[3] x, double[3] w, double[3] u) => (double[3] by_h, double[3] by_u, double[3] by_z) {{
          h = Exp(x)
          z = Mul(w, w)
          y = Mul(h, z)
          by_h, , by_u = {GRADIENT}<xs=["h", "z", "u"], y="y">(h, z, u)
          , by_z = {GRADIENT}<xs=["h", "z"], y="y">(x, z)
        }}""",
        x=x, w=w, u=u,
    )  # fmt: skip
    np.testing.assert_allclose(out["by_h"], w * w)
    np.testing.assert_array_equal(out["by_u"], np.zeros(3))
    np.testing.assert_allclose(out["by_z"], x)  # at the point where h is x


def test_gradients_inside_a_function() -> None:
    model = make_model(
        "g (double[3] x) => (double[3] first, double[3] second) { q = Mul(x, x)  first, second = local.F(q) }",
        functions=f"""<domain: "local", opset_import: ["": 21, "ai.onnx.preview.training": 1]>
        F (x) => (dy, ddy) {{
          y = Exp(x)
          dy = {GRADIENT}<xs=["x"], y="y">(x)
          ddy = {GRADIENT}<xs=["x"], y="dy">(x)
        }}""",
    )
    x = np.array([0.5, -1.0, 0.0])
    for a in compiler.compile(model)(x=x).values():
        np.testing.assert_allclose(a, np.exp(x * x))


# --- training_info ---------------------------------------------------------------------------------------------------
def test_a_gradient_of_a_gradient_in_the_loss() -> None:
    """A penalty on the slope: the main graph has a Gradient, and the algorithm differentiates it."""
    main = f"""net (double[2] x) => (double[2] slope) <double[2] w = {{1, 2}}> {{
      p = Mul(x, w)
      y = Mul(p, p)
      slope = {GRADIENT}<xs=["x"], zs=["w"], y="y">(x, w)
    }}"""
    algorithm = f"""train () => (double loss, double[2] w_next) {{
      s = Mul(slope, slope)
      loss = ReduceSum<keepdims=0>(s)
      g = {GRADIENT}<xs=["w"], zs=["x"], y="loss">(w, x)
      w_next = Sub(w, g)
    }}"""
    step = compiler.compile(make_model(main, training_info(algorithm, {"w": "w_next"})))
    x, w = np.array([0.1, 0.2]), np.array([1.0, 2.0])
    np.testing.assert_allclose(step(x=x)["slope"], 2 * x * w**2)
    np.testing.assert_allclose(step.state["w"], w - 16 * x**2 * w**3)


TRAINED = """net (float[N,3] x) => (float[N,2] y)
<float[3,2] w = {1,2,3,4,5,6}, float[2] scale = {1,1}, float[2] b = {0,0}, float[2] mean = {0,0}, float[2] var = {1,1}>
{
  z = MatMul(x, w)
  y = BatchNormalization<epsilon=0.001>(z, scale, b, mean, var)
}"""
"""Inference: with the running statistics."""

TRAINING = f"""train (float[N,2] t)
=> (float loss, float[3,2] w_next, float[2] mean_next, float[2] var_next, int64 n_next)
<int64 n = {{0}}, int64 one = {{1}}, float rate = {{0.1}}, float ratio = {{0.5}}, bool yes = {{1}}> {{
  batch = MatMul(x, w)
  normal, mean_next, var_next = BatchNormalization<epsilon=0.001, training_mode=1>(batch, scale, b, mean, var)
  dropped = Dropout(normal, ratio, yes)
  e = Sub(dropped, t)
  s = Mul(e, e)
  loss = ReduceMean<keepdims=0>(s)
  g = {GRADIENT}<xs=["w"], zs=["x", "t"], y="loss">(w, x, t)
  d = Mul(rate, g)
  w_next = Sub(w, d)
  n_next = Add(n, one)
}}"""
"""A training copy of the network, which shares its variables: batch statistics, dropout. scale and b are frozen."""

STARTING = """start () => (float[3,2] w0, int64 n0) {
  w0 = RandomNormal<shape=[3,2]>()
  n0 = Constant<value_int=0>()
}"""


def test_training_and_inference_share_variables_and_differ_in_mode() -> None:
    updates = {"w": "w_next", "mean": "mean_next", "var": "var_next", "n": "n_next"}
    step = compiler.compile(make_model(TRAINED, training_info(TRAINING, updates, STARTING, {"w": "w0", "n": "n0"})))
    x, t = (RANDOM.normal(size=(8, k)).astype(np.float32) for k in (3, 2))
    z = x @ step.state["w"]
    out = step(x=x, t=t, fetch=["normal", "dropped"])
    np.testing.assert_allclose(out["normal"], (z - z.mean(0)) / np.sqrt(z.var(0) + 1e-3), 1e-4, 1e-5)
    kept = out["dropped"] != 0
    assert 0 < kept.mean() < 1
    np.testing.assert_allclose(out["dropped"][kept], 2 * out["normal"][kept], 1e-6)
    np.testing.assert_allclose(step.state["mean"], 0.1 * z.mean(0), 1e-5, 1e-6)
    np.testing.assert_allclose(step.state["var"], 0.9 + 0.1 * z.var(0), 1e-5)
    assert ((step(x=x, t=t, fetch=["dropped"])["dropped"] != 0) != kept).any()  # another mask at each step
    assert step.state["n"] == 2
    z = x @ step.state["w"]
    want = (z - step.state["mean"]) / np.sqrt(step.state["var"] + 1e-3)
    np.testing.assert_allclose(step.infer(x=x)["y"], want, 1e-4, 1e-5)
    statistics = step.state["mean"].copy()
    step.initialize(seed=5)
    assert step.state["n"] == 0  # reset by the initialization graph, as the weights are
    np.testing.assert_array_equal(step.state["mean"], statistics)  # which it does not bind


def test_two_algorithms_update_each_others_variables() -> None:
    """w descends on w z, then z ascends on it: the second one sees the new w, which by then is a variable's value.

    It does not depend on z any more, though w's update was computed from z.
    """
    main = "game (float x) => (float y) <float w = {3}, float z = {2}> { v = Mul(w, z) y = Mul(v, x) }"
    player = """{name} () => (float {v}_next) {{
      g = ai.onnx.preview.training.Gradient<xs=["{v}"], zs=["x"], y="y">({v}, x)
      {v}_next = {op}({v}, g)
    }}"""
    moves = [
        training_info(player.format(name=name, v=v, op=op), {v: f"{v}_next"})
        for name, v, op in (("first", "w", "Sub"), ("second", "z", "Add"))
    ]
    step = compiler.compile(make_model(main, *moves))
    w, z = 3.0, 2.0
    for _ in range(3):
        assert step(x=np.float32(0.5))["y"] == w * z * 0.5
        w -= z * 0.5
        z += w * 0.5
        assert (step.state["w"], step.state["z"]) == (w, z)


def test_a_variable_assigned_before_is_independent_of_what_it_was_computed_from() -> None:
    """w becomes twice z, or z itself; for the next algorithm they are two variables, and xs and zs may name both."""
    main = "net (float x) => (float y) <float w = {3}, float z = {2}> { v = Mul(w, z) y = Mul(v, x) }"
    second = f"""second () => (float z_next) {{
      g = {GRADIENT}<xs=["z"], zs=["w", "x"], y="y">(z, w, x)
      z_next = Sub(z, g)
    }}"""
    for first, value, w in (
        ("first () => (float w_next) { w_next = Add(z, z) }", "w_next", 4.0),
        ("first () => (float z) {}", "z", 2.0),
    ):
        infos = training_info(first, {"w": value}), training_info(second, {"z": "z_next"})
        step = compiler.compile(make_model(main, *infos))
        step(x=np.float32(0.25))
        assert (step.state["w"], step.state["z"]) == (w, 2 - 0.25 * w)
