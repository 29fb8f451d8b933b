"""The invariants of graphs and programs. `verify` raises one error that lists every breach.

Names: each value is defined once, before it is read; bindings name values that exist, an update has its state's type.
Nodes: operator, arity and attributes are those of the ONNX schema; the types are those that inference gives; each op's
preconditions hold (`compiler.ir.checks`). Internal ops: the same for their definition, on these types. Nested graphs:
the same inside; their captures are the node's, in number and type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx.defs import OpSchema

import compiler.ir.definitions  # noqa: F401 - registers the internal operators
from compiler.errors import Problem, VerifyError
from compiler.ir.bodies import body_graph
from compiler.ir.builder import GRADIENT, INTERNAL_OPS, describe, output_types, where
from compiler.ir.checks import check_node
from compiler.ir.checks.base import MAX_ELEMENTS, NodeFacts, elements_spanned
from compiler.ir.graph import Attr, Graph, Node, Program
from compiler.ir.infer import InferenceError, NotStatic
from compiler.ir.known import Known, Values
from compiler.ir.proto import INTERNAL_DOMAIN, schema
from compiler.ir.types import AnyArray, Tensor, TensorType


def verify(what: Graph | Program) -> None:
    """Raise VerifyError with all problems of a graph, or of a program and its graphs; else return."""
    problems = list(_program(what)) if isinstance(what, Program) else list(_graph(what, ""))
    if problems:
        raise VerifyError(problems)


def _program(program: Program) -> Iterator[Problem]:
    states: dict[str, TensorType] = {}
    for role, g in program.graphs().items():
        at = f"the {role} graph"
        yield from _graph(g, at)
        if g.captures:
            yield Problem(f"{g.captures[0]!r} is captured, but no graph is around this one", at)
        for v, tensor in g.states.items():
            if states.setdefault(v, tensor.type) != tensor.type:
                yield Problem(f"state {v!r} is {tensor.type} here and {states[v]} in another graph", at)
    if program.infer is not None and program.infer.updates:
        yield Problem("inference updates states", "the infer graph", "leave the updates to the step graph")
    if program.initialize is not None and program.initialize.inputs:
        yield Problem(f"initialization has the input {program.initialize.inputs[0]!r}", "the initialize graph")


def _graph(g: Graph, path: str) -> Iterator[Problem]:
    """path: of the nodes whose bodies this graph is in; for messages."""
    defined: dict[str, Node] = {}
    known = Known(g.types, g.consts, defined)
    seen: set[str] = set()
    broken: set[str] = set()  # values about which nothing can be said
    for v in g.sources:
        problems = [*_definition(v, g, seen, path), *_size(v, g, path)]
        broken.update([v] if problems else [])
        yield from problems
    for v, tensor in (*g.states.items(), *g.consts.items()):
        if v in g.types and g.types[v] != tensor.type:
            yield Problem(f"{v!r} is declared {g.types[v]}, its tensor is {tensor.type}", path)
    for node in g.nodes:
        right = seen.issuperset(node.reads) and seen.isdisjoint(node.results) and _signature(node, g) in _right
        problems = [] if right else list(_defining(node, g, known, seen, broken, path))
        yield from problems
        seen.update(node.results)
        if problems or not broken.isdisjoint(node.reads):  # what a broken node computes is not known
            broken.update(node.results)
        if not problems:
            defined.update((v, node) for v in node.results)
    for v in [v for v in g.types if v not in seen]:
        yield Problem(f"{v!r} has a type, but nothing defines it", path)
    yield from _bindings(g, path, seen)


def _defining(node: Node, g: Graph, known: Known, seen: set[str], broken: set[str], path: str) -> Iterator[Problem]:
    """What is wrong with a node at its place. seen: defined before it; broken: values of which nothing is known."""
    at = f"{path} / {where(node)}" if path else where(node)
    problems = [Problem(f"{v!r} is read, but nothing before defines it", at) for v in node.reads if v not in seen]
    problems += [p for v in node.results for p in _definition(v, g, seen, at)]
    if not node.results:
        problems.append(Problem(f"{node.op} computes nothing", at))
    if not problems and broken.isdisjoint(node.reads):
        asked = _Asked(known)
        problems = [Problem(f"{describe(node, g.types)}: {what}", at) for what in _node(node, g, asked)]
        problems = problems or [p for v in node.results for p in _size(v, g, at)]
        if not (problems or asked.values or node.captures or node.bodies):
            if len(_right) > 100_000:  # bounds memory in a process that compiles model after model
                _right.clear()
            _right.add(_signature(node, g))
    for name, body in node.bodies.items():
        problems += _body(body, f"{at} / {name}")
    yield from problems


def _definition(v: str, g: Graph, seen: set[str], at: str) -> Iterator[Problem]:
    if v in seen:
        yield Problem(f"{v!r} is defined more than once", at, "each value needs a name of its own")
    seen.add(v)
    if not v:
        yield Problem("a value has an empty name", at)
    if v not in g.types:
        yield Problem(f"{v!r} has no type", at)


def _size(v: str, g: Graph, at: str) -> Iterator[Problem]:
    t = g.types.get(v)
    if t is None:
        return
    if min(t.shape, default=0) < 0:
        yield Problem(f"{v!r} has the type {t}, which is none", at)
    elif elements_spanned(t) > MAX_ELEMENTS:
        limit = f"2**{MAX_ELEMENTS.bit_length() - 1}"
        yield Problem(f"{v!r} of type {t} is too large", at, f"keep every tensor below {limit} elements")


def _bindings(g: Graph, path: str, seen: set[str]) -> Iterator[Problem]:
    for public, v in g.outputs.items():
        if v not in seen:
            yield Problem(f"output {public!r} is {v!r}, which nothing defines", path)
    for state, v in g.updates.items():
        if state not in g.states:
            yield Problem(f"the update of {state!r} is of no state", path)
        elif v not in seen:
            yield Problem(f"the update of {state!r} is {v!r}, which nothing defines", path)
        elif v in g.types and g.types[v] != g.states[state].type:
            yield Problem(f"the update of {state!r}, a {g.states[state].type}, is {v!r}, a {g.types[v]}", path)


def _body(body: Graph, path: str) -> list[Problem]:
    problems = list(_graph(body, path))
    problems += [Problem(f"a nested graph has the state {v!r}", path) for v in body.states]
    problems += [Problem(f"a nested graph updates {v!r}", path) for v in body.updates]
    return problems


# --- nodes -------------------------------------------------------------------------------------------------
_right: set[object] = set()
"""Signatures of nodes without faults, about which no value was asked: after the next pass most nodes are the same."""


def _signature(node: Node, g: Graph) -> object:
    """All that the verdict on a node depends on, but for the values of its operands and nested graphs."""
    types = g.types
    operands, results = (tuple([types.get(v) if v else "" for v in names]) for names in (node.inputs, node.outputs))
    return node.key, operands, results, len(set(node.results)), len(node.captures)


class _Asked:
    """What is known of values, and whether anybody asked."""

    def __init__(self, known: Values) -> None:
        self._known, self.values = known, False

    def __call__(self, value: str) -> AnyArray | None:
        """As `Known`."""
        self.values = True
        return self._known(value)


def _node(node: Node, g: Graph, known: Values) -> Iterator[str]:
    """What is wrong with a node whose operands are all defined."""
    found = list(_form(node))
    for name, body in node.bodies.items():
        outer = [g.types.get(v) for v in node.captures]
        inner = [body.types.get(v) for v in body.captures]
        if outer != inner:
            shown = [", ".join(map(str, types)) or "nothing" for types in (inner, outer)]
            found.append(f"{name} captures {shown[0]}, the node gives it {shown[1]}")
    if node.captures and not node.bodies:
        found.append("a node without nested graphs captures values")
    if found:
        yield from found
        return
    try:
        types = output_types(node, g.types, known)
    except (InferenceError, NotStatic, VerifyError) as e:
        yield str(e)
        return
    for i, (t, v) in enumerate(zip(types, node.outputs, strict=True)):
        if v and g.types[v] != t:
            yield f"output {i}, {v!r}, is declared {g.types[v]}, but computes {t}"
    ins = tuple(g.types[v] if v else None for v in node.inputs)
    yield from check_node(NodeFacts(node, ins, types, known))
    if node.domain == INTERNAL_DOMAIN:
        yield from _checked_bodies(node, ins)


_sound: dict[object, tuple[str, ...]] = {}


def _checked_bodies(node: Node, ins: tuple[TensorType | None, ...]) -> tuple[str, ...]:
    """What is wrong with the definition of an internal op on these types; remembered."""
    key = (node.key, ins, len(node.outputs))
    if key not in _sound:
        if len(_sound) > 10_000:
            _sound.clear()
        try:
            body = body_graph(node, ins)
            _sound[key] = tuple(f"in its definition, {p.what}" for p in _graph(body, ""))
        except (InferenceError, NotStatic, VerifyError) as e:
            _sound[key] = (f"in its definition, {e}",)
    return _sound[key]


def _form(node: Node) -> Iterator[str]:
    """Operator, arity and attributes, by the schema."""
    if node.domain == INTERNAL_DOMAIN:
        if node.op not in INTERNAL_OPS:
            yield "there is no internal operator of that name"
        return
    if node.op == GRADIENT:
        yield from _gradient_form(node)
        return
    s = schema(node.op)
    if s is None:
        yield f"there is no operator {node.op!r} at the opset of the IR"
        return
    if s.deprecated:
        yield "the operator is deprecated"
    yield from _arity("input", node.inputs, s.min_input, s.max_input)
    yield from _arity("output", node.outputs, s.min_output, s.max_output)
    for i, (v, formal) in enumerate(zip(node.inputs, s.inputs, strict=False)):
        if not v and formal.option == OpSchema.FormalParameterOption.Single:
            yield f"input {i} ({formal.name}) is required"
    variadic = s.inputs and s.inputs[-1].option == OpSchema.FormalParameterOption.Variadic
    if variadic and "" in node.inputs[len(s.inputs) - 1 :]:
        yield "an operand is absent"
    yield from _attributes(node.attrs, s)


def _arity(what: str, values: tuple[str, ...], least: int, most: int) -> Iterator[str]:
    if not least <= len(values) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}" if most < 1000 else f"{least} or more"
        yield f"{len(values)} {what}s where {wanted} are expected"


_KINDS: dict[str, tuple[type, bool]] = {
    "FLOAT": (float, False),
    "INT": (int, False),
    "STRING": (str, False),
    "TENSOR": (Tensor, False),
    "GRAPH": (Graph, False),
    "FLOATS": (float, True),
    "INTS": (int, True),
    "STRINGS": (str, True),
}


def _attributes(attrs: Mapping[str, Attr], s: OpSchema) -> Iterator[str]:
    for name, value in attrs.items():
        if name not in s.attributes:
            yield f"the operator has no attribute {name!r}"
            continue
        declared: Any = s.attributes[name].type  # an enumeration, which onnx's type stubs do not know
        kind = declared.name
        element, several = _KINDS.get(kind, (type(None), False))
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple) != several or not all(isinstance(v, element) for v in values):
            yield f"attribute {name!r} is {_shown(value)}, not of the kind {kind}"
    for name, a in s.attributes.items():
        if a.required and name not in attrs:
            yield f"attribute {name!r} is required"


def _shown(value: Attr) -> str:
    return repr(value)[:60] if isinstance(value, (int, float, str, tuple)) else f"a {type(value).__name__}"


def _gradient_form(node: Node) -> Iterator[str]:
    """Gradient(y, xs.., zs.., at..): `at` are the values of xs and zs at which to differentiate."""
    xs, zs = node.attr("xs", 0), node.attr("zs", 0)
    if set(node.attrs) - {"xs", "zs"} or type(xs) is not int or type(zs) is not int or xs < 1 or zs < 0:
        yield f"the attributes are {dict(node.attrs)}, not the numbers xs (at least 1) and zs"
    elif len(node.inputs) != 1 + 2 * (xs + zs) or "" in node.inputs:
        yield f"{len(node.inputs)} operands where y and twice the {xs} xs and {zs} zs are expected"
    elif len(node.outputs) > xs:
        yield f"{len(node.outputs)} outputs for {xs} xs"
