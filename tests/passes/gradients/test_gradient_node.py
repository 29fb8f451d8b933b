"""What a Gradient node means: the point, the cut, orders, absent outputs, and what is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest

from compiler.errors import UnsupportedError
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph, Origin
from compiler.ir.types import TensorType
from compiler.passes.gradients import RULES, expand_gradients
from tests.gradcheck import run


def f64(*shape: int) -> TensorType:
    return TensorType("f64", shape)


def gradient(b: Builder, y: str, xs: list[str], zs: list[str] | None = None, at: list[str] | None = None, outputs=None):
    zs = zs or []
    outputs = outputs or [f"d{y}/d{x}" for x in xs]
    return b.add(GRADIENT, [y, *xs, *zs, *(at or [*xs, *zs])], {"xs": len(xs), "zs": len(zs)}, outputs)


def results(b: Builder, values: dict[str, str], **feeds: object) -> dict[str, np.ndarray]:
    for name, v in values.items():
        b.output(name, v)
    expanded = expand_gradients(b.build())
    assert all(n.op != GRADIENT for n in expanded.nodes)
    return run(expanded, {k: np.asarray(v, np.float64) for k, v in feeds.items()})


def test_the_forward_pass_is_reused() -> None:
    b = Builder()
    x = b.input("x", f64(3))
    y = b.op("Sigmoid", x, name="y")
    (d,) = gradient(b, y, [x])
    b.output("d", d)
    expanded = expand_gradients(b.build())
    assert [n.op for n in expanded.nodes].count("Sigmoid") == 1


def test_names_and_origins() -> None:
    b = Builder()
    x, w = b.input("x", f64(2, 3)), b.input("w", f64(3, 4))
    b.origin = Origin("layer1")
    z = b.op("MatMul", x, w, name="z")
    b.origin = Origin("activation")
    y = b.op("Tanh", z, name="y")
    dw, _ = gradient(b, y, [w, x], outputs=["dw", "dx"])
    b.output("out", dw)
    expanded = expand_gradients(b.build())
    assert {"z", "y", "dw", "dx", "d_z"} <= set(expanded.types)
    made = expanded.producer("dw")
    assert made is not None
    assert made.origin == Origin("layer1", "gradient of MatMul")
    assert expanded.producer("d_z").origin == Origin("activation", "gradient of Tanh")
    assert expanded.outputs == {"out": "dw"}


def test_y_that_is_no_scalar_is_summed() -> None:
    b = Builder()
    x = b.input("x", f64(2, 2))
    (d,) = gradient(b, b.op("Mul", x, x, name="y"), [x])
    out = results(b, {"d": d}, x=[[1, 2], [3, 4]])
    np.testing.assert_array_equal(out["d"], [[2, 4], [6, 8]])


def test_zs_cut_the_graph() -> None:
    b = Builder()
    x = b.input("x", f64())
    z = b.op("Mul", x, x, name="z")
    y = b.op("Mul", x, z, name="y")
    values = {"all": gradient(b, y, [x])[0], "cut": gradient(b, y, [x], [z])[0], "both": gradient(b, y, [x, z])[0]}
    out = results(b, values, x=3.0)
    assert (out["all"], out["cut"], out["both"]) == (27, 9, 9)


def test_intermediate_xs() -> None:
    b = Builder()
    x = b.input("x", f64())
    h = b.op("Mul", x, x, name="h")
    y = b.op("Mul", h, h, name="y")
    (d,) = gradient(b, y, [h])
    assert results(b, {"d": d}, x=3.0)["d"] == 18


def test_one_of_several_outputs_as_x() -> None:
    b = Builder()
    x = b.input("x", f64(4))
    h, k = b.add("Split", [x], {"num_outputs": 2}, ["h", "k"])
    y = b.op("Mul", h, k, name="y")
    values = {"h": gradient(b, y, [h])[0], "x": gradient(b, y, [x], [k])[0]}
    out = results(b, values, x=[1, 2, 3, 4])
    np.testing.assert_array_equal(out["h"], [3, 4])
    np.testing.assert_array_equal(out["x"], [3, 4, 0, 0])


def test_y_itself() -> None:
    b = Builder()
    x = b.input("x", f64(2))
    y = b.op("Exp", x, name="y")
    values = {"y": gradient(b, y, [y])[0], "x": gradient(b, y, [x], [y])[0]}
    out = results(b, values, x=[0, 1])
    np.testing.assert_array_equal(out["y"], [1, 1])
    np.testing.assert_array_equal(out["x"], [0, 0])


def test_unreached_xs_get_zeros() -> None:
    b = Builder()
    x, other = b.input("x", f64(2)), b.input("other", f64(3, 1))
    index = b.op("Cast", b.op("Floor", x), to=7)
    y = b.op("Cast", index, to=11, name="y")
    dx, do = gradient(b, y, [x, other])
    out = results(b, {"dx": dx, "do": do}, x=[0.5, 1.5], other=np.ones((3, 1)))
    assert not out["dx"].any()
    assert not out["do"].any()
    assert out["do"].shape == (3, 1)


def test_absent_outputs_cost_nothing() -> None:
    b = Builder()
    x, w = b.input("x", f64(2, 3)), b.input("w", f64(3, 4))
    y = b.op("MatMul", x, w, name="y")
    d = gradient(b, y, [x, w], outputs=["", "dw"])
    b.output("dw", d[1])
    expanded = expand_gradients(b.build())
    assert sum(n.op in ("MatMul", "Gemm") for n in expanded.nodes) == 2


def test_free_variables_are_constants() -> None:
    b = Builder()
    x, w = b.input("x", f64()), b.input("w", f64())
    scale = b.op("Mul", w, w)
    (d,) = gradient(b, b.op("Mul", x, scale, name="y"), [x])
    assert results(b, {"d": d}, x=2.0, w=3.0)["d"] == 9


def test_another_point() -> None:
    b = Builder()
    x, w, x2 = b.input("x", f64()), b.input("w", f64()), b.input("x2", f64())
    y = b.op("Mul", b.op("Mul", x, x), w, name="y")
    dx, dw = gradient(b, y, [x, w], at=[x2, w])
    out = results(b, {"y": y, "dx": dx, "dw": dw}, x=3.0, w=5.0, x2=7.0)
    assert (out["y"], out["dx"], out["dw"]) == (45, 70, 49)


def test_another_batch_in_zs() -> None:
    b = Builder()
    x, w, other = b.input("x", f64(2, 3)), b.input("w", f64(3, 1)), b.input("other", f64(5, 3))
    flat = b.op("Reshape", b.op("MatMul", x, w), b.op("Shape", x, start=0, end=1), name="flat")
    y = b.op("ReduceMean", flat, keepdims=0, name="y")
    (dw,) = gradient(b, y, [w], [x], at=[w, other])
    (dx,) = gradient(b, y, [x], [w], at=[other, w])
    array = np.arange(15.0).reshape(5, 3)
    out = results(b, {"dw": dw, "dx": dx}, x=np.ones((2, 3)), w=np.ones((3, 1)), other=array)
    np.testing.assert_allclose(out["dw"][:, 0], array.mean(0))
    np.testing.assert_allclose(out["dx"], np.full((5, 3), 0.2))


def test_another_batch_that_does_not_fit() -> None:
    b = Builder()
    x, other = b.input("x", f64(2, 3)), b.input("other", f64(5, 3))
    b.origin = Origin("reshape")
    y = b.op("Reshape", x, b.ints([6]), name="y")
    b.origin = Origin("my gradient")
    (d,) = gradient(b, y, [x], at=[other])
    b.output("d", d)
    with pytest.raises(UnsupportedError, match=r"'x' is f64\[5,3\] instead of f64\[2,3\].*node 'my gradient'"):
        expand_gradients(b.build())


def test_the_value_at_the_point_may_play_another_role() -> None:
    b = Builder()
    x, a = b.input("x", f64()), b.input("a", f64())
    y = b.op("Mul", x, a, name="y")  # at x = a, dy/dx is a and not 2 a
    (d,) = gradient(b, y, [x], at=[a])
    assert results(b, {"d": d}, x=2.0, a=3.0)["d"] == 3


def test_two_xs_at_one_value() -> None:
    b = Builder()
    x, z, a = b.input("x", f64()), b.input("z", f64()), b.input("a", f64())
    y = b.op("Mul", b.op("Mul", x, x), z, name="y")
    dx, dz = gradient(b, y, [x, z], at=[a, a])
    out = results(b, {"dx": dx, "dz": dz}, x=2.0, z=3.0, a=5.0)
    assert (out["dx"], out["dz"]) == (50, 25)


def test_exchanged_points() -> None:
    b = Builder()
    x, z = b.input("x", f64()), b.input("z", f64())
    y = b.op("Mul", b.op("Mul", x, x), z, name="y")
    dx, dz = gradient(b, y, [x, z], at=[z, x])
    out = results(b, {"dx": dx, "dz": dz}, x=2.0, z=3.0)
    assert (out["dx"], out["dz"]) == (12, 9)


def test_second_and_third_order() -> None:
    b = Builder()
    x, w = b.input("x", f64()), b.input("w", f64())
    y = b.op("Mul", b.op("Pow", x, b.scalar(4.0, x)), b.op("Exp", w), name="y")
    d1, dw = gradient(b, y, [x, w], outputs=["d1", "dw"])
    d2, dxw = gradient(b, d1, [x, w], outputs=["d2", "dxw"])
    (d3,) = gradient(b, d2, [x], [w], outputs=["d3"])
    (dwx,) = gradient(b, dw, [x], [w], outputs=["dwx"])
    out = results(b, {"d1": d1, "d2": d2, "d3": d3, "dxw": dxw, "dwx": dwx}, x=2.0, w=0.5)
    e = np.exp(0.5)
    np.testing.assert_allclose([out["d1"], out["d2"], out["d3"]], np.array([32, 48, 48]) * e)
    np.testing.assert_allclose([out["dxw"], out["dwx"]], [32 * e, 32 * e])


def test_a_gradient_in_the_loss() -> None:
    """A gradient penalty: y = f(x) + |df/dx|^2."""
    b = Builder()
    x, w = b.input("x", f64()), b.input("w", f64())
    f = b.op("Mul", b.op("Mul", x, x), w, name="f")
    (df,) = gradient(b, f, [x], [w])
    y = b.op("Add", f, b.op("Mul", df, df), name="y")
    (dw,) = gradient(b, y, [w], [x])
    assert results(b, {"dw": dw}, x=3.0, w=2.0)["dw"] == 9 + 2 * (2 * 3 * 2) * (2 * 3)


def test_second_order_at_another_point_and_batch() -> None:
    """The copy of an inner Gradient is expanded for the other batch."""
    b = Builder()
    x, w, other = b.input("x", f64(1, 3)), b.input("w", f64(3)), b.input("other", f64(4, 3))
    y = b.op("ReduceSum", b.op("Exp", b.op("Mul", x, w)), keepdims=0, name="y")
    (dw,) = gradient(b, y, [w], [x])
    (ddw,) = gradient(b, dw, [w], [x], at=[w, other])
    array = np.linspace(-1, 1, 12).reshape(4, 3)
    wv = np.array([0.3, -0.2, 0.5])
    out = results(b, {"ddw": ddw}, x=np.zeros((1, 3)), w=wv, other=array)
    np.testing.assert_allclose(out["ddw"], (array**2 * np.exp(array * wv)).sum(0))


def test_several_gradients_share_what_replaces_a_node() -> None:
    """LayerNormalization and BatchNormalization change their form for the backward pass: once."""
    b = Builder()
    x = b.input("x", f64(2, 3, 4))
    scale, bias = b.input("scale", f64(3)), b.input("bias", f64(3))
    outputs = b.add(
        "BatchNormalization",
        [x, scale, bias, b.const(np.zeros(3)), b.const(np.ones(3))],
        {"training_mode": 1},
        ["y", "mean", "var"],
    )
    y = b.op("ReduceSum", b.op("Mul", outputs[0], x), keepdims=0, name="loss")
    (d1,) = gradient(b, y, [x], outputs=["d1"])
    (ds,) = gradient(b, y, [scale], outputs=["ds"])
    (d2,) = gradient(b, d1, [scale], outputs=["d2"])
    for name, v in {"y": outputs[0], "mean": outputs[1], "d1": d1, "ds": ds, "d2": d2}.items():
        b.output(name, v)
    expanded = expand_gradients(b.build())
    ops = [n.op for n in expanded.nodes]
    assert ops.count("onnxc.BatchNorm") == 1
    assert "BatchNormalization" not in ops
    assert {"y", "mean", "var", "loss", "d1", "ds", "d2"} <= set(expanded.types)


def test_every_obstacle_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that lies behind another."""
    for op in ("Sinh", "Cosh"):
        monkeypatch.delitem(RULES, op)
    b = Builder()
    x, w = b.input("x", f64(4, 4)), b.input("w", f64(4, 4))
    b.origin = Origin("first")
    y = b.op("Sinh", b.op("Mul", x, w), name="y")
    b.origin = Origin("second")
    z = b.op("Cosh", b.op("Add", w, y), name="z")
    loss = b.op("ReduceSum", b.op("Mul", z, y), keepdims=0, name="loss")
    for i, d in enumerate(gradient(b, loss, [x, w])):
        b.output(f"d{i}", d)
    with pytest.raises(UnsupportedError) as error:
        expand_gradients(b.build())
    shown = [str(p) for p in error.value.problems]
    assert any("respect to 'x', 'w' needs Sinh" in p and "node 'first'" in p for p in shown)
    assert any("respect to 'x', 'w' needs Cosh" in p and "node 'second'" in p for p in shown)
    assert len(shown) == 2


