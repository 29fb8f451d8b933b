"""Whole networks: the rules together, through a loss, by finite differences."""

from __future__ import annotations

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.types import TensorType
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import check_off_kinks, with_gradients

RNG = np.random.default_rng(11)


class Network:
    """A builder whose parameters are inputs with random values."""

    def __init__(self) -> None:
        self.b = Builder()
        self.feeds: dict[str, np.ndarray] = {}

    def array(self, name: str, *shape: int) -> str:
        self.feeds[name] = 0.5 * RNG.normal(size=shape)
        return self.b.input(name, TensorType("f64", shape))

    def loss(self, logits: str, labels: list[int]) -> None:
        label = self.b.input("label", TensorType("i64", (len(labels),)))
        self.feeds["label"] = np.array(labels)
        self.b.output("loss", self.b.op("SoftmaxCrossEntropyLoss", logits, label))

    def check(self, order: int) -> None:
        xs = [k for k, a in self.feeds.items() if a.dtype == np.float64]
        check_off_kinks(self.b.build(), self.feeds, xs, order=order)


def convolutional() -> Network:
    n = Network()
    b = n.b
    h = b.op("Conv", n.array("x", 3, 1, 8, 8), n.array("w1", 4, 1, 3, 3), n.array("b1", 4), pads=(1, 1, 1, 1))
    statistics = [b.const(np.zeros(4)), b.const(np.ones(4))]
    norm = [h, n.array("scale", 4), n.array("shift", 4), *statistics]
    h = b.add("BatchNormalization", norm, {"training_mode": 1}, 3)[0]
    h = b.op("MaxPool", b.op("Relu", h), kernel_shape=(2, 2), strides=(2, 2))
    h = b.op("Conv", h, n.array("w2", 4, 2, 3, 3), group=2, strides=(2, 2), pads=(1, 1, 1, 1))
    h = b.op("Flatten", b.op("LeakyRelu", h))
    n.loss(b.op("Gemm", h, n.array("w3", 5, 16), n.array("b3", 5), transB=1), [0, 4, 2])
    return n


def transformer() -> Network:
    n = Network()
    b = n.b
    table, ids = n.array("table", 7, 6), b.const(np.array([[1, 2, 2, 6], [0, 5, -1, 3]]))
    x = b.op("Gather", table, ids)
    h = b.op("LayerNormalization", x, n.array("scale", 6), n.array("shift", 6))
    q, k, v = b.add("Split", [b.op("MatMul", h, n.array("wqkv", 6, 18))], {"axis": -1, "num_outputs": 3}, 3)
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 2, 1))), b.const(np.array(0.4)))
    mask = b.const(np.triu(np.full((4, 4), -np.inf), 1))
    attended = b.op("MatMul", b.op("Softmax", b.op("Add", scores, mask)), v)
    x = b.op("Add", x, b.op("MatMul", attended, n.array("wo", 6, 6)))
    h = b.op("Add", b.op("MatMul", x, n.array("w1", 6, 8)), n.array("b1", 8))
    x = b.op("Add", x, b.op("MatMul", b.op("Gelu", h), n.array("w2", 8, 6)))
    logits = b.op("MatMul", b.op("Reshape", x, b.ints([-1, 6])), b.op("Transpose", table, perm=(1, 0)))
    n.loss(logits, [0, 1, 2, 3, 4, 5, 6, 0])
    return n


def test_convolutional_network() -> None:
    convolutional().check(order=2)


def test_transformer() -> None:
    transformer().check(order=2)


def test_no_product_is_computed_twice() -> None:
    """A layer costs three products: forward, by its data, by its weights; the first layer's data cost nothing."""
    n = convolutional()
    xs = [k for k, a in n.feeds.items() if a.dtype == np.float64 and k != "x"]
    ops = [node.op for node in with_gradients(n.b.build(), "loss", xs, expand_gradients).nodes]
    assert ops.count("Conv") == 2
    assert ops.count("ConvTranspose") == 1
    assert ops.count("onnxc.ConvWeightGrad") == 2
    assert ops.count("Gemm") == 2
    assert ops.count("MatMul") == 1
