"""Gradient nodes: the tensors that they name in string attributes become operands.

ONNX's node `Gradient(at..; xs, zs, y)` names its tensors in attributes: edges that no tool sees. The explicit form,
which is that of the IR, is `Gradient(y, xs.., zs.., at..)` with the *numbers* of xs and zs as attributes. After that
a Gradient is renamed, inlined, captured and sorted like any other node.

What the standard leaves open is decided like this:

* A Gradient may stand before the node that computes its y; only a true cycle is an error.
* Names are looked up in the scope of the node: its graph and those around it, or its function.
* xs and zs must be independent (see `check_independent`), and name each tensor once.
* What y depends on and is neither in xs nor in zs keeps the value it has in the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set

from onnx import AttributeProto, ModelProto, NodeProto

from compiler.errors import did_you_mean
from compiler.frontend.report import Report
from compiler.frontend.walk import bodies, defined, node_name, reads, where_node
from compiler.ir.builder import Builder
from compiler.ir.proto import TRAINING_DOMAIN

GRADIENT_DOMAINS = frozenset({TRAINING_DOMAIN, "ai.onnx.preview"})
"""Where Gradient is found: the standard's domain, and what pytorch-pfn-extras writes instead."""


def is_gradient(node: NodeProto) -> bool:
    """Whether a node is a Gradient, in either form."""
    return node.op_type == "Gradient" and node.domain in GRADIENT_DOMAINS


def make_explicit(
    nodes: Iterable[NodeProto], visible: Iterable[str], report: Report, where: str = ""
) -> list[NodeProto]:
    """The nodes with every Gradient in its explicit form, also in nested graphs, in an order that respects y.

    visible: names of the values that exist besides the nodes' outputs. Nodes that change are copied. A Gradient that
    is wrong is reported and left out.
    """
    nodes = list(nodes)
    scope = {*visible, *(v for node in nodes for v in node.output if v)}
    result = []
    for node in nodes:
        if is_gradient(node):
            found = Report()  # these do not keep anybody from looking further
            explicit = _explicit(node, scope, report.undefined | report.ambiguous, found, where)
            report.merge(found)
            result.extend([] if explicit is None else [explicit])
        elif any(_has_gradient(g.node) for _, g in bodies(node)):
            copy = NodeProto()
            copy.CopyFrom(node)
            for _, g in bodies(copy):
                inner = {*scope, *(v.name for v in g.input), *(t.name for t in g.initializer)}
                changed = make_explicit(g.node, inner, report, where)
                del g.node[:]
                g.node.extend(changed)
            result.append(copy)
        else:
            result.append(node)
    return sort(result, report, where)


def check_gradients(model: ModelProto, report: Report) -> None:
    """Report all Gradients that are wrong, in a model that may be wrong otherwise as well."""
    for f in model.functions:
        make_explicit(f.node, f.input, report, f"function {f.name!r}")
    combined = [[model.graph, info.algorithm] for info in model.training_info] or [[model.graph]]
    for graphs in [*combined, *([info.initialization] for info in model.training_info)]:
        make_explicit((node for g in graphs for node in g.node), (v for g in graphs for v in defined(g)), report)


def _has_gradient(nodes: Iterable[NodeProto]) -> bool:
    return any(is_gradient(n) or any(_has_gradient(g.node) for _, g in bodies(n)) for n in nodes)


def _explicit(node: NodeProto, scope: set[str], undefined: Set[str], report: Report, where: str) -> NodeProto | None:
    """undefined: names that have been reported. None: the node names one of them, or is wrong otherwise."""
    at = where_node(node, where)
    attrs = {a.name: a for a in node.attribute}
    for a in attrs.values():
        if a.name not in ("xs", "zs", "y"):
            report.malformed(f"Gradient has no attribute {a.name!r}", at, "remove it: there are xs, zs and y")
        elif a.ref_attr_name:
            report.unsupported(f"Gradient takes {a.name!r} from an attribute of its function", at, "name the tensors")
        elif a.type != (AttributeProto.STRING if a.name == "y" else AttributeProto.STRINGS):
            kind = "a string" if a.name == "y" else "strings"
            report.malformed(f"attribute {a.name!r} of Gradient must be {kind}", at, "give the names of tensors")
    for name in ("xs", "y"):
        if name not in attrs:
            role = "the tensor that is differentiated" if name == "y" else "the tensors that it is differentiated by"
            report.malformed(f"Gradient needs the attribute {name!r}", at, f"name {role}")
    if report:
        return None
    xs, zs = (_strings(attrs.get(name)) for name in ("xs", "zs"))
    y = attrs["y"].s.decode("utf-8", "replace")
    if not xs:
        report.malformed("Gradient has no xs: nothing to differentiate with respect to", at, "name a tensor in xs")
    named = [*xs, *zs]
    for name in sorted({v for v in named if named.count(v) > 1}):
        report.malformed(f"Gradient names {name!r} more than once in xs and zs", at, "name each tensor once")
    for role, names in (("xs", xs), ("zs", zs), ("y", [y])):
        for name in dict.fromkeys(v for v in names if v not in scope and v not in undefined):
            what = f"Gradient names the tensor {name!r} in {role}, which does not exist here{did_you_mean(name, scope)}"
            report.malformed(what, at, "name a tensor of this graph or of one around it")
    if len(node.input) != len(named):
        what = f"Gradient has {len(node.input)} inputs, but {len(xs)} xs and {len(zs)} zs"
        report.malformed(what, at, "give one value for each name, xs before zs")
    for i, v in enumerate(node.input):
        if not v:
            report.malformed(f"input {i} of Gradient is absent", at, "give the tensor named in xs or zs itself")
    if len(node.output) > len(xs):
        what = f"Gradient has {len(node.output)} outputs, but {len(xs)} xs"
        report.malformed(what, at, "give one output for each of xs; those that nobody needs may have no name")
    if report or not scope.issuperset((*named, y)):
        return None
    explicit = NodeProto(op_type="Gradient", domain=TRAINING_DOMAIN, name=node_name(node))
    explicit.input.extend([y, *named, *node.input])
    explicit.output.extend([*node.output, *[""] * (len(xs) - len(node.output))])
    explicit.attribute.extend(
        AttributeProto(name=name, type=AttributeProto.INT, i=len(values)) for name, values in (("xs", xs), ("zs", zs))
    )
    return explicit


