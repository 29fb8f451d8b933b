"""What is wrong with a model is told at once: by `compile` already, by `check` beside all that it cannot look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.api import examine
from compiler.errors import INSTALL
from compiler.ir.graph import Node
from compiler.ir.types import TensorType
from tests.frontend.small import INITIALIZATION, LINEAR, STARTS, STEP, UPDATES, linear, make_model, training_info
from tests.test_api import T, X, run_python


def refusal(model: onnx.ModelProto, **options: Any) -> list[str]:
    """The problems that `compile` tells."""
    with pytest.raises(compiler.CompileError) as e:
        compiler.compile(model, **options)
    return [str(p) for p in e.value.problems]


@pytest.fixture
def without_erf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code generation lacks an operator, whatever others it may have learned."""
    known = compiler.api.has_kernel

    def has_kernel(node: Node, types: Sequence[TensorType | None]) -> bool:
        return node.op != "Erf" and known(node, types)

    for module in ("trial", "specialize", "api"):
        monkeypatch.setattr(f"compiler.{module}.has_kernel", has_kernel)


# --- at once ---------------------------------------------------------------------------------------------------------
BAD_BINDINGS = {"w": "loss", "nope": "w_next", "n": "n_nope"}


@pytest.mark.parametrize("dims", [None, {"N": 4}])
def test_bindings_and_types_in_one_error(dims: dict[str, int] | None) -> None:
    model = make_model(LINEAR, training_info(STEP, BAD_BINDINGS, INITIALIZATION, {"w": "n0"}))
    found = refusal(model, dims=dims)
    for words, part in zip(
        (
            "'nope' is bound, but is no initializer",
            "'n' is bound to 'n_nope', which is no output",
            "variable 'w' is f32[3,1], but gets the value 'loss', which is f32[]",
            "variable 'w' is f32[3,1], but gets the value 'n0', which is i64[]",
        ),
        found,
        strict=True,
    ):
        assert words in part
    assert found == [str(p) for p in compiler.check(model, dims=dims)]


@pytest.mark.parametrize("dims", [None, {"N": 4}])
def test_compile_looks_at_initialization(without_erf: None, dims: dict[str, int] | None) -> None:
    initialization = INITIALIZATION.replace("w0 = RandomNormal", "w1 = RandomNormal").replace(
        "n0 =", "w0 = Erf(w1) n0 ="
    )
    found = refusal(make_model(LINEAR, training_info(STEP, UPDATES, initialization, STARTS)), dims=dims)
    assert found == [
        "operator Erf(f32) is not supported, in node 'w0', "
        "replace it in the model by supported operators, or feed its result as an input"
    ]


def test_compile_tells_what_is_wrong_whatever_the_open_sizes_are(without_erf: None) -> None:
    model = make_model(LINEAR, training_info(STEP.replace("e = Sub(y, t)", "f = Sub(y, t) e = Erf(f)"), UPDATES))
    assert len(found := refusal(model)) == 1
    assert "operator Erf(f32) is not supported, in node 'e'" in found[0]
    model.training_info[0].update_binding[0].value = "loss"
    assert len(found := refusal(model)) == 2
    assert "variable 'w' is f32[3,1], but gets the value 'loss'" in found[0] + found[1]


def test_a_model_made_for_one_size_compiles_without_it() -> None:
    """Nothing is wrong with it but at the sizes that are tried."""
    model = make_model("m (float[N,4] x) => (float[A,B] y) <int64[2] s = {10,2}> { y = Reshape(x, s) }")
    assert "8 elements, those of [2, 4], do not fit" in str(compiler.check(model)[0])
    assert examine(model).notes == ("'N' had no size and was tried as 2, 32 and 224: others may fit",)
    step = compiler.compile(model)
    assert step(x=np.ones((5, 4), np.float32))["y"].shape == (10, 2)
    with pytest.raises(compiler.CompileError, match="24 elements"):
        step(x=np.ones((6, 4), np.float32))


# --- check beside what waits for values ------------------------------------------------------------------------------
WAITING = "m (float[2,3] x, int64[2] s) => (float[A,B] y) {{ r = Reshape(x, s) y = Neg(r) {} }}"


