"""Metrics of validation data, against values computed by hand."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import compiler
from compiler.frontend import Source, load
from compiler.ir.interpret import interpret
from compiler.ir.types import TensorType
from compiler.passes.evaluation import for_evaluation
from compiler.training.measures import accuracy, as_numbers, ignored, mean_error
from compiler.training.metrics import Metrics
from compiler.training.samples import samples_of

Array = npt.NDArray[Any]


# --- measures --------------------------------------------------------------------------------------------------------
def of_shape(shape: Sequence[int], ends: str = "Identity (x)", dtype: str = "float") -> Any:
    """A graph with an output `y` of that shape."""
    dims = ", ".join(map(str, shape))
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({dtype}[{dims}] x) => ({dtype}[{dims}] y) {{ y = {ends} }}'
    return load(onnx.parser.parse_model(text)).graph("step")


def share(output: Any, label: Any, ends: str = "Identity (x)") -> Any:
    """(right, counted) or why there is no accuracy; label is integers or float32."""
    output = np.asarray(output, np.float32)
    label = np.asarray(label)
    label = label.astype(np.float32) if label.dtype.kind == "f" else label
    dtype = {"i": "i64", "u": "u8", "f": "f32", "b": "bool"}[label.dtype.kind]
    measure = accuracy(of_shape(output.shape, ends), "y", "label", TensorType(dtype, label.shape))
    if isinstance(measure, str):
        return measure
    wrong = measure.wrong(label)
    return f"{label[wrong][0]}: {measure.rule}" if wrong.any() else measure(output, label)


SCORES = np.array([[1, 3, 2], [5, 0, 4], [0, 1, 2], [2, 1, 0]])  # the classes 1, 0, 2, 0


def test_accuracy_of_class_numbers() -> None:
    assert share(SCORES, [1, 0, 1, 0]) == (3, 4)
    assert share(SCORES, [[1], [0], [1], [1]]) == (2, 4)  # the classes are one in the label
    assert share(SCORES, [1, -1, -100, 2]) == (1, 2)  # below 0: not counted
    assert share(SCORES, [1, 0, 3, 0]) == "3: none of 3 classes, 0 to 2"


def test_accuracy_at_either_axis() -> None:
    last = np.zeros((2, 4, 3))
    last[0, :, 1] = last[1, 0, 2] = 1
    label = np.array([[1, 1, 1, 0], [2, 0, 0, 1]])
    assert share(last, label) == (6, 8)
    assert share(last.transpose(0, 2, 1), label) == (6, 8)
    images = np.zeros((2, 3, 4, 4))
    images[:, 2, :2] = 1
    label = np.full((2, 4, 4), 2)
    assert share(images, label) == (16, 32)
    square = np.zeros((2, 3, 3))
    square[:, :, 1] = 1
    assert share(square, np.ones((2, 3), int)) == (6, 6)  # three axes: the classes are last where both fit
    cube = np.zeros((2, 3, 3, 3))
    cube[:, 1] = 1
    assert share(cube, np.ones((2, 3, 3), int)) == (18, 18)  # four: at axis 1


def test_accuracy_of_yes_or_no() -> None:
    logits, p = [[-1], [0.4], [2], [0.6]], [[0.1], [0.4], [0.9], [0.6]]
    for label in ([0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0], [[0], [1], [1], [0]], [False, True, True, False]):
        assert share(logits, label) == (3, 4)
        assert share(p, label, "Sigmoid (x)") == (2, 4)
    assert share([-1, 3], [0, 0]) == (1, 2)
    assert share(logits, [0, 1, 2, 0]) == "2: neither 0 nor 1"
    assert share(logits, [0, -1, 1, 0]) == "-1: neither 0 nor 1"
    assert share(logits, [0, 0.5, 1, 0]) == "0.5: neither 0 nor 1"
    assert share(np.ones((1, 1, 2, 2)), np.array([[[0, 1], [1, 1]]])) == (3, 4)  # an image of them


def test_accuracy_of_labels_shaped_as_the_output() -> None:
    p, label = [[0.1, 0.7], [0.6, 0.8]], [[0.0, 1.0], [1.0, 0.0]]
    assert share(p, label, "Sigmoid (x)") == (3, 4)
    assert share(p, label, "Softmax (x)") == (1, 2)
    assert "give class numbers, or end the model with a Softmax or a Sigmoid" in share(p, label)
    assert "accuracy is of class numbers" in share(p, [[0, 1, 1], [1, 0, 1]])


def test_mean_errors() -> None:
    output, label = np.array([[1.0], [3.0], [-2.0]], np.float32), np.array([0.0, 3.0, 2.0], np.float32)
    for power, total in ((1, 5.0), (2, 17.0)):
        measure = mean_error(power, of_shape((3, 1)), "y", "label", TensorType("f32", (3,)))
        assert not isinstance(measure, str)
        assert measure(output, label) == (total, 3)
    assert isinstance(mean_error(1, of_shape((3, 2)), "y", "label", TensorType("f32", (3,))), str)
    assert isinstance(mean_error(1, of_shape((1, 3)), "y", "label", TensorType("f32", (3,))), str)


def test_types_that_numpy_has_not_are_numbers() -> None:
    assert as_numbers(np.array([0x3F80, 0xC000], np.uint16), "bf16").tolist() == [1.0, -2.0]
    assert as_numbers(np.array([0x38], np.uint8), "f8e4m3fn").tolist() == [1.0]


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}])
@pytest.mark.parametrize("opset", [11, 17])
def test_what_a_loss_ignores_is_found(opset: int, options: Any) -> None:
    loss = compiler.Loss("cross_entropy", ignore_index=2, **options)
    graph = load(training(opset=opset, loss=loss, target="label")).graph("evaluate", {"N": 2})
    assert ignored(graph, "label") == {2}


# --- metrics ---------------------------------------------------------------------------------------------------------
def training(nodes: str = "y = Mul (x, w)", batch: Any = "N", opset: int = 17, **options: Any) -> onnx.ModelProto:
    """`y` = `x` times [1, 2, 3], and a loss."""
    return compiler.make_training_model(
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : {opset}]>
            g (float[{batch}, 3] x) => (float[{batch}, 3] y) <float[3] w = {{1, 2, 3}}> {{ {nodes} }}"""),
        optimizer="sgd",
        batch=None,
        **options,
    )


