"""Reading ONNX nodes at the canonical opset into a builder: constants, nested graphs, function attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, ValueInfoProto

from compiler.errors import Problem, UnsupportedError, VerifyError
from compiler.ir.bounded import bounded
from compiler.ir.builder import Builder
from compiler.ir.control import ChangingType, trip_count
from compiler.ir.graph import Attr, Graph, Node, Origin
from compiler.ir.infer import InferenceError, NotStatic
from compiler.ir.proto import attrs_from_node, constant_of, op_name, tensor_from_proto
from compiler.ir.types import AnyArray, Tensor, TensorType

Names = dict[str, str]
"""Names of ONNX values -> names of values in the builder."""

Attributes = Mapping[str, AttributeProto]

UNROLLED = 20_000
"""Nodes that a Loop may become at most, where it cannot stay one."""


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
    elif op == "Loop":
        _read_loop(b, p, attrs, names, outer, at)
    else:
        _add(b, p, attrs, names, outer, at)


def _add(b: Builder, p: NodeProto, attrs: dict[str, Attr], names: Names, outer: Attributes | None, at: Origin) -> None:
    """Add a node as it is."""
    captures: Names = {}
    bodies = {a.name: a.g for a in p.attribute if a.type == AttributeProto.GRAPH and not a.ref_attr_name}
    if bodies:
        free = dict.fromkeys(v for g in bodies.values() for v in free_names(g))
        captures = {v: names[v] for v in free if _fixed(b, names[v]) is None}
        given = _handed_in(b, p, [names[v] if v else "" for v in p.input], attrs, at)
        attrs.update({k: _read_body(b, g, names, captures, outer, given) for k, g in bodies.items()})
    inputs = [names[v] if v else "" for v in p.input]
    outputs = tuple(p.output)
    node = Node(op_name(p.domain, p.op_type), tuple(inputs), outputs, attrs, tuple(captures.values()), at)
    if node.op == "Loop" and b.max_trip is not None and _is_open(b, node):
        new = bounded(b, node, b.max_trip)
    else:
        new = dict(zip(outputs, b.add(node.op, inputs, attrs, outputs, node.captures, at), strict=False))
    names.update((v, value) for v, value in new.items() if v)
    if not b.points.isdisjoint(node.reads):
        b.points.update(v for v in new.values() if v)


def _is_open(b: Builder, node: Node) -> bool:
    """Whether a Loop's end is decided at run time. A malformed one is for the builder to refuse."""
    try:
        b.infer(Node("Loop", node.inputs, node.outputs[: len(node.inputs) - 2], node.attrs, node.captures, node.origin))
        return trip_count(node, b.known) is None
    except (InferenceError, VerifyError):
        return False


def _fixed(b: Builder, value: str) -> AnyArray | None:
    """What a nested graph takes for a constant: a known value, unless a derivative may be taken through it."""
    return None if value in b.points else b.known(value)


def _read_loop(
    b: Builder, p: NodeProto, attrs: dict[str, Attr], names: Names, outer: Attributes | None, at: Origin
) -> None:
    """A Loop; iteration by iteration if its types depend on the iteration, and it is known how many there are."""
    try:
        _add(b, p, attrs, names, outer, at)
    except NotStatic as e:
        if e.node.op == "Loop" and all(v in b for v in e.operands):
            raise  # what decides how often it runs
        failure: NotStatic | VerifyError = e
    except VerifyError as e:
        if not isinstance(e.__cause__, ChangingType):
            raise
        failure = e
    else:
        return
    operands = tuple(names[v] if v else "" for v in p.input)
    deciding = tuple(v for v in operands[:2] if v and b.known(v) is None)
    if deciding:
        raise NotStatic(Node("Loop", operands, tuple(p.output)), deciding) from failure
    if not _unroll(b, p, names, outer, at):
        raise failure


