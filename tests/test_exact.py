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
    ("RMSNormalization", [(2, 5), (5,)], {"epsilon": 0.1}, 1),
]


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][0]} {i}")
def test_against_onnxruntime(case: int) -> None:
    op, given, attrs, count = CASES[case]
    rng = np.random.default_rng(case)
    args = [rng.normal(size=a).astype(np.float32) if isinstance(a, tuple) else a for a in given]
    inputs, outputs = [f"i{i}" for i in range(len(args))], [f"o{i}" for i in range(count)]
    proto = helper.make_node(op, inputs, outputs)
    proto.attribute.extend(attr_to_proto(op, k, v) for k, v in attrs.items())
    graph = helper.make_graph(
        [proto],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(inputs, args, strict=True)
        ],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(zip(inputs, args, strict=True)))
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in args]
    found = EXACT[op](Node(op, tuple(inputs), tuple(outputs), attrs), wide)
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert {c[0] for c in CASES} == set(EXACT)
