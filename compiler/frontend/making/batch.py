"""A batch fixed at 1 becomes a symbol, where that is sound.

Half of all published models are for one sample, and their 1 is also in constants: shapes of Reshape, states of an
LSTM. The axis of the batch is followed from the inputs to the outputs, operator by operator (`batch_rules`); constants
on the way that have the 1 in them are replaced. An operator without a rule, or one that mixes samples, is a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import onnx
from onnx import ModelProto, NodeProto

from compiler.errors import Problem, UnsupportedError
from compiler.frontend.making.batch_rules import RULES
from compiler.frontend.making.batch_tracker import Mixed, Tracker
from compiler.frontend.making.emit import dims_of
from compiler.frontend.making.facts import Facts
from compiler.frontend.names import Names
from compiler.frontend.walk import bodies, reads, where_node

_REMEDY = "export the model with a symbolic batch, or give batch=None to train it one sample at a time"


def with_symbolic_batch(model: ModelProto, symbol: str) -> ModelProto:
    """The model with 1 as the first dim of its inputs replaced by a symbol, if all inputs have it; else as it is.

    UnsupportedError: this cannot be done, at the first node where that is so.
    """
    facts = Facts(model)
    inputs = [v for v in model.graph.input if v.name in facts.inputs]
    shapes = [dims_of(v) for v in inputs]
    if not any(d and d[0] == 1 for d in shapes) or any(d and not isinstance(d[0], int) for d in shapes):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    facts = Facts(result)
    tracker = Tracker(facts, Names(result.graph))
    tracker.axis = {v.name: 0 for v, d in zip(inputs, shapes, strict=True) if d and d[0] == 1}
    for node in result.graph.node:
        _through(node, tracker)
    _drop_unread(result, tracker.replaced)
    del result.graph.value_info[:]
    while symbol in symbols_of(model):
        symbol += "_"
    for v in result.graph.input:
        if v.name in tracker.axis:
            v.type.tensor_type.shape.dim[0].dim_param = symbol
    for v in result.graph.output:
        axis = tracker.axis.get(v.name)
        if axis is not None and v.type.tensor_type.HasField("shape"):
            v.type.tensor_type.shape.dim[axis].dim_param = symbol
    return result


def _drop_unread(model: ModelProto, replaced: Set[str]) -> None:
    """Remove constants that nothing reads any more, as others took their place."""
    graph = model.graph
    unread = replaced - {v for node in graph.node for v in reads(node)} - {v.name for v in graph.output}
    nodes = [node for node in graph.node if not unread & set(node.output)]
    tensors = [t for t in graph.initializer if t.name not in unread]
    graph.ClearField("node")
    graph.ClearField("initializer")
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)


def symbols_of(model: ModelProto) -> Sequence[str]:
    """Symbolic dims of the inputs."""
    return [d for v in model.graph.input for d in dims_of(v) or [] if isinstance(d, str)]


def _through(node: NodeProto, tracker: Tracker) -> None:
    batched = any(v in tracker.axis for v in reads(node))
    counted = any(v in tracker.content for v in node.input)
    rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if not batched and not counted:
        if node.domain in ("", "ai.onnx"):
            tracker.fold(node)
        return
    where = where_node(node)
    try:
        if rule is None or any(bodies(node)):
            raise Mixed(f"what {node.domain or 'ONNX'}'s {node.op_type} does to the axis of samples is not known")
        rule(tracker, node)
    except Mixed as e:
        raise UnsupportedError(Problem(f"the batch is fixed at 1 and cannot be opened: {e}", where, _REMEDY)) from e
    tracker.rewrite(node)