def test_an_obstacle_off_the_path_is_none() -> None:
    b = Builder()
    x = b.input("x", f64(4, 4))
    y = b.op("Mul", x, b.op("Det", b.const(np.eye(4))), name="y")
    rounded = b.op("Floor", b.op("Det", x))
    (d,) = gradient(b, b.op("Add", y, rounded, name="loss"), [x])
    np.testing.assert_array_equal(results(b, {"d": d}, x=np.eye(4))["d"], np.ones((4, 4)))


def test_an_integer_x() -> None:
    b = Builder()
    x, n = b.input("x", f64(3)), b.input("n", TensorType("i64", (3,)))
    y = b.op("Mul", x, b.op("Cast", n, to=11), name="y")
    b.add(GRADIENT, [y, x, n, x, n], {"xs": 2}, ["dx", "dn"])
    with pytest.raises(UnsupportedError, match=r"'n', which is i64\[3\].*list it in zs"):
        expand_gradients(b.build())


def branch(value: float) -> Graph:
    b = Builder("branch")
    x = b.capture("x", f64(2))
    b.output("out", b.op("Mul", x, b.scalar(value, x)))
    return b.build()


def test_gradient_in_a_nested_graph() -> None:
    inner = Builder("then")
    x = inner.capture("x", f64(2))
    inner.output("out", gradient(inner, inner.op("Mul", x, x, name="y"), [x])[0])
    b = Builder()
    x, condition = b.input("x", f64(2)), b.input("condition", TensorType("bool", ()))
    (d,) = b.add("If", [condition], {"then_branch": inner.build(), "else_branch": branch(0)}, ["d"], captures=[x])
    b.output("d", d)
    expanded = expand_gradients(b.build())
    (node,) = expanded.nodes
    assert all(n.op != GRADIENT for g in node.bodies.values() for n in g.nodes)


