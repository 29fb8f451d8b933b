"""A corpus of malformed nodes: each must be refused, with a message that says what is wrong.

Most of them pass ONNX's own inference (`accepted` in the table says which): kernels, which run on raw memory, rely on
the verifier. Operands are types, arrays (known at compile time) or None (absent).
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import VerifyError
from compiler.ir.builder import Builder
from compiler.ir.checks.base import PRECONDITIONS
from compiler.ir.checks.general import SAFE
from compiler.ir.graph import Graph, Node
from compiler.ir.infer import NotStatic
from compiler.ir.proto import schema
from compiler.ir.types import Tensor, TensorType
from compiler.ir.verify import verify

TRAINING = "ai.onnx.preview.training."


def i64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def typed(text: str) -> TensorType:
    match = re.fullmatch(r"(\w+)\[([\d,]*)\]", text)
    assert match, text
    return TensorType(match[1], tuple(int(d) for d in match[2].split(",") if d))


def graph_of(op: str, operands: list[Any], attrs: dict[str, Any], outputs: int = 1) -> tuple[Graph, bool]:
    """A graph with this node, and whether onnx's inference accepts it. Types are inferred as far as that goes."""
    b = Builder("malformed")
    names = []
    for i, operand in enumerate(operands):
        if operand is None:
            names.append("")
        elif isinstance(operand, str):
            names.append(b.input(f"in{i}", typed(operand)))
        else:
            names.append(b.const(Tensor(np.asarray(operand)), f"in{i}"))
    hints = [f"out{i}" for i in range(outputs)]
    try:
        types: list[TensorType | None] = list(b.infer(Node(op, tuple(names), tuple(hints), attrs)))
        accepted = True
    except (VerifyError, NotStatic):
        types, accepted = [TensorType("f32", (1,))] * outputs, False
    for name in b.add(op, names, attrs, hints, types=types):
        b.output(name, name)
    return b.build(), accepted


