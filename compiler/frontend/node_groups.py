"""Names of nodes by the part of the step that they belong to: `loss/...`, so that viewers can group them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from onnx import ModelProto, NodeProto

from compiler.frontend.gradient import is_gradient
from compiler.frontend.walk import node_name, reads

GROUPS = ("inference", "forward", "loss", "gradient", "optimizer", "average")
"""What only the outputs of inference need; what the loss is computed from; the loss and other results of the step;
derivatives; what becomes of variables; averages of weights."""

REST = "step"
"""The group of what comes from no node of the model: the count of steps behind random numbers, copies to outputs."""


def strings_of(node: NodeProto, name: str) -> list[str]:
    """The value of an attribute of a Gradient, one string or several."""
    return [s.decode() for a in node.attribute if a.name == name for s in (*a.strings, a.s) if s]


def names_of(node: NodeProto) -> set[str]:
    """The values that a node reads or, a Gradient, names."""
    named = [*strings_of(node, "xs"), *strings_of(node, "zs"), *strings_of(node, "y")] if is_gradient(node) else []
    return {*reads(node), *named}


def algorithm_groups(nodes: Sequence[NodeProto], bound: Iterable[str]) -> list[str]:
    """The group of each node of an algorithm, whose outputs `bound` are what variables become.

    What its name begins with, if that is a group. Else by what depends on what: `loss` is what the y of a Gradient is
    computed from, `optimizer` what depends on gradients or leads to the bound values only, and `loss` the rest.
    """
    loss = _ancestors(nodes, {v for n in nodes if is_gradient(n) for v in strings_of(n, "y")})
    update = _ancestors(nodes, set(bound))
    derived: set[str] = set()
    groups = []
    for i, node in enumerate(nodes):
        if is_gradient(node) or not derived.isdisjoint(reads(node)):
            derived.update(node.output)
        group = node.name.partition("/")[0]
        if group not in GROUPS or "/" not in node.name:
            group = "optimizer" if i in update or not derived.isdisjoint(node.output) else "loss"
            group = "gradient" if is_gradient(node) else "loss" if i in loss else group
        groups.append(group)
    return groups


def titled(group: str, node: NodeProto, prefix: str = "") -> str:
    """The name of a node with its group, and a prefix behind that."""
    name = node_name(node).removeprefix(f"{group}/").lstrip("/")
    return f"{group}/{prefix}{name}"


def group_by_origin(model: ModelProto) -> None:
    """Name the nodes of a model that `lower` wrote by where they come from, whose nodes had names with groups.

    A node keeps the name of the one it comes from, with its operator if there are several; what is derived from it by
    differentiation is called `gradient/<forward node>/<operator>`.
    """
    origins = [{p.key: p.value for p in n.metadata_props} for n in model.graph.node]
    whole = Counter(o.get("onnxc.node", "") for o in origins if not _backward(o))
    for node, origin in zip(model.graph.node, origins, strict=True):
        name = origin.get("onnxc.node", "")
        group, _, rest = name.partition("/")
        if not name:
            node.name = f"{REST}/{node.name}"
        elif _backward(origin):
            node.name = f"gradient/{rest or group}/{node.op_type}"
        else:
            node.name = name if whole[name] == 1 else f"{name}/{node.op_type}"
    make_unique(model.graph.node)


def make_unique(nodes: Sequence[NodeProto]) -> None:
    """Number nodes of one name."""
    taken = {n.name for n in nodes}
    count: Counter[str] = Counter()
    for node in nodes:
        name = node.name
        count[name] += 1
        if count[name] > 1:
            while f"{name}_{count[name]}" in taken:
                count[name] += 1
            node.name = f"{name}_{count[name]}"


def _backward(origin: dict[str, str]) -> bool:
    return origin.get("onnxc.rule", "").startswith("gradient of ")


def _ancestors(nodes: Sequence[NodeProto], values: set[str]) -> set[int]:
    """Indices of the nodes that some values are computed by; a Gradient may stand before the node of its y."""
    producer = {v: i for i, n in enumerate(nodes) for v in n.output if v}
    found: set[int] = set()
    pending = [v for v in values if v in producer]
    while pending:
        i = producer[pending.pop()]
        if i not in found:
            found.add(i)
            pending.extend(v for v in names_of(nodes[i]) if v in producer)
    return found
