"""Graph -> IR text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from compiler.ir.graph import Attr, Graph, Node, Origin, Program
from compiler.ir.literals import ABSENT, INLINE_LIMIT, elements_text, float_text, name_text, phrase_text, string_text
from compiler.ir.types import Tensor, TensorType

DIGITS = 16
"""Hex digits of a digest that the text shows."""


class Typed(Protocol):
    """Anything that knows the types of values by name."""

    @property
    def types(self) -> Mapping[str, TensorType]:
        """Type of each value."""
        ...


def dump(what: Graph | Program) -> str:
    """The text of a graph, or of all graphs of a program, each behind its role; `parse` and `parse_program` read it.

    Constants above INLINE_LIMIT elements appear as a digest: `tensors_of` gives the table that the parser needs.
    """
    if isinstance(what, Graph):
        return "\n".join(_graph(what, "")) + "\n"
    return "\n".join("\n".join(_graph(g, "", f"{role} ")) + "\n" for role, g in what.graphs().items())


def tensors_of(what: Graph | Program) -> dict[str, Tensor]:
    """The table digest -> Tensor of all that the text does not hold itself."""
    if isinstance(what, Program):
        return {digest: t for g in what.graphs().values() for digest, t in tensors_of(g).items()}
    found = {t.digest: t for t in (*what.states.values(), *what.consts.values()) if t.type.size > INLINE_LIMIT}
    for node in what.nodes:
        for value in node.attrs.values():
            if isinstance(value, Graph):
                found.update(tensors_of(value))
            elif isinstance(value, Tensor) and value.type.size > INLINE_LIMIT:
                found[value.digest] = value
    return found


def _graph(g: Graph, indent: str, role: str = "") -> Iterator[str]:
    yield f"{indent}{role}graph {name_text(g.name)} {{"
    inner = indent + "  "
    for v in g.inputs:
        yield f"{inner}input {_typed(v, g)}"
    for v in g.captures:
        yield f"{inner}capture {_typed(v, g)}"
    for v, t in g.states.items():
        yield f"{inner}state {_typed(v, g)} = {_elements(t)}"
    for v, t in g.consts.items():
        yield f"{inner}const {_typed(v, g)} = {_elements(t)}"
    for node in g.nodes:
        yield from _node(node, g, inner)
    for public, v in g.outputs.items():
        yield f"{inner}output {name_text(public)} = {name_text(v)}"
    for state, v in g.updates.items():
        yield f"{inner}update {name_text(state)} = {name_text(v)}"
    yield f"{indent}}}"


def _typed(v: str, g: Typed) -> str:
    return f"{name_text(v)}: {g.types.get(v, '?')}"


def _elements(t: Tensor) -> str:
    return elements_text(t) if t.type.size <= INLINE_LIMIT else f"sha256:{t.digest[:DIGITS]}"


def node_text(node: Node, g: Typed) -> str:
    """One node as the text shows it, without its nested graphs."""
    head, attrs, tail = _parts(node, g)
    return head + (f" {{{attrs}}}" if attrs else "") + tail


def _parts(node: Node, g: Typed) -> tuple[str, str, str]:
    defined = ", ".join(_typed(v, g) if v else ABSENT for v in node.outputs) or "()"
    head = f"{defined} = {name_text(node.op)}({_operands(node.inputs)})"
    if node.captures:
        head += f" capture({_operands(node.captures)})"
    attrs = ", ".join(f"{name_text(k)}={_attr(v)}" for k, v in node.attrs.items() if not isinstance(v, Graph))
    return head, attrs, _origin(node.origin)


def _node(node: Node, g: Graph, indent: str) -> Iterator[str]:
    head, attrs, tail = _parts(node, g)
    if not node.bodies:
        yield f"{indent}{head}{f' {{{attrs}}}' if attrs else ''}{tail}"
        return
    yield f"{indent}{head} {{{attrs}"
    for name, body in node.bodies.items():
        first, *rest = _graph(body, indent + "  ")
        yield f"{indent}  {name_text(name)}={first.strip()}"
        yield from rest
    yield f"{indent}}}{tail}"


def _operands(values: tuple[str, ...]) -> str:
    return ", ".join(name_text(v) if v else ABSENT for v in values)


def _attr(value: Attr) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_attr, value))}]"
    if isinstance(value, str):
        return string_text(value)
    if isinstance(value, Tensor):
        return f"{value.type} {_elements(value)}"
    return float_text(value) if isinstance(value, float) else str(value)


def _origin(origin: Origin) -> str:
    node = f" {name_text(origin.node, 'by')}" if origin.node else ""
    rule = f" by {phrase_text(origin.rule)}" if origin.rule else ""
    return f"  @{node}{rule}" if node or rule else ""