class Interpreted:
    """In place of a StepFunction: the same by the definitions of the IR, not compiled. It keeps the sizes."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.sizes: list[tuple[str, int]] = []

    def _run(self, role: str, feeds: Mapping[str, Array], fetch: Sequence[str]) -> dict[str, Array]:
        size = len(feeds["x"])
        self.sizes.append((role, size))
        graph = for_evaluation(self._source.graph(role, dict.fromkeys(self._source.symbols, size)))
        values = interpret(graph, feeds)
        return {n: values[v] for n, v in graph.outputs.items() if not fetch or n in fetch}

    def evaluate(self, feeds: Mapping[str, Array], fetch: Sequence[str] = ()) -> dict[str, Array]:
        return self._run("evaluate", feeds, fetch)

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        assert set(feeds) == set(self._source.inputs_of("infer"))
        return self._run("infer", feeds, ())


def made(
    model: onnx.ModelProto,
    data: Mapping[str, Any],
    names: Sequence[str] | None = None,
    batch: int = 2,
    bound: Mapping[str, int] | None = None,
) -> tuple[Metrics, Interpreted]:
    source = load(model)
    step = Interpreted(source)
    any_step: Any = step
    known: dict[str, Any] = {"algorithm": None, "static": {}, "samples": samples_of(source.inputs_of("step"), bound)}
    return Metrics(names, data, step=any_step, source=source, batch=batch, **known), step


X = np.array([[3, 1, 0], [0, 2, 1], [1, 0, 0], [0, 0, 1], [2, 1, 1]], np.float32)
Y = X * [1, 2, 3]  # the classes 0, 1, 0, 2, 2 or 0
LABEL = np.array([0, 1, 1, 2, 0])
LOG = np.log(np.exp(Y).sum(1)) - Y[np.arange(5), LABEL]


def test_default_of_class_numbers_is_accuracy_and_loss_from_one_pass() -> None:
    metrics, step = made(training(target="label"), {"x": X, "label": LABEL})
    assert metrics.names == ("accuracy", "loss")
    assert metrics.larger == {"accuracy"}
    found = metrics()
    assert found["accuracy"] == 3 / 5  # of the last, class 2 is right
    assert found["loss"] == pytest.approx(LOG.mean(), rel=1e-6)  # the batches count with their samples
    assert step.sizes == [("evaluate", 2), ("evaluate", 2), ("evaluate", 1)]
    assert metrics.notes == []


def test_default_of_numbers_is_mean_absolute_error_and_loss() -> None:
    target = (Y + np.array([[1], [-1], [0], [2], [0]])).astype(np.float32)
    metrics, _ = made(training(loss="mse", target="goal"), {"x": X, "goal": target}, None, 5)
    assert metrics() == pytest.approx({"mae": 4 / 5, "loss": 6 / 5})
    assert metrics.larger == frozenset()


def test_accuracy_alone_infers_and_fills_the_last_batch_up() -> None:
    metrics, step = made(training(target="label"), {"x": X, "label": LABEL}, ["accuracy"])
    assert metrics() == {"accuracy": 3 / 5}
    assert step.sizes == [("infer", 2)] * 3


def test_a_fixed_batch_leaves_the_rest_out_of_scalars() -> None:
    metrics, step = made(training(target="label", batch=2), {"x": X, "label": LABEL}, ["loss", "accuracy"])
    assert metrics() == pytest.approx({"loss": LOG[:4].mean(), "accuracy": 3 / 5}, rel=1e-6)
    assert step.sizes == [("evaluate", 2)] * 3
    (note,) = metrics.notes
    assert note == (
        "the last 1 of 5 validation samples do not fill a batch of 2, the model's fixed size: 'loss' leaves them out"
    )
    metrics, step = made(training(target="label", batch=2), {"x": X, "label": LABEL}, ["loss"])
    assert metrics() == pytest.approx({"loss": LOG[:4].mean()}, rel=1e-6)
    assert len(step.sizes) == 2
    with pytest.raises(compiler.InputError, match="has 1 samples, which do not fill one batch of 2"):
        made(training(target="label", batch=2), {"x": X[:1], "label": LABEL[:1]}, ["loss"])


def test_a_size_that_is_written_into_the_graph_counts_as_fixed() -> None:
    nodes = "n = Constant <value_ints = [2, 3]> () z = Reshape (x, n) y = Mul (z, w)"
    metrics, _ = made(training(nodes, target="label"), {"x": X, "label": LABEL}, ["loss"], bound={"N": 2})
    assert metrics() == pytest.approx({"loss": LOG[:4].mean()}, rel=1e-6)
    assert len(metrics.notes) == 1


def test_outputs_of_the_users_own() -> None:
    """Scalars of inference need no step; what has samples is no number."""
    model = training("y = Mul (x, w)  top = ReduceMax <keepdims = 0> (x)", target="label")
    model.graph.output.append(onnx.helper.make_tensor_value_info("top", onnx.TensorProto.FLOAT, []))
    metrics, step = made(model, {"x": X, "label": LABEL}, ["top"])
    assert metrics() == pytest.approx({"top": (3 * 2 + 1 * 2 + 2 * 1) / 5})
    assert step.sizes == [("infer", 2), ("infer", 2), ("infer", 1)]
    with pytest.raises(compiler.InputError) as e:
        made(model, {"x": X, "label": LABEL}, ["acuracy", "y", "tops", "f1"])
    assert str(e.value) == (
        "there is no metric 'acuracy' (did you mean 'accuracy'?): there are 'loss', 'accuracy', 'mae', 'mse', 'top'; "
        "metric 'y': that output has shape [2, 3] for 2 samples, and a metric is one number; 'accuracy:y' or 'mae:y' "
        "or 'mse:y' compares it with labels; "
        "there is no metric 'tops' (did you mean 'top'?): there are 'loss', 'accuracy', 'mae', 'mse', 'top'; "
        "there is no metric 'f1': there are 'loss', 'accuracy', 'mae', 'mse', 'top'"
    )


def test_several_outputs_and_labels_by_name() -> None:
    network = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) <float[3] w = {1, 2, 3}> { y = Mul (x, w)  z = Neg (y) }""")
    model = compiler.make_training_model(network, loss={"y": "cross_entropy", "z": "mse"}, optimizer="sgd")
    data = {"x": X, "y.label": LABEL, "z.target": np.zeros_like(X)}
    metrics, _ = made(model, data, None, 5)
    assert metrics()["accuracy"] == 3 / 5
    names = ["accuracy:y:y.label", "mae", "mae:z", "mse:y:z.target", "mae:y:x", "y.loss", "loss"]
    found = made(model, data, names, 5)[0]()
    assert list(found) == names
    assert found["accuracy:y:y.label"] == 3 / 5
    assert found["mae"] == found["mae:z"] == pytest.approx(Y.mean())
    assert found["mse:y:z.target"] == pytest.approx((Y**2).mean())
    assert found["mae:y:x"] == pytest.approx((Y - X).mean())
    assert found["y.loss"] == pytest.approx(LOG.mean(), rel=1e-6)
    assert found["loss"] == pytest.approx(LOG.mean() + (Y**2).mean(), rel=1e-6)
    for name, message in (
        ("mae:q", "metric 'mae:q': inference has no output 'q' of samples: there are 'y', 'z'"),
        ("mae:y:z.targte", r"metric 'mae:y:z.targte': .* has no array 'z.targte' \(did you mean 'z.target'\?\)"),
        ("accuracy:z:z.target", "labels of the output's shape may be one of 3 classes, or 3 yes-or-no questions"),
        ("mse:y:y.label", r"output 'y' of shape \[5, 3\] with label 'y.label' of shape \[5\]: an error is between"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            made(model, data, [name], 5)


def test_a_label_that_is_not_clear_is_asked_for() -> None:
    model = training(loss="mse", target="goal")
    info = model.training_info[0].algorithm
    weight = onnx.helper.make_tensor_value_info("weight", onnx.TensorProto.FLOAT, ["N", 3])
    info.input.append(weight)
    data = {"x": X, "goal": X, "weight": X}
    with pytest.raises(
        compiler.InputError, match="several labels fit output 'y', name one: 'mae:y:goal', 'mae:y:weight'"
    ):
        made(model, data, ["mae"])
    metrics, _ = made(model, data)
    assert metrics.names == ("loss",)
    assert metrics.notes[0].startswith("only the loss is measured: metric 'mae': several labels fit")


def test_labels_and_arrays_that_are_not_there() -> None:
    model = training(target="label")
    with pytest.raises(
        compiler.InputError, match="metric 'accuracy' needs a label, an input of the training algorithm"
    ):
        made(model, {"x": X}, ["accuracy"])
    with pytest.raises(compiler.InputError, match=r"metric 'loss' is an output of the step: .* has no array 'label'"):
        made(model, {"x": X}, ["loss"])
    with pytest.raises(
        compiler.InputError, match=r"no metric: metric 'mae' needs a label.*; the validation data has no"
    ):
        made(model, {"x": X})
    place = r"'label'\[3\] of the validation data is 3"
    with pytest.raises(compiler.InputError, match=rf"metric 'accuracy': {place}, none of 3 classes, 0 to 2"):
        made(model, {"x": X, "label": LABEL + 1}, ["accuracy"])
    for names in (None, ["loss"]):
        with pytest.raises(compiler.InputError, match=rf"^{place}, out of range \[0, 3\), in node 'loss/?.*'$"):
            made(model, {"x": X, "label": LABEL + 1}, names)
    with pytest.raises(compiler.InputError, match="metrics must be a list of names, not 'loss'"):
        made(model, {"x": X, "label": LABEL}, "loss")
    with pytest.raises(compiler.InputError, match="the validation data has no array 'x'"):
        made(model, {"label": LABEL})


def test_an_autoencoder_has_a_loss_and_its_input_may_be_named() -> None:
    model = training(loss="mse", target="x")
    assert made(model, {"x": X}, None, 5)[0]() == pytest.approx({"loss": ((Y - X) ** 2).mean()})
    assert made(model, {"x": X}, ["mae:y:x"])[0]() == pytest.approx({"mae:y:x": (Y - X).mean()})


def test_without_the_inputs_of_the_loss_the_label_still_counts() -> None:
    model = training(loss="mse", target="goal")
    algorithm = model.training_info[0].algorithm
    algorithm.input.append(onnx.helper.make_tensor_value_info("factor", onnx.TensorProto.FLOAT, []))
    algorithm.node.append(onnx.helper.make_node("Mul", ["loss", "factor"], ["scaled"]))
    algorithm.output.append(onnx.helper.make_tensor_value_info("scaled", onnx.TensorProto.FLOAT, []))
    metrics, step = made(model, {"x": X, "goal": X})
    assert metrics() == pytest.approx({"mae": (Y - X).mean()})
    assert {role for role, _ in step.sizes} == {"infer"}
    assert metrics.notes == ["the loss is not measured: the validation data has no array 'factor'"]
    data = {"x": X, "goal": X, "factor": np.array(2, np.float32)}
    metrics, step = made(model, data, ["scaled", "loss"], 5)
    assert metrics() == pytest.approx({"scaled": 2 * ((Y - X) ** 2).mean(), "loss": ((Y - X) ** 2).mean()})


def test_numbers_that_look_like_class_numbers() -> None:
    """Integers that are no answers to yes-or-no questions are met as numbers."""
    network = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 1] x) => (float[N, 1] y) <float[1] w = {2}> { y = Mul (x, w) }"""
    model = compiler.make_training_model(onnx.parser.parse_model(network), loss="mse", target="goal", train="w")
    goal = model.training_info[0].algorithm.input[0]
    assert goal.name == "goal"
    goal.type.tensor_type.elem_type = onnx.TensorProto.INT32
    goal.name = "count"
    cast = onnx.helper.make_node("Cast", ["count"], ["goal"], to=onnx.TensorProto.FLOAT)
    model.training_info[0].algorithm.node.insert(0, cast)
    x = np.array([[1], [2]], np.float32)
    assert made(model, {"x": x, "count": np.array([[2], [7]], np.int32)})[0]() == {"mae": 1.5, "loss": 4.5}
    assert made(model, {"x": x - 1, "count": np.array([[0], [0]], np.int32)})[0]() == {"accuracy": 0.5, "loss": 2.0}


def test_no_label_that_counts_is_not_a_number() -> None:
    found = made(training(target="label"), {"x": X, "label": np.full(5, -1)}, ["accuracy"])[0]()
    assert np.isnan(found["accuracy"])


def test_several_algorithms_have_several_losses() -> None:
    model = training(loss="mse", target="goal")
    for i, name in enumerate(("one", "two")):
        info = model.training_info[0] if i == 0 else model.training_info.add()
        info.CopyFrom(model.training_info[0])
        info.algorithm.name = name
    data = {"x": X, "goal": X}
    with pytest.raises(compiler.InputError, match=r"there are several algorithms, name one .*: 'one/loss', 'two/loss'"):
        made(model, data, ["loss"])
    metrics, _ = made(model, data, ["two/loss"], 5)
    assert metrics() == pytest.approx({"two/loss": ((Y - X) ** 2).mean()})


def test_metrics_of_a_compiled_step() -> None:
    """The same through machine code, with the step's outputs restricted as the trainer does."""
    model = training(target="label")
    step = compiler.compile(model, dims={"N": 2}, outputs=["loss"])
    data = {"x": X, "label": LABEL}
    metrics = Metrics(None, data, step=step, source=load(model), batch=2, algorithm=None, static={})
    before = {n: a.tobytes() for n, a in step.state.items()}
    assert metrics() == pytest.approx({"accuracy": 3 / 5, "loss": LOG.mean()}, rel=1e-6)
    assert {n: a.tobytes() for n, a in step.state.items()} == before