X4 = "f32[1,4,8,8]"
F = np.float32
CORPUS: dict[str, list[tuple[Any, ...]]] = {
    # op: (operands, attributes, what the message says[, number of outputs])
    "Reshape": [
        (["f32[6]", i64(7)], {}, "6 elements, those of [6], do not fit the shape [7] of 7"),
        (["f32[6]", i64(2, 2)], {}, "do not fit"),
        (["f32[6]", i64(-1, -1)], {}, "multiple -1"),
        (["f32[6]", i64(-1, 4)], {}, "incompatible shapes"),
        (["f32[6]", i64(3, 0)], {}, "position of 0"),
        (["f32[6]", i64(-2, 3)], {}, "-2"),
        (["f32[6]", i64(0)], {"allowzero": 1}, "do not fit"),
        (["f32[6]", np.array([[2, 3]])], {}, "rank 1"),
        (["f32[6]", np.array(6)], {}, "rank 1"),
        (["f32[6]", np.array([2, 3], np.int32)], {}, "int64"),
        (["f32[6]", "i64[2]"], {}, "run-time values: 'in1'"),
        (["f32[6]", i64(2**62, 2**62)], {}, "overflow"),
    ],
    "Expand": [
        (["f32[2,3]", i64(2, 4)], {}, "Incompatible"),
        (["f32[2,1]", i64(2, -1)], {}, "negative"),
        (["f32[2,3]", np.array([[2, 3]])], {}, "rank 1"),
        (["f32[1]", i64(2**41)], {}, "too large"),
    ],
    "Tile": [
        (["f32[2,3]", i64(2)], {}, "repeats"),
        (["f32[2,3]", i64(2, -1)], {}, "negative"),
        (["f32[2,3]", i64(2**30, 2**30)], {}, "too large"),
    ],
    "Pad": [
        (["f32[2,3]", i64(0, 1, 0)], {}, "3 values"),
        (["f32[2,3]", i64(0, -4, 0, 0)], {}, "cut more off axis 1"),
        (["f32[2,3]", i64(0, -4, 0, 5)], {}, "cut more off axis 1"),
        (["f32[2,3]", i64(0, 3, 0, 0)], {"mode": "reflect"}, "reflects more than its 3 elements"),
        (["f32[2,3]", i64(0, 2, 0, -1)], {"mode": "reflect"}, "reflects more than its 2 elements"),
        (["f32[2,3]", i64(0, 0, 0, 4)], {"mode": "wrap"}, "more than once"),
        (["f32[0,3]", i64(1, 0, 0, 0)], {"mode": "edge"}, "no element for the pad"),
        (["f32[2,3]", i64(0, 1, 0, 1)], {"mode": "mirror"}, "not one of constant"),
        (["f32[2,3]", i64(0, 1, 0, 1), "f32[2]"], {}, "scalar"),
        (["f32[2,3]", i64(0, 1, 0, 1), "f64[]"], {}, "inconsistent type"),
        (["f32[2,3]", i64(1, 1), None, i64(2)], {}, "axis"),
        (["f32[2,3]", i64(1, 1, 1, 1), None, i64(1, -1)], {}, "more than once"),
        (["f32[2,3]", np.array([[0, 1], [0, 1]])], {}, "1D"),
    ],
    "Slice": [
        (["f32[2,3]", i64(0), i64(5), i64(0), i64(0)], {}, "0"),
        (["f32[2,3]", i64(0), i64(5), i64(2)], {}, "axis"),
        (["f32[2,3]", i64(0, 0), i64(5)], {}, "starts and ends"),
        (["f32[2,3]", i64(0, 0), i64(5, 5), i64(1, 1)], {}, "more than once"),
        (["f32[2,3]", np.array(0), np.array(1)], {}, "rank 1"),
        (["f32[2,3]", i64(0), i64(1), i64(0), i64(1, 1)], {}, "steps"),
        (["f32[2,3]", "i64[1]", i64(1)], {}, "run-time values: 'in1'"),
    ],
    "Split": [
        (["f32[6]", i64(2, 3)], {}, "sum", 2),
        (["f32[6]", i64(-2, 8)], {}, "cannot be split", 2),
        (["f32[6]", i64(2, 2, 2)], {}, "outputs", 2),
        (["f32[6]"], {"num_outputs": 3}, "num_outputs is 3", 2),
        (["f32[2]"], {"num_outputs": 4}, "cannot be split", 4),
        (["f32[6]", i64(3, 3)], {"axis": 1}, "axis", 2),
    ],
    "Squeeze": [
        (["f32[1,3]", i64(1)], {}, "1"),
        (["f32[1,3]", i64(0, 0)], {}, "repeat"),
        (["f32[1,3]", i64(0, -2)], {}, "repeat"),
        (["f32[1,3]", i64(5)], {}, "axis"),
        (["f32[1,3]", np.array(0)], {}, "rank 1"),
    ],
    "Unsqueeze": [
        (["f32[3]", i64(0, 0)], {}, "more than once"),
        (["f32[3]", i64(0, -3)], {}, "more than once"),
        (["f32[3]", i64(3)], {}, "axis"),
        (["f32[3]", np.array(0)], {}, "rank 1"),
    ],
    "Transpose": [
        (["f32[2,3]"], {"perm": (0,)}, "no order of the 2 axes"),
        (["f32[2,3]"], {"perm": ()}, "no order of the 2 axes"),
        (["f32[2,3]"], {"perm": (0, 0)}, "perm"),
        (["f32[2,3]"], {"perm": (0, -1)}, "perm"),
        (["f32[2,3]"], {"perm": (0, 1, 2)}, "perm"),
    ],
    "Concat": [
        (["f32[2,3]", "f32[2,4]"], {"axis": 0}, "differ"),
        (["f32[2,3]", "f32[2]"], {"axis": 0}, "rank"),
        (["f32[2,3]"], {"axis": 2}, "axis"),
        (["f32[]", "f32[]"], {"axis": 0}, "axis"),
        (["f32[2]", "f64[2]"], {"axis": 0}, "inconsistent type"),
        (["f32[2]", "f32[2]"], {}, "'axis' is required"),
        (["f32[2]", None, "f32[2]"], {"axis": 0}, "absent"),
    ],
    "Flatten": [(["f32[2,3]"], {"axis": 5}, "axis"), (["f32[2,3]"], {"axis": -3}, "axis")],
    "Gather": [
        (["f32[2,3]", "i64[4]"], {"axis": 2}, "axis"),
        (["f32[]", "i64[4]"], {}, "rank"),
        (["f32[2,3]", i64(0, 2)], {}, "index 2 is out of the range of axis 0"),
        (["f32[2,3]", i64(-3)], {}, "index -3 is out of the range of axis 0"),
        (["f32[2,3]", i64(3)], {"axis": 1}, "index 3"),
        (["f32[0,3]", "i64[4]"], {}, "no element"),
        (["f32[2,3]", "f32[4]"], {}, "type"),
    ],
    "GatherElements": [
        (["f32[2,3]", "i64[4]"], {}, "differ in rank"),
        (["f32[2,3]", "i64[4,5]"], {"axis": 0}, "axis 1 of the indices"),
        (["f32[2,3]", "i64[4,3]"], {"axis": 2}, "axis 2"),
        (["f32[2,3]", np.array([[0, 1, 2]])], {"axis": 0}, "index 2"),
        (["f32[0,3]", "i64[4,3]"], {"axis": 0}, "no element"),
    ],
    "GatherND": [
        (["f32[2,3]", "i64[4,3]"], {}, "rank"),
        (["f32[2,3]", "i64[4,1]"], {"batch_dims": 1}, "first 1 dimensions"),
        (["f32[2,3]", "i64[4,1]"], {"batch_dims": -1}, "batch_dims -1"),
        (["f32[2,3]", "i64[2,1]"], {"batch_dims": 2}, "rank"),
        (["f32[2,3]", "i64[4,0]"], {}, "tuples of 0"),
        (["f32[2,3]", np.array([[0, 3]])], {}, "index 3 is out of the range of axis 1"),
        (["f32[2,3]", "i64[]"], {}, "rank"),
        (["f32[2,3]", "i64[4,1]"], {"batch_dims": -100}, "batch_dims -100"),  # onnx's inference would crash
    ],
    "EyeLike": [([None], {}, "0 inputs"), (["f32[2]"], {}, "2-dimensional")],
    "ScatterElements": [
        (["f32[2,3]", "i64[1,3]", "f32[1]"], {}, "differ in shape"),
        (["f32[2,3]", "i64[3]", "f32[3]"], {}, "differ in rank"),
        (["f32[2,3]", "i64[1,4]", "f32[1,4]"], {}, "axis 1 of the indices"),
        (["f32[2,3]", "i64[1,3]", "f32[1,3]"], {"axis": 3}, "axis 3"),
        (["f32[2,3]", "i64[1,3]", "f32[1,3]"], {"reduction": "sum"}, "not one of none"),
        (["f32[2,3]", np.array([[0, 5, 0]]), "f32[1,3]"], {}, "index 5"),
    ],
    "ScatterND": [
        (["f32[2,3]", "i64[4,1]", "f32[4,2]"], {}, "not [4, 3]"),
        (["f32[2,3]", "i64[4,3]", "f32[4]"], {}, "tuples of 3"),
        (["f32[2,3]", "i64[]", "f32[]"], {}, "at least one axis"),
        (["f32[2,3]", np.array([[2]]), "f32[1,3]"], {}, "index 2"),
    ],
    "OneHot": [
        (["i64[4]", np.array(5), "f32[2]"], {"axis": 3}, "axis"),
        (["i64[4]", np.array(5), "f32[3]"], {}, "two elements"),
        (["i64[4]", np.array(-5), "f32[2]"], {}, "non-negative"),
        (["i64[4]", i64(5, 6), "f32[2]"], {}, "one element"),
        (["i64[4]", "i64[]", "f32[2]"], {}, "run-time values"),
    ],
    "TopK": [
        (["f32[3]", i64(5)], {}, "k", 2),
        (["f32[3]", i64(-1)], {}, "k is [-1]", 2),
        (["f32[3]", i64(1)], {"axis": 3}, "axis", 2),
    ],
    "ArgMax": [
        (["f32[3]"], {"axis": 2}, "axis"),
        (["f32[]"], {}, "axis 0"),
        (["f32[0,3]"], {}, "no element"),
        (["f32[3]"], {"keepdims": 2}, "not 0 or 1"),
    ],
    "Trilu": [(["f32[3]"], {}, "rank"), (["f32[3,3]", "i64[2]"], {}, "scalar")],
    "ConstantOfShape": [
        ([i64(2, -1)], {}, "negative"),
        ([np.array([[2]])], {}, "rank 1"),
        ([i64(2)], {"value": Tensor(np.zeros(2, F))}, "one element"),
        ([i64(2**40, 2**40)], {}, "too large"),
    ],
    "Range": [
        ([F(0), F(1), F(0)], {}, "no finite range"),
        ([np.int64(0), np.int64(1), np.int64(0)], {}, "no finite range"),
        ([F(0), F(np.inf), F(1)], {}, "no finite range"),
        ([F(0), F(np.nan), F(1)], {}, "no finite range"),
        ([i64(0), i64(10), i64(1)], {}, "scalar"),
        ([np.int64(-(2**63)), np.int64(2**63 - 1), np.int64(1)], {}, "too large"),
        ([np.float64(0), np.float64(1e18), np.float64(0.1)], {}, "too large"),
        (["i64[]", np.int64(3), np.int64(1)], {}, "run-time values"),
    ],
    "Conv": [
        ([X4, "f32[6,3,3,3]"], {}, "take 3 channels in each of 1 groups, but the input has 4"),
        ([X4, "f32[6,4,3,3]"], {"group": 2}, "take 4 channels in each of 2 groups"),
        ([X4, "f32[5,2,3,3]"], {"group": 2}, "5 output channels cannot be divided"),
        ([X4, "f32[6,4,3,3]"], {"group": 0}, "0 groups"),
        ([X4, "f32[6,4,3,3]"], {"group": -1}, "-1 groups"),
        ([X4, "f32[6,4,3,3]", "f32[5]"], {}, "the bias has the shape [5]"),
        ([X4, "f32[6,4,3,3]", "f32[6,1]"], {}, "the bias has the shape [6, 1]"),
        ([X4, "f32[6,4,3]"], {}, "spatial dimensions"),
        ([X4, "f32[6,4,3,3]"], {"kernel_shape": (2, 2)}, "kernel_shape is [2, 2], but the weights have [3, 3]"),
        ([X4, "f32[6,4,3,3]"], {"strides": (0, 1)}, "strides"),
        ([X4, "f32[6,4,3,3]"], {"strides": (1,)}, "strides"),
        ([X4, "f32[6,4,3,3]"], {"dilations": (-1, 1)}, "dilations"),
        ([X4, "f32[6,4,3,3]"], {"pads": (1, 1, 1)}, "pads"),
        ([X4, "f32[6,4,3,3]"], {"pads": (-1, 0, 0, 0)}, "pads"),
        ([X4, "f32[6,4,9,9]"], {}, "a kernel extent of 9 exceeds the 8 elements"),
        ([X4, "f32[6,4,12,12]"], {"strides": (5, 5)}, "a kernel extent of 12 exceeds"),
        ([X4, "f32[6,4,3,3]"], {"dilations": (4, 4)}, "a kernel extent of 9"),
        ([X4, "f32[6,4,0,3]"], {}, "kernel"),
        ([X4, "f32[6,4,3,3]"], {"auto_pad": "SAME_UPPER", "pads": (1, 1, 1, 1)}, "together with auto_pad"),
        ([X4, "f32[6,4,3,3]"], {"auto_pad": "VALID", "pads": (1, 1, 1, 1)}, "together with auto_pad"),
        ([X4, "f32[6,4,3,3]"], {"auto_pad": "SAME"}, "not one of NOTSET"),
        (["f32[1,4]", "f32[6,4]"], {}, "3 dimensions"),
        (["f32[1,0,8]", "f32[6,0,3]"], {}, "the input has 0 channels"),
        (["f32[1,4,0]", "f32[6,4,3]"], {"pads": (2, 2)}, "empty"),
        ([X4, "f32[6,4,3,3]"], {"strides": 1}, "not of the kind INTS"),
        ([X4, "f32[6,4,3,3]"], {"stride": (1, 1)}, "no attribute 'stride'"),
        ([X4, None, "f32[6]"], {}, "input 1 (W) is required"),
    ],
    "ConvTranspose": [
        ([X4, "f32[5,3,3,3]"], {}, "take 5 channels"),
        ([X4, "f32[4,3,3,3]"], {"group": 3}, "group"),
        ([X4, "f32[4,3,3,3]", "f32[4]"], {}, "the bias has the shape [4], where [3]"),
        ([X4, "f32[4,3,3,3]", "f32[3]"], {"group": 2}, "where [6] is expected"),
        ([X4, "f32[4,3,3,3]"], {"output_padding": (1, 1)}, "output_padding 1"),
        ([X4, "f32[4,3,3,3]"], {"output_padding": (2, 2), "strides": (2, 2)}, "output_padding 2"),
        ([X4, "f32[4,3,3,3]"], {"pads": (6, 6, 6, 6)}, "gives an output of -2"),
        ([X4, "f32[4,3,3,3]"], {"output_shape": (20, 20)}, "more than the kernel reaches"),
        ([X4, "f32[4,3,3,3]"], {"kernel_shape": (2, 2)}, "kernel_shape"),
        ([X4, "f32[4,3,1,1]"], {"auto_pad": "SAME_UPPER", "strides": (3, 3)}, "more than the kernel reaches"),
        ([X4, "f32[4,3,3,3]"], {"strides": (0, 1)}, "strides"),
    ],
    **{
        op: [
            ([X4], {}, "'kernel_shape' is required"),
            ([X4], {"kernel_shape": (2,)}, "kernel_shape"),
            ([X4], {"kernel_shape": (0, 2)}, "kernel_shape"),
            ([X4], {"kernel_shape": (2, 2), "strides": (0, 1)}, "strides"),
            ([X4], {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}, "wholly in the padding"),
            ([X4], {"kernel_shape": (2, 2), "pads": (0, 0, 0, 2)}, "wholly in the padding"),
            (["f32[1,1,1]"], {"kernel_shape": (2,), "dilations": (2,), "pads": (1, 1)}, "wholly in the padding"),
            ([X4], {"kernel_shape": (9, 9)}, "a kernel extent of 9 exceeds"),
            ([X4], {"kernel_shape": (9, 9), "strides": (3, 3)}, "a kernel extent of 9 exceeds"),
            ([X4], {"kernel_shape": (2, 2), "auto_pad": "SAME_UPPER", "pads": (1, 1, 1, 1)}, "together with auto_pad"),
            ([X4], {"kernel_shape": (3, 3), "auto_pad": "VALID", "strides": (2, 2), "ceil_mode": 1}, "ambiguous"),
            ([X4], {"kernel_shape": (2, 2), "ceil_mode": 2}, "not 0 or 1"),
            (["f32[1,4]"], {"kernel_shape": ()}, "3 dimensions"),
        ]
        for op in ("MaxPool", "AveragePool", "LpPool")
    },
    "GlobalAveragePool": [(["f32[3,4]"], {}, "no spatial"), (["f32[1,3,0]"], {}, "no spatial")],
    "MaxUnpool": [(["f32[1,1,2,2]", "i64[1,1,2,3]"], {"kernel_shape": (2, 2)}, "differ in shape")],
    "MatMul": [
        (["f32[2,3]", "f32[4,5]"], {}, "Incompatible"),
        (["f32[2,2,3]", "f32[3,3,5]"], {}, "Incompatible"),
        (["f32[]", "f32[3]"], {}, "rank"),
    ],
    "Gemm": [
        (["f32[2,3]", "f32[4,5]"], {}, "mismatch"),
        (["f32[2,3]", "f32[3,5]", "f32[4]"], {}, "C of shape [4] cannot be broadcast"),
        (["f32[2,3]", "f32[3,5]", "f32[2]"], {}, "C of shape [2]"),
        (["f32[2,3]", "f32[3,5]", "f32[1,2,5]"], {}, "C of shape [1, 2, 5]"),
        (["f32[1,3]", "f32[3,5]", "f32[2,5]"], {}, "C of shape [2, 5]"),
        (["f32[3,2]", "f32[3,5]"], {"transA": 3}, "not 0 or 1"),
        (["f32[2,3,1]", "f32[3,5]"], {}, "rank 2"),
    ],
    "ReduceSum": [
        (["f32[2,3]", i64(2)], {}, "axis"),
        (["f32[2,3]", i64(0, 0)], {}, "repeat"),
        (["f32[2,3]", i64(0, -2)], {}, "repeat"),
        (["f32[2,3]", np.array(1)], {}, "rank 1"),
        (["f32[2,3]", "i64[1]"], {}, "run-time values: 'in1'"),
        (["f32[2,3]"], {"keepdims": 7}, "not 0 or 1"),
        (["f32[2,3]"], {"axes": (1,)}, "no attribute 'axes'"),
    ],
    "ReduceMean": [(["i32[0]"], {}, "mean of no integers"), (["f32[2,3]", i64(1, 1)], {}, "repeat")],
    "CumSum": [
        (["f32[3]", np.int64(2)], {}, "axis 2"),
        (["f32[3]", i64(0, 1)], {}, "one element"),
        (["f32[]", np.int64(0)], {}, "axis 0"),
        (["f32[3]", "i64[]"], {}, "run-time values"),
        (["f32[3]", np.int64(0)], {"reverse": 2}, "not 0 or 1"),
    ],
    "Softmax": [(["f32[2,3]"], {"axis": 2}, "axis"), (["f32[]"], {}, "rank")],
    "BatchNormalization": [
        (["f32[2,3,4]", "f32[3]", "f32[4]", "f32[3]", "f32[3]"], {}, "mismatch"),
        (["f32[2,3,4]", *["f32[3]"] * 4], {"training_mode": 2}, "outputs"),
        (["f32[2,3,4]", *["f32[3]"] * 4], {}, "outputs", 3),
        (["f32[0,3]", *["f32[3]"] * 4], {"training_mode": 1}, "is empty", 3),
    ],
    "LayerNormalization": [
        (["f32[2,3,4]", "f32[3]"], {}, "the scale has the shape [3], where [4]"),
        (["f32[2,3,4]", "f32[4]", "f32[3]"], {}, "the bias has the shape [3]"),
        (["f32[2,3,4]", "f32[5,2,3,4]"], {"axis": 1}, "the scale has the shape"),
        (["f32[2,3,4]", "f32[4]"], {"axis": 5}, "axis 5"),
        (["f32[2,3,4]", "f32[4]"], {"axis": 10**12}, "1000000000000"),  # onnx's inference would crash
        (["f32[2,0]", "f32[0]"], {}, "empty"),
    ],
    "InstanceNormalization": [(["f32[2,3,4]", "f32[5]", "f32[3]"], {}, "the scale has the shape [5]")],
    "GroupNormalization": [
        (["f32[2,4,4]", "f32[3]", "f32[4]"], {"num_groups": 2}, "the scale has the shape [3]"),
        (["f32[2,4,4]", "f32[4]", "f32[4]"], {"num_groups": 3}, "cannot be divided into 3 groups"),
    ],
    "Add": [(["f32[2,3]", "f32[4]"], {}, "Incompatible"), (["f32[2]", "f64[2]"], {}, "inconsistent type")],
    "Where": [(["bool[2]", "f32[3]", "f32[3]"], {}, "Incompatible"), (["f32[2]", "f32[2]", "f32[2]"], {}, "type")],
    "PRelu": [(["f32[2]", "f32[3,2]"], {}, "cannot be broadcast"), (["f32[2,3]", "f32[2]"], {}, "cannot be broadcast")],
    "Clip": [(["f32[2]", "f32[2]"], {}, "scalar"), (["f32[2]", None, "f32[1]"], {}, "scalar")],
    "Cast": [(["f32[2]"], {"to": 8}, "STRING"), (["f32[2]"], {"to": 99}, "valid type"), (["f32[2]"], {}, "'to'")],
    "Gelu": [(["f32[2]"], {"approximate": "erf"}, "not one of none, tanh")],
    "Relu": [
        (["f32[2]", "f32[2]"], {}, "2 inputs where 1"),
        (["f32[2]"], {}, "2 outputs where 1", 2),
        ([], {}, "0 inputs where 1"),
        (["bool[2]"], {}, "type"),
        (["f32[2]"], {"alpha": 1.0}, "no attribute 'alpha'"),
    ],
    "Relux": [(["f32[2]"], {}, "no operator 'Relux'")],
    "org.example.Relu": [(["f32[2]"], {}, "no operator 'org.example.Relu'")],
    "onnxc.Nothing": [(["f32[2]"], {}, "no internal operator")],
    "onnxc.ConvWeightGrad": [(["f32[2]", "f32[2]"], {}, "definition")],
    "Upsample": [(["f32[1,1,2,2]", np.ones(4, F)], {}, "deprecated")],
    "Loop": [(["i64[]", "bool[]"], {}, "'body' is required")],
    **{
        op: [
            (["f32[2,3]", "i64[3]"], {}, "labels have the shape [3]" if op[0] == "S" else "mismatch"),
            (["f32[2,3,4]", "i64[2,5]"], {}, "labels" if op[0] == "S" else "mismatch"),
            (["f32[2,3]", "i64[2,1]"], {}, "labels" if op[0] == "S" else "rank"),
            (["f32[3]", "i64[]"], {}, "no axis of classes" if op[0] == "S" else "rank"),
            (["f32[2,3]", "i64[2]", "f32[4]"], {}, "weights" if op[0] == "S" else "mismatch"),
            (["f32[2,3]", "i64[2]", "f32[3,1]"], {}, "weights" if op[0] == "S" else "rank"),
            (["f32[2,3]", "i64[2]"], {"reduction": "avg"}, "not one of none"),
            (["f32[2,0]", "i64[2]"], {}, "no classes"),
            (["f32[2,3]", i64(0, 3)], {}, "a label is out of the range of 3"),
            (["f32[2,3]", i64(0, -1)], {}, "a label is out of the range of 3"),
        ]
        for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
    },
    TRAINING + "Adam": [
        (["f32[]", "i64[]", "f32[3]", "f32[5]", "f32[3]", "f32[3]"], {}, "the gradient of variable 0 is f32[5]", 3),
        (["f32[]", "i64[]", "f32[3]", "f64[3]", "f32[3]", "f32[3]"], {}, "the gradient of variable 0 is f64[3]", 3),
        (["f32[]", "i64[]", *["f32[3]"] * 3], {}, "multiple of 4", 3),
        (["f32[]", "i64[]", *["f32[3]", "f32[2]"] * 3, "f32[2]", "f32[3]"], {}, "square of variable 0 is f32[2]", 6),
        (["f32[2]", "i64[]", *["f32[3]"] * 4], {}, "learning rate is f32[2]", 3),
        (["f32[]", "i64[3]", *["f32[3]"] * 4], {}, "iteration count is i64[3]", 3),
        (["f32[1]", "i64[]", *["f32[]"] * 4], {}, "learning rate is f32[1]", 3),
    ],
    TRAINING + "Adagrad": [
        (["f32[]", "i64[]", "f32[3]", "f32[5]", "f32[3]"], {}, "the gradient of variable 0", 2),
        (["f32[]", "i64[]", "f32[3]", "f32[3]", "f32[1]"], {}, "square of variable 0", 2),
        (["f32[]", "i64[]", *["f32[3]"] * 4], {}, "cannot be divided", 2),
    ],
    TRAINING + "Momentum": [
        (["f32[]", "i64[]", *["f32[3]"] * 3], {"alpha": 0.9, "beta": 0.1}, "'mode' is required", 2),
        (
            ["f32[]", "i64[]", *["f32[3]"] * 3],
            {"alpha": 0.9, "beta": 0.1, "norm_coefficient": 0.0, "mode": "fast"},
            "not one of standard, nesterov",
            2,
        ),
        (
            ["f32[]", "i64[]", "f32[3]", "f32[3]", "f32[2]"],
            {"alpha": 0.9, "beta": 0.1, "norm_coefficient": 0.0, "mode": "standard"},
            "the momentum of variable 0",
            2,
        ),
    ],
    TRAINING + "Gradient": [
        (["f32[]", "f32[3]"], {"xs": 1}, "2 operands where y and twice the 1 xs"),
        (["f32[]", "f32[3]", "f32[3]"], {}, "not the numbers xs"),
        (["f32[]", "f32[3]", "f32[3]"], {"xs": 1, "y": "loss"}, "not the numbers xs"),
        (["f32[]", "f32[3]", "f32[3]"], {"xs": 1}, "2 outputs for 1 xs", 2),
        (["i64[]", "f32[3]", "f32[3]"], {"xs": 1}, "only floating point"),
        (["f32[]", "i64[3]", "i64[3]"], {"xs": 1}, "only floating point"),
        (["f32[]", "f32[3]", "f32[3,1]"], {"xs": 1}, "the value given for it is f32[3,1]"),
    ],
    "Dropout": [
        (["f32[2]", F(1.0), "bool[]"], {}, "ratio is 1"),
        (["f32[2]", F(-0.1)], {}, "ratio is -0.1"),
        (["f32[2]", "f32[2]"], {}, "scalar"),
        (["f32[2]", "f32[]", "bool[2]"], {}, "scalar"),
    ],
    "RandomNormal": [
        ([], {"shape": (2, -3)}, "Negative"),
        ([], {}, "'shape' is required"),
        ([], {"shape": (2, 3), "dtype": 7}, "type"),
        ([], {"shape": (2**30, 2**30)}, "too large"),
    ],
    "DepthToSpace": [(["f32[1,5,2,2]"], {"blocksize": 2}, "blocks of 2")],
    "SpaceToDepth": [(["f32[1,1,3,2]"], {"blocksize": 2}, "blocks of 2")],
    "Einsum": [
        (["f32[2,3]", "f32[5,4]"], {"equation": "ij,jk->ik"}, "'j' stands for 3 and for 5"),
        (["f32[2,3]"], {"equation": "ii->i"}, "'i' stands for 2 and for 3"),
    ],
    "ReverseSequence": [(["f32[2,3]", "i64[5]"], {}, "lengths")],
    "LpNormalization": [(["f32[2,3]"], {"axis": 5}, "axis 5"), (["f32[2,3]"], {"p": 3}, "not one of 1, 2")],
    "BitShift": [(["u8[2]", "u8[2]"], {"direction": "UP"}, "not one of LEFT")],
    "If": [(["bool[]"], {}, "'else_branch' is required")],
}
CASES = [
    pytest.param(op, *case, id=f"{op.rpartition('.')[2]}-{i}")
    for op, cases in CORPUS.items()
    for i, case in enumerate(cases)
]


