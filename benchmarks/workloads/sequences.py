"""Transformers and a recurrent network."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.workloads.layers import Layers

VOCABULARY = 256


def _attention(net: Layers, x: str, name: str, width: int) -> str:
    """Causal self-attention [B, T, C] -> [B, T, C] with one product for query, key and value, written out."""
    x = net.dense_last(x, f"{name}.qkv", width, 3 * width)
    x = net.node("Reshape", [x, "split_shape"], f"{name}/split")
    x = net.node("Transpose", [x], f"{name}/turned", perm=[2, 0, 3, 1, 4])  # [3, B, heads, T, size]
    query, key, value = (net.node("Gather", [x, f"number{i}"], f"{name}/{part}") for i, part in enumerate("qkv"))
    key = net.node("Transpose", [key], f"{name}/k/turned", perm=[0, 1, 3, 2])
    scores = net.node("MatMul", [query, key], f"{name}/scores")
    scores = net.node("Div", [scores, "root"], f"{name}/scaled")
    scores = net.node("Where", ["causal", scores, "minus_infinity"], f"{name}/masked")
    weights = net.node("Softmax", [scores], f"{name}/softmax", axis=-1)
    x = net.node("MatMul", [weights, value], f"{name}/mixed")
    x = net.node("Transpose", [x], f"{name}/back", perm=[0, 2, 1, 3])
    x = net.node("Reshape", [x, "join_shape"], f"{name}/joined")
    return net.dense_last(x, f"{name}.projection", width, width)


def _transformer(name: str, shape: tuple[int, int, int], heads: int, layers: int) -> onnx.ModelProto:
    """Pre-norm decoder: tokens [B, T] -> logits [B*T, VOCABULARY]; positions are learned."""
    batch, tokens, width = shape
    net = Layers()
    net.integers("split_shape", [batch, tokens, 3, heads, width // heads])
    net.integers("join_shape", [batch, tokens, width])
    net.integers("rows_shape", [batch * tokens, VOCABULARY])
    for number in range(3):
        net.tensor(f"number{number}", np.array(number, np.int64))
    net.tensor("root", np.array(math.sqrt(width // heads), np.float32))
    net.tensor("causal", np.tril(np.ones((tokens, tokens), np.bool_)))
    net.tensor("minus_infinity", np.array(-np.inf, np.float32))

    table = net.normal("embedding.weight", (VOCABULARY, width), 1)
    positions = net.normal("positions", (tokens, width), 0.02)
    x = net.node("Add", [net.node("Gather", [table, "x"], "embedded"), positions], "placed")
    for number in range(layers):
        block = f"blocks.{number}"
        y = _attention(net, net.layer_norm(x, f"{block}.norm1", width), block, width)
        x = net.node("Add", [x, y], f"{block}/sum1")
        y = net.dense_last(net.layer_norm(x, f"{block}.norm2", width), f"{block}.up", width, 4 * width)
        y = net.dense_last(net.node("Gelu", [y], f"{block}/gelu"), f"{block}.down", 4 * width, width)
        x = net.node("Add", [x, y], f"{block}/sum2")
    x = net.dense_last(net.layer_norm(x, "norm", width), "head", width, VOCABULARY)
    net.node("Reshape", [x, "rows_shape"], "logits")
    return net.model(name, [batch, tokens], [batch * tokens, VOCABULARY], TensorProto.INT64)


def gpt() -> onnx.ModelProto:
    """Two layers of 128 with 4 heads on 8 x 64 tokens."""
    return _transformer("gpt", (8, 64, 128), heads=4, layers=2)


def wide() -> onnx.ModelProto:
    """One layer of 512 with 8 heads on 4 x 128 tokens."""
    return _transformer("wide", (4, 128, 512), heads=8, layers=1)


def lstm() -> onnx.ModelProto:
    """LSTM of 128 over the 28 rows of an image [N, 28, 28]; its last state is classified. Gates in ONNX's order."""
    size, inputs = 128, 28
    net = Layers()
    turned = net.node("Transpose", ["x"], "rows", perm=[1, 0, 2])
    operands = [
        turned,
        net.uniform("lstm.W", (1, 4 * size, inputs), size),
        net.uniform("lstm.R", (1, 4 * size, size), size),
        net.uniform("lstm.B", (1, 8 * size), size),
    ]
    net.nodes.append(helper.make_node("LSTM", operands, ["", "last"], "lstm", hidden_size=size))
    last = net.node("Squeeze", ["last", net.integers("zero", [0])], "features")
    net.dense(last, "fc", size, 10, "logits")
    return net.model("lstm", [32, 28, inputs], [32, 10])
