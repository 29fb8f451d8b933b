"""From the opset that a file was written for to the canonical one of the IR.

A node whose operator is the same at both opsets stays as it is. Others go to our own adapters (`adapters`), where
ONNX's converter has none or gets it wrong, and else to that (`converter`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import onnx
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from compiler.frontend.adapters import adapt
from compiler.frontend.control import LAST_BATCHED_SCAN, scan_by_batch
from compiler.frontend.converter import Failure, Request, convert
from compiler.frontend.opset6 import UnknownRank, to_opset_7
from compiler.frontend.report import Report
from compiler.frontend.schema import opset_of
from compiler.frontend.walk import bodies, node_name, where_node
from compiler.ir.proto import CANONICAL_OPSET, OPSETS

OLDEST_OPSET = 6
"""The oldest ai.onnx opset that can be read: before it, Reshape, Tile and others were written in other forms."""


@dataclass
class Facts:
    """What is known about values before the upgrade: types, as far as inference gets, and small constants."""

    types: Mapping[str, TypeProto] = field(default_factory=dict)
    constants: Mapping[str, TensorProto] = field(default_factory=dict)

    def elem_type(self, value: str) -> int:
        """The element type; UNDEFINED if it is not known."""
        return self.types[value].tensor_type.elem_type if value in self.types else TensorProto.UNDEFINED

    def rank(self, value: str) -> int | None:
        """The rank; None if it is not known."""
        t = self.types.get(value)
        return len(t.tensor_type.shape.dim) if t is not None and t.tensor_type.HasField("shape") else None


def infer_facts(
    nodes: Sequence[NodeProto], inputs: Iterable[ValueInfoProto], constants: Mapping[str, TensorProto], opset: int
) -> Facts:
    """Types of the values of a graph, its constants given apart. Never fails: what cannot be inferred is missing."""
    graph = GraphProto(name="g", node=nodes, input=inputs, initializer=constants.values())
    domains = {n.domain for n in nodes} - {"", "ai.onnx"}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, OPSETS.get(d, 1)) for d in sorted(domains))]
    model = helper.make_model(graph, opset_imports=opsets)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        inferred = graph
    types: dict[str, TypeProto] = {}

    def collect(g: GraphProto) -> None:
        types.update((v.name, v.type) for v in (*g.input, *g.value_info, *g.output) if v.type.HasField("tensor_type"))
        for node in g.node:
            for _, body in bodies(node):
                collect(body)

    collect(inferred)
    for name, t in constants.items():
        types[name] = helper.make_tensor_type_proto(t.data_type, t.dims)
    return Facts(types, constants)


def upgrade(
    nodes: Iterable[NodeProto], opset: int, facts: Facts, fresh: Callable[[str], str], report: Report
) -> list[NodeProto]:
    """Well-formed nodes, at the canonical opset. Those that cannot be upgraded are reported, and left out."""
    work = _Upgrade(opset, facts, fresh, report)
    pieces = work.walk(nodes)
    work.convert()
    return work.join(pieces)


@dataclass
class _Job:
    """A node that the converter must see."""

    node: NodeProto
    request: Request
    result: list[NodeProto] | Failure = field(default_factory=list)


class _Upgrade:
    def __init__(self, opset: int, facts: Facts, fresh: Callable[[str], str], report: Report):
        self._opset, self._facts, self._fresh, self._report = opset, facts, fresh, report
        self._jobs: list[_Job] = []
        self._bodies: list[tuple[GraphProto, list[NodeProto | _Job]]] = []

    def walk(self, nodes: Iterable[NodeProto]) -> list[NodeProto | _Job]:
        """Nodes, and jobs for the converter where nodes will come from."""
        pieces: list[NodeProto | _Job] = []
        for node in nodes:
            opset = opset_of(node, self._opset)
            pieces.extend([node] if opset is None else self._upgrade(node, opset))
        return pieces

    def _upgrade(self, node: NodeProto, opset: int) -> Sequence[NodeProto | _Job]:
        standard = NodeProto()
        standard.CopyFrom(node)
        standard.domain = ""
        old = standard
        if node.op_type == "Scan" and opset <= LAST_BATCHED_SCAN:
            standard = scan_by_batch(standard, self._fresh)
            old = next(bodies(standard))[1].node[0]
        nested = list(bodies(old))
        for _, g in nested:
            self._bodies.append((g, self.walk(g.node)))
        if nested or _unchanged(node.op_type, opset):
            return [standard]  # If, Loop and later Scans only got more types
        if opset < 7:
            return self._from_opset_6(standard)
        adapted = adapt(standard, opset, self._facts, self._fresh)
        if adapted is not None:
            return adapted
        self._jobs.append(_Job(standard, self._request(standard, opset)))
        return self._jobs[-1:]

    def _from_opset_6(self, node: NodeProto) -> Sequence[NodeProto | _Job]:
        try:
            return [piece for n in to_opset_7(node, self._facts, self._fresh) for piece in self._upgrade(n, 7)]
        except UnknownRank as e:
            what = f"{node.op_type} of opset 6 cannot be upgraded: {e}"
            self._report.unsupported(what, where_node(node), "give its input a shape, or export with a newer opset")
            return []

    def _request(self, node: NodeProto, opset: int) -> Request:
        formal = NodeProto(op_type=node.op_type, attribute=node.attribute)
        formal.input.extend(f"i{k}" if v else "" for k, v in enumerate(node.input))
        formal.output.extend(f"o{k}" if v else "" for k, v in enumerate(node.output))
        request = Request(formal, opset, [], [])
        for f, v in zip(formal.input, node.input, strict=True):
            if v in self._facts.constants:
                request.constants.append(TensorProto())
                request.constants[-1].CopyFrom(self._facts.constants[v])
                request.constants[-1].name = f
            elif v:
                request.inputs.append(ValueInfoProto(name=f, type=self._facts.types.get(v)))
        return request

    def convert(self) -> None:
        """Give every job its result."""
        for job, result in zip(self._jobs, convert([job.request for job in self._jobs]), strict=True):
            job.result = result
            if isinstance(result, Failure):
                old = f"{job.node.op_type} of opset {job.request.opset}"
                what = f"{old} cannot be upgraded to opset {CANONICAL_OPSET}: {result.reason}"
                self._report.unsupported(what, where_node(job.node), "export the model with a newer opset")

    def join(self, pieces: list[NodeProto | _Job]) -> list[NodeProto]:
        """The nodes, with those of the jobs in their places, also in nested graphs."""
        for g, inner in self._bodies:  # inner ones come first
            nodes = self._nodes(inner)
            del g.node[:]
            g.node.extend(nodes)
        return self._nodes(pieces)

    def _nodes(self, pieces: list[NodeProto | _Job]) -> list[NodeProto]:
        nodes: list[NodeProto] = []
        for piece in pieces:
            nodes.extend(self._actual(piece) if isinstance(piece, _Job) else [piece])
        return nodes

    def _actual(self, job: _Job) -> Iterator[NodeProto]:
        """The converter's nodes with the operands of the original one."""
        if isinstance(job.result, Failure):
            return
        formal, name = job.request.node, node_name(job.node)
        names = {"": ""}
        names.update(zip((*formal.input, *formal.output), (*job.node.input, *job.node.output), strict=True))
        for node in job.result:
            for v in (*node.input, *node.output):
                if v not in names:
                    names[v] = self._fresh(f"{name}/{node.op_type}")
            copy = NodeProto(op_type=node.op_type, name=name, attribute=node.attribute)
            copy.input.extend(names[v] for v in node.input)
            copy.output.extend(names[v] for v in node.output)
            yield copy


def is_canonical(node: NodeProto, opset: int) -> bool:
    """Whether a node without nested graphs needs no upgrade. opset: that of its graph."""
    own = opset_of(node, opset)
    return not any(True for _ in bodies(node)) and (own is None or _unchanged(node.op_type, own))


@cache
def _unchanged(op_type: str, opset: int) -> bool:
    """Whether an operator has the same definition at this opset and at the canonical one."""
    try:
        then = onnx.defs.get_schema(op_type, opset, "")
        now = onnx.defs.get_schema(op_type, CANONICAL_OPSET, "")
    except onnx.defs.SchemaError:
        return True  # no such operator: for others to report
    return bool(then.since_version == now.since_version)
