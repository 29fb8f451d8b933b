"""`StepFunction.evaluate`: the outputs of a step where nothing is learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import compiler
from compiler.codegen.support import has_kernel
from compiler.frontend import load
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from compiler.passes.evaluation import for_evaluation, without_idle_inputs
from compiler.passes.pipeline import passes, run
from examples import gan

Array = npt.NDArray[Any]

NETWORK = """
<ir_version: 8, opset_import: ["" : OPSET]>
network (float[N, 3] x) => (float[N, 2] y)
<float[3, 4] w1 = {0.5, -1, 0.25, 1, 1, 0.5, -0.5, 2, -1, 1, 1.5, 0.5},
 float[4, 2] w2 = {1, 0.5, -1, 1, 0.25, -0.5, 1, -1}, float[4] scale = {1, 2, 0.5, 1},
 float[4] bias = {0, 0.5, -0.5, 1}, float[4] mean = {0.1, 0.2, 0.3, 0.4}, float[4] var = {1, 2, 0.5, 1.5}> {
    h = MatMul (x, w1)
    n = BatchNormalization <epsilon = 0.001> (h, scale, bias, mean, var)
    r = Relu (n)
    d = Dropout (r)
    y = MatMul (d, w2)
}"""
"""BatchNormalization and Dropout, in inference form."""

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
LABEL = np.array([0, 1, 1, 0, 1, 0])


def cross_entropy(y: Array, label: Array) -> float:
    y = y.astype(np.float64)
    return float((np.log(np.exp(y).sum(1)) - y[np.arange(len(y)), label]).mean())


def trained(opset: int = 17, **options: Any) -> onnx.ModelProto:
    network = onnx.parser.parse_model(NETWORK.replace("OPSET", str(opset)))
    return compiler.make_training_model(network, target="label", **options)


def evaluation(model: onnx.ModelProto, dims: dict[str, int]) -> Graph:
    """The graph of the role before the other passes."""
    return for_evaluation(load(model).graph("evaluate", dims))


def bits(step: Any) -> dict[str, bytes]:
    return {name: a.tobytes() for name, a in step.state.items()}


@pytest.fixture(scope="module")
def step() -> Any:
    """A step that has run, so that nothing is as in the file."""
    made = compiler.compile(trained(lr=0.05))
    made(x=X, label=LABEL)
    return made


def test_the_loss_is_that_of_inference_and_nothing_changes(step: Any) -> None:
    before, inferred = bits(step), step.infer(x=X)["y"]
    found = step.evaluate(x=X, label=LABEL)
    assert np.array_equal(found["y"], inferred)
    assert abs(float(found["loss"]) - cross_entropy(inferred, LABEL)) < 1e-6
    assert bits(step) == before
    assert "onnxc.step" in before  # there is a stream of random numbers that could have advanced
    assert float(step.evaluate(x=X, label=LABEL)["loss"]) == float(found["loss"])


def test_other_batch_sizes_and_outputs_that_the_step_leaves_out() -> None:
    step = compiler.compile(trained(lr=0.05), dims={"N": 6}, outputs=["loss"])
    assert set(step(x=X, label=LABEL)) == {"loss"}
    y = step.infer(x=X)["y"]
    for rows in (slice(6), slice(4), slice(1)):
        found = step.evaluate({"x": X[rows], "label": LABEL[rows]}, fetch=["y"])
        assert set(found) == {"loss", "y"}
        assert abs(float(found["loss"]) - cross_entropy(y[rows], LABEL[rows])) < 1e-6


def test_gradients_and_next_values_can_be_fetched(step: Any) -> None:
    found = step.evaluate(x=X, label=LABEL, fetch=["w2.gradient", "w2.next", "mean"])
    y = step.infer(x=X, fetch=["r"])
    p = np.exp(y["y"]) / np.exp(y["y"]).sum(1, keepdims=True)
    p[np.arange(6), LABEL] -= 1
    assert np.allclose(found["w2.gradient"], y["r"].T @ p / 6, atol=1e-6)  # of the inference form: nothing is dropped
    assert not np.array_equal(found["w2.next"], step.state["w2"])
    assert np.array_equal(found["mean"], step.state["mean"])
    with pytest.raises(compiler.InputError, match=r"no value 'w2.gradeint' \(did you mean 'w2.gradient'\?\)"):
        step.evaluate(x=X, label=LABEL, fetch=["w2.gradeint"])


def test_names_are_checked_as_for_a_step(step: Any) -> None:
    with pytest.raises(compiler.InputError, match="missing input 'label', unknown input 'lable'"):
        step.evaluate(x=X, lable=LABEL)
    with pytest.raises(compiler.InputError, match=r"^'label'\[1\] is 2: label out of range \[0, 2\)"):
        step.evaluate(x=X, label=LABEL + 1)


@pytest.mark.parametrize(
    ("opset", "message"),
    [
        (17, r"^'label'\[2\] is -1: label out of range \[0, 2\), in node"),
        (11, r"^Gather: index out of range \[-2, 2\) among the values of 'label_or_2_if_negative'"),
    ],
)
def test_labels_are_checked_with_label_smoothing(opset: int, message: str) -> None:
    loss = compiler.Loss("cross_entropy", label_smoothing=0.1, weight=[1.0, 2.0], ignore_index=7)
    step = compiler.compile(trained(opset, loss=loss, optimizer="sgd"), dims={"N": 6})
    label = LABEL.copy()
    label[:2] = 7
    step.evaluate(x=X, label=label)
    label[2:4] = -1, 2
    with pytest.raises(compiler.RefusedError, match=message):
        step.evaluate(x=X, label=label)


@pytest.mark.parametrize("opset", [9, 11, 12, 17])
def test_training_forms_are_gone_at_every_opset(opset: int) -> None:
    """Below opset 12 there is no training form of Dropout: it is written out with random numbers."""
    graph = evaluation(trained(opset), {"N": 6})
    values = interpret(graph, {"x": X, "label": LABEL})
    assert abs(float(values[graph.outputs["loss"]]) - cross_entropy(values[graph.outputs["y"]], LABEL)) < 1e-6
    assert not any("Random" in node.op for node in graph.nodes)


def test_the_network_is_computed_once() -> None:
    """The copy that trains and the one that infers are the same now; gradients and optimizers are gone."""
    graph = run(load(trained()).graph("evaluate", {"N": 6}), passes(has_kernel, "evaluate"))
    assert sum(node.op in ("MatMul", "Gemm") for node in graph.nodes) == 2
    assert not any(node.op == "onnxc.AdamStep" or "gradient" in v for node in graph.nodes for v in node.results)


def test_statistics_are_given_as_they_are_inside_of_bodies_too() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        network (float[N, 2] x, bool c, bool training) => (float[N, 2] y, float[2] m, float[N, 2] z)
        <float[2] scale = {1, 2}, float[2] bias = {0, 1}, float[2] mean = {1, 2}, float[2] var = {4, 1},
         float r = {0.5}> {
            y, m, v = BatchNormalization <training_mode = 1, epsilon = 0.0> (x, scale, bias, mean, var)
            z = If (c) <
                then_branch = one () => (float[N, 2] a) {
                    b, bm, bv = BatchNormalization <training_mode = 1, epsilon = 0.0> (x, scale, bias, m, v)
                    a = Dropout (b, r, training)
                },
                else_branch = two () => (float[N, 2] d) { d = Identity (x) }
            >
        }""")
    graph = evaluation(model, {"N": 3})
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    values = interpret(graph, {"x": x, "c": np.array(True), "training": np.array(True)})
    expected = (x - [1, 2]) / [2, 1] * [1, 2] + [0, 1]
    for name in ("y", "z"):
        assert np.allclose(values[graph.outputs[name]], expected)
    assert np.array_equal(values[graph.outputs["m"]], [1, 2])


