"""Putting replacements where they belong: the last step of differentiation."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.passes.gradients.backward import Replacement
from compiler.passes.rewrite import renamed


def substituted(graph: Graph, replacements: Mapping[str, Replacement], labels: Mapping[str, str]) -> Graph:
    """Rebuild a graph with nodes replaced by others that stand later in it, and with some values renamed.

    replacements: first result of a node -> what takes its place (and may hold nodes that are replaced themselves).
    """
    b = Builder(graph.name)
    names = b.sources_of(graph)
    moved = {node.results[0] for r in replacements.values() for node in r.nodes}
    placed: set[str] = set()
    pending = [node for node in reversed(graph.nodes) if node.results[0] not in moved]
    while pending:
        node = pending.pop()
        key = node.results[0]
        replacement = replacements.get(key)
        if replacement is None:
            outputs = [labels.get(v, v) for v in node.outputs]
            types = [graph.type(v) if v else None for v in node.outputs]
            captures = renamed(node.captures, names)
            added = b.add(node.op, renamed(node.inputs, names), node.attrs, outputs, captures, node.origin, types)
            names.update((old, new) for old, new in zip(node.outputs, added, strict=False) if old)
        elif key not in placed:
            placed.add(key)
            pending.append(node)
            pending.extend(reversed(replacement.nodes))
        else:
            names.update((old, names[new]) for old, new in replacement.results.items())
    b.bind(graph, names)
    return b.build()