def test_check_goes_on_beside_inputs_that_decide_shapes(without_erf: None) -> None:
    model = make_model(WAITING.format("a = Erf(x) b = Concat<axis=5>(x, x)"))
    found = [str(p) for p in compiler.check(model)]
    assert len(found) == 3
    assert "Concat('x': f32[2,3], 'x': f32[2,3]): axis must be in [-rank, rank-1]" in found[0]
    assert "operator Erf(f32) is not supported, in node 'a'" in found[1]
    assert "in node 'r', bind what decides it: static={'s': array}" in found[2]
    assert examine(model).inputs == ("s",)
    assert len(refusal(model)) == 2  # a call may bind what decides shapes
    assert len(compiler.check(model, static={"s": [3, 2]})) == 2


def test_nothing_is_good_before_it_was_looked_at() -> None:
    model = make_model(WAITING.format(""))
    assert len(compiler.check(model)) == 1
    assert compiler.check(model, static={"s": [3, 2]}) == ()
    assert "do not fit the shape [4, 2]" in str(compiler.check(model, static={"s": [4, 2]})[0])
    open_dim = make_model("m (int64[R] s, float[6] x) => (float[A,B] y) { y = Reshape(x, s) }")
    assert compiler.check(open_dim, static={"s": [3, 2, 1]}) == ()  # its length is the size of R


def test_models_that_update_nothing() -> None:
    assert examine(linear()).notes == ()
    assert examine(make_model(LINEAR)).notes[0].startswith("the model updates nothing: it has no training_info")
    idle = make_model(LINEAR, training_info(STEP, {}, INITIALIZATION, {"w": "w0"}))
    assert compiler.check(idle) == ()
    assert examine(idle).notes == ("the model updates nothing: no training_info has an update_binding",)


def test_no_initialization() -> None:
    step = compiler.compile(make_model(LINEAR, training_info(STEP, UPDATES)))
    step(x=X, t=T)
    before = step.state["w"].copy()
    with pytest.warns(UserWarning, match="no initialization graph, so its variables keep the values they have"):
        step.initialize()
    np.testing.assert_array_equal(step.state["w"], before)


# --- machines that only run artifacts --------------------------------------------------------------------------------
@pytest.mark.parametrize("package", ["onnx", "numba", "networkx"])
def test_a_missing_package_is_named(package: str) -> None:
    run_python(f"""
        import sys
        sys.modules[{package!r}] = None
        import compiler
        compiler.load, compiler.StepFunction
        try:
            compiler.compile("model.onnx")
        except compiler.BuildError as e:
            assert str(e) == "compiler.compile needs the package {package!r}, which is not installed: {INSTALL}"
        else:
            raise AssertionError
    """)


def test_the_command_names_a_missing_package() -> None:
    for package, who in (("onnx", "onnxc"), ("click", "the command")):
        done = run_python(f"""
            import runpy, sys
            sys.modules[{package!r}] = None
            sys.argv = ["onnxc", "check", "model.onnx"]
            sys.stderr = sys.stdout
            try:
                runpy.run_module("compiler", run_name="__main__")
            except SystemExit as e:
                assert e.code == 1
        """)
        assert done.stdout == f"error: {who} needs the package {package!r}, which is not installed: {INSTALL}\n"


