"""Model-local functions: a call is replaced by the nodes of the function, with its names and attributes filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from compiler.frontend.walk import bodies

Key = tuple[str, str, str]
"""What identifies a function: domain, name, overload."""

Attributes = Mapping[str, AttributeProto]


def key_of(node: NodeProto) -> Key:
    """What a node calls, if that is a function."""
    return node.domain, node.op_type, node.overload


def instantiate(function: FunctionProto, call: NodeProto, prefix: str, fresh: Callable[[str], str]) -> list[NodeProto]:
    """The nodes of a function for one call. Its inner values are called `prefix/name`, made free by `fresh`.

    The nodes' Gradients must be in their explicit form (their strings would keep the old names).
    """
    names = dict.fromkeys(function.input, "")
    names.update(zip(function.input, call.input, strict=False))
    # an output that is also an input, or is not asked for, is an inner value like any other
    wanted = {formal: actual for formal, actual in zip(function.output, call.output, strict=False) if actual}
    attrs: dict[str, AttributeProto] = {a.name: a for a in function.attribute_proto}
    attrs.update((a.name, a) for a in call.attribute)
    forwarded = [formal for formal in wanted if formal in names]
    results = {formal: actual for formal, actual in wanted.items() if formal not in names}
    nodes = [_copy(node, names, results, attrs, prefix, fresh) for node in function.node]
    nodes += [NodeProto(op_type="Identity", input=[names[v]], output=[wanted[v]]) for v in forwarded]
    return nodes


def _copy(
    node: NodeProto,
    names: dict[str, str],
    results: Mapping[str, str],
    attrs: Attributes,
    prefix: str,
    fresh: Callable[[str], str],
) -> NodeProto:
    """A node with its names replaced. `names` grows by its outputs; `results` are names that outputs must get."""
    copy = NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
    copy.name = f"{prefix}/{node.name or next((v for v in node.output if v), node.op_type)}"
    copy.input.extend(names.get(v, v) if v else "" for v in node.input)
    copy.attribute.extend(_resolve(node.attribute, attrs))
    for _, g in bodies(copy):
        _rename_graph(g, dict(names), attrs, prefix, fresh)
    for v in node.output:
        if v:
            names[v] = results[v] if v in results else fresh(f"{prefix}/{v}")
    copy.output.extend(names[v] if v else "" for v in node.output)
    return copy


def _resolve(attributes: Iterable[AttributeProto], outer: Attributes) -> list[AttributeProto]:
    """Attributes with references to those of the function replaced; an optional one that is not given is left out."""
    resolved = []
    for a in attributes:
        value = outer.get(a.ref_attr_name) if a.ref_attr_name else a
        if value is not None:
            copy = AttributeProto()
            copy.CopyFrom(value)
            copy.name = a.name
            resolved.append(copy)
    return resolved


def _rename_graph(
    g: GraphProto, names: dict[str, str], attrs: Attributes, prefix: str, fresh: Callable[[str], str]
) -> None:
    """Rename in place what a nested graph defines and reads."""
    for v in (*g.input, *g.initializer):
        names[v.name] = fresh(f"{prefix}/{v.name}")
        v.name = names[v.name]
    nodes = [_copy(node, names, {}, attrs, prefix, fresh) for node in g.node]
    del g.node[:]
    g.node.extend(nodes)
    del g.value_info[:]
    for out in g.output:
        out.name = names.get(out.name, out.name)


def recursive(functions: Mapping[Key, FunctionProto]) -> list[Key]:
    """Functions that call themselves, directly or through others."""
    calls = {k: {key_of(n) for n in _nodes(f.node) if key_of(n) in functions} for k, f in functions.items()}
    changed = True
    while changed:
        changed = False
        for called in calls.values():
            more = {c for other in called for c in calls[other]} - called
            if more:
                called |= more
                changed = True
    return [k for k, called in calls.items() if k in called]


def _nodes(nodes: Iterable[NodeProto]) -> Iterable[NodeProto]:
    for node in nodes:
        yield node
        for _, g in bodies(node):
            yield from _nodes(g.node)
