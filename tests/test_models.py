"""The models that other tests are built on: valid by onnx's own checker, and with the values they should have."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.models import attach_training, lenet, mlp, mlp_inference, tiny
from tests.models.concatenation import concatenation
from tests.models.losses import LOSSES
from tests.models.optimizers import OPTIMIZERS
from tests.models.zoo import ZOO, needs_zoo, zoo_folder

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(model: onnx.ModelProto) -> None:
    """onnx.checker, also for what it skips by itself: the concatenations, the initialization, and the bindings."""
    onnx.checker.check_model(model, full_check=True)
    for index, info in enumerate(model.training_info):
        step = concatenation(model, index)
        onnx.checker.check_model(step, full_check=True)
        variables = {tensor.name for tensor in step.graph.initializer}
        bindings = [
            (info.update_binding, info.algorithm),
            (info.initialization_binding, info.initialization),
        ]
        for binding, graph in bindings:
            keys = [entry.key for entry in binding]
            assert len(keys) == len(set(keys))
            assert set(keys) <= variables
            assert {entry.value for entry in binding} <= {value.name for value in graph.output}
        if info.initialization.node:
            start = helper.make_model(
                info.initialization, opset_imports=model.opset_import, ir_version=model.ir_version
            )
            onnx.checker.check_model(start, full_check=True)


def loss_of(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    """The loss of the step in onnxruntime, without what depends on Gradient."""
    step = concatenation(model)
    gradient = next(node for node in step.graph.node if node.op_type == "Gradient")
    del step.graph.node[list(step.graph.node).index(gradient) :]
    outputs = [value for value in step.graph.output if value.name == "loss"]
    del step.graph.output[:]
    step.graph.output.extend(outputs)
    session = onnxruntime.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(session.run(None, feeds)[0])


@pytest.mark.parametrize("name", ["digits", "linear", "second_order", "gan"])
def test_example_is_valid(name: str) -> None:
    check(example(name).build())


def test_digits_have_every_class_in_both_parts() -> None:
    train, test = example("digits").data()
    assert train["images"].shape == (1540, 1, 8, 8)
    assert test["images"].shape == (257, 1, 8, 8)
    assert train["images"].min() == 0
    assert train["images"].max() == 1
    assert np.bincount(train["labels"]).min() > 140
    assert np.bincount(test["labels"]).min() > 20


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_optimizer_models_are_valid(optimizer: str, dtype: type) -> None:
    check(tiny(optimizer=optimizer, dtype=dtype))
    check(tiny(optimizer=optimizer, dtype=dtype, one_node=False, batch=16))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("opset", [8, 11, 13, 21])
def test_loss_models_are_valid(loss: str, opset: int) -> None:
    model = mlp_inference((4, 3), batch=5, opset=opset)
    check(attach_training(model, loss=loss))


def test_networks_are_valid() -> None:
    check(mlp())
    check(lenet(batch=2))


@pytest.mark.parametrize("opset", [8, 21])
def test_losses_have_the_values_of_their_formulas(opset: int) -> None:
    model = mlp_inference((4, 3), batch=5, opset=opset)
    random = np.random.default_rng(0)
    x = random.random((5, 4), np.float32)
    classes = random.integers(0, 3, 5)
    targets = random.random((5, 3), np.float32)
    weight, bias = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    z = (x @ weight.T + bias).astype(np.float64)
    log_softmax = z - np.log(np.exp(z).sum(1, keepdims=True))
    rows = np.arange(5)
    expected = {
        "cross_entropy": -log_softmax[rows, classes].mean(),
        "nll": -z[rows, classes].mean(),
        "mse": np.square(z - targets).mean(),
        "bce": (np.log1p(np.exp(z)) - z * targets).mean(),
    }
    for loss, value in expected.items():
        label = targets if loss in ("mse", "bce") else classes
        assert loss_of(attach_training(model, loss=loss), {"x": x, "label": label}) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_written_optimizers_equal_the_nodes(optimizer: str) -> None:
    def run(kind: str) -> list[dict[str, np.ndarray]]:
        """Three updates with given gradients, by onnx's reference implementation."""
        model = mlp((3, 2), optimizer=kind, lr=0.1, attributes={"alpha": 0.7})
        step = concatenation(model)
        gradient = next(node for node in step.graph.node if node.op_type == "Gradient")
        update = step.graph.node[list(step.graph.node).index(gradient) + 1 :]
        state = {tensor.name: numpy_helper.to_array(tensor) for tensor in step.graph.initializer}
        names = ["fc1.weight", "fc1.bias"]
        inputs = [f"{name}.gradient" for name in names] + [entry.key for entry in model.training_info[0].update_binding]
        arrays = {f"{name}.gradient": np.ones_like(state[name]) for name in names} | state
        graph = helper.make_graph(
            update,
            "update",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(arrays[name].dtype), arrays[name].shape
                )
                for name in inputs
            ],
            [value for value in step.graph.output if value.name.endswith(".next")],
            [tensor for tensor in step.graph.initializer if tensor.name not in inputs],
        )
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=model.opset_import, ir_version=10))
        random = np.random.default_rng(0)
        history = []
        for _ in range(3):
            feeds = {name: state[name] for name in inputs if name in state}
            feeds |= {f"{name}.gradient": random.normal(size=state[name].shape).astype(np.float32) for name in names}
            new = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
            for entry in model.training_info[0].update_binding:
                state[entry.key] = new[entry.value].astype(state[entry.key].dtype)
            history.append({name: state[name] for name in names})
        return history

    for node, written in zip(run(optimizer), run(f"{optimizer}_written"), strict=True):
        for name, value in node.items():
            np.testing.assert_allclose(written[name], value, rtol=1e-5, atol=1e-7)


def test_attach_training_refuses_nothing_to_train() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    with pytest.raises(ValueError, match="nothing to train"):
        attach_training(helper.make_model(graph))


@needs_zoo
@pytest.mark.parametrize("name", ZOO)
def test_zoo_model_can_be_trained(name: str) -> None:
    entry = ZOO[name]
    model = entry.training()
    step = concatenation(model)
    # Not the full check: some of these declare shapes that are not theirs.
    onnx.checker.check_model(step)
    weights = sum(np.prod(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) > 1)
    variables = {entry.key for entry in model.training_info[0].update_binding}
    trained = sum(np.prod(tensor.dims) for tensor in model.graph.initializer if tensor.name in variables)
    assert trained > 0.9 * weights
    assert np.isfinite(loss_of(model, entry.feeds()))


@needs_zoo
@pytest.mark.parametrize("name", ["r11_ae_ref", "07_resnet8_bn"])
def test_zoo_loss_is_the_published_one(name: str) -> None:
    with (
        np.load(zoo_folder() / f"{name}.inputs.npz") as inputs,
        np.load(zoo_folder() / f"{name}.outputs.npz") as outputs,
    ):
        feeds = {next(iter(ZOO[name].inputs)): inputs["arr_0000"], "label": inputs["arr_0001"]}
        assert loss_of(ZOO[name].training(), feeds) == pytest.approx(float(outputs["loss"][0]), rel=1e-5)
