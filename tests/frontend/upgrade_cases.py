"""Nodes of old opsets, at the edges of what changed from opset to opset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import numpy_helper

from compiler.ir.types import AnyArray

f32 = np.float32
R = np.random.default_rng(7)


def x(*shape: int, dtype: Any = f32, scale: float = 1.0) -> AnyArray:
    return np.asarray(R.normal(0, scale, shape)).astype(dtype)


def p(*shape: int, dtype: Any = f32) -> AnyArray:
    """Positive."""
    return np.asarray(R.uniform(0.5, 2, shape)).astype(dtype)


def i64(*values: int) -> AnyArray:
    return np.array(values, np.int64)


@dataclass
class Case:
    """One node. consts: positions of inputs that are initializers. first, last: opsets that have this form.

    expected: the results, where onnxruntime has no kernel or deviates from the standard.
    """

    op: str
    inputs: Sequence[AnyArray | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    consts: Sequence[int] = ()
    outputs: int = 1
    first: int = 7
    last: int = 27
    rank_unknown: bool = False
    expected: Sequence[AnyArray] | None = None

    def __str__(self) -> str:
        shapes = ",".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.inputs)
        return f"{self.op}({shapes}){self.attrs or ''}[{self.first}-{self.last}]"


X = x(2, 3, 4, 5)
DOUBLE = x(2, 3, dtype=np.float64)
TRUE = np.ones((2, 3), bool)
CASES = [
    *(Case(op, [x(2, 3), x(3)]) for op in ("Add", "Sub", "Mul", "Div", "Less", "Greater")),
    *(Case(op, [x(2, 3, dtype=np.float64), x(1, 3, dtype=np.float64)]) for op in ("Add", "Sub", "Mul", "Div")),
    Case("Equal", [R.integers(0, 2, (2, 3)), R.integers(0, 2, (2, 3))]),
    *(Case(op, [R.integers(0, 2, (2, 3)).astype(bool), np.array([True, False, True])]) for op in ("And", "Or")),
    Case("Not", [np.array([True, False])]),
    Case("Where", [np.array([True, False, True]), x(2, 3), x(2, 3)], first=9),
    *(
        Case(op, [x(2, 3)])
        for op in ("Neg", "Abs", "Exp", "Relu", "Sigmoid", "Tanh", "Softplus", "Identity", "LeakyRelu")
    ),
    *(Case(op, [p(2, 3)]) for op in ("Log", "Sqrt", "Reciprocal")),
    Case("LeakyRelu", [x(2, 3)], {"alpha": 0.3}),
    Case("Pow", [p(2, 3), x(3)]),
    *(Case(op, [x(2, 3), x(3), x(1, 3)], first=8) for op in ("Max", "Min", "Sum", "Mean")),
    *(Case(op, [x(2, 3), x(2, 3), x(2, 3)]) for op in ("Max", "Min", "Sum", "Mean")),
    Case("Clip", [x(2, 3)], {"min": -0.5, "max": 0.5}, last=10),
    Case("Clip", [x(2, 3)], {"max": 0.5}, last=10),
    Case("Clip", [x(2, 3)], {}, last=10),
    Case("Clip", [DOUBLE], {"min": -0.5}, last=10, expected=[np.maximum(DOUBLE, -0.5)]),
    Case("Clip", [x(2, 3), f32(-0.5), f32(0.5)], consts=(1, 2), first=11),
    Case("Clip", [x(2, 3), None, f32(0.5)], first=11),
    Case("Cast", [x(2, 3)], {"to": 7}),
    Case("Cast", [x(2, 3)], {"to": 11}),
    Case("Cast", [np.array([0, 2, 0])], {"to": 9}),
    Case("Erf", [x(2, 3)], first=9),
    Case("Gelu", [x(2, 3)], first=20),
    *(Case(op, [x(2, 3)], a) for op in ("Softmax", "LogSoftmax") for a in ({}, {"axis": 1}, {"axis": 0})),
    *(
        Case(op, [x(2, 3, 4)], a)
        for op in ("Softmax", "LogSoftmax")
        for a in ({}, {"axis": 1}, {"axis": 2}, {"axis": 0})
    ),
    *(Case(op, [x(2, 3, 4)], {"axis": a}, first=11) for op in ("Softmax", "LogSoftmax") for a in (-1, -2)),
    Case("Softmax", [x(2, 3, 4)], {"axis": 1}, rank_unknown=True),
    Case("Gemm", [x(2, 3), x(3, 4), x(4)]),
    Case("Gemm", [x(3, 2), x(4, 3), x(2, 1)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", [x(2, 3), x(3, 4)], first=11),
    Case("MatMul", [x(2, 3, 4), x(4, 5)]),
    Case("Conv", [x(1, 4, 6, 5), x(6, 2, 3, 2), x(6)], {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    Case("Conv", [x(1, 2, 7), x(3, 2, 3)], {"auto_pad": "SAME_UPPER", "strides": [2]}),
    Case("ConvTranspose", [x(1, 2, 4, 4), x(2, 3, 3, 3)], {"strides": [2, 2], "output_padding": [1, 1]}),
    Case("MaxPool", [x(1, 2, 6, 6)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
    Case("MaxPool", [x(1, 2, 6, 6)], {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"}),
    Case("MaxPool", [x(1, 2, 7)], {"kernel_shape": [3], "ceil_mode": 1, "strides": [2]}, outputs=2, first=10),
    Case("AveragePool", [x(1, 2, 6, 6)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
    Case("AveragePool", [x(1, 2, 6, 6)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    Case("AveragePool", [x(1, 2, 7)], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}, first=10),
    Case("GlobalAveragePool", [X]),
    Case("GlobalMaxPool", [X]),
    Case("BatchNormalization", [X, p(3), x(3), x(3), p(3)], consts=(1, 2, 3, 4)),
    Case("BatchNormalization", [X, p(3), x(3), x(3), p(3)], {"epsilon": 0.1}),
    Case("BatchNormalization", [X, p(3), x(3), x(3), p(3)], {"training_mode": 1, "momentum": 0.8}, outputs=3, first=14),
    Case("InstanceNormalization", [X, p(3), x(3)]),
    Case("LayerNormalization", [X, p(5), x(5)], first=17),
    Case("PRelu", [x(2, 3, 4), x(3, 1)]),
    *(
        Case(op, [x(2, 3)])
        for op in ("Elu", "Selu", "Softsign", "HardSigmoid", "Floor", "Ceil", "Sin", "Cos", "Tan", "Atan")
    ),
    Case("Dropout", [x(2, 3)], {"ratio": 0.3}, last=11),
    Case("Dropout", [x(2, 3)], {}, last=11),
    Case("Dropout", [DOUBLE], outputs=2, last=9, expected=[DOUBLE, TRUE.astype(float)]),
    Case("Dropout", [DOUBLE], outputs=2, first=10, last=11, expected=[DOUBLE, TRUE]),
    Case("Dropout", [x(2, 3), f32(0.3)], first=12),
    *(
        Case(op, [x(2, 3, 4)], a, last=last)
        for op, last in (
            ("ReduceSum", 12),
            ("ReduceMean", 17),
            ("ReduceMax", 17),
            ("ReduceMin", 17),
            ("ReduceProd", 17),
            ("ReduceSumSquare", 17),
            ("ReduceL2", 17),
            ("ReduceL1", 17),
            ("ReduceLogSumExp", 17),
        )
        for a in ({}, {"axes": [1]}, {"axes": [0, 2], "keepdims": 0})
    ),
    Case("ReduceMean", [x(2, 3, 4)], {"axes": [-1]}, first=11, last=17),
    Case("ReduceSum", [x(2, 3, 4), i64(1)], {"keepdims": 0}, first=13, consts=(1,)),
    Case("ReduceSum", [x(2, 3, 4)], {"noop_with_empty_axes": 1}, first=13),
    Case("ReduceMean", [x(2, 3, 4), i64(-1)], first=18, consts=(1,)),
    Case("CumSum", [x(2, 3), np.array(1)], {"exclusive": 1}, first=11, consts=(1,)),
    Case("Reshape", [x(2, 6), i64(0, 3, -1)], consts=(1,)),
    Case("Flatten", [x(2, 3, 4)]),
    Case("Flatten", [x(2, 3, 4)], {"axis": 2}),
    Case("Squeeze", [x(2, 1, 3, 1)], {"axes": [1, 3]}, last=12),
    Case("Squeeze", [x(2, 1, 3, 1)], last=12),
    Case("Squeeze", [x(2, 1, 3, 1)], {"axes": [-1]}, first=11, last=12),
    Case("Squeeze", [x(2, 1, 3, 1), i64(1)], first=13, consts=(1,)),
    Case("Unsqueeze", [x(2, 3)], {"axes": [0, 3]}, last=12),
    Case("Unsqueeze", [x(2, 3)], {"axes": [-1]}, first=11, last=12),
    Case("Unsqueeze", [x(2, 3), i64(0, 2)], first=13, consts=(1,)),
    Case("Transpose", [x(2, 3, 4)]),
    Case("Transpose", [x(2, 3, 4)], {"perm": [1, 2, 0]}),
    Case("Concat", [x(2, 3), x(2, 1)], {"axis": 1}),
    Case("Concat", [x(2, 3), x(2, 1)], {"axis": -1}, first=11),
    Case("Split", [x(2, 6)], {"axis": 1}, outputs=3, last=17),
    Case("Split", [x(2, 6)], {"axis": 1, "split": [1, 5]}, outputs=2, last=12),
    Case("Split", [x(2, 6), i64(1, 5)], {"axis": 1}, outputs=2, first=13, consts=(1,)),
    Case("Split", [x(2, 7)], {"axis": 1, "num_outputs": 3}, outputs=3, first=18),
    Case("Slice", [x(5, 6)], {"starts": [1, -3], "ends": [4, 2000], "axes": [0, 1]}, last=9),
    Case("Slice", [x(5, 6)], {"starts": [1, 2], "ends": [-1, 4]}, last=9),
    Case("Slice", [x(5, 6), i64(4, 1), i64(0, 5), i64(0, 1), i64(-2, 3)], first=10, consts=(1, 2, 3, 4)),
    Case("Gather", [x(4, 3), i64(0, 2, 1)], {"axis": 0}),
    Case("Gather", [x(4, 3), i64(-1, 2)], {"axis": -1}, first=11),
    Case("Expand", [x(3, 1), i64(2, 1, 4)], first=8, consts=(1,)),
    Case("Tile", [x(2, 3), i64(2, 1)], consts=(1,)),
    Case("Pad", [x(2, 3)], {"pads": [0, 1, 2, 0], "value": 1.5}, last=10),
    Case("Pad", [x(2, 3)], {"pads": [1, 1, 0, 2]}, last=10),
    Case("Pad", [x(2, 3, dtype=np.float64)], {"pads": [1, 1, 0, 2], "value": 1.5}, last=10),
    Case("Pad", [x(4, 3)], {"pads": [1, 1, 0, 2], "mode": "reflect"}, last=10),
    Case("Pad", [x(4, 3)], {"pads": [1, 1, 0, 2], "mode": "edge"}, last=10),
    Case("Pad", [x(2, 3), i64(0, 1, 2, 0), f32(1.5)], first=11, consts=(1, 2)),
    Case("Shape", [x(2, 3)]),
    Case("Size", [x(2, 3)]),
    Case(
        "ConstantOfShape", [i64(2, 3)], {"value": numpy_helper.from_array(np.array([2.5], f32))}, first=9, consts=(0,)
    ),
    Case("Range", [np.array(1), np.array(9), np.array(3)], first=11, consts=(0, 1, 2)),
    Case("OneHot", [i64(0, 2, -1), np.array(3), np.array([0.0, 2.0], f32)], first=9, consts=(1,)),
    Case("ArgMax", [x(2, 3, 4)], {"axis": 1, "keepdims": 0}),
    Case("ArgMin", [x(2, 3, 4)], {"axis": -1}, first=11),
    Case("TopK", [x(2, 6)], {"k": 3}, outputs=2, last=9),
    Case("TopK", [x(2, 6), i64(2)], outputs=2, first=10, consts=(1,)),
    Case("SoftmaxCrossEntropyLoss", [x(3, 5), i64(1, 0, 4)], outputs=2, first=12),
    Case("SoftmaxCrossEntropyLoss", [x(3, 5), i64(1, -1, 4), p(5)], {"ignore_index": -1, "reduction": "sum"}, first=12),
    Case("NegativeLogLikelihoodLoss", [x(3, 5), i64(1, 0, 4), p(5)], first=12),
    Case("Upsample", [x(1, 2, 3, 3)], {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "nearest"}, last=8),
    Case("Upsample", [x(1, 2, 3, 3), np.array([1, 1, 2, 3], f32)], {"mode": "linear"}, consts=(1,), first=9, last=9),
    Case("Upsample", [x(1, 2, 3, 3), np.array([1, 1, 2, 3], f32)], {"mode": "nearest"}, consts=(1,), first=9, last=9),
    Case("Resize", [x(1, 2, 4, 4), np.array([1, 1, 2, 2], f32)], {"mode": "linear"}, consts=(1,), first=10, last=10),
    Case(
        "Resize", [x(1, 2, 4, 4), np.array([1, 1, 1.5, 0.6], f32)], {"mode": "nearest"}, consts=(1,), first=10, last=10
    ),
    Case("Resize", [x(1, 2, 4, 4), None, np.array([1, 1, 2, 2], f32)], {"mode": "linear"}, consts=(2,), first=13),
    Case("Upsample", [x(1, 2, 3, 3)], {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "linear"}, last=8),
    Case(
        "Resize", [x(1, 2, 4, 6), np.array([1, 1, 1.5, 0.7], f32)], {"mode": "linear"}, consts=(1,), first=10, last=10
    ),
    *(
        Case(
            "Resize",
            [x(1, 2, 4, 6), x(0), scales, sizes],
            {"nearest_mode": how, "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
            consts=(1, 2) if sizes is None else (1, 2, 3),
            first=11,
            last=12,
        )
        for how in ("floor", "round_prefer_floor")
        for scales, sizes in ((np.array([1, 1, 2, 0.5], f32), None), (x(0), i64(1, 2, 7, 4)))
    ),
    Case("DepthToSpace", [x(1, 8, 2, 3)], {"blocksize": 2}),
    Case("SpaceToDepth", [x(1, 2, 4, 6)], {"blocksize": 2}),
    Case("GroupNormalization", [x(2, 4, 3), p(4), x(4)], {"num_groups": 2}, first=21),
    Case("GroupNormalization", [x(2, 4, 3), p(2), x(2)], {"num_groups": 2}, first=18, last=20),
    Case(
        "RoiAlign",
        [x(1, 2, 6, 6), np.array([[0, 0, 4, 5]], f32), i64(0)],
        {"output_height": 2, "output_width": 3},
        first=10,
        last=15,
    ),
    Case(
        "RoiAlign",
        [x(1, 2, 6, 6), np.array([[0, 0, 4, 5]], f32), i64(0)],
        {"output_height": 2, "output_width": 3},
        first=16,
    ),
    Case("Scatter", [x(3, 3), np.array([[1, 0, 2]]), x(1, 3)], {"axis": 0}, first=9, last=10),
    Case("GridSample", [x(1, 2, 4, 4), x(1, 3, 3, 2, scale=0.3)], {"mode": "bilinear"}, first=16, last=19),
    Case("GridSample", [x(1, 2, 4, 4), x(1, 3, 3, 2, scale=0.3)], {"mode": "linear"}, first=20),
    Case("DFT", [x(1, 4, 1)], {"axis": 1}, first=17, last=19),
    Case(
        "Resize",
        [x(1, 2, 4, 4), x(0), np.array([1, 1, 2, 2], f32)],
        {"mode": "linear"},
        consts=(1, 2),
        first=11,
        last=12,
    ),
    Case("ScatterND", [x(3, 3), np.array([[1], [0]]), x(2, 3)], first=11),
    Case("GatherND", [x(3, 3), np.array([[1, 0], [2, 2]])], first=11),
    Case("Round", [x(5, scale=3)], first=11),
    Case("LpNormalization", [x(2, 3)], {"axis": 1}),
    Case("LpPool", [x(1, 2, 6, 6)], {"kernel_shape": [2, 2]}),
    Case("Trilu", [x(3, 3)], first=14),
    Case("IsNaN", [x(3)], first=9),
    Case("IsInf", [x(3)], first=10),
    Case("Sign", [x(3)], first=9),
    Case("ThresholdedRelu", [x(3)], first=10),
    Case("Celu", [x(3)], first=12),
    Case("HardSwish", [x(3)], first=14),
    Case("Mish", [x(3)], first=18),
    Case("EyeLike", [x(3, 3)], first=9),
    Case("MeanVarianceNormalization", [X], first=9),
    Case("RNN", [x(3, 2, 4), x(1, 5, 4), x(1, 5, 5)], {"hidden_size": 5}, outputs=2),
    Case("ScatterElements", [x(3, 3), np.array([[1, 0, 2]]), x(1, 3)], {"axis": 0}, first=11),
    Case("GatherElements", [x(3, 3), np.array([[1, 0, 2]])], {"axis": 0}, first=11),
    Case("LSTM", [x(3, 2, 4), x(1, 20, 4), x(1, 20, 5), x(1, 40)], {"hidden_size": 5}, outputs=3),
    Case("GRU", [x(3, 2, 4), x(1, 15, 4), x(1, 15, 5)], {"hidden_size": 5, "linear_before_reset": 1}, outputs=2),
    Case("Einsum", [x(2, 3), x(3, 4)], {"equation": "ij,jk->ik"}, first=12),
    Case("Hardmax", [x(2, 3)]),
    Case("Hardmax", [x(2, 3, 4)], {"axis": 1}),
    Case("Mod", [R.integers(-9, 9, 6), i64(3, -3, 2, 4, -5, 7)], first=10),
]
