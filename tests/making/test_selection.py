"""Which tensors train, fresh weights, and what the arguments must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import compiler
from compiler import InputError, Loss, make_training_model
from compiler.frontend.making.merged import merged
from compiler.ir.interpret import interpret
from tests.making.loss_models import Array, checked, linear

RNG = np.random.default_rng(0)


def model_of(
    nodes: list[NodeProto],
    weights: Mapping[str, Array],
    x: tuple[Any, ...] = ("N", 3),
    y: tuple[Any, ...] = ("N", 2),
    dtype: int = TensorProto.FLOAT,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, x)],
        [helper.make_tensor_value_info("y", dtype, y)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def numbers(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def constant(name: str, array: Array) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def trained(model: onnx.ModelProto) -> set[str]:
    (node,) = [n for n in model.training_info[0].algorithm.node if n.op_type == "Gradient"]
    return {v.removesuffix(".gradient") for v in node.output}


def network() -> onnx.ModelProto:
    """With preprocessing, a bound, a mask, weights in nodes and behind views, and biases of one number."""
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["x1"]),
        helper.make_node("Mul", ["x1", "inverse"], ["x2"]),
        helper.make_node("Clip", ["x2", "", "bound"], ["x3"]),
        helper.make_node("Transpose", ["turned"], ["w1"], perm=[1, 0]),
        helper.make_node("MatMul", ["x3", "w1"], ["h1"]),
        constant("bias", numbers(4)),
        helper.make_node("Add", ["h1", "bias"], ["h2"]),
        helper.make_node("ConstantOfShape", ["four"], ["zero_bias"]),
        helper.make_node("Add", ["h2", "zero_bias"], ["h3"]),
        helper.make_node("Mul", ["h3", "half"], ["h4"]),
        constant("number", np.array([0.5], np.float32)),
        helper.make_node("Mul", ["h4", "number"], ["h5"]),
        helper.make_node("Add", ["h5", "mask"], ["h6"]),
        helper.make_node("Relu", ["h6"], ["h7"]),
        helper.make_node("MatMul", ["h7", "head.w"], ["h8"]),
        helper.make_node("Add", ["h8", "head.b"], ["y"]),
    ]
    weights = {
        "mean": numbers(3),
        "inverse": numbers(3),
        "bound": np.array(3.0, np.float32),
        "turned": numbers(4, 3),
        "four": np.array([4]),
        "half": np.array(0.5, np.float32),
        "mask": np.array([0, 0, 0, -np.inf], np.float32),
        "head.w": numbers(4, 2),
        "head.b": np.array([0.1], np.float32),
    }
    return model_of(nodes, weights)


ALL = {"turned", "bias", "zero_bias", "head.w", "head.b"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ALL),
        ({"train": "head.*"}, {"head.w", "head.b"}),
        ({"freeze": "head.*"}, ALL - {"head.w", "head.b"}),
        ({"freeze": ["head.w", "*bias"]}, {"turned", "head.b"}),
        ({"train": ["head.*", "turned"], "freeze": "head.b"}, {"turned", "head.w"}),
        ({"train": ["head.w", "mean"]}, {"head.w", "mean"}),
        ({"train": "*"}, ALL),
    ],
)
def test_the_tensors_that_train(options: dict[str, Any], expected: set[str]) -> None:
    model = network()
    before = model.SerializeToString()
    training = checked(make_training_model(model, optimizer="sgd", **options))
    assert trained(training) == expected
    assert expected <= {t.name for t in training.graph.initializer}
    assert {b.key for b in training.training_info[0].update_binding} - {"iteration"} == expected
    assert model.SerializeToString() == before


def test_what_is_frozen_costs_nothing() -> None:
    training = make_training_model(network(), optimizer="sgd", train="head.*")
    program = compiler.api.program(training, dims={"N": 5})
    backward = [n for n in program.step.nodes if n.op in ("MatMul", "Gemm")]
    assert len(backward) == 3  # two forward, one gradient


def test_outputs_that_are_left_out_need_not_be_supported() -> None:
    """As a classifier of scikit-learn: the class comes first, by operators of another domain."""
    model = network()
    model.graph.node.append(helper.make_node("ArrayFeatureExtractor", ["y", "four"], ["class"], domain="ai.onnx.ml"))
    model.graph.node.append(helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0))
    for name, dtype in (("class", TensorProto.FLOAT), ("best", TensorProto.INT64)):
        model.graph.output.insert(0, helper.make_tensor_value_info(name, dtype, None))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(compiler.UnsupportedError, match="ArrayFeatureExtractor"):
        make_training_model(model)
    training = make_training_model(model, outputs=["best", "y"])
    assert [v.name for v in training.graph.output] == ["best", "y"]
    assert compiler.check(training) == ()
    with pytest.raises(InputError, match=r"outputs: the model has no output 'bets' \(did you mean 'best'\?\)"):
        make_training_model(model, outputs=["bets"])


@pytest.mark.parametrize("lowest", [-np.inf, float(np.finfo(np.float32).min), -1e4])
def test_the_mask_of_attention_does_not_train(lowest: float) -> None:
    """As PyTorch's exporter folds a causal mask; a bias for positions beside it does."""
    mask = np.where(np.tri(3, dtype=bool), 0, lowest).astype(np.float32)
    picked = np.tri(3, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h1"]),
        helper.make_node("Add", ["h1", "mask"], ["h2"]),
        helper.make_node("Add", ["h2", "bias"], ["h3"]),
        helper.make_node("Softmax", ["h3"], ["h4"]),
        helper.make_node("Mul", ["h4", "picked"], ["y"]),
    ]
    given = {"w": numbers(3, 3), "mask": mask, "bias": numbers(3, 3), "picked": picked}
    training = make_training_model(model_of(nodes, given, y=(3, 3), x=(3, 3)), loss="mse")
    assert trained(training) == {"w", "bias"}


