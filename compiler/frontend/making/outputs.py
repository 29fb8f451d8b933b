"""A model that keeps some of its outputs: what is left out need not be something that onnxc can compile."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import ModelProto
from onnx.external_data_helper import load_external_data_for_model

from compiler.errors import InputError, did_you_mean, shown
from compiler.frontend.files import Model, read_model
from compiler.frontend.making.arguments import checked_texts
from compiler.frontend.walk import reads


def only_outputs(model: Model, outputs: Sequence[str]) -> ModelProto:
    """A copy with these outputs, the nodes that they are computed from, and what those read.

    InputError: an output that does not exist, or none. ModelError: no model.
    """
    proto, folder = read_model(model)
    known = [v.name for v in proto.graph.output]
    kind = "a list of names of outputs"
    names = () if isinstance(outputs, str) else checked_texts("outputs", outputs, kind)
    if not names:
        raise InputError(f"outputs must be {kind}, not {shown(outputs)}")
    for name in names:
        if name not in known:
            near = did_you_mean(name, known) or f": there are {', '.join(map(repr, known))}"
            raise InputError(f"outputs: the model has no output {shown(name)}{near}")
    result = ModelProto()
    result.CopyFrom(proto)
    graph = result.graph
    needed, nodes = set(names), []
    for node in reversed(proto.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed.update(reads(node))
    kept_outputs = [v for v in proto.graph.output if v.name in names]
    inputs = [v for v in proto.graph.input if v.name in needed]
    tensors = [t for t in proto.graph.initializer if t.name in needed]
    sparse = [s for s in proto.graph.sparse_initializer if s.values.name in needed]
    for field in ("node", "output", "input", "initializer", "sparse_initializer", "value_info"):
        graph.ClearField(field)
    graph.node.extend(reversed(nodes))
    graph.output.extend(kept_outputs)
    graph.input.extend(inputs)
    graph.initializer.extend(tensors)
    graph.sparse_initializer.extend(sparse)
    if folder is not None:
        load_external_data_for_model(result, str(folder))
    return result
