"""cse: computes equal values once, by numbering values in program order."""

from __future__ import annotations

from collections import defaultdict

from compiler.ir.evaluate import is_random
from compiler.ir.graph import Graph
from compiler.ir.types import Tensor, TensorType
from compiler.passes.rewrite import Rewrite, renamed, with_bodies


def cse(graph: Graph) -> Graph:
    """Let every node that repeats an earlier one (operator, operands, attributes) be that one, also inside bodies.

    Equal constants become one. Nodes that draw random numbers stay apart; once lowered, a draw is identified by an
    attribute, so that copies of one draw merge and two draws do not. A value that Gradient names is never merged.
    """
    rewrite = Rewrite(graph)
    _merge_constants(rewrite)
    seen: dict[object, tuple[str, ...]] = {}
    for old in graph.nodes:
        node = with_bodies(old, cse)
        if is_random(node) or rewrite.points.intersection(node.results):
            rewrite.keep(node)
            continue
        captures = renamed(node.captures, rewrite.names)
        key = (node.key, tuple(rewrite.operands(node)), tuple(captures))
        found = seen.get(key)
        if found is not None and _covers(node.op, found, node.outputs):
            rewrite.replace(node, found)
        else:
            rewrite.keep(node)
            seen[key] = tuple(rewrite.names[v] if v else "" for v in node.outputs)
    return rewrite.build()


def _covers(op: str, found: tuple[str, ...], outputs: tuple[str, ...]) -> bool:
    """Whether a node with outputs `found` has all that another one asks for; Split means its number of outputs."""
    if len(found) < len(outputs) or (op == "Split" and len(found) != len(outputs)):
        return False
    return all(f or not v for f, v in zip(found, outputs, strict=False))


def _merge_constants(rewrite: Rewrite) -> None:
    """Let equal constants have one name; the others stay behind, unused, for dce."""
    by_type: dict[TensorType, list[str]] = defaultdict(list)
    for v, t in rewrite.graph.consts.items():
        if v not in rewrite.points:
            by_type[t.type].append(v)
    for group in by_type.values():
        first: dict[Tensor, str] = {}
        if len(group) > 1:
            for v in group:
                rewrite.names[v] = rewrite.names[first.setdefault(rewrite.graph.consts[v], v)]
