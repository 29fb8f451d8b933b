"""Tensors that an exporter made one of, as they were equal, and that now train as one."""

from __future__ import annotations

from math import prod

from onnx import ModelProto, numpy_helper

from compiler.frontend.walk import all_nodes, node_name

_SHOWN = 4


def merged(model: ModelProto) -> list[str]:
    """Notes on variables of a training model that may be meant as several.

    Weights that are shared on purpose are rarely all the same number, but scales and biases of an untrained network
    are, and exporters merge them. Nodes that cut a tensor, as the gates out of a bias, read no more than it.
    """
    variables = {b.key for info in model.training_info for b in info.update_binding}
    readers: dict[str, list[str]] = {}
    for node in (n for n in all_nodes(model.graph) if n.op_type != "Slice"):
        for v in dict.fromkeys(node.input):
            if v in variables:
                readers.setdefault(v, []).append(repr(node_name(node)))
    notes = []
    for t in model.graph.initializer:
        names = readers.get(t.name, [])
        if len(names) < 2 or prod(t.dims) < 2:
            continue
        array = numpy_helper.to_array(t)
        if (array == array.flat[0]).all():
            shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            notes.append(
                f"{t.name!r}, all {array.flat[0]:g}, is read by {len(names)} nodes ({shown}) and trains as one tensor: "
                "if the exporter merged equal tensors, let it keep them apart (docs/exporters.md)"
            )
    return notes