def test_weights_that_a_loop_hands_on_train() -> None:
    """As tf2onnx writes a recurrent layer that is none of ONNX's; the state that changes is no weight."""

    def value(name: str, dtype: int, shape: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["going_on"]),
            helper.make_node("MatMul", ["h", "weight"], ["h_weight"]),
            helper.make_node("Add", ["h_weight", "shift"], ["h_next"]),
            helper.make_node("Identity", ["weight"], ["weight_same"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("h", TensorProto.FLOAT, None),
            value("weight", TensorProto.FLOAT, [2, 2]),
            value("shift", TensorProto.FLOAT, [2]),
        ],
        [
            value("going_on", TensorProto.BOOL, []),
            value("h_next", TensorProto.FLOAT, None),
            value("weight_same", TensorProto.FLOAT, [2, 2]),
            value("shift", TensorProto.FLOAT, [2]),
        ],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h0"]),
        helper.make_node("Loop", ["three", "", "h0", "w", "b"], ["y", "w_after", "b_after"], body=body),
    ]
    given = {"first": numbers(3, 2), "w": numbers(2, 2), "b": numbers(2), "three": np.array(3)}
    training = checked(make_training_model(model_of(nodes, given), loss="mse", target="t", optimizer="sgd"))
    assert trained(training) == {"first", "w", "b"}
    assert compiler.check(training) == ()


def test_what_is_cut_is_read_once() -> None:
    """As torch.onnx.export orders the gates of a bias, which may begin as 0: no exporter merged anything."""
    nodes = [
        *(helper.make_node("Slice", ["own", f"from{i}", f"from{i + 1}"], [f"part{i}"]) for i in range(3)),
        helper.make_node("Concat", ["part1", "part0", "part2", "recurrent"], ["both"], axis=0),
        helper.make_node("Unsqueeze", ["both", "from0"], ["b"]),
        helper.make_node("GRU", ["x", "w", "r", "b"], ["", "y"], hidden_size=2),
    ]
    given = {"w": numbers(1, 6, 2), "r": numbers(1, 6, 2), "own": np.zeros(6, np.float32), "recurrent": numbers(6)}
    cuts = {f"from{i}": np.array([2 * i]) for i in range(4)}
    training = make_training_model(model_of(nodes, given | cuts, (5, "N", 2), (1, "N", 2)), loss="mse")
    assert trained(training) == set(given)
    assert merged(training) == []


