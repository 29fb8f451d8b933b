"""The benchmark's networks in PyTorch, as one would write them there. Imported only where PyTorch is installed."""

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper
from torch import nn

VERSION = str(torch.__version__)

NETWORKS: dict[str, Callable[[], Any]] = {
    "tiny": lambda: nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)),
    "mlp": lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)),
    "lenet": lambda: nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
    ),
}


def torch_step(
    name: str,
    model: onnx.ModelProto,
    x: npt.NDArray[Any],
    label: npt.NDArray[Any],
    threads: int,
    learning_rate: float,
) -> Callable[[], float]:
    """The eager step with the fused Adam, from the weights of the ONNX model (which lists them in the same order)."""
    network = NETWORKS[name]()
    with torch.no_grad():
        for parameter, tensor in zip(network.parameters(), model.graph.initializer, strict=True):
            parameter.copy_(torch.tensor(numpy_helper.to_array(tensor)))
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate, fused=True)
    cross_entropy = nn.CrossEntropyLoss()
    inputs, labels = torch.from_numpy(x), torch.from_numpy(label)

    def step() -> float:
        torch.set_num_threads(threads)  # one number for the whole process: every measurement has its own
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(network(inputs), labels)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
