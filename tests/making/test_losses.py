"""Every loss against its formula in numpy: as it is written (by onnx.reference), and its gradient (by differences)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import compiler
from compiler import Loss, make_training_model
from compiler.ir.interpret import interpret
from tests.making import loss_formulas as formulas
from tests.making.loss_models import (
    FEATURES,
    Array,
    checked,
    linear,
    loss_by_reference,
    output,
    step_by_interpreter,
    step_graph,
)
from tests.slopes import slope

OPSETS = (8, 13, 22)


def inputs(shape: Sequence[int]) -> Array:
    return np.random.default_rng(1).normal(size=(*shape[:-1], FEATURES))


def agree(model: onnx.ModelProto, feeds: dict[str, Array], expected: float) -> None:
    """The loss as written, in the IR, and its gradient."""
    checked(model)
    if model.opset_import[0].version >= 13:
        assert loss_by_reference(model, feeds) == pytest.approx(expected, rel=1e-12)
    graph = step_graph(model, feeds)

    def loss(w: Mapping[str, Array]) -> float:
        return float(interpret(graph, feeds, w)["loss"].reshape(()))

    values = interpret(graph, feeds)
    assert float(values["loss"].reshape(())) == pytest.approx(expected, rel=1e-12)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    direction = np.random.default_rng(2).normal(size=w.shape)
    measured = slope(loss, "w", w, direction, 1e-6)
    assert float((values["w.gradient"] * direction).sum()) == pytest.approx(measured, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({}, {}),
        ({"weight": [0.5, 2.0, 1.0, 3.0]}, {"weight": [0.5, 2.0, 1.0, 3.0]}),
        ({"label_smoothing": 0.1}, {"smoothing": 0.1}),
        ({"ignore_index": -100}, {"ignore": -100}),
        (
            {"weight": [0.5, 2.0, 1.0, 3.0], "label_smoothing": 0.2, "ignore_index": 2},
            {"weight": [0.5, 2.0, 1.0, 3.0], "smoothing": 0.2, "ignore": 2},
        ),
        ({"reduction": "sum", "ignore_index": 1}, {"reduction": "sum", "ignore": 1}),
    ],
    ids=["plain", "weight", "smoothing", "ignored", "all", "sum"],
)
def test_cross_entropy(opset: int, options: dict[str, Any], formula: dict[str, Any]) -> None:
    labels = np.array([0, 1, options.get("ignore_index", 3), 3, 2])
    model = linear(["N", 4], opset=opset)
    feeds = {"x": inputs([5, 4]), "label": labels}
    expected = formulas.cross_entropy(formulas.log_softmax(output(model, feeds), -1), labels, **formula)
    agree(make_training_model(model, loss=Loss("cross_entropy", **options), optimizer="sgd"), feeds, expected)


@pytest.mark.parametrize("opset", [8, 13])
@pytest.mark.parametrize(
    ("shape", "axis", "perm"),
    [((2, 5, 4), None, None), ((2, 5, 4), 1, (0, 2, 1)), ((2, 3, 2, 4), None, (0, 3, 1, 2)), ((4,), None, None)],
    ids=["last", "middle", "image", "alone"],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classes_on_any_axis(
    opset: int, shape: tuple[int, ...], axis: int | None, perm: Sequence[int] | None, smoothing: float
) -> None:
    model = linear(shape, [("Transpose", {"perm": perm})] if perm else [], opset)
    labels = np.random.default_rng(4).integers(0, 4, shape[:-1])
    feeds = {"x": inputs(shape), "label": labels}
    log = formulas.log_softmax(output(model, feeds), -1)
    loss = Loss("cross_entropy", axis=axis, label_smoothing=smoothing)
    expected = formulas.cross_entropy(log, labels, smoothing=smoothing)
    agree(make_training_model(model, loss=loss, optimizer="sgd", batch=None), feeds, expected)


@pytest.mark.parametrize("opset", [8, 13])
@pytest.mark.parametrize("kind", ["cross_entropy", "nll"])
@pytest.mark.parametrize("end", ["Softmax", "LogSoftmax"])
def test_a_softmax_before_the_loss_is_looked_through(opset: int, kind: str, end: str) -> None:
    model = linear(["N", 4], [(end, {"axis": 1}), ("Identity", {})], opset)
    labels = np.array([0, 1, 3, 3, 2])
    feeds = {"x": inputs([5, 4]), "label": labels}
    if (kind, end) == ("nll", "Softmax"):
        with pytest.raises(compiler.InputError, match="'y' is a Softmax: use cross_entropy"):
            make_training_model(model, loss=kind)
        return
    training = make_training_model(model, loss=kind, optimizer="sgd")
    expected = formulas.cross_entropy(formulas.log_softmax(output(model, feeds), -1), labels)
    agree(training, feeds, expected)
    readers = [n for n in training.training_info[0].algorithm.node if "y0" in n.input]
    assert [n.op_type for n in readers] == ["SoftmaxCrossEntropyLoss" if opset >= 12 else "LogSoftmax"]


def test_nll_of_log_probabilities() -> None:
    model = linear(["N", 4])
    labels = np.array([0, 1, 3, 3, 2])
    feeds = {"x": inputs([5, 4]), "label": labels}
    loss = Loss("NLLLoss", weight=[1, 2, 3, 4], ignore_index=3)
    expected = formulas.cross_entropy(output(model, feeds), labels, weight=[1, 2, 3, 4], ignore=3)
    agree(make_training_model(model, loss=loss, optimizer="sgd"), feeds, expected)


@pytest.mark.parametrize("opset", [8, 13])
def test_targets_may_be_probabilities(opset: int) -> None:
    model = linear(["N", 4], opset=opset)
    target = np.random.default_rng(6).dirichlet(np.ones(4), 5)
    weight = np.array([0.5, 2.0, 1.0, 3.0])
    feeds = {"x": inputs([5, 4]), "target": target}
    loss = Loss("cross_entropy", soft_targets=True, label_smoothing=0.1, weight=list(weight))
    log = formulas.log_softmax(output(model, feeds), -1)
    expected = float(-(weight * (target * 0.9 + 0.1 / 4) * log).sum(-1).mean())
    agree(make_training_model(model, loss=loss, optimizer="sgd"), feeds, expected)


def test_probabilities_that_no_softmax_made() -> None:
    model = linear(["N", 4], [("Softmax", {}), ("Abs", {})])
    labels = np.array([0, 1, 3, 3, 2])
    feeds = {"x": inputs([5, 4]), "label": labels}
    loss = Loss("cross_entropy", from_logits=False)
    expected = formulas.cross_entropy(np.log(output(model, feeds, "y")), labels)
    agree(make_training_model(model, loss=loss, optimizer="sgd"), feeds, expected)


Formula = Callable[[Array, Array], Array]


@pytest.mark.parametrize("opset", [8, 18])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (Loss("MSELoss"), lambda x, t: (x - t) ** 2),
        (Loss("mean_absolute_error"), lambda x, t: np.abs(x - t)),
        (Loss("huber", delta=0.4), lambda x, t: formulas.huber(x, t, 0.4)),
        (Loss("SmoothL1Loss", beta=0.5), lambda x, t: formulas.smooth_l1(x, t, 0.5)),
        (Loss("bce"), formulas.bce),
        (Loss("bce", pos_weight=[1, 2, 3, 4], weight=[2, 1, 1, 3], label_smoothing=0.1),
         lambda x, t: formulas.bce(x, t, [1, 2, 3, 4], [2, 1, 1, 3], 0.1)),
        (Loss("kl"), lambda x, t: formulas.kl(formulas.log_softmax(x, -1), t)),
        (Loss("cosine"), lambda x, t: 1 - formulas.cosine(x, t)),
    ],
    ids=["mse", "l1", "huber", "smooth_l1", "bce", "bce_options", "kl", "cosine"],
)  # fmt: skip
def test_losses_of_numbers(opset: int, reduction: str, loss: Loss, formula: Formula) -> None:
    model = linear(["N", 4], opset=opset)
    target = np.random.default_rng(6).dirichlet(np.ones(4), 5)
    target[0] = [1, 0, 0, 0]
    feeds = {"x": inputs([5, 4]), "target": target}
    each = formula(output(model, feeds), target)
    training = make_training_model(model, loss=replace(loss, reduction=reduction), optimizer="sgd")
    agree(training, feeds, float(each.mean() if reduction == "mean" else each.sum()))


@pytest.mark.parametrize("end", [[], [("Sigmoid", {})]], ids=["logits", "sigmoid"])
def test_binary_cross_entropy_is_exact_far_from_zero_and_at_it(end: Any) -> None:
    """Where a logarithm of a sigmoid is infinite, and where |x| has no derivative."""
    model = linear(["N", 1], end)
    w = onnx.numpy_helper.to_array(model.graph.initializer[0])
    x = np.array([800.0, -800.0, 40.0, 0.0])[:, None] * np.linalg.pinv(w)
    feeds = {"x": x, "target": np.array([[0.0], [1.0], [1.0], [1.0]])}
    values = step_by_interpreter(make_training_model(model, loss="bce", optimizer="sgd", batch=None), feeds)
    expected = (800 + 800 + np.exp(-40.0) + np.log(2)) / 4
    assert float(values["loss"]) == pytest.approx(expected, rel=1e-12)
    slopes = np.array([1, -1, -np.exp(-40.0), -0.5]) / 4
    np.testing.assert_allclose(values["w.gradient"][:, 0], slopes @ x, rtol=1e-9)


def test_probabilities_for_binary_cross_entropy() -> None:
    model = linear(["N", 2], [("Sigmoid", {}), ("Abs", {})])
    target = np.random.default_rng(6).random((5, 2))
    feeds = {"x": inputs([5, 2]), "target": target}
    expected = float(formulas.bce(output(model, feeds), target).mean())
    agree(make_training_model(model, loss=Loss("bce", from_logits=False), optimizer="sgd"), feeds, expected)


def two_outputs() -> onnx.ModelProto:
    model = linear(["N", 4], [("Tanh", {})])
    model.graph.output.append(helper.make_tensor_value_info("y0", TensorProto.DOUBLE, ["N", 4]))
    return model


def test_cosine_embedding_of_two_outputs() -> None:
    model = two_outputs()
    feeds = {"x": inputs([5, 4]), "target": np.array([1.0, -1, -1, 1, -1])}
    cosine = formulas.cosine(output(model, feeds, "y"), output(model, feeds, "y0"))
    margin = float(np.median(cosine[feeds["target"] == -1])) - 0.01
    expected = np.where(feeds["target"] == 1, 1 - cosine, np.maximum(0, cosine - margin)).mean()
    loss = Loss("cosine_embedding", other="y0", margin=margin)
    agree(make_training_model(model, loss=loss, optimizer="sgd"), feeds, float(expected))


def test_several_losses_with_weights() -> None:
    model = two_outputs()
    labels = np.array([0, 1, 3, 3, 2])
    feeds = {"x": inputs([5, 4]), "y0.label": labels, "y.target": np.zeros((5, 4))}
    first = formulas.cross_entropy(formulas.log_softmax(output(model, feeds, "y0"), -1), labels)
    second = float(np.abs(output(model, feeds, "y")).mean())
    training = make_training_model(
        model, loss={"y0": "cross_entropy", "y": "l1"}, loss_weights={"y": 0.3}, optimizer="sgd"
    )
    agree(training, feeds, first + 0.3 * second)
    graph = step_graph(training, feeds)
    values = interpret(graph, feeds)
    assert [float(values[graph.outputs[n]]) for n in ("y0.loss", "y.loss")] == pytest.approx([first, second])


def own_graph(opset: int = 17) -> onnx.ModelProto:
    """The weighted mean of squares of y0, with a target and weights of its own."""
    nodes = [
        helper.make_node("Sub", ["y0", "wanted"], ["error"]),
        helper.make_node("Mul", ["error", "error"], ["square"]),
        helper.make_node("Mul", ["square", "importance"], ["weighted"]),
        helper.make_node("Mul", ["weighted", "two"], ["doubled"]),
        helper.make_node("ReduceMean", ["doubled"], ["result"], keepdims=0),
    ]
    values = [("y0", ["N", 4]), ("wanted", ["N", 4]), ("importance", ["N", 1])]
    graph = helper.make_graph(
        nodes,
        "weighted squares",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, d) for n, d in values],
        [helper.make_tensor_value_info("result", TensorProto.DOUBLE, [])],
        [onnx.numpy_helper.from_array(np.array(2.0), "two")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_a_loss_of_your_own_as_a_graph() -> None:
    model = two_outputs()
    wanted, importance = np.random.default_rng(7).random((5, 4)), np.arange(5.0)[:, None]
    feeds = {"x": inputs([5, 4]), "wanted": wanted, "importance": importance}
    expected = float((2 * importance * (output(model, feeds) - wanted) ** 2).mean())
    agree(make_training_model(model, loss=own_graph(), optimizer="sgd"), feeds, expected)


def test_a_loss_of_your_own_as_a_function() -> None:
    function = helper.make_function(
        "mine",
        "cubes",
        ["prediction", "truth"],
        ["cost"],
        [
            helper.make_node("Sub", ["prediction", "truth"], ["error"]),
            helper.make_node("Abs", ["error"], ["size"]),
            helper.make_node("Mul", ["size", "size"], ["square"]),
            helper.make_node("Mul", ["square", "size"], ["cube"]),
            helper.make_node("ReduceMean", ["cube"], ["cost"], keepdims=0),
        ],
        [helper.make_opsetid("", 17)],
    )
    model = linear(["N", 4])
    feeds = {"x": inputs([5, 4]), "truth": np.zeros((5, 4))}
    training = make_training_model(model, loss=function, optimizer="sgd")
    agree(training, feeds, float((np.abs(output(model, feeds)) ** 3).mean()))


def test_inputs_of_a_function_are_like_the_output_if_it_says_nothing_else() -> None:
    function = onnx.parser.parse_function("""<opset_import: ["" : 17], domain: "mine">
        weighted (prediction, truth, importance) => (cost) {
            error = Sub (prediction, truth)  square = Mul (error, error)
            scaled = Mul (square, importance)  cost = ReduceMean <keepdims: int = 0> (scaled) }""")
    model = linear(["N", 4])
    for last in (4, 1):
        training = make_training_model(model, loss=function, optimizer="sgd")
        dims = [
            [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in training.training_info[0].algorithm.input
        ]
        assert dims == [["N", 4], ["N", last]]
        importance = np.arange(5.0 * last).reshape(5, last)
        feeds = {"x": inputs([5, 4]), "truth": np.zeros((5, 4)), "importance": importance}
        agree(training, feeds, float((importance * output(model, feeds) ** 2).mean()))
        function.value_info.append(helper.make_tensor_value_info("importance", TensorProto.DOUBLE, ["N", 1]))


def test_the_target_may_be_an_input_of_the_model() -> None:
    model = linear(["N", 3])
    feeds = {"x": inputs([5, 3])}
    training = make_training_model(model, loss="mse", target="x", optimizer="sgd")
    assert not training.training_info[0].algorithm.input
    agree(training, feeds, float(((output(model, feeds) - feeds["x"]) ** 2).mean()))

    unused = linear(["N", 3])  # an input that no output reads becomes the target
    unused.graph.input.append(helper.make_tensor_value_info("goal", TensorProto.DOUBLE, ["N", 3]))
    feeds["goal"] = np.ones((5, 3))
    training = make_training_model(unused, loss="mse", target="goal", optimizer="sgd")
    agree(training, feeds, float(((output(model, feeds) - 1) ** 2).mean()))

    with pytest.raises(compiler.InputError, match=r"'x' is DOUBLE\[N, 3\], but the targets of 'y' are DOUBLE\[N, 4\]"):
        make_training_model(linear(["N", 4]), loss="mse", target="x")


def test_a_loss_of_your_own_reads_inputs_and_outputs_but_nothing_inside() -> None:
    def loss(*formals: str) -> onnx.FunctionProto:
        first, second = formals
        nodes = [
            helper.make_node("Sub", [first, second], ["error"]),
            helper.make_node("Mul", ["error", "error"], ["square"]),
            helper.make_node("ReduceMean", ["square"], ["cost"], keepdims=0),
        ]
        return helper.make_function("mine", "squares", formals, ["cost"], nodes, [helper.make_opsetid("", 17)])

    model = linear(["N", 3], [("Relu", {})])
    feeds = {"x": inputs([5, 3])}
    for formals in (("y", "x"), ("x", "y"), ("prediction", "x"), ("x", "prediction")):
        training = make_training_model(model, loss=loss(*formals), optimizer="sgd")
        assert not training.training_info[0].algorithm.input
        agree(training, feeds, float(((output(model, feeds, "y") - feeds["x"]) ** 2).mean()))

    with pytest.raises(
        compiler.InputError, match="your loss has an input 'y0', but the model has a value of this name"
    ):
        make_training_model(model, loss=loss("y", "y0"))
    training = make_training_model(model, loss=loss("y", "y0"), target="truth", optimizer="sgd")
    feeds["truth"] = np.ones((5, 3))
    agree(training, feeds, float(((output(model, feeds, "y") - 1) ** 2).mean()))


@pytest.mark.parametrize("kind", ["cross_entropy", "nll", "kl"])
def test_one_class_is_refused(kind: str) -> None:
    with pytest.raises(compiler.InputError, match=f"'y' has one class on axis 1, .* by {kind}: did you mean bce"):
        make_training_model(linear(["N", 1]), loss=kind)


def ending(*ends: str, dims: Sequence[int | str] = ("N", 2)) -> onnx.ModelProto:
    """`y` from the logit `z`, and constants to end with."""
    d = ", ".join(map(str, dims))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (double[N, 3] x) => (double[{d}] y)
        <double[3, 1] w = {{1, -2, 0.5}}, double one = {{1}}, int64[1] last = {{-1}}, double tiny = {{1e-7}}> {{
            z = MatMul (x, w)  {" ".join(ends)} }}""")


