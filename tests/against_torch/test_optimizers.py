"""Fifty steps of two small networks beside PyTorch, compared after each. An extra: skipped where PyTorch is absent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

import compiler
from compiler import make_training_model
from compiler.frontend.making.emit import DOMAIN, Algorithm
from compiler.frontend.making.optimizers import OptimizerSpec, Parameter, add_optimizer, optimizer_spec

torch = pytest.importorskip("torch")
optim, schedulers = torch.optim, torch.optim.lr_scheduler

STEPS, BATCH, SIZES = 50, 6, (5, 8, 3)
SIDE, PLANES, EPSILON, MOMENTUM = 6, 3, 2.0**-16, 2.0**-3  # of BatchNormalization, the same in the float32 of a file
Optimizer = Callable[[Any], Any]
"""A network -> PyTorch's optimizer of its parameters."""


def mlp() -> Any:
    """Two layers, the last one called 2."""
    return torch.nn.Sequential(
        torch.nn.Linear(SIZES[0], SIZES[1]), torch.nn.Tanh(), torch.nn.Linear(SIZES[1], SIZES[2])
    )


def cnn() -> Any:
    """A convolution without a bias, whose gradient would be nothing but rounding, a BatchNormalization and a head."""
    nn = torch.nn
    parts = {
        "0": nn.Conv2d(1, PLANES, 3, bias=False),
        "1": nn.BatchNorm2d(PLANES, EPSILON, MOMENTUM),
        "relu": nn.ReLU(),
        "drop": nn.Dropout(0.0),
        "flat": nn.Flatten(),
        "2": nn.Linear(PLANES * (SIDE - 2) ** 2, SIZES[2]),
    }
    return nn.Sequential(OrderedDict(parts))