def test_weights_that_are_cast_like_another_value_train() -> None:
    """As torch.onnx.export writes the scale and bias of nn.GroupNorm with optimize=False."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("CastLike", ["factor", "h"], ["factor1"]),
        helper.make_node("Mul", ["h", "factor1"], ["scaled"]),
        helper.make_node("CastLike", ["shift", "scaled"], ["shift1"]),
        helper.make_node("Add", ["scaled", "shift1"], ["y"]),
    ]
    given = {"w": numbers(3, 2), "factor": np.ones(2, np.float32), "shift": np.zeros(2, np.float32)}
    assert trained(make_training_model(model_of(nodes, given), loss="mse")) == set(given)


def test_a_model_of_arithmetic_only_trains_its_constants() -> None:
    nodes = [helper.make_node("Mul", ["x", "a"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    model = model_of(nodes, {"a": numbers(3), "b": numbers(3)}, y=("N", 3))
    assert trained(make_training_model(model, loss="mse")) == {"a", "b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "haed.*"}, r"train: no weight matches 'haed\.\*'"),
        ({"train": "head.v"}, r"no weight matches 'head.v' \(did you mean 'head.w'\?\)"),
        ({"freeze": "conv*"}, r"freeze: no weight matches 'conv\*': there are 'turned'"),
        ({"freeze": "*"}, r"every parameter is frozen: freeze='\*' leaves none of"),
        ({"loss": "cross_entorpy"}, r"there is no loss 'cross_entorpy' \(did you mean 'cross_entropy'\?\)"),
        ({"output": "Y"}, r"the model has no output 'Y' \(did you mean 'y'\?\)"),
        ({"loss": {"z": "mse"}}, r"the model has no output 'z'"),
        ({"loss": {"y": "mse"}, "output": "y"}, r"output= is for one loss"),
        ({"loss_weights": {"z": 1.0}}, r"loss_weights: output 'z' has no loss"),
        ({"loss": "mse", "target": "head.w"}, r"target: the model has a value 'head.w' already"),
        ({"loss": "cross_entropy", "target": "x"}, r"input 'x' is FLOAT\[.*\], but the targets of 'y' are INT64\[N\]"),
        ({"optimizer": "adma"}, r"no optimizer 'adma' \(did you mean 'adam'\?\)"),
        ({"optimizer_options": {"momentum": 0.9}}, "has no option 'optimizer_options': it has"),
        ({"frezee": "head.*"}, r"make_training_model has no argument 'frezee' \(did you mean 'freeze'\?\)"),
        ({"batch_norm": "eval"}, r"batch_norm must be one of auto, train, frozen, not 'eval'"),
        ({"initialize": "kaimming"}, r"initialize: there is no 'kaimming' \(did you mean 'kaiming"),
        ({"initialize": ["zeros"]}, r"initialize: there is no \['zeros'\]: there are kaiming_uniform"),
        ({"seed": 1}, r"seed is of the initialization"),
        ({"initialize": "zeros", "seed": -1}, r"seed must be an integer from 0 to \d+, not -1"),
        ({"initialize": "zeros", "seed": 0.5}, r"seed must be an integer from 0 to \d+, not 0.5"),
        ({"batch": ""}, r"batch must be a name for the number of samples, as N \(batch=None leaves it\), not ''"),
        ({"batch": "N N"}, r"batch must be a name .*, not 'N N'"),
        ({"batch": 4}, r"batch must be a name .*, not 4"),
        ({"target": ""}, r"target must be the name of an input, or a mapping of outputs to names, not ''"),
        ({"target": {"y": 5}}, r"target: what is for 'y' must be the name of an input, not 5"),
        ({"train": 5}, r"train must be a glob pattern of names, or a list of such, not 5"),
        ({"freeze": 5}, r"freeze must be a glob pattern of names, or a list of such, not 5"),
        ({"freeze": ["head.w", 5]}, r"freeze must be a glob pattern of names, or a list of such, not \['head.w', 5\]"),
        ({"outputs": 5}, r"outputs must be a list of names of outputs, not 5"),
        ({"loss_weights": [1.0]}, r"loss_weights must be a mapping from outputs to numbers, not \[1.0\]"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_training_model(network(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "mse", "label_smoothing": 0.1}, r"loss mse has no option label_smoothing: it has reduction, target"),
        ({"kind": "bce", "axis": 1}, r"the loss bce has no option axis"),
        ({"kind": "mse", "reduction": "none"}, r"reduction must be 'mean' or 'sum', not 'none': a step has one loss"),
        ({"kind": "ce", "label_smoothing": 1.5}, r"label_smoothing must be a number from 0 to 1, not 1.5"),
        ({"kind": "huber", "delta": 0}, r"delta must be a number greater than 0, not 0"),
        ({"kind": "ce", "soft_targets": True, "ignore_index": 0}, r"ignore_index is a class number"),
        ({"kind": 3}, r"a loss is a name, a FunctionProto or a model, not int"),
        ({"kind": "mse", "foo": 1}, r"a loss has no option 'foo': mse has reduction, target"),
        ({"kind": "huber", "dleta": 1}, r"no option 'dleta' \(did you mean 'delta'\?\): huber has delta, reduction"),
        ({"kind": 3, "foo": 1}, r"a loss has no option 'foo': there are weight, label_smoothing, "),
    ],
)  # fmt: skip
def test_wrong_options_of_a_loss(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Loss(**options)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Loss("cross_entropy", weight=[1, 2, 3]), r"weight has 3 numbers, but output 'y' has 2 classes on axis 1"),
        (Loss("cross_entropy", weight=[1, -2]), r"weight must be finite numbers, none below 0"),
        (Loss("cross_entropy", axis=2), r"axis 2 is no axis of output 'y', which has 2"),
        (Loss("bce", pos_weight=[1, 2, 3]), r"pos_weight has the shape \[3\], which does not broadcast to output 'y'"),
        (Loss("cosine_embedding", other="z"), r"the model has no output 'z'"),
    ],
)
def test_losses_that_do_not_fit_the_output(loss: Loss, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_training_model(network(), loss=loss)


def test_outputs_that_have_no_loss() -> None:
    whole = model_of([helper.make_node("ArgMax", ["h"], ["y"])], {})
    whole.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    whole.graph.node.insert(0, helper.make_node("MatMul", ["x", "w"], ["h"]))
    whole.graph.initializer.append(numpy_helper.from_array(numbers(3, 4), "w"))
    whole.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(InputError, match="a loss cannot be on output 'y', which is INT64, a loss needs float32"):
        make_training_model(whole, loss="mse")
    softmax = linear(["N", 4], [("Softmax", {})])
    with pytest.raises(InputError, match="output 'y' is a Softmax, not logits: leave out from_logits"):
        make_training_model(softmax, loss=Loss("cross_entropy", from_logits=True))
    with pytest.raises(InputError, match="is a Softmax over axis 1, but the classes of the loss are on axis 0"):
        make_training_model(softmax, loss=Loss("cross_entropy", axis=0))
    half = linear(["N", 4], dtype=TensorProto.FLOAT16)
    with pytest.raises(InputError, match="output 'y', which is FLOAT16: convert the model to float32"):
        make_training_model(half)


def test_models_that_do_not_train() -> None:
    empty = model_of([helper.make_node("Relu", ["x"], ["y"])], {}, y=("N", 3))
    with pytest.raises(InputError, match="the model has no weights of floating point"):
        make_training_model(empty, loss="mse")
    with pytest.raises(InputError, match="the model has training_info already"):
        make_training_model(make_training_model(network()))
    apart = network()
    apart.graph.output[0].name = "z"
    apart.graph.node.append(helper.make_node("MatMul", ["x", "w"], ["z"]))
    apart.graph.initializer.append(numpy_helper.from_array(numbers(3, 2), "w"))
    with pytest.raises(InputError, match="'turned' has no influence on the loss"):
        make_training_model(apart, train="turned")
    assert trained(make_training_model(apart, train="*")) == {"w"}
    narrow = linear(["N", 4], dtype=TensorProto.FLOAT16)
    narrow.graph.node[-1].op_type = "Cast"
    narrow.graph.node[-1].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    narrow.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(InputError, match="the weights are in half precision, in which updates are lost"):
        make_training_model(narrow)


def test_a_label_out_of_range_is_told_by_the_step() -> None:
    for opset in (8, 13):
        training = make_training_model(linear(["N", 4], opset=opset), optimizer="sgd")
        step = compiler.compile(training)
        before = step.state["w"].copy()
        for label in (4, -1):
            with pytest.raises(InputError, match=r"index|class|label"):
                step(x=RNG.normal(size=(2, 3)), label=np.array([1, label]))
        np.testing.assert_array_equal(step.state["w"], before)
        assert np.isfinite(step(x=RNG.normal(size=(2, 3)), label=np.array([1, 3]))["loss"])


def test_each_tensor_draws_its_own_weights() -> None:
    """Also with a seed that the attribute, a float32, cannot hold."""
    nodes = [helper.make_node("MatMul", ["x", "v"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    model = model_of(nodes, {"v": numbers(4, 4), "w": numbers(4, 4)}, ("N", 4), ("N", 4))
    for seed in (0, 2**24, 2**62):
        training = make_training_model(model, loss="mse", initialize="normal", seed=seed)
        program = compiler.api.program(training, dims={"N": 2})
        assert program.initialize is not None
        values = interpret(program.initialize, {})
        first, second = (values[program.initialize.updates[v]] for v in ("v", "w"))
        assert not np.array_equal(first, second)


def test_tensors_that_an_exporter_merged() -> None:
    """Scales of ones, which two nodes read, are noted; weights that are shared on purpose are not."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h1"]),
        helper.make_node("LayerNormalization", ["h1", "ones", "one_bias"], ["h2"], "first"),
        helper.make_node("MatMul", ["h2", "w"], ["h3"]),
        helper.make_node("LayerNormalization", ["h3", "ones", "other_bias"], ["y"], "second"),
    ]
    weights = {"w": numbers(3, 3), "ones": np.ones(3, np.float32)}
    weights |= {f"{n}_bias": np.zeros(3, np.float32) for n in ("one", "other")}
    model = model_of(nodes, weights, y=("N", 3))
    (found,) = merged(make_training_model(model, loss="mse"))
    assert found.startswith(
        "'ones', all 1, is read by 2 nodes ('first', 'second') and trains as one tensor: if the exp"
    )
    assert merged(make_training_model(model, loss="mse", freeze="ones")) == []


