"""Malformed nodes that crash onnx's inference (the process, not an exception) are refused before it sees them."""

import onnx
import pytest
from onnx import TensorProto, helper

from compiler.frontend import check

NODES = {
    "split": helper.make_node("Split", ["x"], ["a", "b"], num_outputs=3, axis=0),
    "gather_nd": helper.make_node("GatherND", ["x", "i"], ["a"], batch_dims=-5),
    "eye_like": helper.make_node("EyeLike", [""], ["a"]),
    "axis": helper.make_node("Softmax", ["x"], ["a"], axis=2**40),
}


@pytest.mark.parametrize("opset", [18, 28])
@pytest.mark.parametrize("name", NODES)
def test_refused(name: str, opset: int) -> None:
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [2, 1]),
    ]
    outputs = [onnx.ValueInfoProto(name="a", type=helper.make_tensor_type_proto(TensorProto.FLOAT, None))]
    graph = helper.make_graph([NODES[name]], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    assert len(check(model)) == 1
