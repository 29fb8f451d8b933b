"""PyTorch, eager or compiled: the networks as one writes them there, with the fused Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import Case, Made

VERSION = str(torch.__version__)


class Tiny(nn.Module):
    """4-16-3."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        """Logits."""
        return self.fc2(torch.tanh(self.fc1(x)))


class Mlp(nn.Module):
    """784-512-256-10."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 256), nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        """Logits."""
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x)))))


class LeNet(nn.Module):
    """Two convolutions with pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        """Logits."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Any:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


class Residual(nn.Module):
    """A block of ResNet8."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = _conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortened = stride != 1
        if self.shortened:
            self.shortcut, self.bn3 = _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)

    def forward(self, x: Any) -> Any:
        """[N, inputs, H, W] -> [N, outputs, H/stride, W/stride]."""
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (self.bn3(self.shortcut(x)) if self.shortened else x))


class Separable(nn.Module):
    """A block of Depthwise."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.depth, self.bn1 = _conv(inputs, inputs, stride=stride, groups=inputs), nn.BatchNorm2d(inputs)
        self.point, self.bn2 = _conv(inputs, outputs, 1), nn.BatchNorm2d(outputs)

    def forward(self, x: Any) -> Any:
        """[N, inputs, H, W] -> [N, outputs, H/stride, W/stride]."""
        x = functional.relu(self.bn1(self.depth(x)))
        return functional.relu(self.bn2(self.point(x)))


class Pyramid(nn.Module):
    """A stem, blocks, the mean over the image and a dense layer: ResNet8 and the depthwise network."""

    def __init__(self, stem: int, block: Callable[[int, int, int], Any], sizes: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.stem, self.bn = _conv(3, stem), nn.BatchNorm2d(stem)
        self.blocks = nn.Sequential(*(block(*size) for size in sizes))
        self.fc = nn.Linear(sizes[-1][1], 10)

    def forward(self, x: Any) -> Any:
        """Logits."""
        return self.fc(self.blocks(functional.relu(self.bn(self.stem(x)))).mean((2, 3)))


class Double(nn.Module):
    """Two convolutions of the U-Net."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: Any) -> Any:
        """[N, inputs, H, W] -> [N, outputs, H, W]."""
        return functional.relu(self.conv2(functional.relu(self.conv1(x))))


class UNet(nn.Module):
    """Two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = Double(3, 16), Double(16, 32), Double(32, 64)
        self.up2, self.merge2 = nn.ConvTranspose2d(64, 32, 2, 2), Double(64, 32)
        self.up1, self.merge1 = nn.ConvTranspose2d(32, 16, 2, 2), Double(32, 16)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Any) -> Any:
        """Logits of every pixel."""
        high = self.down1(x)
        middle = self.down2(functional.max_pool2d(high, 2))
        x = self.bottom(functional.max_pool2d(middle, 2))
        x = self.merge2(torch.cat([middle, self.up2(x)], 1))
        return self.head(self.merge1(torch.cat([high, self.up1(x)], 1)))


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """[B, T, C] -> [B, T, C]."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens to logits of the next ones."""

    def __init__(self, tokens: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(256, width), nn.Parameter(torch.zeros(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: Any) -> Any:
        """[B, T] -> logits [B*T, 256]."""
        return self.head(self.norm(self.blocks(self.embedding(x) + self.positions))).flatten(0, 1)


class Lstm(nn.Module):
    """LSTM of 128."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        """Logits."""
        return self.fc(self.lstm(x)[1][0][0])


NETWORKS: dict[str, Callable[[], Any]] = {
    "tiny": Tiny,
    "mlp": Mlp,
    "lenet": LeNet,
    "resnet8": lambda: Pyramid(16, Residual, [(16, 16, 1), (16, 32, 2), (32, 64, 2)]),
    "depthwise": lambda: Pyramid(
        32, Separable, [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    ),
    "unet": UNet,
    "gpt": lambda: Transformer(64, 128, 4, 2),
    "wide": lambda: Transformer(128, 512, 8, 1),
    "lstm": Lstm,
}


def _reordered(gates: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Gates along the first axis, from ONNX's order i, o, f, c to PyTorch's i, f, c, o."""
    i, o, f, c = np.split(gates, 4)
    return np.concatenate([i, f, c, o])


def _renamed(name: str, value: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """A weight of the ONNX model under PyTorch's name and in its layout."""
    match name:
        case "lstm.W":
            return {"lstm.weight_ih_l0": _reordered(value[0])}
        case "lstm.R":
            return {"lstm.weight_hh_l0": _reordered(value[0])}
        case "lstm.B":
            of_input, of_state = np.split(value[0], 2)
            return {"lstm.bias_ih_l0": _reordered(of_input), "lstm.bias_hh_l0": _reordered(of_state)}
        case _ if name.endswith(".weight_t"):
            return {name.removesuffix("_t"): value.T}
        case _:
            return {name: value}


def _load(network: Any, case: Case) -> None:
    """Weights of the case into a network. ValueError: the two do not have the same."""
    given = {n: v for name, value in case.weights().items() for n, v in _renamed(name, value).items()}
    parameters = dict(network.named_parameters())
    if missing := [n for n, p in parameters.items() if n not in given or tuple(p.shape) != given[n].shape]:
        raise ValueError(f"the network's {', '.join(missing)} are not in the ONNX model, or have another shape there")
    if len(parameters) != sum(len(_renamed(n, np.zeros((1, 8)))) for n in case.trainable):
        raise ValueError("the ONNX model trains other weights than the network has")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.tensor(np.ascontiguousarray(given[name])))


def make_step(case: Case, compiled: bool = False) -> Made:
    """The step, eager, or with both the loss and the optimizer through torch.compile."""
    torch.set_num_threads(case.threads)
    torch.set_num_interop_threads(1)
    network = NETWORKS[case.name]()
    _load(network, case)
    x, label = (torch.from_numpy(a) for a in case.batch())
    # torch.compile has its own code for Adam; the fused kernel is the quickest for eager steps
    optimizer = torch.optim.Adam(network.parameters(), lr=case.learning_rate, fused=not compiled)

    def loss_of(x: Any, label: Any) -> Any:
        return functional.cross_entropy(network(x), label)

    forward, update = (torch.compile(loss_of), torch.compile(optimizer.step)) if compiled else (loss_of, optimizer.step)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, label)
        loss.backward()
        update()
        return float(loss.detach())

    return Made(step)