@pytest.mark.parametrize("kind", ["kaiming", "kaiming_normal", "xavier", "xavier_normal", "normal", "uniform", "zeros"])
def test_fresh_weights(kind: str) -> None:
    weights = {"w": numbers(300, 200), "scale": numbers(200), "bias": numbers(200)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "scale", "bias"], ["y"]),
    ]
    model = model_of(nodes, weights, ("N", 300), ("N", 200))
    training = checked(make_training_model(model, loss="mse", initialize=kind, seed=4))
    program = compiler.api.program(training, dims={"N": 2})
    assert program.initialize is not None
    values = interpret(program.initialize, {})
    fresh = {name: values[v] for name, v in program.initialize.updates.items()}
    deviation = {
        "kaiming": np.sqrt(2 / 300),
        "kaiming_normal": np.sqrt(2 / 300),
        "xavier": np.sqrt(2 / 500),
        "xavier_normal": np.sqrt(2 / 500),
        "normal": 0.02,
        "uniform": 0.05 / np.sqrt(3),
        "zeros": 0.0,
    }[kind]
    assert fresh["w"].std() == pytest.approx(deviation, rel=0.03)
    assert fresh["scale"].tolist() == [1.0] * 200
    assert fresh["bias"].tolist() == [0.0] * 200
    assert fresh["iteration"] == 0
    assert not fresh["w.exp_avg"].any()


