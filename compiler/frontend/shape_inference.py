"""What onnx's shape inference is given of a model."""

from __future__ import annotations

from math import prod

from onnx import GraphProto, ModelProto, helper

from compiler.ir.known import KNOWN_LIMIT


def for_inference(model: ModelProto) -> ModelProto:
    """What shape inference needs of a model: large initializers are inputs, as they say nothing but their types.

    What the file says of outputs and inner values does not come along.
    """
    graph = model.graph
    bare = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    bare.graph.CopyFrom(
        GraphProto(name="types", node=graph.node, input=graph.input, sparse_initializer=graph.sparse_initializer)
    )
    inputs = {v.name for v in graph.input}
    for t in graph.initializer:
        if prod(t.dims) <= KNOWN_LIMIT:
            bare.graph.initializer.append(t)
        elif t.name not in inputs:
            bare.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    return bare
