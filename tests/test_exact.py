"""The evaluations of tests.exact against onnxruntime, in float32."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from compiler.ir.graph import Node
from compiler.ir.proto import attr_to_proto
from tests.exact import EXACT

ort = pytest.importorskip("onnxruntime")

LABELS = np.array([[0, 3], [2, 1], [1, 1]])

FAR = np.random.default_rng(3).normal(size=(2, 3, 5, 2)).astype(np.float32)
DEFORMED = {"group": 2, "offset_group": 2, "strides": (2, 1), "dilations": (2, 2), "pads": (1, 0, 1, 1)}
REGIONS = np.array(
    [[0, 1, 1, 7, 6], [1, 0, 0, 10, 8], [1, 3, 2, 3.2, 2.1], [0, 5, 5, 4, 3], [1, -5, -6, 30, 25], [0, 20, 20, 30, 30]],
    np.float32,
)

NOT_AT_22 = ("GlobalLpPool", "MaxRoiPool")
"""Ops that opset 22 extended by bfloat16, which onnxruntime (1.32) has up to 21 only."""

CASES = [
    ("Erf", [(5,)], {}, 1),
    ("Gelu", [(5,)], {}, 1),
    ("Gelu", [(5,)], {"approximate": "tanh"}, 1),
    ("MaxPool", [(2, 2, 7, 6)], {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}, 2),
    ("MaxPool", [(2, 2, 7, 6)], {"kernel_shape": (3, 2), "strides": (2, 3), "ceil_mode": 1}, 2),
    ("MaxPool", [(1, 2, 7, 6)], {"kernel_shape": (3, 3), "strides": (2, 3), "auto_pad": "SAME_UPPER"}, 1),
    ("AveragePool", [(2, 2, 7, 6)], {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}, 1),
    (
        "AveragePool",
        [(2, 2, 8, 8)],
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 0, 0), "ceil_mode": 1, "count_include_pad": 1},
        1,
    ),
    ("AveragePool", [(2, 2, 9)], {"kernel_shape": (3,), "strides": (2,), "auto_pad": "SAME_LOWER"}, 1),
    ("GlobalMaxPool", [(2, 3, 2, 3, 2)], {}, 1),
    ("ConvTranspose", [(2, 4, 3, 4), (4, 2, 3, 2), (4,)], {"group": 2, "strides": (2, 3), "pads": (1, 0, 1, 1)}, 1),
    ("ConvTranspose", [(1, 2, 3), (2, 2, 3)], {"strides": (3,), "output_padding": (2,), "dilations": (2,)}, 1),
    ("ConvTranspose", [(1, 2, 3, 3), (2, 1, 3, 4)], {"auto_pad": "SAME_LOWER", "strides": (2, 2)}, 1),
    ("Pad", [(3, 4), np.array([-1, 1, 2, -2]), np.array(0.5, np.float32)], {}, 1),
    ("Pad", [(3, 4), np.array([1, 2, 0, 2])], {"mode": "reflect"}, 1),
    ("GatherElements", [(2, 3), np.array([[0, -1, 0, 1], [2, 2, 2, 0]])], {"axis": -1}, 1),
    ("NegativeLogLikelihoodLoss", [(3, 4, 2), LABELS, (4,)], {"ignore_index": 1}, 1),
    ("NegativeLogLikelihoodLoss", [(3, 4, 2), LABELS - 1], {"ignore_index": -1}, 1),
    ("SoftmaxCrossEntropyLoss", [(3, 4, 2), LABELS, (4,)], {"reduction": "sum"}, 2),
    ("SoftmaxCrossEntropyLoss", [(3, 4, 2), LABELS - 1], {"ignore_index": -1}, 2),
    ("SoftmaxCrossEntropyLoss", [(3, 4, 2), LABELS], {"reduction": "none"}, 1),
    ("MeanVarianceNormalization", [(2, 3, 4, 4)], {}, 1),
    ("LRN", [(2, 7, 3, 2)], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 0.7}, 1),
    ("LRN", [(1, 3, 2, 2)], {"size": 9, "alpha": 0.5}, 1),
    ("LpNormalization", [(2, 3)], {"p": 1, "axis": 0}, 1),
    ("LpNormalization", [np.array([[0, 0], [3, -4]], np.float32)], {}, 1),
    ("LpPool", [(2, 2, 7, 6)], {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1), "p": 3}, 1),
    ("LpPool", [(1, 1, 8)], {"kernel_shape": (3,), "strides": (2,), "ceil_mode": 1, "p": 1}, 1),
    ("GlobalLpPool", [(2, 2, 3, 4)], {"p": 3}, 1),
    ("Resize", [(1, 2, 3, 4), None, None, np.array([1, 2, 7, 3])], {"mode": "cubic"}, 1),
    ("AffineGrid", [(2, 2, 3), np.array([2, 1, 3, 4])], {}, 1),
    ("AffineGrid", [(2, 3, 4), np.array([2, 1, 3, 4, 2])], {"align_corners": 1}, 1),
    *(
        ("GridSample", [(2, 2, 3, 4), 2 * FAR], {"mode": mode, "padding_mode": padding, "align_corners": aligned}, 1)
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
        for aligned in (0, 1)
    ),
    *(
        ("GridSample", [(1, 2, 3, 4, 2), (1, 2, 3, 2, 3)], {"mode": mode, "padding_mode": padding}, 1)
        for mode in ("linear", "nearest")
        for padding in ("zeros", "border", "reflection")
    ),
    ("DeformConv", [(2, 4, 5, 6), (4, 2, 2, 3), (2, 24, 3, 3), (4,), (2, 12, 3, 3)], DEFORMED, 1),
    ("DeformConv", [(1, 2, 4, 4), (3, 2, 3, 3), (1, 18, 2, 2)], {}, 1),
    ("MaxRoiPool", [(2, 3, 9, 11), REGIONS], {"pooled_shape": (3, 4)}, 1),
    ("MaxRoiPool", [(2, 3, 9, 11), REGIONS], {"pooled_shape": (2, 2), "spatial_scale": 0.5}, 1),
    ("GroupNormalization", [(2, 4, 3), (4,), (4,)], {"num_groups": 2, "epsilon": 0.1}, 1),
    ("RMSNormalization", [(2, 5), (5,)], {"epsilon": 0.1}, 1),
]


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]} {i}")
def test_against_onnxruntime(case: int) -> None:
    op, given, attrs, count = CASES[case]
    rng = np.random.default_rng(case)
    args = [rng.normal(size=a).astype(np.float32) if isinstance(a, tuple) else a for a in given]
    inputs, outputs = ["" if a is None else f"i{i}" for i, a in enumerate(args)], [f"o{i}" for i in range(count)]
    feeds = {n: a for n, a in zip(inputs, args, strict=True) if a is not None}
    proto = helper.make_node(op, inputs, outputs)
    proto.attribute.extend(attr_to_proto(op, k, v) for k, v in attrs.items())
    graph = helper.make_graph(
        [proto],
        "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21 if op in NOT_AT_22 else 23)], ir_version=11
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    wide = [a if a is None or a.dtype != np.float32 else a.astype(np.float64) for a in args]
    found = EXACT[op](Node(op, tuple(inputs), tuple(outputs), attrs), wide)
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert {c[0] for c in CASES} == set(EXACT)
