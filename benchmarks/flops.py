"""Operations of a training step that no compiler can leave out, counted from the ONNX graph of its inference."""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx
from onnx import shape_inference

ADAM_BYTES = 28
"""Of each trained number, float32: weight, two moments and gradient are read, weight and moments are written."""


def step_flops(model: onnx.ModelProto, trainable: Collection[str]) -> int:
    """Floating point operations of the products in one step: forward, and once again for each operand with a gradient.

    A multiply-add counts as two. Only what the direct algorithm does in products counts (Conv, ConvTranspose, Gemm,
    MatMul, LSTM): not padding that is computed with, nor elementwise work, normalization and optimizer. An operand has
    a gradient if it is trained, or computed from what is. All shapes must be static; ValueError if one is not.
    """
    shapes = _shapes(model)
    moving = set(trainable)
    total = 0
    for node in model.graph.node:
        learns = [name for name in node.input if name in moving]
        if learns:
            moving.update(node.output)
        for multiplications, operands in _products(node, shapes):
            total += 2 * multiplications * (1 + sum(name in moving for name in operands))
    return total


def trained_numbers(model: onnx.ModelProto, trainable: Collection[str]) -> int:
    """How many numbers the optimizer updates."""
    return sum(math.prod(t.dims) for t in model.graph.initializer if t.name in set(trainable))


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    found = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        dims = value.type.tensor_type.shape.dim
        if not all(d.HasField("dim_value") for d in dims):
            raise ValueError(f"{value.name} has no static shape")
        found[value.name] = tuple(d.dim_value for d in dims)
    return found


def _products(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> list[tuple[int, tuple[str, str]]]:
    """The products in a node: multiplications of the forward pass, and the two operands."""
    names = tuple(node.input[:2])
    match node.op_type:
        case "Conv":
            count = math.prod(shapes[node.output[0]]) * math.prod(shapes[names[1]][1:])
        case "ConvTranspose":
            count = math.prod(shapes[names[0]]) * math.prod(shapes[names[1]][1:])
        case "MatMul":
            count = math.prod(shapes[node.output[0]]) * shapes[names[0]][-1]
        case "Gemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            count = math.prod(shapes[node.output[0]]) * shapes[names[0]][0 if transposed else -1]
        case "LSTM":  # of inputs [T, N, I] with W [D, 4H, I], and of the last state with R [D, 4H, H]
            rows = math.prod(shapes[names[0]][:2])
            state = next(name for name in node.output if name)
            recurrent = node.input[2]
            return [
                (rows * math.prod(shapes[names[1]]), (names[0], names[1])),
                (rows * math.prod(shapes[recurrent]), (state, recurrent)),
            ]
        case _:
            return []
    return [(count, (names[0], names[1]))]