def test_gradient_in_a_nested_graph_of_outer_values() -> None:
    inner = Builder("then")
    x, h = inner.capture("x", f64(2)), inner.capture("h", f64(2))
    inner.output("out", gradient(inner, inner.op("Mul", h, h, name="y"), [x])[0])
    other = Builder("else")
    other.capture("x", f64(2))
    other.output("out", other.capture("h", f64(2)))
    b = Builder()
    x, condition = b.input("x", f64(2)), b.input("condition", TensorType("bool", ()))
    h = b.op("Exp", x, name="h")
    bodies = {"then_branch": inner.build(), "else_branch": other.build()}
    (d,) = b.add("If", [condition], bodies, ["d"], captures=[x, h])
    b.output("d", d)
    with pytest.raises(UnsupportedError, match="'h' may depend on xs outside"):
        expand_gradients(b.build())


def test_a_graph_without_gradient_is_left_alone() -> None:
    b = Builder()
    b.output("y", b.op("Exp", b.input("x", f64(2))))
    graph = b.build()
    assert expand_gradients(graph) is graph


def chain(n: int) -> Graph:
    b = Builder()
    x = b.input("x", f64(8))
    v = x
    for i in range(n // 2):
        v = b.op("Add", b.op("Tanh", v, name=f"t{i}"), x, name=f"a{i}")
    b.output("d", gradient(b, v, [x])[0])
    return b.build()


def test_time_is_linear_and_depth_no_limit() -> None:
    small, large = chain(1_000), chain(8_000)
    times = []
    for graph in (small, large):
        start = time.process_time()
        expand_gradients(graph)
        times.append(time.process_time() - start)
    assert times[1] < 30 * max(times[0], 0.02)  # 8 times the nodes; a quadratic pass takes 64 times as long