# --- what exporters write where a layer has no weights ---------------------------------------------------------------
def normalized(scale: NodeProto | Array, bias: Array) -> onnx.ModelProto:
    """Normalization, a factor for each channel, and a product; tensors as nodes or as initializers."""
    nodes = []
    given = {"0.weight": numbers(3, 3, 1), "val_8": bias, "factor": np.ones((3, 1), np.float32)}
    if isinstance(scale, NodeProto):
        nodes.append(scale)
    else:
        given["val_7"] = scale
    nodes += [
        helper.make_node("Conv", ["x", "0.weight"], ["h1"]),
        helper.make_node("InstanceNormalization", ["h1", "val_7", "val_8"], ["h2"]),
        helper.make_node("Mul", ["h2", "factor"], ["y"]),
    ]
    return model_of(nodes, given, x=("N", 3, 5), y=("N", 3, 5))


ONES, ZEROS = np.ones(3, np.float32), np.zeros(3, np.float32)


@pytest.mark.parametrize("scale", [ONES, constant("val_7", ONES)])
def test_what_fills_a_normalization_does_not_train(scale: NodeProto | Array) -> None:
    """As torch.onnx.export writes GroupNorm; a factor of ones behind it is its weight."""
    notes: list[str] = []
    model = normalized(scale, ZEROS)
    assert trained(make_training_model(model, loss="mse", note=notes.append)) == {"0.weight", "factor"}
    assert [n for n in notes if "'val_7'" in n and "'val_8'" in n and "train=['*', 'val_" in n]
    notes.clear()
    both = make_training_model(model, loss="mse", train=["*", "val_7", "val_8"], note=notes.append)
    assert trained(both) == {"0.weight", "factor", "val_7", "val_8"}
    assert not [n for n in notes if "val_7" in n]
    notes.clear()
    make_training_model(model, loss="mse", freeze="val_*", note=notes.append)
    assert not [n for n in notes if "train=" in n]


