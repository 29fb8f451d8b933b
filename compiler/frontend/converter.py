"""onnx.version_converter on single nodes: all nodes of a model in one call, each as a graph of its own.

So weights do not pass through the converter, names are safe, equal nodes are converted once, and an error is about one
node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from compiler.ir.proto import CANONICAL_OPSET

_REMEMBERED = 10_000
_REFUSALS = (
    onnx.version_converter.ConvertError,
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
)
"""What the converter raises."""


@dataclass
class Request:
    """A node to convert, its operands called i0.. and o0.., the types of its inputs, and those that are constants."""

    node: NodeProto
    opset: int
    inputs: list[ValueInfoProto]
    constants: list[TensorProto]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for requests that have the same result."""
        messages: list[NodeProto | ValueInfoProto | TensorProto] = [self.node, *self.inputs, *self.constants]
        return self.opset, len(self.inputs), *(m.SerializeToString(deterministic=True) for m in messages)

    @property
    def operands(self) -> Iterator[str]:
        """Names of the node's inputs and outputs that are present."""
        yield from (v for v in (*self.node.input, *self.node.output) if v)


@dataclass(frozen=True)
class Failure:
    """Why a node cannot be converted."""

    reason: str


_memo: dict[tuple[object, ...], list[NodeProto] | Failure] = {}


def convert(requests: Sequence[Request]) -> list[list[NodeProto] | Failure]:
    """For each request, nodes of the canonical opset with the same operands; they must not be changed."""
    if len(_memo) > _REMEMBERED:
        _memo.clear()
    new = {r.key: r for r in requests if r.key not in _memo}
    for opset in sorted({r.opset for r in new.values()}):
        batch = [r for r in new.values() if r.opset == opset]
        result = _convert(batch)
        if isinstance(result, Failure):  # then see whose fault it is
            for r in batch:
                alone = _convert([r])
                _memo[r.key] = alone if isinstance(alone, Failure) else alone[0]
        else:
            _memo.update((r.key, nodes) for r, nodes in zip(batch, result, strict=True))
    return [_memo[r.key] for r in requests]


def _convert(requests: Sequence[Request]) -> list[list[NodeProto]] | Failure:
    """One call of the converter. The names of request k get the prefix `k.`."""
    graph = GraphProto(name="g")
    for k, r in enumerate(requests):
        node = graph.node.add()
        node.CopyFrom(r.node)
        _rename(node, {v: f"{k}.{v}" for v in r.operands})
        for source in r.inputs:
            graph.input.add().CopyFrom(source)
            graph.input[-1].name = f"{k}.{source.name}"
        for tensor in r.constants:
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = f"{k}.{tensor.name}"
        graph.output.extend(ValueInfoProto(name=v) for v in node.output if v)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", requests[0].opset)])
    try:
        converted = onnx.version_converter.convert_version(model, CANONICAL_OPSET).graph
    except _REFUSALS as e:
        return Failure(str(e).strip().split("\n")[0] or type(e).__name__)
    return _distribute(converted, requests)


def _distribute(converted: GraphProto, requests: Sequence[Request]) -> list[list[NodeProto]]:
    """The nodes of each request. Whose a new node is follows from whom it serves: so go from results to operands."""
    names = {f"{k}.{v}": (k, v) for k, r in enumerate(requests) for v in r.operands}
    owner = {name: k for name, (k, _) in names.items()}
    results: list[list[NodeProto]] = [[] for _ in requests]
    for node in reversed(converted.node):
        k = next(owner[v] for v in node.output if v in owner)
        owner.update((v, k) for v in node.input if v)
        results[k].append(node)
    for t in converted.initializer:
        if t.name in owner and t.name not in names:  # the converter makes constants either way
            constant = results[owner[t.name]]
            constant.append(NodeProto(op_type="Constant", output=[t.name]))
            constant[-1].attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=t))
    back = {name: v for name, (_, v) in names.items()}
    for nodes in results:
        nodes.reverse()
        for node in nodes:
            _rename(node, back)
    return results


def _rename(node: NodeProto, names: dict[str, str]) -> None:
    for values in (node.input, node.output):
        renamed = [names.get(v, v) for v in values]
        del values[:]
        values.extend(renamed)
