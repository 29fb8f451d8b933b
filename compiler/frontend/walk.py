"""Small questions about ONNX messages that every part of the frontend asks."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto

from compiler.ir.reading import free_names


def node_name(node: NodeProto) -> str:
    """The node's name, or that of its first output."""
    return node.name or next((v for v in node.output if v), node.op_type)


def where_node(node: NodeProto, graph: str = "") -> str:
    """A node for messages; `graph` says which graph it is in, if that is not the main one."""
    return f"node {node_name(node)!r}" + (f" of {graph}" if graph else "")


def bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Nested graphs of a node, with the names of their attributes."""
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            yield a.name, a.g
        elif a.type == AttributeProto.GRAPHS:
            yield from ((a.name, g) for g in a.graphs)


def reads(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, those of its nested graphs included."""
    yield from (v for v in node.input if v)
    for _, g in bodies(node):
        yield from free_names(g)


def all_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """The nodes of a graph or function and of the graphs nested in it."""
    for node in graph.node:
        yield node
        for _, g in bodies(node):
            yield from all_nodes(g)


def initializer_names(graph: GraphProto) -> list[str]:
    """Names of dense and sparse initializers."""
    return [*(t.name for t in graph.initializer), *(s.values.name for s in graph.sparse_initializer)]


def defined(graph: GraphProto) -> Iterator[str]:
    """Every name that a graph defines at its own level."""
    yield from (v.name for v in graph.input)
    yield from initializer_names(graph)
    yield from (v for node in graph.node for v in node.output if v)


def attribute_tensors(node: NodeProto) -> Iterator[TensorProto]:
    """Dense tensors in the attributes of one node, nested graphs left out."""
    for a in node.attribute:
        if a.type == AttributeProto.TENSOR:
            yield a.t
        elif a.type == AttributeProto.TENSORS:
            yield from a.tensors
