"""Programs: several algorithms, their names and order; what is bound to dims, static and fed; the three graphs."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.errors import CompileError, InputError, UnsupportedError
from compiler.frontend import NeedsDims, NeedsStatic, check, load
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from compiler.ir.types import AnyArray
from compiler.passes.gradients import expand_gradients
from examples import digits, gan, linear, second_order
from tests.frontend.small import GRADIENT, LINEAR, STEP, UPDATES, make_model, training_info

PAIR = """pair (float[2] x) => (float y) <float[2] w = {1, 2}, float[2] v = {3, 4}>
{ p = Mul(w, v) q = Mul(p, x) y = ReduceSum<keepdims=0>(q) }"""
"""y = sum(w v x)"""


def player(name: str, own: str, other: str, out: str = "loss") -> str:
    """An algorithm that adds to `own` the gradient of y by it."""
    return f"""{name} () => (float {out}, float[2] new)
    {{
      g = {GRADIENT}<xs=["{own}"], zs=["{other}", "x"], y="y">({own}, {other}, x)
      new = Add({own}, g)
      {out} = Neg(y)
    }}"""


def run(
    graph: Graph, feeds: dict[str, AnyArray], states: dict[str, AnyArray] | None = None
) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """Outputs, and the states after the step."""
    values = interpret(expand_gradients(graph), feeds, states)
    outputs = {public: values[v] for public, v in graph.outputs.items()}
    return outputs, {state: values[graph.updates.get(state, state)] for state in graph.states}


def two_players() -> onnx.ModelProto:
    return make_model(
        PAIR, training_info(player("one", "w", "v"), {"w": "new"}), training_info(player("two", "v", "w"), {"v": "new"})
    )


X = np.array([2, 0.5], np.float32)
W, V = np.array([1, 2], np.float32), np.array([3, 4], np.float32)


def test_later_algorithms_see_the_updates_of_earlier_ones() -> None:
    source = load(two_players())
    assert source.algorithm_names == ("one", "two")
    outputs, states = run(source.program().step, {"x": X})
    w = W + V * X
    np.testing.assert_allclose(states["w"], w)
    np.testing.assert_allclose(states["v"], V + w * X)
    np.testing.assert_allclose(outputs["y"], (W * V * X).sum())  # as the first one sees it
    assert list(outputs) == ["y", "one/loss", "two/loss"]
    np.testing.assert_allclose(outputs["two/loss"], -(w * V * X).sum(), 1e-6)


def test_one_algorithm_by_index() -> None:
    source = load(two_players())
    program = source.program(algorithm=1)
    outputs, states = run(program.step, {"x": X})
    assert list(outputs) == ["y", "loss"]
    assert list(states) == ["v"]
    np.testing.assert_allclose(states["v"], V + W * X)
    assert list(program.step.consts) == ["w"]
    assert program.infer is not None
    assert list(program.infer.states) == ["v"]
    with pytest.raises(InputError, match="there is no algorithm 2: the model has 2"):
        source.program(algorithm=2)
    with pytest.raises(InputError, match="there is no algorithm 0: the model has 0"):
        load(make_model(PAIR)).program(algorithm=0)


def test_two_algorithms_may_update_one_variable() -> None:
    model = make_model(
        PAIR, training_info(player("one", "w", "v"), {"w": "new"}), training_info(player("two", "w", "v"), {"w": "new"})
    )
    _, states = run(load(model).program().step, {"x": X})
    np.testing.assert_allclose(states["w"], W + 2 * V * X)


def test_the_names_of_algorithms() -> None:
    infos = [training_info(player(name, "w", "v"), {"w": "new"}) for name in ("a", "a", "b")]
    infos[2].algorithm.name = ""
    source = load(make_model(PAIR, *infos))
    assert source.algorithm_names == ("a[0]", "a[1]", "algorithm[2]")
    assert list(source.program().step.outputs) == ["y", "a[0]/loss", "a[1]/loss", "algorithm[2]/loss"]


def test_names_that_do_not_collide_stay() -> None:
    infos = [
        training_info(player("one", "w", "v", "first"), {"w": "new"}),
        training_info(player("two", "v", "w", "second"), {"v": "new"}),
    ]
    g = load(make_model(PAIR, *infos)).program().step
    assert list(g.outputs) == ["y", "first", "second"]
    assert "p" in g.types  # values of the first algorithm can be fetched by their names
    assert "new" in g.types


COUNTER = "{name} () => (int64 t_next) <int64 t = {{{start}}}, int64 k = {{{k}}}> {{ t_next = Add(t, k) }}"


def test_variables_of_one_name_are_two() -> None:
    infos = [
        training_info(COUNTER.format(name=n, start=s, k=k), {"t": "t_next"})
        for n, s, k in (("one", 1, 10), ("two", 5, 100))
    ]
    source = load(make_model(PAIR, *infos))
    assert source.variables == ("t", "two/t")
    _, states = run(source.program().step, {"x": X})
    assert states == {"t": 11, "two/t": 105}
    _, states = run(source.program(algorithm=1).step, {"x": X})
    assert states == {"two/t": 105}
    assert source.initializers["two/t"].tensor.array == 5


def test_a_variable_called_like_an_input_of_another_algorithm() -> None:
    other = "two (int64 t) => (int64 u) { u = Neg(t) }"
    infos = [training_info(COUNTER.format(name="one", start=1, k=10), {"t": "t_next"}), training_info(other, {})]
    source = load(make_model(PAIR, *infos))
    assert source.variables == ("one/t",)
    step = source.program().step
    assert step.inputs == ("x", "t")
    outputs, states = run(step, {"x": X, "t": np.array(3)})
    assert states == {"one/t": 11}
    assert outputs["u"] == -3


def test_an_input_called_like_a_value_of_an_earlier_algorithm() -> None:
    first = "one () => (float a) { mean = Neg(y) a = Neg(mean) }"
    second = "two (float mean) => (float b) { b = Identity(mean) }"
    step = load(make_model(PAIR, training_info(first, {}), training_info(second, {}))).program().step
    outputs, _ = run(step, {"x": X, "mean": np.array(7, np.float32)})
    assert outputs["b"] == 7
    assert outputs["a"] == outputs["y"]


def test_initialization_graphs_in_order() -> None:
    start = "start () => (float[2] z) {{ z = Constant<value_floats=[{0}, {0}]>() }}"
    infos = [
        training_info(player("one", "w", "v"), {"w": "new"}, start.format("1.0"), {"w": "z", "v": "z"}),
        training_info(player("two", "v", "w"), {"v": "new"}, start.format("2.0"), {"v": "z"}),
    ]
    program = load(make_model(PAIR, *infos)).program()
    assert program.initialize is not None
    _, states = run(program.initialize, {})
    np.testing.assert_array_equal(states["w"], [1, 1])
    np.testing.assert_array_equal(states["v"], [2, 2])


def test_the_gan_example() -> None:
    """Against the two steps made one after the other."""
    source = load(gan.build())
    rng = np.random.default_rng(0)
    feeds = {"noise": rng.normal(size=(5, 4)).astype(np.float32), "real": rng.normal(size=(5, 2)).astype(np.float32)}
    outputs, both = run(source.program({"N": 5}).step, feeds)
    after: dict[str, AnyArray] = {}
    for i, name in enumerate(("discriminator", "generator")):
        step = source.program({"N": 5}, algorithm=i).step
        constants = {v: after[v] for v in step.consts if v in after}
        own, states = run(step, {n: feeds[n] for n in step.inputs}, constants)
        np.testing.assert_allclose(outputs[f"{name}.loss"], own[f"{name}.loss"], 1e-6)
        after |= states
    assert set(after) == set(both)
    for name, value in both.items():
        np.testing.assert_allclose(value, after[name], 1e-6, 1e-7)
        assert not np.array_equal(value, source.initializers[name].tensor.array)


@pytest.mark.parametrize("example", [digits, gan, linear, second_order])
def test_examples(example: object) -> None:
    model = example.build()  # type: ignore[attr-defined]
    assert not check(model)
    source = load(model)
    source.program(dict.fromkeys(source.symbols, 3))


# --- dims, static, fed -----------------------------------------------------------------------------------
def test_dims() -> None:
    source = load(make_model(LINEAR, training_info(STEP, UPDATES)))
    assert source.symbols == ("N",)
    with pytest.raises(NeedsDims, match="the size of dim 'N' is not known, in input 'x'") as e:
        source.program()
    assert e.value.symbols == ("N",)
    assert isinstance(e.value, UnsupportedError)
    assert pickle.loads(pickle.dumps(e.value)).symbols == ("N",)
    for n in (0, -1, 2.5, "3", True, None):
        with pytest.raises(InputError, match="dim 'N' must be a positive integer"):
            source.program({"N": n})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="no symbolic dim 'M': there are 'N'"):
        source.program({"N": 2, "M": 3})
    assert source.program({"N": int(np.int64(3))}).step.type("x").shape == (3, 3)
    assert source.program({"N": np.int32(3)}).step.type("x").shape == (3, 3)  # type: ignore[dict-item]


def test_dims_without_name() -> None:
    model = make_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    source = load(model)
    assert source.symbols == ("x[0]",)
    assert source.program({"x[0]": 4}).step.type("y").shape == (4,)


def test_only_the_dims_that_are_used_are_needed() -> None:
    infos = [
        training_info(f"{n} (float[{n}] i_{n}) => (float[{n}] o_{n}) {{ o_{n} = Neg(i_{n}) }}", {}) for n in ("A", "B")
    ]
    source = load(make_model(PAIR, *infos))
    assert source.symbols == ("A", "B")
    assert source.program({"A": 2}, algorithm=0).step.inputs == ("x", "i_A")


DYNAMIC = """g (float[2,3] x, int64[2] to, int64[1] repeats) => (float[a,b] y)
{ one = Constant<value_ints=[1]>() k = Concat<axis=0>(repeats, one) r = Reshape(x, to) y = Tile(r, k) z = Neg(y) }"""


def test_inputs_that_decide_shapes() -> None:
    source = load(make_model(DYNAMIC))
    with pytest.raises(NeedsStatic) as e:
        source.program()
    assert e.value.inputs == ("to",)  # what is behind it is seen in the next round
    assert "bind what decides it: static={'to': array}" in str(e.value)
    assert pickle.loads(pickle.dumps(e.value)).inputs == ("to",)
    to = np.array([3, 2])
    with pytest.raises(NeedsStatic) as e:
        source.program(static={"to": to})
    assert e.value.inputs == ("repeats",)
    step = source.program(static={"to": to, "repeats": np.array([2])}).step
    assert step.inputs == ("x",)
    assert str(step.type("y")) == "f32[6,2]"
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(interpret(step, {"x": x})["y"], np.tile(x.reshape(3, 2), (2, 1)))
    assert not check(make_model(DYNAMIC))


def test_static_inputs_are_checked() -> None:
    source = load(make_model(DYNAMIC))
    for bad in (np.array([3, 2], np.int32), np.array([3]), np.array(["a", "b"]), np.array([[3, 2]])):
        with pytest.raises(InputError, match="static: 'to'"):
            source.program(static={"to": bad})
    with pytest.raises(InputError, match="'nope' is no input of the model"):
        source.program(static={"nope": np.array(1)})
    with pytest.raises(InputError, match="'w' is a variable"):
        load(make_model(LINEAR, training_info(STEP, UPDATES))).program(static={"w": np.zeros((3, 1), np.float32)})


def test_static_inputs_bind_dims() -> None:
    source = load(make_model("g (float[N] x, float[N] k) => (float[N] y) { y = Mul(x, k) }"))
    k = np.array([1, 2, 3], np.float32)
    step = source.program(static={"k": k}).step
    k[:] = 0  # the caller's array is copied
    np.testing.assert_array_equal(interpret(step, {"x": np.ones(3, np.float32)})["y"], [1, 2, 3])
    with pytest.raises(InputError, match="must be"):
        source.program({"N": 4}, {"k": k})


def test_a_shape_from_a_variable_is_refused() -> None:
    main = "g (float[6] x) => (float[a,b] y) <int64[2] to = {2, 3}> { y = Reshape(x, to) }"
    source = load(make_model(main, training_info("s () => (int64[2] u) { u = Neg(to) }", {"to": "u"})))
    with pytest.raises(UnsupportedError, match=r"computed at run time \(from 'to'\)") as e:
        source.program()
    assert not isinstance(e.value, NeedsStatic)


def test_shapes_from_shapes() -> None:
    """What exporters write for x.view(x.size(0), -1)."""
    main = """g (float[N,2,3] x) => (float[N,k] y) <int64 zero = {0}, int64[1] rest = {-1}>
    { s = Shape(x) n = Gather<axis=0>(s, zero) a = Constant<value_ints=[0]>() m = Unsqueeze(n, a)
      to = Concat<axis=0>(m, rest) y = Reshape(x, to) }"""
    step = load(make_model(main)).program({"N": 5}).step
    assert step.type("y").shape == (5, 6)
    assert [n.op for n in step.nodes] == ["Shape", "Gather", "Unsqueeze", "Concat", "Reshape"]


DEFAULTS = """g (float[2] x, float scale, float[2] w) => (float[2] y) <float scale = {3}, float[2] w = {1, 2}>
{ h = Mul(x, w) y = Mul(h, scale) }"""


def test_inputs_with_default_values() -> None:
    source = load(make_model(DEFAULTS))
    assert list(source.inputs) == ["x", "scale", "w"]
    assert list(source.defaults) == ["scale", "w"]
    x = np.array([1, 1], np.float32)
    step = source.program().step
    assert step.inputs == ("x",)
    np.testing.assert_array_equal(interpret(step, {"x": x})["y"], [3, 6])
    step = source.program(static={"scale": np.array(10, np.float32)}).step
    np.testing.assert_array_equal(interpret(step, {"x": x})["y"], [10, 20])
    step = source.program(fed=["scale"]).step
    assert step.inputs == ("x", "scale")
    np.testing.assert_array_equal(interpret(step, {"x": x, "scale": np.array(5, np.float32)})["y"], [5, 10])
    with pytest.raises(InputError, match="'x' is no input with a default value"):
        source.program(fed=["x"])


def test_training_mode_as_an_input_with_a_default() -> None:
    main = """g (float[4] x, bool train) => (float[4] y) <bool train = {0}, float ratio = {0.5}>
    { y = Dropout(x, ratio, train) }"""
    source = load(make_model(main))
    assert source.program(static={"train": np.array(True)}).step.constant("train") is not None


# --- conditions ------------------------------------------------------------------------------------------
IF = """g (float[2] x, bool c) => (float[2] y)
{{ {0}
   y = If(c2) <then_branch = a () => (float[2] p) {{ p = Mul(x, x) }},
     else_branch = b () => (float[2] q) {{ q = Neg(x) }}> }}"""


def test_a_constant_condition_leaves_one_branch() -> None:
    step = load(make_model(IF.format("c2 = Constant<value=bool {1}>()"))).program().step
    assert [n.op for n in step.nodes] == ["Mul"]
    step = load(make_model(IF.format("c2 = Not(c)"))).program(static={"c": np.array(True)}).step
    assert [n.op for n in step.nodes] == ["Not", "Neg"]


def test_a_condition_at_run_time() -> None:
    step = load(make_model(IF.format("c2 = Not(c)"), opset=11)).program().step
    assert [n.op for n in step.nodes] == ["Not", "If"]
    x = np.array([2, 3], np.float32)
    np.testing.assert_array_equal(interpret(step, {"x": x, "c": np.array(False)})["y"], [4, 9])
    np.testing.assert_array_equal(interpret(step, {"x": x, "c": np.array(True)})["y"], -x)


# --- size ------------------------------------------------------------------------------------------------
def test_weights_are_shared_not_copied() -> None:
    model = make_model(LINEAR, training_info(STEP, UPDATES))
    source = load(model)
    a, b = source.program({"N": 1}), source.program({"N": 2})
    assert a.infer is not None
    assert a.step.states["w"] is b.step.states["w"] is a.infer.states["w"]


def test_large_constants_become_initializers() -> None:
    value = numpy_helper.from_array(np.ones((64, 64), np.float32))
    nodes = [helper.make_node("Constant", [], ["w"], value=value), helper.make_node("MatMul", ["x", "w"], ["y"])]
    info = [helper.make_tensor_value_info(n, 1, [2, 64]) for n in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:1], info[1:]), opset_imports=[helper.make_opsetid("", 9)], ir_version=8
    )
    step = load(model).program().step
    assert [n.op for n in step.nodes] == ["MatMul"]
    assert list(step.consts) == ["w"]


def test_a_long_chain() -> None:
    n = 2000
    nodes = [helper.make_node(("Relu", "Neg", "Tanh")[i % 3], [f"v{i}"], [f"v{i + 1}"]) for i in range(n)]
    nodes.append(helper.make_node("Gradient", ["v0"], ["g"], domain="ai.onnx.preview.training", xs=["v0"], y=f"v{n}"))
    info = [helper.make_tensor_value_info(v, 1, [3]) for v in ("v0", f"v{n}", "g")]
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:]), opset_imports=opsets, ir_version=8)
    assert len(load(model).program().step.nodes) == n + 1


def test_check_tries_sizes() -> None:
    """Seven pixels at least: a size of 2 is too small, and no reason to refuse."""
    main = (
        "g (float[N,1,H,H] x) => (float[N,1,a,b] y) <float[1,1,7,7] w = {"
        + ",".join("1" * 49)
        + "}> { y = Conv(x, w) }"
    )
    assert not check(make_model(main))
    found = check(make_model(main), {"H": 3})
    assert len(found) == 2  # both axes
    with pytest.raises(CompileError):
        load(make_model(main)).program({"N": 1, "H": 3})
