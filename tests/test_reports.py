"""What is wrong with a model is told at once: by `compile` already, by `check` beside all that it cannot look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.api import examine
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
    assert "Concat(f32[2,3], f32[2,3]): axis must be in [-rank, rank-1]" in found[0]
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
            assert str(e) == "compiler.compile needs the package {package!r}, which is not installed: pip install onnxc"
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
        assert done.stdout == f"error: {who} needs the package {package!r}, which is not installed: pip install onnxc\n"


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
