"""From the opset that a file was written for to the canonical one of the IR.

A node whose operator is the same at both opsets stays as it is. Others go to our own adapters (`adapters`), where
ONNX's converter has none or gets it wrong, and else to onnx.version_converter: all of a graph in one call, each as a
graph of its own, so that weights do not pass through it, names are safe, and an error is about one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    version_converter,
)

from compiler.frontend.adapters import adapt
from compiler.frontend.report import Report
from compiler.frontend.walk import bodies, node_name, where_node
from compiler.ir.proto import CANONICAL_OPSET, OPSETS

OLDEST_OPSET = 7
"""The oldest ai.onnx opset that can be read (before it, broadcasting was an attribute of each op)."""

_TAG = "onnxc.opset."


def tag(node: NodeProto, opset: int) -> None:
    """Mark a node of ai.onnx as one of another opset than its graph's (it comes from a function)."""
    node.domain = f"{_TAG}{opset}"


def opset_of(node: NodeProto, default: int) -> int | None:
    """The opset of a node of ai.onnx; None for other domains. default: that of the graph it is in."""
    if node.domain.startswith(_TAG):
        return int(node.domain.removeprefix(_TAG))
    return default if node.domain in ("", "ai.onnx") else None


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
    """The nodes at the canonical opset. Those that cannot be upgraded are reported, and left out."""
    work = _Upgrade(opset, facts, fresh, report)
    pieces = work.walk(nodes)
    work.convert()
    return work.join(pieces)


@dataclass
class _Job:
    """A node that the converter must see: with its operands called i0.. and o0.."""

    node: NodeProto
    formal: NodeProto
    opset: int
    inputs: list[ValueInfoProto]
    constants: list[TensorProto]
    result: list[NodeProto] = field(default_factory=list)


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
            if opset is None:
                pieces.append(node)
                continue
            standard = NodeProto()
            standard.CopyFrom(node)
            standard.domain = ""
            nested = list(bodies(standard))
            for _, g in nested:
                self._bodies.append((g, self.walk(g.node)))
            adapted = (
                None if nested or _unchanged(node.op_type, opset) else adapt(standard, opset, self._facts, self._fresh)
            )
            if adapted is not None:
                pieces.extend(adapted)
            elif nested or _unchanged(node.op_type, opset):
                pieces.append(standard)  # If, Loop and Scan only got more types since opset 9
            else:
                pieces.append(self._job(standard, opset))
        return pieces

    def _job(self, node: NodeProto, opset: int) -> _Job:
        formal = NodeProto()
        formal.CopyFrom(node)
        formal.name = ""
        del formal.input[:], formal.output[:]
        formal.input.extend(f"i{k}" if v else "" for k, v in enumerate(node.input))
        formal.output.extend(f"o{k}" if v else "" for k, v in enumerate(node.output))
        inputs, constants = [], []
        for f, v in zip(formal.input, node.input, strict=True):
            if v in self._facts.constants:
                t = TensorProto()
                t.CopyFrom(self._facts.constants[v])
                t.name = f
                constants.append(t)
            elif v:
                inputs.append(ValueInfoProto(name=f, type=self._facts.types.get(v)))
        job = _Job(node, formal, opset, inputs, constants)
        self._jobs.append(job)
        return job

    def convert(self) -> None:
        """Give every job its result."""
        for opset in sorted({j.opset for j in self._jobs}):
            jobs = [j for j in self._jobs if j.opset == opset]
            if not _convert(jobs, opset):
                for job in jobs:
                    self._convert_alone(job)

    def _convert_alone(self, job: _Job) -> None:
        problem = _convert_or_reason([job], job.opset)
        if problem:
            what = f"{job.node.op_type} of opset {job.opset} cannot be upgraded to opset {CANONICAL_OPSET}: {problem}"
            self._report.unsupported(what, where_node(job.node), "export the model with a newer opset")

    def join(self, pieces: list[NodeProto | _Job]) -> list[NodeProto]:
        """The nodes, with those of the jobs in their places, also in nested graphs."""
        for g, inner in self._bodies:
            nodes = self._nodes(inner)
            del g.node[:]
            g.node.extend(nodes)
        self._bodies = []
        return self._nodes(pieces)

    def _nodes(self, pieces: list[NodeProto | _Job]) -> list[NodeProto]:
        nodes: list[NodeProto] = []
        for piece in pieces:
            nodes.extend(self._actual(piece) if isinstance(piece, _Job) else [piece])
        return nodes

    def _actual(self, job: _Job) -> list[NodeProto]:
        """The converter's nodes with the operands of the original one."""
        names = dict(zip((*job.formal.input, *job.formal.output), (*job.node.input, *job.node.output), strict=True))
        for node in job.result:
            node.name = node_name(job.node)
            for values in (node.input, node.output):
                renamed = []
                for v in values:
                    if v and v not in names:
                        names[v] = self._fresh(f"{node_name(job.node)}/{node.op_type}")
                    renamed.append(names[v] if v else "")
                del values[:]
                values.extend(renamed)
        return job.result


def _unchanged(op_type: str, opset: int) -> bool:
    """Whether an operator has the same definition at this opset and at the canonical one."""
    try:
        then = onnx.defs.get_schema(op_type, opset, "")
        now = onnx.defs.get_schema(op_type, CANONICAL_OPSET, "")
    except onnx.defs.SchemaError:
        return True  # no such operator: for others to report
    return bool(then.since_version == now.since_version)


def _convert(jobs: Sequence[_Job], opset: int) -> bool:
    return not _convert_or_reason(jobs, opset)


def _convert_or_reason(jobs: Sequence[_Job], opset: int) -> str:
    """Run the converter on several independent nodes and fill in their results; what it says if it fails."""
    graph = GraphProto(name="g")
    for k, job in enumerate(jobs):
        node = graph.node.add()
        node.CopyFrom(job.formal)
        for values in (node.input, node.output):
            renamed = [f"{k}.{v}" if v else "" for v in values]
            del values[:]
            values.extend(renamed)
        for source, target in ((job.inputs, graph.input), (job.constants, graph.initializer)):
            for item in source:
                copy = target.add()
                copy.CopyFrom(item)
                copy.name = f"{k}.{item.name}"
        graph.output.extend(ValueInfoProto(name=v) for v in node.output if v)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        converted = version_converter.convert_version(model, CANONICAL_OPSET).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as e:
        return str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
    made = {t.name: t for t in converted.initializer}
    # Who a new node belongs to is known from whom it serves: go from results back to operands.
    owner = {v.name: k for k, job in enumerate(jobs) for v in job.inputs} | {}
    owner = {f"{k}.{v}": k for k, job in enumerate(jobs) for v in (*job.formal.input, *job.formal.output) if v}
    results: list[list[NodeProto]] = [[] for _ in jobs]
    for node in reversed(converted.node):
        k = next(owner[v] for v in node.output if v in owner)
        owner.update((v, k) for v in node.input)
        results[k].append(node)
    for name, t in made.items():
        if name in owner and name.partition(".")[2] not in jobs[owner[name]].formal.input:
            constant = NodeProto(op_type="Constant", output=[name])
            constant.attribute.append(AttributeProto(name="value", type=AttributeProto.TENSOR, t=t))
            results[owner[name]].append(constant)
    for k, (job, nodes) in enumerate(zip(jobs, results, strict=True)):
        prefix = f"{k}."
        for node in nodes:
            for values in (node.input, node.output):
                renamed = [v.removeprefix(prefix) for v in values]
                del values[:]
                values.extend(renamed)
        job.result = nodes[::-1]
    return ""
