"""Exports of PyTorch by both exporters: they train, the result runs elsewhere, and steps are those of PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler import UnsupportedError, make_training_model
from tests.exporters.networks import NETWORKS, F, data, export, network, settled, torch
from tests.exporters.training import trains

DYNAMO = pytest.mark.parametrize("dynamo", [False, True], ids=["script", "dynamo"])
NO_AXIS = {("encoder", False), ("encoder", True), ("gpt", True)}
"""Exports for one sample whose batch cannot be opened, and is refused."""


@DYNAMO
@pytest.mark.parametrize("one", [False, True], ids=["N", "1"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_export_as_people_make_it_trains(name: str, one: bool, dynamo: bool, tmp_path: Path) -> None:
    x, target = data(name)
    export(settled(network(name), x), x, tmp_path / "net.onnx", dynamo, one=one)
    if one and (name, dynamo) in NO_AXIS:
        with pytest.raises(UnsupportedError, match="the batch is fixed at 1 and cannot be opened"):
            make_training_model(tmp_path / "net.onnx")
        return
    training = make_training_model(tmp_path / "net.onnx", lr=0.02)
    trains(training, {"x": x, "label": target}, tmp_path / "trained.onnx")


@DYNAMO
@pytest.mark.parametrize("name", NETWORKS)
def test_ten_steps_are_those_of_pytorch(name: str, dynamo: bool, tmp_path: Path) -> None:
    """BatchNormalization in training form. ONNX's running variance is that of the population, PyTorch's of a sample."""
    net = network(name)
    x, target = data(name)
    export(net, x, tmp_path / "net.onnx", dynamo, as_written=True)
    step = compiler.compile(make_training_model(tmp_path / "net.onnx", optimizer="sgd", lr=0.02, momentum=0.9))
    for key, value in net.state_dict().items():
        if key in step.state:
            step.state[key] = value.numpy()
    parameters = {key for key, _ in net.named_parameters()}
    shared = {"letters.weight", "head.weight"} if name == "gpt" else set()  # one of these names
    assert parameters - shared <= set(step.state)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    rng = np.random.default_rng(0)
    for _ in range(10):
        rows = rng.choice(len(x), 32, replace=False)
        scores = net(torch.from_numpy(x[rows]))
        loss = F.cross_entropy(scores.flatten(0, -2), torch.from_numpy(target[rows]).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(step(x=x[rows], label=target[rows])["loss"], loss.item(), rtol=1e-5)
    for key, value in net.state_dict().items():
        if key in step.state:
            tolerance = 5e-3 if key.endswith("running_var") else 2e-5
            np.testing.assert_allclose(step.state[key], value.numpy(), rtol=tolerance, atol=2e-5, err_msg=key)


def test_options_that_keep_the_network_as_written(tmp_path: Path) -> None:
    """What docs/exporters.md says of each way: what is folded, merged and left out."""

    def network_of_equal_layers() -> object:
        nn = torch.nn
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        )

    trained = {}
    x = np.zeros((3, 1, 8, 8), np.float32)
    for dynamo in (False, True):
        for as_written in (False, True):
            torch.manual_seed(0)
            export(network_of_equal_layers(), x, tmp_path / "net.onnx", dynamo, as_written=as_written)
            model = make_training_model(tmp_path / "net.onnx", loss="mse")
            nodes = {node.op_type for node in model.training_info[0].algorithm.node}
            assert ({"BatchNormalization", "Dropout"} <= nodes) == as_written
            (gradient,) = [n for n in model.training_info[0].algorithm.node if n.op_type == "Gradient"]
            trained[dynamo, as_written] = len(gradient.output)
    assert trained == {(False, False): 4, (False, True): 7, (True, False): 3, (True, True): 7}
