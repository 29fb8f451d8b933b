"""Nodes against the schemas of their operators: arity, and the names and kinds of attributes.

ONNX's inference and converter see a node only after this: they crash the process on some malformed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
from onnx import AttributeProto, NodeProto

from compiler.errors import did_you_mean
from compiler.frontend.report import Report
from compiler.frontend.walk import bodies, where_node
from compiler.ir.guards import crash
from compiler.ir.proto import OPSETS

_REMEMBERED = 10_000
_GROUP_NORMALIZATION = 21
"""ONNX calls the version before deprecated, and its checker refuses it; in form, it is as this one."""

_memo: dict[tuple[object, ...], list[str]] = {}


_TAG = "onnxc.opset."


def tag(node: NodeProto, opset: int) -> None:
    """Mark a node of ai.onnx as one of another opset than its graph's (it comes from a function)."""
    node.domain = f"{_TAG}{opset}"


def opset_of(node: NodeProto, default: int) -> int | None:
    """The opset of a node of ai.onnx; None for other domains. default: that of the graph it is in."""
    if node.domain.startswith(_TAG):
        return int(node.domain.removeprefix(_TAG))
    return default if node.domain in ("", "ai.onnx") else None


def well_formed(nodes: Iterable[NodeProto], opset: int, report: Report) -> list[NodeProto]:
    """The nodes without those that break their schema, which are reported; nested graphs are changed in place."""
    good = []
    for node in nodes:
        for _, g in bodies(node):
            inner = well_formed(g.node, opset, report)
            if len(inner) < len(g.node):
                del g.node[:]
                g.node.extend(inner)
        problems = _problems(node, opset_of(node, opset))
        for what in problems:
            remedy = "correct the node by the definition of its operator, or export the model again"
            report.malformed(what, where_node(node), remedy, stop=False)
        if not problems:
            good.append(node)
    return good


def _problems(node: NodeProto, opset: int | None) -> list[str]:
    """What is wrong with a node; nothing if its operator is not known.

    opset: of ai.onnx for a node of that domain, else None. If, Constant and Gradient are left to the structural checks.
    """
    version, domain = (OPSETS.get(node.domain), node.domain) if opset is None else (opset, "")
    if version is None or node.op_type in ("Constant", "Gradient") or any(True for _ in bodies(node)):
        return []
    if not onnx.defs.has(node.op_type, version, domain):
        return []
    if node.op_type == "GroupNormalization" and version < _GROUP_NORMALIZATION:
        version = _GROUP_NORMALIZATION
    present = (*map(bool, node.input), None, *map(bool, node.output))
    key = (node.op_type, version, domain, present, *(a.SerializeToString(deterministic=True) for a in node.attribute))
    if key not in _memo:
        if len(_memo) > _REMEMBERED:
            _memo.clear()
        _memo[key] = _check(node, version, domain)
    return _memo[key]


def _check(node: NodeProto, version: int, domain: str) -> list[str]:
    s, op = onnx.defs.get_schema(node.op_type, version, domain), node.op_type
    found = []
    for a in node.attribute:
        if a.name not in s.attributes:
            found.append(f"{op} has no attribute {a.name!r}{did_you_mean(a.name, s.attributes)}")
            continue
        have = AttributeProto.AttributeType.Name(a.type)
        need = str(s.attributes[a.name].type).rpartition(".")[2]
        if have != need:
            found.append(f"attribute {a.name!r} of {op} is of kind {have}, not {need}")
    given = {a.name for a in node.attribute}
    found += [f"{op} needs the attribute {k!r}" for k, a in s.attributes.items() if a.required and k not in given]
    found += _arity(op, "operand", node.input, s.min_input, s.max_input)
    found += _arity(op, "output", node.output, s.min_output, s.max_output)
    if found:
        return found
    formal = NodeProto(op_type=op, domain=domain, attribute=node.attribute)
    formal.input.extend(f"i{k}" if v else "" for k, v in enumerate(node.input))
    formal.output.extend(f"o{k}" if v else "" for k, v in enumerate(node.output))
    if what := crash(formal, s):
        return [what]
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {domain: version}
    try:
        onnx.checker.check_node(formal, context)
    except onnx.checker.ValidationError as e:
        lines = [line for line in str(e).splitlines() if line and not line.startswith("==> Context")]
        return [lines[0].rstrip(".") if lines else f"{op} breaks its schema"]
    return []


def _arity(op: str, kind: str, values: Sequence[str], least: int, most: int) -> list[str]:
    """What is wrong with the number of operands or outputs. Optional ones at the end may be given as absent."""
    n = len(values)
    if least <= n <= most:
        return []
    needed = str(least) if least == most else f"at least {least}" if n < least else f"at most {most}"
    return [f"{op} has {n} {kind}{'' if n == 1 else 's'}, but {'needs' if n < least else 'takes'} {needed}"]
