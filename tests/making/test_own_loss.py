"""Losses of the user's own: what is one, and what is refused; names of targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import compiler
from compiler import InputError, Loss, make_training_model
from tests.making.loss_models import Array, checked, linear, output, step_by_interpreter

MEAN = "e = Sub (p, t) s = Mul (e, e) cost = ReduceMean <keepdims: int = 0> (s)"


def own(body: str, formals: str = "p, t") -> onnx.FunctionProto:
    return parser.parse_function(f'<opset_import: ["": 17], domain: "mine"> loss ({formals}) => (cost) {{ {body} }}')


def two_outputs(hidden: str = "h") -> onnx.ModelProto:
    """`y` and `q` [N, 4] of two weights, behind a value that may be called anything."""
    model = linear(["N", 4], [("Identity", {}), ("Relu", {})])
    for node in model.graph.node:
        for names in (node.input, node.output):
            renamed = [hidden if v == "y1" else v for v in names]
            del names[:]
            names.extend(renamed)
    model.graph.node.append(helper.make_node("MatMul", ["x", "w2"], ["q"]))
    model.graph.output.append(helper.make_tensor_value_info("q", TensorProto.DOUBLE, ["N", 4]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 4)), "w2"))
    return model


def feeds(**more: Array) -> dict[str, Array]:
    return {"x": np.random.default_rng(0).normal(size=(5, 3)), "t": np.ones((5, 4)), **more}


@pytest.mark.parametrize(
    "end",
    [
        "cost = ReduceMean <keepdims: int = 0> (s)",
        "cost = ReduceMean <keepdims: int = 1> (s)",
        "m = ReduceMean <keepdims: int = 0> (s) shape = Constant <value_ints: ints = [1]> () cost = Reshape (m, shape)",
        "m = ReduceMean <keepdims: int = 0> (s) cost = Cast <to: int = 1> (m)",
        # the rank of this one is not known before its shape is
        "m = ReduceMean <keepdims: int = 0> (s) f = Flatten (p) n = Shape (f) r = Shape (n) o = Sub (r, r) "
        "l = ConstantOfShape (o) i = Cast <to: int = 7> (l) cost = Reshape (m, i)",
    ],
)
def test_one_number_of_any_form_is_a_scalar(end: str) -> None:
    model = linear(["N", 4])
    training = checked(make_training_model(model, loss=own(f"e = Sub (p, t) s = Mul (e, e) {end}"), optimizer="sgd"))
    given = feeds()
    loss = step_by_interpreter(training, given)["loss"]
    assert loss.shape == ()
    assert loss.dtype == np.float64
    assert loss == pytest.approx(((output(model, given) - 1) ** 2).mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("cost = Sub (p, t)", r"your loss has the shape \[N, 4\], but a loss is one number: end it with ReduceMean"),
        ("e = Sub (p, t) cost = ReduceMean <axes: ints = [1], keepdims: int = 0> (e)", r"has the shape \[N\], but"),
        (
            "e = Sub (p, t) s = ReduceMean <keepdims: int = 0> (e) cost = Cast <to: int = 7> (s)",
            "is INT64, which has no",
        ),
        ("e = Sub (t, t) cost = ReduceMean <keepdims: int = 0> (e)", "does not depend on an output of the model"),
        (
            "g = Greater (p, t) f = Cast <to: int = 1> (g) cost = ReduceSum <keepdims: int = 0> (f)",
            "does not depend on",
        ),
        ("n = Shape (p) f = Cast <to: int = 1> (n) cost = ReduceSum <keepdims: int = 0> (f)", "does not depend on"),
        ("e = Sub (p, truth) cost = ReduceMean (e)", "your loss reads 'truth', which nothing in it defines"),
        ("e = Sub (p, t)", "no node of your loss makes its output 'cost'"),
        ("e = Elu <alpha = @a> (p) cost = ReduceMean (e)", "your loss has attributes without a value, 'a': give them"),
    ],
)
def test_what_is_no_loss(body: str, message: str) -> None:
    loss = own(body)
    if "@" in body:
        loss.attribute.append("a")
    with pytest.raises(InputError, match=message):
        make_training_model(linear(["N", 4]), loss=loss)


def test_inputs_of_a_graph_that_are_no_tensors_are_refused() -> None:
    graph = parser.parse_graph(f"g (float[N,4] p, seq(float) t) => (float cost) {{ {MEAN.replace('t)', 'p)')} }}")
    with pytest.raises(InputError, match="input 't' of your loss is no tensor"):
        make_training_model(linear(["N", 4]), loss=graph)


def names(model: onnx.ModelProto) -> list[str]:
    return [v.name for v in model.training_info[0].algorithm.input]


def test_several_losses_share_a_target() -> None:
    model = two_outputs()
    training = checked(make_training_model(model, loss={"y": "ce", "q": "ce"}, target={"y": "label", "q": "label"}))
    assert names(training) == ["label"]
    training = checked(
        make_training_model(
            model, loss={"y": own(MEAN), "q": Loss("l1", target="t")}, target={"y": "t"}, optimizer="sgd"
        )
    )
    assert names(training) == ["t"]
    given = feeds()
    values = step_by_interpreter(training, given)
    parts = abs(output(model, given, "q") - 1).mean(), ((output(model, given, "y") - 1) ** 2).mean()
    assert values["loss"] == pytest.approx(sum(parts))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loss": {"y": "ce", "q": "mse"}, "target": {"y": "t", "q": "t"}},
            r"'t' cannot be one input for two losses: the targets of 'y' are INT64\[N\], those of 'q' DOUBLE\[N, 4\]",
        ),
        (
            {"loss": {"y": own(MEAN), "q": own(MEAN)}},
            r"both have an input 't': target={'y': 't', 'q': 't'} makes it one",
        ),
        (
            {"loss": own(MEAN, "p, t, u"), "target": "v"},
            "target='v' is one name, but your loss has 2 inputs to be named: ",
        ),
        (
            {"loss": own(MEAN.replace("t)", "p)"), "p"), "target": "v"},
            "but your loss has 0 inputs to be named: leave it",
        ),
        ({"loss": own(MEAN), "target": "x"}, r"the model's input 'x' is DOUBLE\[N, 3\], but the targets of 'y' are"),
        ({"loss": own(MEAN), "target": "w"}, "target: the model has a value 'w' already, give another name"),
        (
            {"loss": own(MEAN.replace("t)", "w)"), "p, w")},
            "your loss has an input 'w', but the model has a value of this",
        ),
        ({"loss": {"y": "mse", "q": "mse"}, "target": "t"}, "target= is one name, but there are several losses"),
    ],
)
def test_names_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_training_model(two_outputs(), **options)


def noted(model: onnx.ModelProto, **options: Any) -> tuple[onnx.ModelProto, list[str]]:
    notes: list[str] = []
    return checked(make_training_model(model, note=notes.append, **options)), notes


def test_a_name_that_is_taken_is_noted() -> None:
    said = "the name {!r} is taken in the model: what is usually called so is {!r} here"
    assert noted(two_outputs())[1] == []
    training, notes = noted(two_outputs("label"))
    assert notes == [said.format("label", "label_1")]
    assert names(training) == ["label_1"]
    training, notes = noted(two_outputs("loss"), loss="mse")
    assert notes == [said.format("loss", "loss_1")]
    assert training.training_info[0].algorithm.output[0].name == "loss_1"
    for taken in ("w.gradient", "w.next", "iteration", "w.exp_avg", "learning_rate"):
        assert noted(two_outputs(taken), lr_input=True)[1] == [said.format(taken, f"{taken}_1")]
    several: dict[str, Any] = {"loss": {"y": "mse", "q": "mse"}}
    assert noted(two_outputs("loss"), **several)[1] == [said.format("loss", "loss_1")]
    assert noted(two_outputs("y.loss"), **several)[1] == [said.format("y.loss", "y.loss_1")]


def test_a_name_inside_of_a_body_is_taken_too() -> None:
    """It would hide the loss there, where ONNX wants each name once."""
    model = linear(["N", 4], [("Identity", {})])
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["y0"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None)],
        )
        for op, name in (("Neg", "loss"), ("Identity", "same"))
    )
    model.graph.node[-1].CopyFrom(helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    training, notes = noted(model, loss="mse", optimizer="sgd")
    assert notes == ["the name 'loss' is taken in the model: what is usually called so is 'loss_1' here"]
    given = {"x": feeds()["x"], "target": np.ones((5, 4))}
    step = compiler.compile(training)
    assert step(**given)["loss_1"] == pytest.approx(((-output(model, given) - 1) ** 2).mean())