def test_many_different_things_in_one_report() -> None:
    def info(name: str, dtype: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, shape)

    faults = {
        "n_sequence": helper.make_node("SequenceConstruct", ["x"], ["q"]),
        "n_unknown": helper.make_node("Foo", ["x"], ["foo"]),
        "n_foreign": helper.make_node("FusedMatMul", ["x", "x"], ["product"], domain="com.microsoft"),
        "n_optional": helper.make_node("Optional", ["x"], ["o"]),
        "n_text": helper.make_node("StringNormalizer", ["text"], ["t"]),
        "n_attribute": helper.make_node("Relu", ["x"], ["r"], speed=3),
        "n_shapes": helper.make_node("Add", ["x", "w"], ["s"]),
        "n_picture": helper.make_node("ImageDecoder", ["bytes"], ["i"]),
        "n_channels": helper.make_node("Conv", ["image", "kernel"], ["c"]),
        "n_selected": helper.make_node("NonZero", ["h"], ["z"]),
        "n_shape": helper.make_node("Reshape", ["h", "count"], ["u"]),
    }
    for name, node in faults.items():
        node.name = name
    nodes = [
        helper.make_node("Neg", ["x"], ["h"]),
        helper.make_node("Cast", ["h"], ["count"], to=TensorProto.INT64),
        *faults.values(),
        helper.make_node("Identity", ["h"], ["y"]),
    ]
    float32, text = TensorProto.FLOAT, TensorProto.STRING
    inputs = [info("x", float32, [2]), info("text", text, [2]), info("bytes", TensorProto.UINT8, [9])]
    inputs.append(info("image", float32, [1, 3, 4, 4]))
    weights = {"w": np.ones(3, np.float32), "kernel": np.ones((2, 5, 3, 3), np.float32)}
    graph = helper.make_graph(
        nodes, "g", inputs, [info("y", float32, [2])], [numpy_helper.from_array(a, n) for n, a in weights.items()]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    found = compiler.check(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    for name in faults:
        assert [p.remedy for p in found if repr(name) in p.where], name
    assert all(p.what and p.where and p.remedy for p in found)


NETWORK = """net (float[N,4] x) => (float[N,3] logits) <
  float[4,16] w1 = {W1}, float[16] b1 = {B1}, float[15,3] w2 = {W2}
> { h0 = Gemm<transb=1>(x, w1, b1) h1 = Relu(h0) logits = MatMul(h11, w2) }"""
NETWORK_STEP = """step (float[N] labels) => (float loss, float[4,16] w1_next, float[4,16] v_next)
<float rate = {0.1}, int64 t = {0}, float[4,16] v = {W1}>
{
  loss = SoftmaxCrossEntropyLoss(logits, labels)
  dw = ai.onnx.preview.training.Gradient<xs=["w1"], zs=["x", "labels"], y="loss">(w1, x, labels)
  w1_next, v_next = ai.onnx.preview.training.Adam(rate, t, w1, dw, v)
}"""


def with_numbers(text: str) -> str:
    for name, n in {"W1": 64, "B1": 16, "W2": 45}.items():
        text = text.replace("{" + name + "}", "{" + ", ".join(["0"] * n) + "}")
    return text


def test_mistakes_of_every_kind_at_once() -> None:
    updates = {"w1": "w1_next", "vv": "v_next"}
    model = make_model(with_numbers(NETWORK), training_info(with_numbers(NETWORK_STEP), updates))
    found = refusal(model, dims={"N": 2})
    for words, part in zip(
        (
            "'h11' is read, but nothing defines it (did you mean 'h1'?), in node 'logits'",
            "'vv' is bound, but is no initializer",
            "Gemm has no attribute 'transb' (did you mean 'transB'?), in node 'h0'",
            "Adam has 3 operands behind R and T, which is no multiple of 4",
            "SoftmaxCrossEntropyLoss('logits': ?, 'labels': f32[2]): labels is f32, where i32 or i64 is expected",
        ),
        found,
        strict=True,
    ):
        assert words in part
    assert found == [str(p) for p in compiler.check(model, dims={"N": 2})]


def test_a_missing_name_is_told_once() -> None:
    """It is missing for the inference graph, for the algorithm, for its Gradient and for all that depends on them."""
    main = LINEAR.replace("<float[3,1] w = {1, 2, 3}>", "")
    found = refusal(make_model(main, training_info(STEP, {"n": "n_next"})))
    assert len(found) == 1
    assert "'w' is read, but nothing defines it, in node 'y'" in found[0]


def test_a_gradient_of_a_misspelt_name_does_not_hide_what_is_behind_it() -> None:
    step = STEP.replace('y="loss"', 'y="los"').replace("Add(n, one)", "Add(n, rate)")
    found = refusal(make_model(LINEAR, training_info(step, UPDATES)))
    assert len(found) == 2
    assert "Gradient names the tensor 'los' in y, which does not exist here (did you mean 'loss'?)" in found[0]
    assert "Add('n': i64[], 'rate': f32[]): B is f32, but A is i64: they must be of one dtype" in found[1]


def test_a_cycle_is_not_laid_on_the_gradient_behind_it() -> None:
    found = refusal(make_model(LINEAR, training_info(STEP.replace("Sub(y, t)", "Sub(y, loss)"), UPDATES)))
    assert len(found) == 1
    assert "'loss' is read before a later node computes it" in found[0]


def test_a_wrong_initializer_is_told_where_it_is_read_first() -> None:
    main = """net (float[2,1,5] x) => (float[2,1,1,2] y)
      <float[1,7,5] w = {W}, float[1,8,2] r = {R}> { y = LSTM<hidden_size=2>(x, w, r) }"""
    main = main.replace("{W}", "{" + ", ".join(["0"] * 35) + "}").replace("{R}", "{" + ", ".join(["0"] * 16) + "}")
    step = """step () => (float loss, float[1,7,5] w_next, float[1,8,5] v_next)
    <float rate = {0.1}, int64 t = {0}, float[1,8,5] v = {V}>
    {
      loss = ReduceSum<keepdims=0>(y)
      dw = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x"], y="loss">(w, x)
      w_next, v_next = ai.onnx.preview.training.Adagrad(rate, t, w, dw, v)
    }""".replace("{V}", "{" + ", ".join(["0"] * 40) + "}")
    found = refusal(make_model(main, training_info(step, {"w": "w_next", "v": "v_next"})))
    assert len(found) == 1
    assert "LSTM('x': f32[2,1,5], 'w': f32[1,7,5], 'r': f32[1,8,2])" in found[0]


def test_open_sizes_are_noted_only_where_they_matter() -> None:
    wrong = make_model("m (float[N,4] x) => (float[A,B] y) <float[3,1] w = {1, 2, 3}> { y = MatMul(x, w) }")
    assert len(examine(wrong).problems) == 1
    assert examine(wrong).notes == ()


def test_long_lists_of_operands_are_cut() -> None:
    operands = ", ".join(["x"] * 30)
    found = refusal(make_model(f"m (float[2] x, double[2] z) => (float[2] y) {{ y = Sum({operands}, z) }}"))
    assert len(found) == 1
    assert "... 31 operands): operand 30 is f64, but operand 0 is f32: they must be of one dtype" in found[0]
    assert found[0].count("f32[2]") == 5


def test_names_like_those_that_there_are() -> None:
    names = STEP.replace("w_next", "w_nxt"), UPDATES | {"W": "w_nxt"}
    found = compiler.check(make_model(LINEAR, training_info(*names)))
    assert any("'W' is bound, but is no initializer (did you mean 'w'?)" in p.what for p in found)
    assert any("'w_next', which is no output of the algorithm (did you mean 'w_nxt'?)" in p.what for p in found)
    gemm = make_model("m (float[2,3] x) => (float[2,2] y) { y = Gemm<transb=1>(x, x) }")
    assert [p.what for p in compiler.check(gemm)] == ["Gemm has no attribute 'transb' (did you mean 'transB'?)"]


def _initialized(model: onnx.ModelProto) -> None:
    model.training_info[0].initialization.CopyFrom(
        onnx.parser.parse_graph("i (float[3,1] u) => (float[3,1] v) { v = Neg(u) }")
    )


def _reading_state(model: onnx.ModelProto) -> None:
    model.training_info[0].initialization.CopyFrom(onnx.parser.parse_graph("i () => (float[3,1] v) { v = Neg(w) }"))


def _leaking(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Identity", ["n_next"], ["leak"]))


def _clashing(model: onnx.ModelProto) -> None:
    model.training_info[0].algorithm.node.append(helper.make_node("Neg", ["x"], ["y"]))


def _unimported(model: onnx.ModelProto) -> None:
    del model.opset_import[1]


def _another_input(model: onnx.ModelProto) -> None:
    other = training_info("o (float[N,2] t) => (float[N,2] u) { u = Neg(t) }", {})
    model.training_info.append(other)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (_initialized, "the initialization graph has the input 'u'"),
        (_reading_state, "'w' is read, but nothing defines it: the initialization graph cannot see the model's values"),
        (_leaking, "'n_next' is read, but nothing defines it: it belongs to training_info[0].algorithm"),
        (_clashing, "the name 'y' is defined twice"),
        (_unimported, "Gradient is of domain 'ai.onnx.preview.training', which is not imported"),
        (_another_input, "input 't' has another type than the input of that name of training_info[0]"),
    ],
)
def test_violations_of_training_info_hide_no_wrong_type(
    break_it: Callable[[onnx.ModelProto], None], words: str
) -> None:
    step = STEP.replace("n_next = Add(n, one)", "n_next = Add(n, ones)").replace("int64 n_next)", "int64[2] n_next)")
    model = make_model(LINEAR, training_info(step.replace("int64 one = {1}", "int64[2] ones = {1, 1}"), UPDATES))
    wrong = "variable 'n' is i64[], but gets the value 'n_next', which is i64[2]"
    (alone,) = refusal(model)
    assert wrong in alone
    break_it(model)
    found = refusal(model)
    assert any(words in p for p in found), found
    assert any(wrong in p for p in found), found
    assert len(found) <= 3