def network(kind: str, dtype: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """PyTorch's network, and a batch of each step."""
    torch.manual_seed(1)
    net, shape = (mlp(), SIZES[:1]) if kind == "mlp" else (cnn(), (1, SIDE, SIDE))
    data = [(torch.randn(BATCH, *shape).double(), torch.randn(BATCH, SIZES[2]).double()) for _ in range(STEPS)]
    return net.double().to(dtype), [(x.to(dtype), t.to(dtype)) for x, t in data]


def cnn_training_model(net: Any, given: Mapping[str, Any]) -> ModelProto:
    """The convolutional network as evaluation exports it, made one that trains by the mean squared error."""
    weights = {n: t.detach().numpy() for n, t in net.state_dict().items() if t.is_floating_point()}
    dtype = helper.np_dtype_to_tensor_dtype(weights["0.weight"].dtype)
    statistics = [f"1.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
    nodes = [
        helper.make_node("Conv", ["x", "0.weight"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *statistics], ["b"], epsilon=EPSILON, momentum=1 - MOMENTUM),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("Dropout", ["r", "ratio"], ["d"]),
        helper.make_node("Flatten", ["d"], ["f"]),
        helper.make_node("Gemm", ["f", "2.weight", "2.bias"], ["y"], transB=1),
    ]
    weights["ratio"] = np.zeros((), weights["0.weight"].dtype)
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", dtype, [BATCH, 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", dtype, [BATCH, SIZES[2]])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    return make_training_model(model, loss="mse", batch=None, **given)


def mlp_training_model(net: Any, spec: OptimizerSpec) -> ModelProto:
    """The same network with the mean squared error and an optimizer, in ONNX."""
    weights = {name: p.detach().numpy() for name, p in net.named_parameters()}
    dtype = helper.np_dtype_to_tensor_dtype(weights["0.weight"].dtype)
    nodes = [
        helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["h"], transB=1),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "2.weight", "2.bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", dtype, [BATCH, SIZES[0]])],
        [helper.make_tensor_value_info("y", dtype, [BATCH, SIZES[2]])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    a = Algorithm(model, dtype)
    target = a.input("target", dtype, [BATCH, SIZES[2]])
    difference = a.node("Sub", ["y", target], "difference")
    loss = a.reduce("ReduceMean", a.node("Mul", [difference, difference], "square"), "loss")
    a.output(loss)
    part = a.node("Mul", [loss, a.const(1 / spec.accumulate, "part")], "loss_part")
    names = list(weights)
    zs = ["x", target]
    hints = [f"{n}.gradient" for n in names]
    gradients = a.nodes_of("Gradient", [*names, *zs], hints, DOMAIN, xs=names, zs=zs, y=part)
    parameters = [Parameter(n, w.shape, dtype, w) for n, w in weights.items()]
    add_optimizer(a, parameters, dict(zip(names, gradients, strict=True)), spec)
    model.training_info.append(a.training_info())
    return model


def all_parameters(make: Callable[..., Any], **options: Any) -> Optimizer:
    return lambda net: make(net.parameters(), **options)


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. (2023); PyTorch has none."""

    def __init__(self, params: Any, lr: float = 1e-4, weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = 0.9 * m + 0.1 * p.grad
                p -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p)
                m.mul_(0.99).add_(p.grad, alpha=0.01)


def decayed_weights(net: Any) -> Any:
    """Groups: no decay for biases, a faster last layer."""
    named = dict(net.named_parameters())
    rest = [name for name in named if not name.endswith(".bias") and name != "2.weight"]
    return optim.AdamW(
        [
            {"params": [p for name, p in named.items() if name.endswith(".bias")], "weight_decay": 0.0},
            {"params": [named["2.weight"]], "lr": 3e-2, "betas": (0.8, 0.99)},
            {"params": [named[name] for name in rest]},
        ],
        lr=1e-2,
        weight_decay=0.1,
    )


# id: (what the user writes, PyTorch's optimizer)
OPTIMIZERS: dict[str, tuple[Mapping[str, Any], Optimizer]] = {
    "sgd": ({"optimizer": "sgd"}, all_parameters(optim.SGD)),
    "sgd_decay": (
        {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.1},
        all_parameters(optim.SGD, lr=0.1, weight_decay=0.1),
    ),
    "momentum": ({"optimizer": "momentum", "lr": 0.02}, all_parameters(optim.SGD, lr=0.02, momentum=0.9)),
    "dampening": (
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.8, "dampening": 0.4, "weight_decay": 0.01},
        all_parameters(optim.SGD, lr=0.1, momentum=0.8, dampening=0.4, weight_decay=0.01),
    ),
    "nesterov": (
        {"optimizer": "nesterov", "lr": 0.02, "weight_decay": 0.01},
        all_parameters(optim.SGD, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adagrad": ({"optimizer": "adagrad"}, all_parameters(optim.Adagrad)),
    "adagrad_decay": (
        {"optimizer": "adagrad", "lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
        all_parameters(optim.Adagrad, lr=0.1, lr_decay=0.05, weight_decay=0.1, initial_accumulator_value=0.1),
    ),
    "adam": ({"optimizer": "adam"}, all_parameters(optim.Adam)),
    "adam_decay": (
        {"optimizer": "adam", "lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
        all_parameters(optim.Adam, lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    "amsgrad": ({"optimizer": "adam", "lr": 0.02, "amsgrad": True}, all_parameters(optim.Adam, lr=0.02, amsgrad=True)),
    "adamw": ({"optimizer": "adamw"}, all_parameters(optim.AdamW)),
    "adamw_amsgrad": (
        {"optimizer": "adamw", "lr": 0.02, "weight_decay": 0.2, "amsgrad": True},
        all_parameters(optim.AdamW, lr=0.02, weight_decay=0.2, amsgrad=True),
    ),
    "rmsprop": ({"optimizer": "rmsprop"}, all_parameters(optim.RMSprop)),
    "rmsprop_eps": ({"optimizer": "rmsprop", "eps": 1e-4}, all_parameters(optim.RMSprop, eps=1e-4)),
    "rmsprop_centered": (
        {"optimizer": "rmsprop", "lr": 0.005, "alpha": 0.9, "centered": True, "momentum": 0.5, "weight_decay": 0.1},
        all_parameters(optim.RMSprop, lr=0.005, alpha=0.9, centered=True, momentum=0.5, weight_decay=0.1),
    ),
    "lion": ({"optimizer": "lion", "lr": 0.01, "weight_decay": 0.1}, all_parameters(Lion, lr=0.01, weight_decay=0.1)),
    "groups": (
        {
            "optimizer": "adamw",
            "lr": 1e-2,
            "weight_decay": 0.1,
            "no_decay": "*.bias",
            "groups": [{"match": "2.*", "lr": 3e-2, "betas": (0.8, 0.99)}],
        },
        decayed_weights,
    ),
}


def sequential(main: Callable[[Any], Any], warmup: int, start: float) -> Callable[[Any], Any]:
    def make(optimizer: Any) -> Any:
        first = schedulers.LinearLR(optimizer, start_factor=start, total_iters=warmup)
        return schedulers.SequentialLR(optimizer, [first, main(optimizer)], milestones=[warmup])

    return make


# id: (schedule, PyTorch's)
SCHEDULES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "step": ({"name": "step", "step_size": 7, "gamma": 0.5}, lambda o: schedulers.StepLR(o, 7, 0.5)),
    "multistep": ({"name": "multistep", "milestones": [5, 30]}, lambda o: schedulers.MultiStepLR(o, [5, 30])),
    "exponential": ({"name": "exponential", "gamma": 0.95}, lambda o: schedulers.ExponentialLR(o, 0.95)),
    "linear": ({"name": "linear"}, schedulers.LinearLR),
    "cosine": (
        {"name": "cosine", "total_steps": 49, "eta_min": 0.002},
        lambda o: schedulers.CosineAnnealingLR(o, 49, 0.002),
    ),
    "cosine_warm_up": (
        {"name": "cosine", "total_steps": 50, "warmup": 10, "warmup_start": 0.1},
        sequential(lambda o: schedulers.CosineAnnealingLR(o, 40), 10, 0.1),
    ),
    "step_warm_up": (
        {"name": "step", "step_size": 15, "warmup": 8},
        sequential(lambda o: schedulers.StepLR(o, 15), 8, 0.01),
    ),
    "one_cycle": ({"name": "one_cycle", "total_steps": 60}, lambda o: schedulers.OneCycleLR(o, 0.03, 60)),
    "one_cycle_linear": (
        {
            "name": "one_cycle",
            "total_steps": 55,
            "anneal_strategy": "linear",
            "three_phase": True,
            "cycle_momentum": False,
        },
        lambda o: schedulers.OneCycleLR(o, 0.03, 55, anneal_strategy="linear", three_phase=True, cycle_momentum=False),
    ),
}


# gradients of the convolutional network that are nearly 0 are made large by a division: their rounding shows
TOLERANCES: dict[tuple[str, Any], dict[str, float]] = {
    ("mlp", torch.float64): {"rtol": 1e-10, "atol": 1e-12},
    ("cnn", torch.float64): {"rtol": 1e-10, "atol": 1e-10},
    ("mlp", torch.float32): {"rtol": 2e-4, "atol": 2e-5},
    ("cnn", torch.float32): {"rtol": 1e-3, "atol": 1e-4},
}


def statistics(net: Any, steps: int) -> dict[str, Any]:
    """The running statistics of a network after some steps, as ONNX has them.

    Its variance is that of the population, PyTorch's that of a sample; both started at 1.
    """
    n, kept = BATCH * (SIDE - 2) ** 2, (1 - MOMENTUM) ** steps
    found = {name: t.numpy() for name, t in net.named_buffers() if t.is_floating_point()}
    return {n_: t if n_.endswith("mean") else kept + (t - kept) * (n - 1) / n for n_, t in found.items()}


def check(
    kind: str,
    given: Mapping[str, Any],
    make: Optimizer,
    *,
    dtype: Any = None,
    schedule: Callable[[Any], Any] | None = None,
    every: int = 1,
    clip: Callable[[Any], Any] | None = None,
    average: float | None = None,
) -> None:
    """The parameters, their average and running statistics after each of the steps. kind: "mlp" or "cnn"."""
    dtype = dtype or torch.float64
    net, data = network(kind, dtype)
    made = mlp_training_model(net, optimizer_spec(**given)) if kind == "mlp" else cnn_training_model(net, given)
    step = compiler.compile(made)
    optimizer = make(net)
    scheduler = schedule(optimizer) if schedule else None
    mean = (
        torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(average))
        if average
        else None
    )
    tolerance = TOLERANCES[kind, dtype]
    for i, (x, target) in enumerate(data):
        found = step(x=x.numpy(), target=target.numpy())
        loss = torch.nn.functional.mse_loss(net(x), target)
        np.testing.assert_allclose(found["loss"], loss.item(), rtol=max(tolerance["rtol"], 1e-9))
        (loss / every).backward()
        if (i + 1) % every == 0:
            if clip:
                clip(net.parameters())
            optimizer.step()
            optimizer.zero_grad()
            if scheduler:
                scheduler.step()
            if mean:
                mean.update_parameters(net)
        for name, p in net.named_parameters():
            np.testing.assert_allclose(step.state[name], p.detach().numpy(), **tolerance, err_msg=f"{name}, step {i}")
        for name, theirs in statistics(net, i + 1).items():
            np.testing.assert_allclose(step.state[name], theirs, **tolerance, err_msg=f"{name}, step {i}")
        if mean and i + 1 >= every:
            for name, p in mean.module.named_parameters():
                np.testing.assert_allclose(step.state[f"{name}.average"], p.detach().numpy(), **tolerance)


NETWORKS = pytest.mark.parametrize("kind", ["mlp", "cnn"])


@NETWORKS
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str, kind: str) -> None:
    check(kind, *OPTIMIZERS[name])


@NETWORKS
@pytest.mark.parametrize("name", ["nesterov", "adagrad_decay", "adam_decay", "adamw", "rmsprop_eps", "groups"])
def test_optimizer_in_float32(name: str, kind: str) -> None:
    check(kind, *OPTIMIZERS[name], dtype=torch.float32)


@NETWORKS
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str, kind: str) -> None:
    schedule, theirs = SCHEDULES[name]
    check(
        kind,
        {"optimizer": "momentum", "lr": 0.03, "schedule": schedule},
        all_parameters(optim.SGD, lr=0.03, momentum=0.9),
        schedule=theirs,
    )


@pytest.mark.parametrize("name", ["cosine_warm_up", "one_cycle"])
def test_schedule_of_adamw(name: str) -> None:
    schedule, theirs = SCHEDULES[name]
    given = {"optimizer": "adamw", "lr": 0.03, "schedule": schedule}
    check("mlp", given, all_parameters(optim.AdamW, lr=0.03), schedule=theirs)


@NETWORKS
@pytest.mark.parametrize("name", ["momentum", "adam_decay"])
def test_clipping(name: str, kind: str) -> None:
    given, make = OPTIMIZERS[name]
    norm, value = torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_
    check(kind, {**given, "clip_norm": 0.3}, make, clip=lambda p: norm(p, 0.3))
    check(kind, {**given, "clip_value": 0.05}, make, clip=lambda p: value(p, 0.05))


@NETWORKS
@pytest.mark.parametrize(
    "name",
    ["sgd", "dampening", "adagrad_decay", "adam_decay", "amsgrad", "adamw", "rmsprop_centered", "lion", "groups"],
)
def test_accumulation(name: str, kind: str) -> None:
    given, make = OPTIMIZERS[name]
    check(kind, {**given, "accumulate": 4}, make, every=4)


@NETWORKS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_all_together(dtype: Any, kind: str) -> None:
    schedule, theirs = SCHEDULES["one_cycle"]
    check(
        kind,
        {"optimizer": "adamw", "lr": 0.03, "schedule": schedule, "accumulate": 3, "clip_norm": 0.3, "average": 0.9},
        all_parameters(optim.AdamW, lr=0.03),
        dtype=dtype,
        schedule=theirs,
        every=3,
        clip=lambda p: torch.nn.utils.clip_grad_norm_(p, 0.3),
        average=0.9,
    )