def test_several_algorithms_see_no_update_of_each_other() -> None:
    """In a step, the generator's loss is that of the discriminator after its update."""
    graph = evaluation(gan.build(), {"N": 4})
    noise, real = (np.random.default_rng(i).normal(size=(4, n)).astype(np.float32) for i, n in ((1, gan.NOISE), (2, 2)))
    values = interpret(graph, {"noise": noise, "real": real})
    score, real_score = (values[v].astype(np.float64) for v in (graph.outputs["score"], "real.score"))
    miss, false_alarm = np.log1p(np.exp(-real_score)).mean(), np.log1p(np.exp(score)).mean()
    assert abs(float(values[graph.outputs["generator.loss"]]) - np.log1p(np.exp(-score)).mean()) < 1e-6
    assert abs(float(values[graph.outputs["discriminator.loss"]]) - (miss + false_alarm)) < 1e-6
    assert not graph.updates
    assert all(node.domain == "" for node in graph.nodes)  # no Gradient is left


def test_random_numbers_of_later_steps_are_the_same_with_and_without() -> None:
    model = trained(accumulate=2)
    one, two = compiler.compile(model, dims={"N": 6}), compiler.compile(model, dims={"N": 6})
    for _ in range(3):
        a = one(x=X, label=LABEL)["loss"]
        two.evaluate(x=X[:4], label=LABEL[:4])
        assert two(x=X, label=LABEL)["loss"].tobytes() == a.tobytes()
    assert bits(one) == bits(two)


def test_what_only_updates_need_may_be_left_out() -> None:
    model = trained(lr_input="rate")
    kept = [t for t in model.training_info[0].algorithm.initializer if t.name != "rate"]
    del model.training_info[0].algorithm.initializer[:]
    model.training_info[0].algorithm.initializer.extend(kept)  # now it has no default value
    step = compiler.compile(model, dims={"N": 6})
    assert float(step.evaluate(x=X, label=LABEL)["loss"]) == float(step.evaluate(x=X, label=LABEL, rate=0.5)["loss"])
    with pytest.raises(compiler.InputError, match="missing input 'rate': what is fetched needs it"):
        step.evaluate(x=X, label=LABEL, fetch=["w2.next"])
    with pytest.raises(compiler.InputError, match="missing input 'rate'"):
        step(x=X, label=LABEL)


def test_inputs_of_other_sizes_are_never_idle() -> None:
    """A size that only an idle input has could not be told without it."""
    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x, float[M] unused, float same) => (float[N] y) { y = Relu (x) }""")
    assert load(graph).idle_inputs() == {"same"}
    graph_without = without_idle_inputs(evaluation(graph, {"N": 2, "M": 3}))
    assert graph_without.inputs == ("x",)
