"""Graph -> IR text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from compiler.ir.graph import Attr, Graph, Node, Origin, Program
from compiler.ir.literals import ABSENT, INLINE_LIMIT, elements_text, float_text, name_text, phrase_text, string_text
from compiler.ir.types import Tensor, TensorType

DIGITS = 16
"""Hex digits of a digest that the text shows."""

WIDTH = 120
"""Of a line with a node: a longer one goes on in the next line, indented."""


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


def node_text(node: Node, g: Typed, indent: str = "") -> str:
    """One node as the text shows it, without its nested graphs: one line, or several where it is long."""
    attrs = _listed("{", _attrs(node), "}") if node.attrs.keys() - node.bodies.keys() else []
    return _filled([*_head(node, g), attrs, [_origin(node.origin).removeprefix(" ")]], indent)


def _node(node: Node, g: Graph, indent: str) -> Iterator[str]:
    if not node.bodies:
        yield node_text(node, g, indent)
        return
    yield _filled([*_head(node, g), _listed("{", _attrs(node), "")], indent)
    for name, body in node.bodies.items():
        first, *rest = _graph(body, indent + "  ")
        yield f"{indent}  {name_text(name)}={first.strip()}"
        yield from rest
    yield f"{indent}}}{_origin(node.origin)}"


def _head(node: Node, g: Typed) -> list[list[str]]:
    """Results; operator and operands: each as pieces behind which a line may end."""
    defined = [_typed(v, g) if v else ABSENT for v in node.outputs] or ["()"]
    operands = _listed(f"{name_text(node.op)}(", map(_operand, node.inputs), ")")
    if node.captures:
        first, *rest = _listed("capture(", map(_operand, node.captures), ")")
        operands = [*operands[:-1], f"{operands[-1]} {first}", *rest]
    return [_listed("", defined, " ="), operands]


def _attrs(node: Node) -> list[str]:
    return [f"{name_text(k)}={_attr(v)}" for k, v in node.attrs.items() if not isinstance(v, Graph)]


def _listed(opening: str, items: Iterable[str], closing: str) -> list[str]:
    """A list in pieces: a line may end behind each comma."""
    first, *rest = [*items] or [""]
    *but_last, last = [opening + first, *rest]
    return [*(f"{item}," for item in but_last), last + closing]


def _filled(groups: list[list[str]], indent: str) -> str:
    """Lines of at most WIDTH characters, where the pieces are that short; a group that fits into one stays whole."""
    lines: list[str] = []
    for group in groups:
        whole = " ".join(group)
        for piece in [whole] if len(indent) + 4 + len(whole) <= WIDTH else group:
            if lines and len(lines[-1]) + 1 + len(piece) <= WIDTH:
                lines[-1] += f" {piece}" if piece else ""
            else:
                lines.append(f"{indent}{'    ' if lines else ''}{piece.lstrip()}")
    return "\n".join(lines)


def _operand(value: str) -> str:
    return name_text(value) if value else ABSENT


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
