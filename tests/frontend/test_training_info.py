"""Violations of the rules of TrainingInfoProto: each alone, then many at once; and what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from compiler.errors import CompileError, ModelError
from compiler.frontend import load
from tests.frontend.small import INITIALIZATION, LINEAR, STEP, UPDATES, linear, make_model, training_info

Change = Callable[[onnx.ModelProto], object]


def problems(model: onnx.ModelProto) -> list[str]:
    """What `load`, then `program`, say."""
    with pytest.raises(CompileError) as e:
        load(model).program({"N": 4})
    return [str(p) for p in e.value.problems]


def key(name: str, value: str) -> onnx.StringStringEntryProto:
    return onnx.StringStringEntryProto(key=name, value=value)


def test_a_correct_model_is_accepted() -> None:
    source = load(linear())
    program = source.program({"N": 4})
    assert source.variables == ("w", "n")
    assert program.step.updates == {"w": "w_next", "n": "n_next"}
    assert list(program.step.outputs) == ["y", "loss"]
    assert program.step.inputs == ("x", "t")
    assert program.infer is not None
    assert program.infer.inputs == ("x",)
    assert list(program.infer.states) == ["w"]
    assert program.initialize is not None
    assert program.initialize.updates == {"w": "w0", "n": "n0"}


# what is done to the correct model -> words of the only problem
VIOLATIONS: dict[str, tuple[Change, list[str]]] = {
    "key that names nothing": (
        lambda m: m.training_info[0].update_binding.append(key("nope", "loss")),
        ["'nope' is bound, but is no initializer", "training_info[0].update_binding"],
    ),
    "key that is an input": (
        lambda m: m.training_info[0].update_binding.append(key("x", "loss")),
        ["'x' is bound, but is no initializer"],
    ),
    "key that is a node's output": (
        lambda m: m.training_info[0].update_binding.append(key("y", "loss")),
        ["'y' is bound, but is no initializer"],
    ),
    "repeated key": (
        lambda m: m.training_info[0].update_binding.append(key("w", "w_next")),
        ["'w' is bound 2 times", "bind each variable once"],
    ),
    "repeated key of initialization": (
        lambda m: m.training_info[0].initialization_binding.append(key("w", "w0")),
        ["'w' is bound 2 times", "training_info[0].initialization_binding"],
    ),
    "value that names nothing": (
        lambda m: setattr(m.training_info[0].update_binding[0], "value", "nope"),
        ["'w' is bound to 'nope', which is no output of the algorithm"],
    ),
    "value that is no output": (
        lambda m: setattr(m.training_info[0].update_binding[0], "value", "dw"),
        ["'w' is bound to 'dw'", "list it among the outputs"],
    ),
    "initialization value that names nothing": (
        lambda m: setattr(m.training_info[0].initialization_binding[0], "value", "nope"),
        ["'w' is bound to 'nope', which is no output of initialization"],
    ),
    "initialization with an input": (
        lambda m: m.training_info[0].initialization.input.append(helper.make_tensor_value_info("seed", 1, [])),
        ["the initialization graph has the input 'seed'", "it must have none"],
    ),
    "initialization that reads the model": (
        lambda m: m.training_info[0].initialization.node.append(helper.make_node("Neg", ["w"], ["w1"], "n")),
        ["'w' is read, but nothing defines it: the initialization graph cannot see the model's values"],
    ),
    "bindings without an initialization graph": (
        lambda m: m.training_info[0].ClearField("initialization"),
        ["there are bindings, but no initialization graph"],
    ),
    "an initializer declared in both graphs": (
        lambda m: m.training_info[0].algorithm.initializer.append(
            numpy_helper.from_array(np.zeros((3, 1), np.float32), "w")
        ),
        ["the name 'w' is defined twice: as an initializer of the inference graph and as an initializer"],
    ),
    "an input declared in both graphs": (
        lambda m: m.training_info[0].algorithm.input.append(helper.make_tensor_value_info("x", 1, ["N", 3])),
        ["the name 'x' is defined twice: as an input of the inference graph and as an input"],
    ),
    "a value computed in both graphs": (
        lambda m: m.training_info[0].algorithm.node.append(helper.make_node("Neg", ["t"], ["y"], "again")),
        ["the name 'y' is defined twice", "node 'again' of training_info[0].algorithm"],
    ),
    "an inference node that reads an algorithm value": (
        lambda m: m.graph.node.append(helper.make_node("Neg", ["loss"], ["z"], "early")),
        ["'loss' is read, but nothing defines it: it belongs to training_info[0].algorithm", "'early'"],
    ),
    "an inference node that reads an algorithm input": (
        lambda m: m.graph.node.append(helper.make_node("Neg", ["t"], ["z"], "early")),
        ["'t' is read, but nothing defines it: it belongs to training_info[0].algorithm"],
    ),
    "an old IR version": (
        lambda m: setattr(m, "ir_version", 6),
        ["a file of IR version 6 has training_info", "set ir_version to 7 or more"],
    ),
    "GraphCall of ONNX 1.7": (
        lambda m: m.training_info[0].algorithm.node.insert(
            0,
            helper.make_node("GraphCall", ["x"], ["v"], "call", domain="ai.onnx.preview.training", graph_name="linear"),
        ),
        ["GraphCall is of ONNX 1.7", "use the inference graph's tensors by name"],
    ),
    "no import of the training domain": (
        lambda m: m.opset_import.pop(1),
        ["Gradient is of domain 'ai.onnx.preview.training', which is not imported", "opset_import"],
    ),
    "an unknown version of the training domain": (
        lambda m: setattr(m.opset_import[1], "version", 2),
        ["ai.onnx.preview.training version 2 is not known"],
    ),
    "an update of another dtype": (
        lambda m: setattr(m.training_info[0].update_binding[1], "value", "loss"),
        ["variable 'n' is i64[], but gets the value 'loss', which is f32[]", "training_info[0]"],
    ),
    "an update of another shape": (
        lambda m: setattr(m.training_info[0].update_binding[0], "value", "y"),
        ["variable 'w' is f32[3,1], but gets the value 'y', which is f32[4,1]"],
    ),
    "an initial value of another shape": (
        lambda m: m.training_info[0].initialization.node[0].attribute[0].ints.append(1),
        ["variable 'w' is f32[3,1], but gets the value 'w0', which is f32[3,1,1]"],
    ),
    "an algorithm output that nothing computes": (
        lambda m: m.training_info[0].algorithm.output.append(helper.make_tensor_value_info("void", 1, [])),
        ["nothing computes the output 'void'", "training_info[0].algorithm"],
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_violation(name: str) -> None:
    change, words = VIOLATIONS[name]
    model = linear()
    change(model)
    found = problems(model)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]


def test_many_violations_are_told_at_once() -> None:
    model = linear()
    chosen = [
        name
        for name in VIOLATIONS
        if name
        not in {
            "bindings without an initialization graph",  # hides what is wrong inside the graph
            "value that is no output",
            "an update of another dtype",  # these need shapes, so that all else is right
            "an update of another shape",
            "an initial value of another shape",
            "repeated key",
            "an unknown version of the training domain",  # there is no import to be unknown
        }
    ]
    for name in chosen:
        VIOLATIONS[name][0](model)
    found = "\n".join(problems(model))
    for name in chosen:
        for word in VIOLATIONS[name][1]:
            assert word in found, name


def test_violations_that_need_shapes_are_told_at_once() -> None:
    model = linear()
    model.training_info[0].update_binding[0].value = "y"
    model.training_info[0].update_binding[1].value = "loss"
    model.training_info[0].initialization.node[0].attribute[0].ints.append(1)
    assert len(problems(model)) == 3


def test_bindings_and_types_are_told_at_once() -> None:
    """A binding that is wrong is left out, and the rest is looked at."""
    bad_step, bad_start = {"n": "n_nope", "nope": "n_next", "w": "y"}, {"n": "w0", "w": "nope", "t": "n0"}
    model = make_model(LINEAR, training_info(STEP, bad_step, INITIALIZATION, bad_start))
    model.ir_version = 6
    found = problems(model)
    assert len(found) == 7
    for words in (
        "IR version 6",
        "'nope' is bound, but is no initializer",
        "'n' is bound to 'n_nope'",
        "'w' is bound to 'nope'",
        "'t' is bound, but is no initializer",
        "gets the value 'y'",
        "gets the value 'w0'",
    ):
        assert sum(words in f for f in found) == 1, words


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        (1, [5, 1], "output 'w_next' is declared f32[5,1], but is bound to 'w', f32[3,1]"),
        (1, [3], "output 'w_next' is declared f32[3]"),
        (11, [3, 1], "output 'w_next' is declared f64[3,1]"),
        (11, None, "output 'w_next' is declared f64"),
        (1, ["K", 1], ""),
        (1, None, ""),
        (0, None, ""),
    ],
)
def test_what_is_declared_of_a_bound_output(dtype: int, shape: list[int | str] | None, words: str) -> None:
    model = linear()
    model.training_info[0].algorithm.output[1].CopyFrom(helper.make_tensor_value_info("w_next", dtype, shape))
    start = helper.make_tensor_value_info("w0", dtype, shape)
    model.training_info[0].initialization.output[0].CopyFrom(start)
    if not words:
        assert load(model).program({"N": 4}).step.updates["w"] == "w_next"
        return
    found = problems(model)
    assert len(found) == 2
    assert words in found[0]
    assert "training_info[0].update_binding, declare its true type" in found[0]
    assert "output 'w0' is declared" in found[1]
    assert "training_info[0].initialization_binding" in found[1]


def test_an_algorithm_is_told_what_optimizers_compute() -> None:
    adam = "y = ai.onnx.preview.training.Adam(r, t, x, g, v, h)"
    main = f"m (float[2] x, float r, int64 t, float[2] g, float[2] v, float[2] h) => (float[2] y) {{ {adam} }}"
    (found,) = problems_of_plain(main)
    assert "Adam of one variable has 3 outputs (the new variables, the new momentums, the new accumulated" in found
    assert "in node 'y'" in found


@pytest.mark.parametrize("shape", ["", "[2]"])
def test_rates_and_counts_in_lists_of_one_are_scalars(shape: str) -> None:
    """As pytorch-pfn-extras writes them; with a scalar variable they would not even broadcast."""
    inputs = ", ".join(f"float{shape} {v}" for v in "xgv")
    node = "y, w = ai.onnx.preview.training.Adagrad(r, t, x, g, v)"
    main = (
        f"m ({inputs}, float[1] r, int64[1] t) => (float{shape} y, float{shape} w, float[1] s) {{ {node} s = Neg(r) }}"
    )
    graph = load(make_model(main)).program().step
    (optimizer,) = [n for n in graph.nodes if n.op_type == "Adagrad"]
    assert [graph.type(v).shape for v in optimizer.inputs[:2]] == [(), ()]
    assert graph.type("s").shape == (1,)


def problems_of_plain(text: str) -> list[str]:
    with pytest.raises(CompileError) as e:
        load(make_model(text)).program()
    return [str(p) for p in e.value.problems]


def test_swapped_bindings_are_recognized() -> None:
    model = make_model(LINEAR, training_info(STEP, {"w_next": "w", "n_next": "n"}))
    found = problems(model)
    assert len(found) == 4
    assert "'w' is bound" not in found[0]
    assert "'w_next' is bound, but is no initializer" in found[0]


def test_a_sparse_initializer_is_no_variable() -> None:
    model = linear()
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "k")
    indices = numpy_helper.from_array(np.array([0, 2], np.int64))
    model.training_info[0].algorithm.sparse_initializer.append(
        onnx.SparseTensorProto(values=values, indices=indices, dims=[3])
    )
    model.training_info[0].update_binding.append(key("k", "loss"))
    assert problems(model) == [
        "'k' is bound, but is no initializer, in training_info[0].update_binding, "
        "make it a dense initializer: a sparse one is constant"
    ]


def test_an_algorithm_does_not_see_another_one() -> None:
    other = "other () => (float v) { v = Identity(rate) }"
    model = make_model(LINEAR, training_info(STEP, UPDATES), training_info(other, {"n": "v"}))
    found = problems(model)
    assert len(found) == 2
    assert "'rate' is read" in found[0]
    assert "declare what both read in the inference graph" in found[0]
    assert "'n' is bound, but is no initializer" in found[1]
    assert "move it to the inference graph" in found[1]


def test_shared_inputs_have_one_type() -> None:
    other = "other (double[N] t) => (double[N] u) { u = Neg(t) }"
    model = make_model(LINEAR, training_info(STEP, UPDATES), training_info(other, {}))
    assert "input 't' has another type" in problems(model)[0]


def test_a_variable_may_be_an_input_too() -> None:
    main = LINEAR.replace("(float[N,3] x)", "(float[N,3] x, float[3,1] w)")
    model = make_model(main, training_info(STEP, UPDATES))
    source = load(model)
    assert list(source.inputs) == ["x", "t"]
    program = source.program({"N": 2})
    assert program.step.inputs == ("x", "t")
    assert set(program.step.states) == {"w", "n"}


def test_one_output_may_feed_two_variables_and_an_old_value_may_be_one() -> None:
    variables = "float[3] a = {1,2,3}, float[3] b = {4,5,6}, float[3] c = {0,0,0}"
    main = f"g (float[3] x) => (float[3] y) <{variables}> {{ y = Add(x, a) }}"
    step = "s () => (float[3] a, float[3] b, float[3] x) {}"
    model = make_model(main, training_info(step, {"a": "b", "b": "a", "c": "x"}))
    program = load(model).program()
    assert program.step.updates == {"a": "b", "b": "a", "c": "x"}
    model = make_model(main, training_info(step, {"a": "x", "b": "x"}))
    assert load(model).program().step.updates == {"a": "x", "b": "x"}


def test_an_inference_output_may_be_bound() -> None:
    main = "g (float[3] x) => (float[3] y) <float[3] a = {1,2,3}> { y = Add(x, a) }"
    model = make_model(main, training_info("s () => () {}", {"a": "y"}))
    program = load(model).program()
    assert program.step.updates == {"a": "y"}
    assert list(program.step.outputs) == ["y"]


def test_only_initialization_makes_variables() -> None:
    model = make_model(LINEAR, training_info("s () => () {}", {}, INITIALIZATION, {"w": "w0"}))
    program = load(model).program({"N": 1})
    assert list(program.step.states) == ["w"]
    assert not program.step.updates
    assert program.initialize is not None
    assert program.initialize.updates == {"w": "w0"}


def test_an_empty_training_info_changes_nothing() -> None:
    info = onnx.TrainingInfoProto()
    model = make_model(LINEAR)
    model.training_info.append(info)
    program = load(model).program({"N": 1})
    assert list(program.step.outputs) == ["y"]


def test_names_of_other_graphs_are_no_clash() -> None:
    """Initialization has its own names."""
    start = parser.parse_graph("start () => (float[3,1] y) { y = RandomNormal<shape=[3,1]>() }")
    model = make_model(LINEAR, training_info(STEP, UPDATES))
    model.training_info[0].initialization.CopyFrom(start)
    model.training_info[0].initialization_binding.append(key("w", "y"))
    assert load(model).program({"N": 1}).initialize is not None


def test_a_model_error_is_raised() -> None:
    model = linear()
    model.training_info[0].update_binding[0].value = "nope"
    with pytest.raises(ModelError):
        load(model)
