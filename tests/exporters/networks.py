"""Networks of PyTorch as people write them, with inputs and targets of real data, and how they are exported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn
F = nn.functional

Array = npt.NDArray[Any]
DIGITS = np.load(Path(__file__).parents[2] / "examples" / "data" / "digits.npz")
IMAGES = (DIGITS["images"].astype(np.float32) / 16)[:512, None]
LABELS = DIGITS["labels"].astype(np.int64)[:512]


def text() -> tuple[Array, Array]:
    """The license as numbers of letters: 16 letters, and the 16 that follow each of them."""
    letters = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8").lower()
    known = sorted(set(letters))
    numbers = np.array([known.index(c) for c in letters], np.int64)
    rows = np.stack([numbers[i : i + 17] for i in range(0, len(numbers) - 17, 3)]) % 40
    return rows[:, :-1].copy(), rows[:, 1:].copy()


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.drop, self.head = nn.Dropout(0.0), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.head(self.drop(x.view(x.size(0), -1) if torch.onnx.is_in_onnx_export() else x.flatten(1)))


class Residual(nn.Module):
    """Two blocks of a ResNet, the second with a step down."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn0 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.a, self.bn_a = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.b, self.bn_b = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c, self.bn_c = nn.Conv2d(8, 16, 3, 2, padding=1, bias=False), nn.BatchNorm2d(16)
        self.down = nn.Sequential(nn.Conv2d(8, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.bn0(self.stem(x)))
        x = F.relu(self.bn_b(self.b(F.relu(self.bn_a(self.a(x))))) + x)
        x = F.relu(self.bn_c(self.c(x)) + self.down(x))
        return self.head(x.mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(8, 16, num_layers=2, batch_first=True, bidirectional=True), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.rnn(x.squeeze(1))[0][:, -1])


class Encoder(nn.Module):
    """A transformer of the library, with a class token and learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 16), nn.Linear(16, 10)
        self.place, self.token = nn.Parameter(torch.randn(1, 9, 16) * 0.1), nn.Parameter(torch.randn(1, 1, 16) * 0.1)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Any) -> Any:
        x = self.embed(x.squeeze(1))
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], 1) + self.place
        return self.head(self.layers(x)[:, 0])


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Letters in, scores of the next letter out; the head has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(40, 16), nn.Embedding(16, 16)
        self.blocks, self.norm = nn.ModuleList(Block(16, 2) for _ in range(2)), nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.letters.weight
        nn.init.normal_(self.letters.weight, std=0.1)

    def forward(self, x: Any) -> Any:
        x = self.letters(x) + self.places(torch.arange(x.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def mlp() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Dropout(0.0), nn.Linear(32, 10))


NETWORKS: dict[str, Callable[[], Any]] = {
    "mlp": mlp,
    "cnn": Cnn,
    "residual": Residual,
    "lstm": Lstm,
    "encoder": Encoder,
    "gpt": Gpt,
}


def data(name: str) -> tuple[Array, Array]:
    return text() if name == "gpt" else (IMAGES, LABELS)


def network(name: str) -> Any:
    torch.manual_seed(0)
    return NETWORKS[name]()


def settled(net: Any, x: Array) -> Any:
    """A network whose running statistics are those of some data, as of one that has learned."""
    with torch.no_grad():
        for i in range(30):
            net.train()(torch.from_numpy(x[i : i + 64]))
    return net


def export(net: Any, x: Array, path: Path, dynamo: bool, one: bool = False, as_written: bool = False) -> None:
    """As people do; or as_written, with the options of docs/exporters.md. one: for one sample."""
    options: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "dynamo": dynamo, "verbose": False}
    net = copy.deepcopy(net).eval()  # a trace in training form changes running statistics
    if dynamo:
        options |= {} if one else {"dynamic_shapes": ({0: "N"},)}
        options |= {"optimize": False} if as_written else {}
        net = net.train() if as_written else net
    else:
        options |= {} if one else {"dynamic_axes": {"x": {0: "N"}, "y": {0: "N"}}}
        training = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
        options |= training if as_written else {}
    torch.onnx.export(net, (torch.from_numpy(x[: 1 if one else 3]),), path, **options)
