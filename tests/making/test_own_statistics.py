"""Running statistics that share a tensor with something else, and forms that nodes inside of bodies do not get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import compiler
from compiler import InputError, make_training_model
from tests.making.loss_models import Array, checked

RNG = np.random.default_rng(0)
VALUES = {"s": np.array([1.5, 0.5]), "b": np.array([0.25, 1.0]), "m": np.array([0.5, 2.0]), "v": np.array([1.0, 3.0])}
X = RNG.normal(size=(5, 3, 2, 2)).astype(np.float32)
TARGET = RNG.normal(size=(5, 2, 2, 2)).astype(np.float32)


def model_of(nodes: Sequence[NodeProto], weights: Mapping[str, Array]) -> onnx.ModelProto:
    kernel = np.random.default_rng(1).normal(size=(2, 3, 1, 1))
    tensors = {"w": kernel, **weights}
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2, 2, 2])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normalized(operands: str, extra: Sequence[NodeProto] = ()) -> onnx.ModelProto:
    """operands: names of scale, bias, mean and variance, of one letter."""
    weights = {n: VALUES[n] for n in operands.lower() if n in VALUES and (n in operands or n in "sb")}
    return model_of([*extra, helper.make_node("BatchNormalization", ["c", *operands], ["y"], "norm")], weights)


def trained(model: onnx.ModelProto, operands: Sequence[str], batch_norm: str = "auto") -> list[Array]:
    """The losses of three steps, the output of inference, then the operands: as state, or as they stay."""
    training = checked(make_training_model(model, loss="mse", optimizer="sgd", lr=0.1, batch_norm=batch_norm))
    step = compiler.compile(training)
    losses = [step(x=X, target=TARGET)["loss"] for _ in range(3)]
    fixed = {t.name: numpy_helper.to_array(t) for t in training.graph.initializer}
    return [*losses, step.infer(x=X)["y"], *(step.state[n] if n in step.state else fixed[n] for n in operands)]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("batch_norm", ["auto", "frozen"])
@pytest.mark.parametrize("operands", ["sbbs", "sbbv", "sbms", "sbmm", "sbss", "sbsb"])
def test_a_shared_statistic_becomes_one_of_its_own(operands: str, batch_norm: str) -> None:
    """As if the file had kept the tensors apart."""
    apart = normalized("sbmv")
    for t in apart.graph.initializer:
        if t.name in "mv":
            t.CopyFrom(numpy_helper.from_array(VALUES[operands["sbmv".index(t.name)]].astype(np.float32), t.name))
    expected = trained(apart, "sbmv", batch_norm)
    together = operands[2] == operands[3] and batch_norm == "auto"  # else neither is updated
    kinds = zip(operands[2:], ("running_mean", "running_var"), strict=True)
    names = ["s", "b", *(f"{v}.{kind}" if v in "sb" or together else v for v, kind in kinds)]
    for value, wanted in zip(trained(normalized(operands), names, batch_norm), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5)


def test_statistics_behind_an_identity_are_copied() -> None:
    """As PyTorch's exporter writes equal tensors."""
    same = [helper.make_node("Identity", ["s"], ["V"]), helper.make_node("Identity", ["b"], ["M"])]
    operands = ["s", "b", "b.running_mean", "s.running_var"]
    hidden, direct = (trained(m, operands) for m in (normalized("sbMV", same), normalized("sbbs")))
    for value, wanted in zip(hidden, direct, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_a_layer_that_is_used_twice_keeps_its_statistics_together() -> None:
    nodes = [
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["d"]),
        helper.make_node("BatchNormalization", ["d", *"sbmv"], ["y"]),
    ]
    training = checked(make_training_model(model_of(nodes, VALUES), loss="mse", optimizer="sgd"))
    assert {b.key for b in training.training_info[0].update_binding} == {"w", *"sbmv"}


def branching(op: str, inputs: Sequence[str]) -> onnx.ModelProto:
    """An If, one of whose branches is that node."""
    bodies = [
        helper.make_graph([node], "body", [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)])
        for node in (helper.make_node(op, inputs, ["inside"], "inner"), helper.make_node("Identity", ["c"], ["same"]))
    ]
    node = helper.make_node("If", ["yes"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    model = model_of([node], VALUES)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    return model


def test_nodes_inside_of_bodies_keep_their_inference_form() -> None:
    model = branching("BatchNormalization", ["c", *"sbmv"])
    kept = "is in the body of a node, where it keeps its inference form"
    notes: list[str] = []
    training = checked(make_training_model(model, loss="mse", note=notes.append))
    assert notes == [f"BatchNormalization 'inner' {kept}: its running statistics are not updated"]
    assert not {b.key for b in training.training_info[0].update_binding} & {"m", "v"}
    make_training_model(model, loss="mse", batch_norm="frozen", note=pytest.fail)
    make_training_model(model, loss="mse", freeze=["s", "b"], note=pytest.fail)
    with pytest.raises(InputError, match=r"batch_norm='train': .* cannot update its running statistics: 'inner': give"):
        make_training_model(model, loss="mse", batch_norm="train")
    notes.clear()
    make_training_model(branching("Dropout", ["c"]), loss="mse", note=notes.append)
    assert notes == [f"Dropout 'inner' {kept}: it drops nothing"]


def sparse(names: Sequence[str]) -> onnx.ModelProto:
    """`y` = (`x` W + bias) V, where W and V are sparse."""
    weights = [
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.ones(2, np.float32), name), numpy_helper.from_array(np.array([1, 2])), [2, 2]
        )
        for name in names
    ]
    nodes = [
        helper.make_node("MatMul", ["x", names[0]], ["h"]),
        helper.make_node("Add", ["h", "bias"], ["g"]),
        helper.make_node("MatMul", ["g", names[1]], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in "xy")
    bias = numpy_helper.from_array(np.ones(2, np.float32), "bias")
    graph = helper.make_graph(nodes, "g", [x], [y], [bias], sparse_initializer=weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_sparse_weights_are_named() -> None:
    model = sparse(["first.w", "second.w"])
    remedy = "a sparse initializer does not train, as its update is dense: store it as a dense initializer"
    notes: list[str] = []
    training = make_training_model(model, loss="mse", optimizer="sgd", note=notes.append)
    assert compiler.check(training) == ()
    assert notes == [f"'{n}.w' does not train: {remedy}" for n in ("first", "second")]
    assert {b.key for b in training.training_info[0].update_binding} == {"bias"}
    make_training_model(model, loss="mse", freeze="*.w", note=pytest.fail)
    make_training_model(model, loss="mse", train="bias", note=pytest.fail)
    with pytest.raises(InputError, match=f"train: 'first.w', 'second.w': {remedy}"):
        make_training_model(model, loss="mse", train="*.w")
    del model.graph.node[1]
    model.graph.node[1].input[0] = "h"
    del model.graph.initializer[:]
    with pytest.raises(InputError, match=f"there is nothing to train but 'first.w', 'second.w': {remedy}"):
        make_training_model(model, loss="mse")
