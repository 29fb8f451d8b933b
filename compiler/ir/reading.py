"""Reading ONNX nodes at the canonical opset into a builder: constants, nested graphs, function attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from compiler.errors import Problem, UnsupportedError
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph, Origin
from compiler.ir.proto import attrs_from_node, constant_of, op_name, tensor_from_proto
from compiler.ir.types import Tensor

Names = dict[str, str]
"""Names of ONNX values -> names of values in the builder."""

Attributes = Mapping[str, AttributeProto]


def read_nodes(
    b: Builder, nodes: Iterable[NodeProto], names: Names, outer: Attributes | None = None, origin: Origin | None = None
) -> None:
    """Add ONNX nodes in order; `names` grows by their outputs. `outer`: attributes of the function they are in.

    origin: provenance of all; by default each node's own name. An If whose condition is known becomes its branch.
    Raises VerifyError, NotStatic (see Builder.add), UnsupportedError.
    """
    for p in nodes:
        read_node(b, p, names, outer, origin)


def read_node(
    b: Builder, p: NodeProto, names: Names, outer: Attributes | None = None, origin: Origin | None = None
) -> None:
    """One node of `read_nodes`."""
    at = origin or Origin(p.name or next((o for o in p.output if o), p.op_type))
    op = op_name(p.domain, p.op_type)
    try:
        attrs = attrs_from_node(p, outer)
        if op == "Constant":
            names[p.output[0]] = _read_constant(b, constant_of(p, attrs), p.output[0])
            return
    except ValueError as e:
        raise UnsupportedError(Problem(str(e), f"node {at.node!r}")) from e
    if op == "If" and (known := b.known(names[p.input[0]])) is not None:
        _read_branch(b, p, bool(np.all(known)), names, outer, origin)
        return
    captures: Names = {}
    bodies = {a.name: a.g for a in p.attribute if a.type == AttributeProto.GRAPH and not a.ref_attr_name}
    if bodies:
        free = dict.fromkeys(v for g in bodies.values() for v in free_names(g))
        captures = {v: names[v] for v in free if b.known(names[v]) is None}
        attrs.update({k: _read_body(b, g, names, captures, outer) for k, g in bodies.items()})
    inputs = [names[v] if v else "" for v in p.input]
    added = b.add(op, inputs, attrs, [o or "" for o in p.output], list(captures.values()), at)
    names.update({old: new for old, new in zip(p.output, added, strict=False) if old})


def _read_constant(b: Builder, t: Tensor, name: str) -> str:
    return b.const(t, name if name not in b else b.fresh(name))


def free_names(g: GraphProto) -> list[str]:
    """Names that a nested graph (and those in it) reads from outside, in order of first use."""
    bound = {v.name for v in g.input} | {t.name for t in g.initializer}
    free: dict[str, None] = {}
    for node in g.node:
        inner = [v for a in node.attribute if a.type == AttributeProto.GRAPH for v in free_names(a.g)]
        free.update((v, None) for v in (*node.input, *inner) if v and v not in bound)
        bound.update(node.output)
    free.update((v.name, None) for v in g.output if v.name not in bound)
    return list(free)


def _read_body(b: Builder, g: GraphProto, names: Names, captures: Names, outer: Attributes | None) -> Graph:
    """A nested graph. Outer values known at compile time become its own constants; the others, captures."""
    inner = Builder(g.name or "body")
    local: Names = {}
    for v, outside in captures.items():
        local[v] = inner.capture(v, b.type(outside))
    for v in free_names(g):
        if v not in captures:
            known = b.known(names[v])
            assert known is not None
            local[v] = inner.const(Tensor(known), v)
    for t in g.initializer:
        local[t.name] = inner.const(tensor_from_proto(t), t.name)
    read_nodes(inner, g.node, local, outer)
    for out in g.output:
        inner.output(out.name, local[out.name])
    return inner.build()


def _read_branch(
    b: Builder, p: NodeProto, taken: bool, names: Names, outer: Attributes | None, origin: Origin | None
) -> None:
    """The branch of an If whose condition is known, in place of the If."""
    g = next(a.g for a in p.attribute if a.name == ("then_branch" if taken else "else_branch"))
    local = dict(names)
    for t in g.initializer:
        local[t.name] = _read_constant(b, tensor_from_proto(t), t.name)
    read_nodes(b, g.node, local, outer, origin)
    names.update({o: local[v.name] for o, v in zip(p.output, g.output, strict=True) if o})
