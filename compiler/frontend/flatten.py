"""One executable graph of a model: joined, Gradients made explicit, functions inlined, operators upgraded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, helper

from compiler.frontend.functions import Key, instantiate, key_of
from compiler.frontend.gradient import make_explicit
from compiler.frontend.names import Names
from compiler.frontend.report import Report
from compiler.frontend.schema import opset_of, tag, well_formed
from compiler.frontend.types import InputType, input_type, is_tensor
from compiler.frontend.upgrade import infer_facts, is_canonical, upgrade
from compiler.frontend.walk import bodies, node_name, reads
from compiler.frontend.weights import Tensors, Weight
from compiler.ir.known import KNOWN_LIMIT
from compiler.ir.proto import tensor_to_proto
from compiler.ir.types import dtype_from_onnx, onnx_dtype


@dataclass
class Flat:
    """A graph of nodes at the canonical opset, without calls, whose Gradients are explicit.

    inputs, weights (initializers): by name, in order; a name may be in both, then the weight is a default value.
    outputs: name -> the dtype that the file declares, if it does.
    """

    name: str
    inputs: dict[str, InputType] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    outputs: dict[str, str | None] = field(default_factory=dict)


@dataclass
class Functions:
    """The model's functions with their Gradients explicit, and the ai.onnx opset of each."""

    bodies: Mapping[Key, FunctionProto]
    opsets: Mapping[Key, int]


def flatten(
    name: str,
    graphs: Sequence[GraphProto],
    weights: Mapping[str, Weight],
    variables: Iterable[str],
    opset: int,
    functions: Functions,
    tensors: Tensors,
    report: Report,
) -> Flat:
    """The concatenation of some graphs, ready to be built. The graphs must have passed the structural checks.

    weights: all initializers of the graphs. variables: those that change, whose first value decides nothing.
    """
    left = report.ambiguous
    flat = Flat(name, weights={v: w for v, w in weights.items() if v not in left})
    for g in graphs:  # what is left out has been reported
        flat.inputs.update((v.name, input_type(v)) for v in g.input if is_tensor(v) and v.name not in left)
        for v in g.output:
            flat.outputs.setdefault(v.name, dtype_from_onnx(v.type.tensor_type.elem_type))
    nodes = [_private(node, tensors) for g in graphs for node in g.node if left.isdisjoint(node.output)]
    nodes = make_explicit(nodes, [*flat.inputs, *flat.weights], report)
    names = Names(*graphs)
    nodes = _inline(nodes, opset, functions, names)
    nodes = _with_operands(well_formed(_hoist(nodes, flat, tensors), opset, report), flat, opset)
    constants = {
        v: tensor_to_proto(w.tensor, v)
        for v, w in flat.weights.items()
        if v not in variables and v not in flat.inputs and w.type.size <= KNOWN_LIMIT
    }
    typed = [v for g in graphs for v in g.input if v.name not in left]
    typed += [
        helper.make_tensor_value_info(v, onnx_dtype(w.type.dtype), w.type.shape)
        for v, w in flat.weights.items()
        if v not in constants and v not in flat.inputs
    ]
    facts = infer_facts(nodes, typed, constants, opset)
    flat.nodes = upgrade(nodes, opset, facts, names.fresh, report)
    return flat


def _private(node: NodeProto, tensors: Tensors) -> NodeProto:
    """A copy of a node that holds all its data."""
    copy = NodeProto()
    copy.CopyFrom(node)
    tensors.embed([copy])
    return copy


def _inline(
    nodes: Iterable[NodeProto], opset: int, functions: Functions, names: Names, base: int | None = None
) -> list[NodeProto]:
    """Calls of functions replaced by their nodes; those that are of another opset than `base` are tagged with it."""
    base = opset if base is None else base
    result = []
    for node in nodes:
        key = key_of(node)
        if key in functions.bodies:
            body = instantiate(functions.bodies[key], node, node_name(node), names.fresh)
            result += _inline(body, functions.opsets[key], functions, names, base)
            continue
        for _, g in bodies(node):
            inner = _inline(g.node, opset, functions, names, base)
            del g.node[:]
            g.node.extend(inner)
        if opset != base and opset_of(node, opset) == opset:
            tag(node, opset)
        result.append(node)
    return result


def _hoist(nodes: Iterable[NodeProto], flat: Flat, tensors: Tensors) -> list[NodeProto]:
    """Large tensors in Constant nodes become initializers, so that they are not copied from step to step."""
    kept = []
    for node in nodes:
        value = next((a.t for a in node.attribute if a.name == "value" and a.type == AttributeProto.TENSOR), None)
        if (
            node.op_type == "Constant"
            and opset_of(node, 1) is not None
            and value is not None
            and prod(value.dims) > KNOWN_LIMIT
        ):
            weight = tensors.weight(value, f"node {node_name(node)!r}")
            if weight is not None:
                flat.weights[node.output[0]] = weight
                continue
        kept.append(node)
    return kept


def _with_operands(nodes: Sequence[NodeProto], flat: Flat, opset: int) -> list[NodeProto]:
    """The nodes whose operands exist. Behind them those of the others whose operands can be looked at nevertheless."""
    there = {*flat.inputs, *flat.weights}
    good, cut = [], []
    for node in nodes:
        if there.issuperset(reads(node)):
            there.update(node.output)
            good.append(node)
        elif is_canonical(node, opset):
            cut.append(node)
    return good + cut