def called_loss(batch: Any = "N") -> onnx.ModelProto:
    """A network whose output is called as the loss usually is."""
    network = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[{batch}, 1] x) => (float[{batch}, 1] loss, float[{batch}, 1] y) <float[1] w = {{2}}> {{
            loss = Mul (x, w)  y = Neg (loss)
        }}"""
    return onnx.parser.parse_model(network)


def test_an_output_of_the_network_is_never_the_loss() -> None:
    """Though it is called that, and has one number if the batch has one sample."""
    model = compiler.make_training_model(called_loss(), loss="mse", target="goal", train="w", lr=0.0, optimizer="sgd")
    data = {"x": np.array([[1], [2]], np.float32), "goal": np.array([[1], [1]], np.float32)}
    for names in (None, ["loss"]):
        assert made(model, data, names, 1)[0]()["loss"] == (1 + 9) / 2
    with pytest.raises(compiler.InputError, match=r"metric 'loss' is an output of the step: .* no array 'goal'"):
        made(model, {"x": data["x"]}, ["loss"], 1)
    trainer = compiler.Trainer(model, data, data, batch=1, metrics=["loss"])
    (epoch,) = trainer.run(1)
    assert (epoch.loss, epoch.metrics["loss"]) == (5, 5)


def test_of_several_losses_the_sum_is_the_loss() -> None:
    model = compiler.make_training_model(called_loss(), loss={"loss": "mse", "y": "l1"}, train="w", optimizer="sgd")
    zero = np.zeros((2, 1), np.float32)
    data = {"x": np.array([[1], [2]], np.float32), "loss.target": zero, "y.target": zero}
    assert made(model, data, ["loss"], 1)[0]()["loss"] == (4 + 16) / 2 + (2 + 4) / 2


def test_indices_of_the_validation_data_are_checked_before_training() -> None:
    network = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[N, 2] ids) => (float[N, 2, 3] y) <float[4, 3] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
            y = Gather (table, ids) }""")
    model = compiler.make_training_model(network, loss=compiler.Loss("cross_entropy", ignore_index=-100))
    ids = np.arange(5000 * 2).reshape(5000, 2) % 4
    label = np.where(ids == 3, -100, ids)
    wrong = {"ids": ids - 4, "label": label.copy()}
    wrong["ids"][4321, 1] = 4
    wrong["label"][4999, 0] = -1
    with pytest.raises(compiler.InputError) as e:
        made(model, wrong)
    assert str(e.value).split("; ") == [
        "'ids'[4321, 1] of the validation data is 4, out of range [-4, 4), in node 'y'",
        "'label'[4999, 0] of the validation data is -1, out of range [0, 3), in node 'loss/loss'",
    ]
    for allowed, metrics in (({"ids": ids - 4, "label": label}, None), ({**wrong, "ids": ids}, ["accuracy"])):
        assert made(model, allowed, metrics)[0].names  # -1 does not count for accuracy, which needs no loss