def test_weights_that_begin_as_ones_and_zeros_train() -> None:
    assert "val_8" in trained(make_training_model(normalized(ONES, numbers(3)), loss="mse"))
    own = normalized(ONES, ZEROS)
    for t in own.graph.initializer:
        t.name = t.name.replace("val_", "1.norm")
    for node in own.graph.node:
        for i, v in enumerate(node.input):
            node.input[i] = v.replace("val_", "1.norm")
    assert trained(make_training_model(own, loss="mse")) == {"0.weight", "factor", "1.norm7", "1.norm8"}


def test_a_slope_that_is_no_parameter_does_not_train() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        constant("slope", np.array([0.25], np.float32)),
        helper.make_node("PRelu", ["h", "slope"], ["y"]),
    ]
    assert trained(make_training_model(model_of(nodes, {"w": numbers(3, 2)}), loss="mse")) == {"w"}
    nodes = [constant("w", numbers(3, 2)), *nodes]  # all that this file has is in nodes
    assert trained(make_training_model(model_of(nodes, {}), loss="mse")) == {"w", "slope"}


@pytest.mark.parametrize("hidden", [1, 3])
def test_biases_of_recurrent_layers_are_joined(hidden: int) -> None:
    """As PyTorch's exporter writes them: two biases in one operand, which may be zeros or single numbers."""
    nodes = [
        helper.make_node("Concat", ["own", "recurrent"], ["both"], axis=0),
        helper.make_node("Unsqueeze", ["both", "axis"], ["b"]),
        helper.make_node("GRU", ["x", "w", "r", "b"], ["", "y"], hidden_size=hidden),
    ]
    weights = {
        "w": numbers(1, 3 * hidden, 2),
        "r": numbers(1, 3 * hidden, hidden),
        "own": np.zeros(3 * hidden, np.float32),
        "recurrent": np.full(3 * hidden, 0.5, np.float32),
        "axis": np.array([0]),
    }
    model = model_of(nodes, weights, x=(5, "N", 2), y=(1, "N", hidden))
    assert trained(make_training_model(model, loss="mse", target="t", batch="N")) == {"w", "r", "own", "recurrent"}
    padded = [
        helper.make_node("Concat", ["x", "own"], ["wide"], axis=1),
        helper.make_node("MatMul", ["wide", "w"], ["y"]),
    ]
    weights = {"own": np.zeros((4, 1), np.float32), "w": numbers(4, 2)}
    assert trained(
        make_training_model(model_of(padded, weights, (4, 3), (4, 2)), loss="mse", target="t", batch=None)
    ) == {"w"}
