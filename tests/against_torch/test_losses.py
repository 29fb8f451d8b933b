"""Losses and gradients beside PyTorch in float64, and 50 steps of a network with BatchNormalization and Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler import Loss, make_training_model
from compiler.ir.builder import Builder
from compiler.ir.interpret import interpret
from compiler.ir.types import TensorType
from tests.codegen.graphs import Running
from tests.gradcheck import with_gradients
from tests.making.loss_models import Array, linear, step_graph

torch = pytest.importorskip("torch")
nn = torch.nn

LABELS = np.array([0, 1, 3, 3, 2])
PROBABILITIES = np.random.default_rng(6).dirichlet(np.ones(4), 5)
WEIGHT = [0.5, 2.0, 1.0, 3.0]


def tensor(value: Any) -> Any:
    return torch.tensor(value, dtype=torch.float64)


CASES = {
    "cross_entropy": (Loss("CrossEntropyLoss"), nn.CrossEntropyLoss(), LABELS),
    "everything": (
        Loss("CrossEntropyLoss", weight=WEIGHT, label_smoothing=0.2, ignore_index=3),
        nn.CrossEntropyLoss(weight=tensor(WEIGHT), label_smoothing=0.2, ignore_index=3),
        LABELS,
    ),
    "sum": (
        Loss("CrossEntropyLoss", weight=WEIGHT, label_smoothing=0.2, reduction="sum"),
        nn.CrossEntropyLoss(weight=tensor(WEIGHT), label_smoothing=0.2, reduction="sum"),
        LABELS,
    ),
    "soft": (
        Loss("CrossEntropyLoss", weight=WEIGHT, label_smoothing=0.2, soft_targets=True),
        nn.CrossEntropyLoss(weight=tensor(WEIGHT), label_smoothing=0.2),
        PROBABILITIES,
    ),
    "nll": (Loss("NLLLoss", weight=WEIGHT), nn.NLLLoss(weight=tensor(WEIGHT)), LABELS),
    "mse": (Loss("MSELoss"), nn.MSELoss(), PROBABILITIES),
    "l1": (Loss("L1Loss"), nn.L1Loss(), PROBABILITIES),
    "huber": (Loss("HuberLoss", delta=0.4), nn.HuberLoss(delta=0.4), PROBABILITIES),
    "smooth_l1": (Loss("SmoothL1Loss", beta=0.4), nn.SmoothL1Loss(beta=0.4), PROBABILITIES),
    "bce": (
        Loss("BCEWithLogitsLoss", pos_weight=WEIGHT, weight=WEIGHT),
        nn.BCEWithLogitsLoss(pos_weight=tensor(WEIGHT), weight=tensor(WEIGHT)),
        PROBABILITIES,
    ),
    "kl": (
        Loss("KLDivLoss"),
        lambda x, t: nn.KLDivLoss(reduction="batchmean")(torch.log_softmax(x, -1), t),
        PROBABILITIES,
    ),
    "cosine": (
        Loss("CosineEmbeddingLoss"),
        lambda x, t: nn.CosineEmbeddingLoss()(x, t, torch.ones(5)),
        PROBABILITIES,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("opset", [8, 17])
def test_a_loss_and_its_gradient(name: str, opset: int) -> None:
    loss, module, target = CASES[name]
    model = linear(["N", 4], opset=opset)
    x = np.random.default_rng(1).normal(size=(5, 3))
    w = tensor(numpy_helper.to_array(model.graph.initializer[0])).requires_grad_()
    expected = module(tensor(x) @ w, torch.tensor(target))
    expected.backward()
    training = make_training_model(model, loss=loss, optimizer="sgd")
    feeds = {"x": x, training.training_info[0].algorithm.input[0].name: target}
    graph = step_graph(training, feeds)
    values = interpret(graph, feeds)
    assert float(values[graph.outputs["loss"]].reshape(())) == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(values["w.gradient"], w.grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 7), (2, 21, 9, 11), (2, 3, 40, 30)])
@pytest.mark.parametrize("how", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [None, 2, -100])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_positions(shape: tuple[int, ...], how: str, ignored: int | None, weighted: bool) -> None:
    """The compiled loss and its gradient by the scores, in float32."""
    random = np.random.default_rng(3)
    x = random.normal(size=shape).astype(np.float32)
    labels = random.integers(0, shape[1], (shape[0], *shape[2:]))
    if ignored is not None:
        labels[random.random(labels.shape) < 0.3] = ignored
    weight = random.uniform(0.5, 2, shape[1]).astype(np.float32) if weighted else None
    b = Builder()
    scores, classes = b.input("x", TensorType("f32", shape)), b.input("labels", TensorType("i64", labels.shape))
    attrs = {"reduction": how} | ({} if ignored is None else {"ignore_index": ignored})
    loss = b.op("SoftmaxCrossEntropyLoss", scores, classes, *([] if weight is None else [b.const(weight)]), **attrs)
    coefficients = random.normal(size=labels.shape if how == "none" else ()).astype(np.float32)
    b.output("loss", b.op("ReduceSum", b.op("Mul", loss, b.const(coefficients)), keepdims=0))
    graph = with_gradients(b.build(), "loss", ["x"])
    results = [Running(graph, threads)({"x": x, "labels": labels}) for threads in (1, 3)]
    assert results[0]["d0"].tobytes() == results[1]["d0"].tobytes()
    z = tensor(x).requires_grad_()
    w = None if weight is None else tensor(weight)
    each = nn.CrossEntropyLoss(weight=w, reduction=how, ignore_index=-100 if ignored is None else ignored)
    expected = (each(z, torch.tensor(labels)) * tensor(coefficients)).sum()
    expected.backward()
    np.testing.assert_allclose(results[0]["loss"], expected.item(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[0]["d0"], z.grad.numpy(), rtol=2e-6, atol=1e-6 * float(z.grad.abs().max()))


class Network(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution, a BatchNormalization and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.bn = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(3 * 16, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.drop(torch.relu(self.bn(self.conv(x))).flatten(1)))


def exported(net: Any) -> onnx.ModelProto:
    """The network for one sample, as an export in evaluation mode writes it."""
    weights = {n: t.numpy() for n, t in net.state_dict().items() if t.is_floating_point()}
    names = [f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *names], ["b"], epsilon=1e-5, momentum=0.9),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("Dropout", ["r", "ratio"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "head.weight", "head.bias"], ["y"], transB=1),
    ]
    weights |= {"ratio": np.array(0.0), "shape": np.array([1, 48])}
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 1, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, 2])],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_fifty_steps_of_a_network() -> None:
    torch.manual_seed(0)
    net = Network().double()
    step = compiler.compile(make_training_model(exported(net), optimizer="sgd", lr=0.05, momentum=0.9))
    first = net.bn.running_var.clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(50):
        x, label = torch.randn(4, 1, 6, 6).double(), torch.randint(0, 2, (4,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), label)
        loss.backward()
        optimizer.step()
        mine = step(x=x.numpy(), label=label.numpy())["loss"]
        assert float(mine) == pytest.approx(loss.item(), rel=1e-6)  # float32 epsilon and momentum in the file
    for name, value in net.named_parameters():
        close(step.state[name], value.detach().numpy())
    close(step.state["bn.running_mean"], net.bn.running_mean.numpy())
    # PyTorch's running variance is that of the sample, n - 1; ONNX's that of the population, n
    n = 4 * 16
    population = first * 0.9**50 + (net.bn.running_var - first * 0.9**50) * (n - 1) / n
    close(step.state["bn.running_var"], population.numpy())


def close(mine: Array, theirs: Array) -> None:
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize(("time_axis", "blank"), [(0, 0), (1, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ctc(reduction: str, time_axis: int, blank: int, zero_infinity: bool) -> None:
    """Lists of all lengths, repeats, padding of any value; with and without those of no alignment. Logits may be -inf.

    Each sample has logits of its own, whose gradients PyTorch makes NaN where the loss is infinite.
    """
    samples, times, classes = 60, 6, 4
    rng = np.random.default_rng(3)
    target, lengths = rng.choice(np.delete(range(classes), blank), (samples, 4)), rng.integers(0, 5, samples)
    input_lengths = rng.integers(0, times + 1, samples)
    logits = rng.normal(size=(times, samples, classes))
    logits[:, 7, 1] = logits[:, 8, 3] = -np.inf

    def theirs(chosen: Any, reduction: str) -> tuple[Any, Array]:
        given = tensor(logits[:, chosen]).requires_grad_()
        numbers = [torch.tensor(v[chosen]) for v in (target, input_lengths, lengths)]
        loss = nn.CTCLoss(blank, reduction, zero_infinity)(torch.log_softmax(given, -1), *numbers)
        loss.sum().backward()
        return loss.detach().numpy(), given.grad.numpy()

    def mine(chosen: Any) -> tuple[float, Array]:
        given = np.moveaxis(logits[:, chosen], 0, time_axis)
        padded = np.where(np.arange(4) < lengths[chosen, None], target[chosen], rng.integers(-9, 9, (len(chosen), 4)))
        loss = Loss("ctc", blank=blank, time_axis=time_axis, reduction=reduction, zero_infinity=zero_infinity)
        dims = ", ".join(map(str, given.shape))
        model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
            g (double[{dims}] x) => (double[{dims}] y) <double[1] w = {{0}}> {{ y = Add (x, w) }}""")
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros_like(given), "w"))
        training = make_training_model(model, loss=loss, optimizer="sgd", batch=None, train="w")
        assert compiler.check(training) == ()
        step = compiler.compile(training, dims={"target_1": 4})
        feeds = {"target": padded, "input_lengths": input_lengths[chosen], "target_lengths": lengths[chosen]}
        found = step({"x": given, **feeds}, fetch=["w.gradient"])
        return float(found["loss"]), np.moveaxis(found["w.gradient"], time_axis, 0)

    every = np.arange(samples)
    possible = np.isfinite(theirs(every, "none")[0]) if not zero_infinity else every >= 0
    assert zero_infinity or 10 < possible.sum() < 50
    for chosen in (every, every[possible]):
        loss, gradient = theirs(chosen, reduction)
        found, by_logits = mine(chosen)
        assert found == pytest.approx(float(loss), rel=1e-10)
        counts = possible[chosen]
        np.testing.assert_allclose(by_logits[:, counts], gradient[:, counts], rtol=1e-8, atol=1e-12)
        assert not by_logits[:, ~counts].any()
        assert np.isnan(gradient[:, ~counts]).any() or counts.all()