@pytest.mark.parametrize(("op", "operands", "attrs", "message", "outputs"), [
    pytest.param(*(p.values if len(p.values) == 5 else (*p.values, 1)), id=p.id) for p in CASES
])  # fmt: skip
def test_malformed(op: str, operands: list[Any], attrs: dict[str, Any], message: str, outputs: int) -> None:
    graph, _accepted = graph_of(op, operands, attrs, outputs)
    with pytest.raises(VerifyError) as e:
        verify(graph)
    problems = e.value.problems
    assert any(message in p.what for p in problems), [p.what for p in problems]
    assert all(p.where for p in problems)
    assert all(op in p.what or "too large" in p.what for p in problems)


def test_inference_alone_would_not_do() -> None:
    """The reason for the preconditions: onnx's inference accepts most of these nodes."""
    accepted = [p.id for p in CASES if graph_of(p.values[0], p.values[1], p.values[2], *p.values[4:])[1]]
    assert len(accepted) > 130
    assert {"Reshape-0", "Conv-0", "Conv-5", "Adam-0", "SoftmaxCrossEntropyLoss-0"} <= set(accepted)


DTYPES_DRAWN = st.sampled_from(["f32", "f32", "f32", "i64", "bool", "i32"])
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=4).map(tuple)
ARRAYS = st.one_of(
    st.lists(st.integers(-5, 5), max_size=4).map(lambda v: np.array(v, np.int64)),
    st.sampled_from(
        [np.array(1), np.array(-(2**63)), F(0.5), F(np.nan), np.array([2**62, 2**62]), np.ones((2, 2), np.int64)]
    ),
)
OPERANDS = st.one_of(st.builds(lambda d, s: str(TensorType(d, s)), DTYPES_DRAWN, SHAPES), ARRAYS, st.none())
ATTRIBUTES = {
    "INT": st.sampled_from([-1, 0, 1, 2, 1, 5, 2**63 - 1]),
    "INTS": st.lists(st.sampled_from([-1, 0, 1, 2, 3]), max_size=5).map(tuple),
    "FLOAT": st.floats(width=32),
    "STRING": st.sampled_from(
        ["", "NOTSET", "VALID", "SAME_UPPER", "mean", "none", "edge", "reflect", "ij->ji", "ii,...j->"]
    ),
    "TENSOR": st.builds(Tensor, ARRAYS),
}
OPS = sorted(op for op in {*PRECONDITIONS, *SAFE} if schema(op) is not None)


@settings(max_examples=600)
@given(st.data())
def test_no_node_gives_another_exception(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(OPS))
    s = schema(op)
    assert s is not None
    attrs = {
        name: data.draw(ATTRIBUTES[a.type.name])  # type: ignore[attr-defined]
        for name, a in s.attributes.items()
        if a.type.name in ATTRIBUTES and (a.required or data.draw(st.booleans()))  # type: ignore[attr-defined]
    }
    count = data.draw(st.integers(s.min_input, min(s.max_input, 7)))
    operands = data.draw(st.lists(OPERANDS, min_size=count, max_size=count))
    graph, _accepted = graph_of(op, operands, attrs, data.draw(st.integers(1, min(s.max_output, 3))))
    with contextlib.suppress(VerifyError):
        verify(graph)