def _unroll(b: Builder, p: NodeProto, names: Names, outer: Attributes | None, at: Origin) -> bool:
    """Add the iterations of a Loop one after the other; false if it does not end soon, or never begins."""
    g = next(a.g for a in p.attribute if a.name == "body")
    limit, first = (b.known(names[v]) if v else None for v in p.input[:2])
    size = max(len(g.node), 1)
    most = UNROLLED // size if limit is None else int(limit.item())
    if most * size > UNROLLED or most < 1 or not (first is None or first.all()):
        return False
    state = [names[v] for v in p.input[2:]]
    rows: list[list[str]] = [[] for _ in g.output[1 + len(state) :]]
    for i in range(most):
        number, go = (np.full(_one(v), x) for v, x in zip(g.input[:2], (np.int64(i), np.True_), strict=True))
        local = {**names, g.input[0].name: b.const(number), g.input[1].name: b.const(go)}
        local.update((v.name, value) for v, value in zip(g.input[2:], state, strict=True))
        local.update((t.name, _read_constant(b, tensor_from_proto(t), t.name)) for t in g.initializer)
        read_nodes(b, g.node, local, outer, at)
        condition, *results = (local[v.name] for v in g.output)
        state, more = results[: len(state)], b.known(condition)
        for row, v in zip(rows, results[len(state) :], strict=True):
            row.append(b.add("Unsqueeze", [v, b.ints([0])], origin=at)[0])
        if more is None or (i + 1 == most and limit is None and more.all()):
            return False
        if not more.all():
            break
    stacked = [b.add("Concat", row, {"axis": 0}, origin=at)[0] for row in rows]
    names.update({v: new for v, new in zip(p.output, (*state, *stacked), strict=False) if v})
    return True


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


def _handed_in(b: Builder, p: NodeProto, inputs: list[str], attrs: Mapping[str, Attr], at: Origin) -> list[TensorType]:
    """Types of the inputs of a Loop's or Scan's body, by the operands: what the file declares is often stale."""
    if p.op_type == "If":
        return []
    body = next(a.g for a in p.attribute if a.name == "body")
    scanned = attrs.get("num_scan_inputs", 0) if p.op_type == "Scan" else 0
    first = 2 if p.op_type == "Loop" else 0
    if len(body.input) != len(inputs) or "" in inputs[first:] or not 0 <= scanned <= len(inputs):
        what = f"{p.op_type} has {len(inputs)} inputs, its body {len(body.input)}"
        raise VerifyError(Problem(what, f"node {at.node!r}", "give the body an input for each operand"))
    types = [TensorType(dtype, _one(v)) for v, dtype in zip(body.input[:first], ("i64", "bool"), strict=False)]
    types += [b.type(v) for v in inputs[first : len(inputs) - scanned]]
    axes = attrs.get("scan_input_axes") or (0,) * scanned
    for v, axis in zip(inputs[len(inputs) - scanned :] if scanned else [], axes, strict=False):
        t = b.type(v)
        if not -t.rank <= axis < t.rank:
            raise VerifyError(Problem(f"Scan along axis {axis} of {t}", f"node {at.node!r}", "correct the axis"))
        types.append(TensorType(t.dtype, tuple(d for i, d in enumerate(t.shape) if i != axis % t.rank)))
    return types


def _one(v: ValueInfoProto) -> tuple[int, ...]:
    """The shape of a number or condition that a Loop hands in: a scalar unless a list of one is declared."""
    return (1,) if len(v.type.tensor_type.shape.dim) == 1 else ()


def _read_body(
    b: Builder, g: GraphProto, names: Names, captures: Names, outer: Attributes | None, given: Sequence[TensorType]
) -> Graph:
    """A nested graph. Outer values known at compile time become its own constants; the others, captures."""
    inner = Builder(g.name or "body")
    inner.max_trip = b.max_trip
    local: Names = {}
    for v, t in zip(g.input, given, strict=True):
        local[v.name] = inner.input(v.name, t)
    for v, outside in captures.items():
        local[v] = inner.capture(v, b.type(outside))
        if outside in b.points:
            inner.points.add(local[v])
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