def named_by(node: NodeProto) -> list[str]:
    """The xs and zs of an explicit Gradient."""
    n, m = (next(a.i for a in node.attribute if a.name == name) for name in ("xs", "zs"))
    return list(node.input[1 : 1 + n + m])


def _strings(a: AttributeProto | None) -> list[str]:
    return [s.decode("utf-8", "replace") for s in a.strings] if a is not None else []


def sort(nodes: Sequence[NodeProto], report: Report, where: str = "") -> list[NodeProto]:
    """The nodes so that each stands behind those it reads from, otherwise in the order given. Reports cycles."""
    producer = {v: i for i, node in enumerate(nodes) for v in node.output if v}
    needs = [{producer[v] for v in reads(node) if v in producer} for node in nodes]
    if all(j < i for i, before in enumerate(needs) for j in before):
        return list(nodes)
    users: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(needs):
        for j in before:
            users[j].append(i)
    waiting = [len(before) for before in needs]
    ready = [i for i, n in enumerate(waiting) if n == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in users[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    for i in sorted(set(range(len(nodes))) - set(order)):
        if is_gradient(nodes[i]) and _needs_itself(i, needs):
            what = f"the y of this Gradient, {nodes[i].input[0]!r}, is computed from the Gradient's own outputs"
            report.malformed(what, where_node(nodes[i], where), "rename the outputs, or break the cycle")
    return [nodes[i] for i in order]


def _needs_itself(i: int, needs: Sequence[Set[int]]) -> bool:
    """Whether a node is a part of a cycle, and does not only depend on one."""
    seen: set[int] = set()
    stack = [*needs[i]]
    while stack:
        j = stack.pop()
        if j not in seen:
            seen.add(j)
            stack.extend(needs[j])
    return i in seen


def cut_at(node: NodeProto, variables: Iterable[str]) -> NodeProto:
    """An explicit Gradient with further tensors in zs: where an earlier algorithm's new values come in, it ends."""
    n, m = (next(a.i for a in node.attribute if a.name == name) for name in ("xs", "zs"))
    named, at = node.input[1 : 1 + n + m], node.input[1 + n + m :]
    more = [v for v in variables if v not in named]
    if not more:
        return node
    cut = NodeProto()
    cut.CopyFrom(node)
    del cut.input[:]
    cut.input.extend([node.input[0], *named, *more, *at, *more])
    next(a for a in cut.attribute if a.name == "zs").i = m + len(more)
    return cut


def check_point(
    node: NodeProto, names: Mapping[str, str], b: Builder, report: Report, assigned: Set[str] = frozenset()
) -> bool:
    """Whether an explicit Gradient has operands that make sense; else it is reported. names: as in `read_node`.

    y and xs must be floating point; a value given for a tensor must have its dtype and rank (its dims may differ: it
    can be another batch); no tensor in xs and zs may be computable from the others, as its change would then be theirs.
    """
    n, m = (next(a.i for a in node.attribute if a.name == name) for name in ("xs", "zs"))
    y, named, at = node.input[0], node.input[1 : 1 + n + m], node.input[1 + n + m :]
    where = where_node(node)
    before = len(report.problems)
    for v in (y, *named[:n]):
        if not b.type(names[v]).is_float:
            what = f"Gradient differentiates {v!r}" if v == y else f"Gradient differentiates with respect to {v!r}"
            report.malformed(f"{what}, which is {b.type(names[v])}", where, "only floating point has derivatives")
    for v, given in zip(named, at, strict=True):
        have, need = b.type(names[given]), b.type(names[v])
        if (have.dtype, have.rank) != (need.dtype, need.rank):
            what = f"Gradient gets {given!r}, a {have}, as the value of {v!r}, a {need}"
            report.malformed(what, where, "give a value of the same dtype and rank")
    members = {names[v]: v for v in named}
    for value, v in members.items():
        others = set() if value in assigned else _computed_from(value, members.keys() - {value}, b, assigned)
        if others:
            by = ", ".join(sorted(repr(members[o]) for o in others))
            what = f"Gradient names {v!r} in xs or zs together with {by}, from which it is computed"
            report.malformed(what, where, f"xs and zs must be independent: leave out {v!r} or the others")
    return len(report.problems) == before


def _computed_from(value: str, others: Set[str], b: Builder, assigned: Set[str]) -> set[str]:
    """The ones of `others` that determine a value; none if anything else that can vary (as `assigned`) takes part."""
    found: set[str] = set()
    seen: set[str] = set()
    node = b.producer(value)
    stack = list(node.reads) if node is not None else []
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        node = b.producer(v)
        if v in others:
            found.add(v)
        elif v in assigned:
            return set()
        elif (node is not None and node.op in ("Shape", "Size")) or b.known(v) is not None:
            continue
        elif node is not None and node.reads:
            stack.extend(node.reads)
        else:  # an input, a variable, a random number
            return set()
    return found