def test_two_classes_out_of_one_logit_are_probabilities() -> None:
    """As scikit-learn's classifiers end: 1 - p and p. Taken as logits, they would train to something else."""
    model = ending("p = Sigmoid (z)", "q = Sub (one, p)", "y = Concat <axis = 1> (q, p)")
    labels = np.array([0, 1, 1, 0])
    feeds = {"x": np.random.default_rng(3).normal(size=(4, 3)), "label": labels}
    log = np.log(output(model, feeds, "y"))
    training = make_training_model(model, optimizer="sgd", train="w")
    agree(training, feeds, formulas.cross_entropy(log, labels))
    training = make_training_model(model, loss=Loss("cross_entropy", from_logits=True), optimizer="sgd", train="w")
    expected = formulas.cross_entropy(formulas.log_softmax(output(model, feeds, "y"), -1), labels)
    agree(training, feeds, expected)


def test_probabilities_behind_what_moves_them() -> None:
    model = ending("p = Sigmoid (z)", "c = Clip (p, tiny)", "y = Squeeze (c, last)", dims=["N"])
    target = np.array([0, 1, 1, 0.5])
    feeds = {"x": np.random.default_rng(3).normal(size=(4, 3)), "target": target}
    p = output(model, feeds, "y")
    expected = float(-(target * np.log(p) + (1 - target) * np.log(1 - p)).mean())
    agree(make_training_model(model, loss="bce", optimizer="sgd", train="w"), feeds, expected)


def test_independent_probabilities_are_no_distribution() -> None:
    model = ending("zz = Concat <axis = 1> (z, z)", "y = Sigmoid (zz)")
    with pytest.raises(
        compiler.InputError, match=r"'y' comes from a Sigmoid, .* as cross_entropy needs: did you mean bce"
    ):
        make_training_model(model)
    for given in (True, False):
        make_training_model(model, loss=Loss("cross_entropy", from_logits=given))
