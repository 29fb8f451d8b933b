"""Convolutional networks."""

from __future__ import annotations

import onnx

from benchmarks.workloads.layers import Layers


def lenet() -> onnx.ModelProto:
    """Two 3x3 convolutions with bias, Relu and pooling, then dense 128."""
    net = Layers()
    x = net.pool(net.relu(net.conv("x", "conv1", 1, 32)))
    x = net.pool(net.relu(net.conv(x, "conv2", 32, 64)))
    x = net.relu(net.dense(net.node("Flatten", [x], "features"), "fc1", 64 * 7 * 7, 128))
    net.dense(x, "fc2", 128, 10, "logits")
    return net.model("lenet", [64, 1, 28, 28], [64, 10])


def _residual(net: Layers, x: str, name: str, inputs: int, outputs: int, stride: int) -> str:
    """Two 3x3 convolutions with BatchNormalization beside a shortcut, He et al. 2015."""
    y = net.conv(x, f"{name}.conv1", inputs, outputs, stride=stride, bias=False)
    y = net.relu(net.batch_norm(y, f"{name}.bn1", outputs))
    y = net.conv(y, f"{name}.conv2", outputs, outputs, bias=False)
    y = net.batch_norm(y, f"{name}.bn2", outputs)
    if stride != 1:
        x = net.conv(x, f"{name}.shortcut", inputs, outputs, 1, stride=stride, bias=False)
        x = net.batch_norm(x, f"{name}.bn3", outputs)
    return net.relu(net.node("Add", [y, x], f"{name}/sum"))


def resnet8() -> onnx.ModelProto:
    """A stem of 16 channels and three residual blocks, of CIFAR's shape."""
    net = Layers()
    x = net.relu(net.batch_norm(net.conv("x", "stem", 3, 16, bias=False), "bn", 16))
    for number, (inputs, outputs, stride) in enumerate([(16, 16, 1), (16, 32, 2), (32, 64, 2)]):
        x = _residual(net, x, f"blocks.{number}", inputs, outputs, stride)
    net.dense(net.global_mean(x), "fc", 64, 10, "logits")
    return net.model("resnet8", [32, 3, 32, 32], [32, 10])


DEPTHWISE = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))
"""Input channels, output channels and stride of the blocks of `depthwise`."""


def depthwise() -> onnx.ModelProto:
    """Depthwise separable convolutions with BatchNormalization, as in MobileNet (Howard et al. 2017)."""
    net = Layers()
    x = net.relu(net.batch_norm(net.conv("x", "stem", 3, 32, bias=False), "bn", 32))
    for number, (inputs, outputs, stride) in enumerate(DEPTHWISE):
        name = f"blocks.{number}"
        x = net.conv(x, f"{name}.depth", inputs, inputs, stride=stride, groups=inputs, bias=False)
        x = net.relu(net.batch_norm(x, f"{name}.bn1", inputs))
        x = net.conv(x, f"{name}.point", inputs, outputs, 1, bias=False)
        x = net.relu(net.batch_norm(x, f"{name}.bn2", outputs))
    net.dense(net.global_mean(x), "fc", 256, 10, "logits")
    return net.model("depthwise", [32, 3, 32, 32], [32, 10])


def _double(net: Layers, x: str, name: str, inputs: int, outputs: int) -> str:
    x = net.relu(net.conv(x, f"{name}.conv1", inputs, outputs))
    return net.relu(net.conv(x, f"{name}.conv2", outputs, outputs))


def unet() -> onnx.ModelProto:
    """Two levels down and up with skip connections, as in Ronneberger et al. 2015, padded; logits of every pixel."""
    net = Layers()
    high = _double(net, "x", "down1", 3, 16)
    middle = _double(net, net.pool(high), "down2", 16, 32)
    x = _double(net, net.pool(middle), "bottom", 32, 64)
    x = net.node("Concat", [middle, net.up(x, "up2", 64, 32)], "skip2", axis=1)
    x = _double(net, x, "merge2", 64, 32)
    x = net.node("Concat", [high, net.up(x, "up1", 32, 16)], "skip1", axis=1)
    x = _double(net, x, "merge1", 32, 16)
    net.conv(x, "head", 16, 4, 1, output="logits")
    return net.model("unet", [8, 3, 64, 64], [8, 4, 64, 64])
