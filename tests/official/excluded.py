"""Why an official test is not run: by what its model is made of, never by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnx import ModelProto, NodeProto, TensorProto, TypeProto

REASONS = {
    "domain": "operators of domains other than ai.onnx and ai.onnx.preview.training",
    "strings": "string tensors",
    "containers": "sequences and optionals",
    "images": "decoders of compressed images",
    "random": "Bernoulli: which numbers are drawn is up to the implementation",
}

_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.preview.training"})
_TEXT = frozenset({"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"})
_CONTAINERS = ("Sequence", "Optional", "SplitToSequence", "ConcatFromSequence")


def reason(model: ModelProto) -> str | None:
    """A key of REASONS; None for a model that must run."""
    nodes = list(_nodes(model.graph.node))
    types = [v.type for v in (*model.graph.input, *model.graph.output)]
    elements = set(_elements(nodes)) | {t.tensor_type.elem_type for t in types if t.HasField("tensor_type")}
    if any(node.domain not in _DOMAINS for node in nodes):
        return "domain"
    if TensorProto.STRING in elements or any(node.op_type in _TEXT for node in nodes):
        return "strings"
    if any(map(_contains, types)) or any(node.op_type.startswith(_CONTAINERS) for node in nodes):
        return "containers"
    ops = {node.op_type for node in nodes}
    if "ImageDecoder" in ops:
        return "images"
    return "random" if ops & {"Bernoulli", "RandomUniformLike"} else None


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for a in node.attribute:
            yield from _nodes(a.g.node)


def _elements(nodes: list[NodeProto]) -> Iterator[int]:
    """Element types that attributes name or hold."""
    for node in nodes:
        for a in node.attribute:
            if a.name in ("to", "dtype", "output_dtype"):
                yield a.i
            if a.HasField("t"):
                yield a.t.data_type


def _contains(t: TypeProto) -> bool:
    return t.HasField("sequence_type") or t.HasField("optional_type") or t.HasField("sparse_tensor_type")