def test_why_only_the_loss_is_measured() -> None:
    """Class numbers beyond the classes: that is the reason, not the shape that a mean error would need."""
    model = training(target="label")
    wrong = onnx.helper.make_node("Clip", ["given", "", "two"], ["label"])
    algorithm = model.training_info[0].algorithm
    algorithm.node.insert(0, wrong)
    algorithm.initializer.append(onnx.numpy_helper.from_array(np.array(2), "two"))
    algorithm.input[0].name = "given"
    metrics, _ = made(model, {"x": X, "given": LABEL + 1})
    (note,) = metrics.notes
    assert note == (
        "only the loss is measured: metric 'accuracy': 'given'[3] of the validation data is 3, none of 3 classes, "
        "0 to 2"
    )


def test_where_a_step_finds_a_label_that_is_wrong() -> None:
    """The place in the data, here that is changed while a model trains on it: at first all labels were looked at."""
    model = training(target="label")
    data = {"x": np.ones((40, 3), np.float32), "label": np.zeros(40, np.int64)}
    trainer = compiler.Trainer(model, data, data, batch=40, threads=2, shuffle=True, seed=1)
    data["label"][[17, 23]] = 7
    order = np.random.default_rng([1, 1]).permutation(40)
    first = int(next(i for i in order if i in (17, 23)))
    with pytest.raises(compiler.RefusedError) as e:
        list(trainer.run(1))
    assert (e.value.input, e.value.index, e.value.value, e.value.sample) == ("label", (first,), 7, first)
    assert str(e.value) == (
        f"'label'[{first}] of the data is 7: label out of range [0, 3), in node 'loss/loss'; nothing was updated: "
        "correct the data"
    )
    assert trainer._metrics is not None
    with pytest.raises(compiler.RefusedError, match=r"'label'\[17\] of the validation data is 7: .*correct the data$"):
        trainer._metrics()
    copy = pickle.loads(pickle.dumps(e.value))
    assert (str(copy), copy.sample) == (str(e.value), e.value.sample)
