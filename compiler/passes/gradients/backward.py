"""Reverse-mode differentiation of what a builder holds: one walk back from y."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import Problem, UnsupportedError, VerifyError
from compiler.ir.bodies import expand, has_body
from compiler.ir.builder import Builder, where
from compiler.ir.graph import Node, Origin
from compiler.ir.infer import NotStatic
from compiler.ir.proto import schema
from compiler.passes.gradients.nature import INERT_INPUTS, ZERO
from compiler.passes.gradients.parts import Sums
from compiler.passes.gradients.rule import RULES, Call, NoRule, operands
from compiler.passes.gradients.value import Value


@dataclass(frozen=True)
class Replacement:
    """Nodes that compute what another node does in a form that can be differentiated.

    results: output of the replaced node -> value. differentiable: those through which gradients flow.
    """

    nodes: Sequence[Node]
    results: Mapping[str, str]
    differentiable: Mapping[str, str]


class Differentiator:
    """Adds to a builder the nodes that compute gradients of what it holds.

    points: the values that Gradient nodes name. A node without a rule is replaced by its body; as a builder only
    appends, `replacements` says which node to take out (by its first result) and which later nodes take its place.
    `labels`: names for values that the nodes here give. `problems`: every node on a path from a y to an x that cannot
    be differentiated.
    """

    def __init__(self, b: Builder, points: frozenset[str] = frozenset()):
        self.b = b
        self.points = points
        self.replacements: dict[str, Replacement] = {}
        self.labels: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._refused: set[str] = set()
        self._position: dict[str, int] = {}
        self._positioned = 0
        self._called: set[str] = set()
        self._names: set[str] = set()

    def gradients(self, y: str, xs: Sequence[str], cut: frozenset[str]) -> dict[str, str]:
        """Gradients of the sum of y with respect to those of `xs` that y depends on; x -> value of its type's slope.

        Nothing is differentiated beyond the values in `cut`, of which `xs` are some.
        """
        return self.pullback([(y, lambda: self.b.full(1, self.b.type(y).slope))], xs, cut)

    def pullback(
        self, seeds: Sequence[tuple[str, Callable[[], str]]], xs: Sequence[str], cut: frozenset[str]
    ) -> dict[str, str]:
        """What `gradients` gives, for several y, each with a function that gives the gradient that arrives at it."""
        path = self._path([y for y, _ in seeds], xs, cut)
        adjoints: dict[str, Value] = {}
        sums = Sums()
        for y, seed in seeds:
            if (at := path.resolve(y)) in path.active:
                arriving = Value(self.b, seed())
                adjoints[at] = sums.add(adjoints[at], arriving) if at in adjoints else arriving
        origin = self.b.origin
        for node in reversed(path.nodes):
            arrived = [adjoints.get(v) if v not in cut else None for v in node.outputs]
            if not any(arrived):
                continue
            for v, dy in zip(node.outputs, arrived, strict=True):
                if dy is not None:
                    self._label(dy.name, v)
            self.b.origin = Origin(node.origin.node, f"gradient of {node.op_type}")
            for i, contribution in self._apply(node, arrived, path.wanted(node), path):
                x = path.resolve(operands(node)[i])
                fitted = contribution.fit(self.b.shape(x))
                adjoints[x] = sums.add(adjoints[x], fitted) if x in adjoints else fitted
        self.b.origin = origin
        return {x: adjoints[path.resolve(x)].name for x in xs if path.resolve(x) in adjoints}

    def _apply(
        self, node: Node, arrived: Sequence[Value | None], wanted: frozenset[int], path: Path
    ) -> Iterable[tuple[int, Value]]:
        entry = RULES.get(node.op)
        if entry is None:
            self._refuse(node, "has no gradient rule", path)
            return self._unknown(node, wanted)
        call = Call(self.b, node, arrived, wanted, self.points)
        try:
            entry.rule(call)
        except NoRule as e:
            if e.problems:
                self.problems.extend(p for p in e.problems if p not in self.problems)
            else:
                self._refuse(node, f"has no gradient rule for this case: {e}", path, e.remedy)
            return self._unknown(node, wanted)
        if call.widened is not None:
            results = {v: new for v, new in zip(node.outputs, call.widened.outputs, strict=False) if v}
            self._replaced(node, Replacement((call.widened,), results, results))
        return call.given

    def _unknown(self, node: Node, wanted: frozenset[int]) -> list[tuple[int, Value]]:
        """Something in place of gradients that cannot be had, so that the problems of the nodes before are told too."""
        return [(i, Value(self.b, self.b.full(0, self.b.type(operands(node)[i]).slope))) for i in sorted(wanted)]

    def _path(self, ys: Sequence[str], xs: Sequence[str], cut: frozenset[str]) -> Path:
        """The nodes through which ys depend on xs, in program order, replaced where that is needed."""
        path = Path(self, xs, cut)
        for node in self.ancestors(ys, cut):
            path.visit(node)
        return path

    def ancestors(self, ys: Iterable[str], cut: frozenset[str]) -> list[Node]:
        """Nodes that ys depend on through floating-point values, in program order."""
        for node in self.b.nodes[self._positioned :]:
            self._position.update((v, self._positioned) for v in node.results)
            self._positioned += 1
        found: dict[int, Node] = {}
        seen = set(cut)
        pending = [*ys]
        while pending:
            v = pending.pop()
            if v in seen:
                continue
            seen.add(v)
            producer = self.b.producer(v)
            if producer is None or producer.op in ZERO or self._position[v] in found:
                continue
            found[self._position[v]] = producer
            pending.extend(r for r in producer.reads if self.b.type(r).is_float)
        return [found[i] for i in sorted(found)]

    def replacement(self, node: Node, wanted: frozenset[int]) -> Replacement | None:
        """What takes the place of a node so that it can be differentiated; None if it has a rule, or no body."""
        key = node.results[0]
        if key not in self.replacements:
            start, origin = len(self.b.nodes), self.b.origin
            self.b.origin = node.origin
            results = self._replace(node, wanted)
            self.b.origin = origin
            if results is None:
                return None
            differentiable = {v: r for v, r in results.items() if not _undifferentiable(node, v)}
            self._replaced(node, Replacement(tuple(self.b.nodes[start:]), results, differentiable))
        return self.replacements[key]

    def _replaced(self, node: Node, replacement: Replacement) -> None:
        self.replacements[node.results[0]] = replacement
        new = {v for n in replacement.nodes for v in n.results}
        for old, value in replacement.results.items():  # what takes the place of a value takes its name
            if value in new:
                self.labels.setdefault(value, self.labels.get(old, old))

    def _replace(self, node: Node, wanted: frozenset[int]) -> dict[str, str] | None:
        entry = RULES.get(node.op)
        if entry is not None and (form := entry.form(self.b, node)) is not None:
            return {v: r for v, r in zip(node.outputs, form, strict=False) if v}
        if entry is not None and not entry.by_body & wanted:
            lacking = [i for i in entry.saves(self.b, node) if not node.output(i)]
            if not lacking:
                return None
            names = [self.b.fresh(v) if v else "" for v in node.outputs]
            names += [""] * (max(lacking) + 1 - len(names))
            for i in lacking:
                names[i] = self.b.fresh(f"{node.results[0]}.{_output_name(node, i)}")
            added = self.b.add(node.op, node.inputs, node.attrs, names, node.captures, node.origin)
            return {v: added[i] for i, v in enumerate(node.outputs) if v}
        if not has_body(node.op):
            return None
        try:
            results = expand(self.b, node, node.inputs)
        except (VerifyError, NotStatic, UnsupportedError, KeyError):
            return None
        return {v: r for v, r in zip(node.outputs, results, strict=False) if v}

    def call(self, value: str, name: str) -> str:
        """Give a gradient the name that the model has for it; an Identity if it cannot be renamed."""
        if name in self._names:  # this is a copy of the Gradient, at another point
            name = self.b.fresh(name)
        self._names.add(name)
        if self._own(value) and value not in self._called:
            self._called.add(value)
            self.b.reserve([name])
            self.labels[value] = name
            return value
        return self.b.add("Identity", [value], outputs=[name])[0]

    def _label(self, dy: str, v: str) -> None:
        """Call the gradient of v `d_v`, if it is a value of its own."""
        if dy not in self.labels and self._own(dy):
            name = self.b.fresh(f"d_{self.labels.get(v, v)}")
            self.b.reserve([name])
            self.labels[dy] = name

    def _own(self, value: str) -> bool:
        """Whether the last `gradients` computes a value: it has no other name yet."""
        return self.b.producer(value) is not None and value not in self._position

    def _refuse(self, node: Node, why: str, path: Path, remedy: str = "") -> None:
        if node.results[0] in self._refused:
            return
        self._refused.add(node.results[0])
        xs = ", ".join(repr(x) for x in path.reaching(node))
        remedy = remedy or "leave such x out of Gradient, or list a tensor behind this node in its zs"
        self.problems.append(
            Problem(f"the gradient with respect to {xs} needs {node.op}, which {why}", where(node), remedy)
        )


class Path:
    """What depends on xs: grows node by node, in program order."""

    def __init__(self, owner: Differentiator, xs: Sequence[str], cut: frozenset[str]):
        self.owner, self.xs, self.cut = owner, xs, cut
        self.active: set[str] = set(xs)
        self.nodes: list[Node] = []
        self._visited: set[str] = set()
        self._alias: dict[str, str] = {}

    def resolve(self, v: str) -> str:
        """The value that stands for v where a node was replaced."""
        while v in self._alias and v not in self.cut:
            v = self._alias[v]
        return v

    def visit(self, node: Node) -> None:
        """Take in a node, or what replaces it, if it depends on xs."""
        pending = [node]
        while pending:
            node = pending.pop()
            if node.results[0] in self._visited:
                continue  # it came in place of another node already
            self._visited.add(node.results[0])
            wanted = self.wanted(node)
            if node.op in ZERO or not wanted:
                continue
            replacement = self.owner.replacement(node, wanted)
            if replacement is not None:
                self._alias.update(replacement.differentiable)
                pending.extend(reversed(replacement.nodes))
                continue
            self.nodes.append(node)
            self.active.update(v for v in node.results if self.owner.b.type(v).is_float and v not in self.cut)

    def wanted(self, node: Node) -> frozenset[int]:
        """The operands of a node through which it depends on xs."""
        inert = INERT_INPUTS.get(node.op, ())
        given = enumerate(operands(node))
        return frozenset(i for i, v in given if v and i not in inert and self.resolve(v) in self.active)

    def reaching(self, node: Node) -> list[str]:
        """Those of xs that a node depends on."""
        producers = {v: n for n in self.nodes for v in n.results}
        seen: set[str] = set()
        pending = [*node.reads]
        while pending:
            v = self.resolve(pending.pop())
            if v in seen:
                continue
            seen.add(v)
            if v not in self.cut and v in producers:
                pending.extend(producers[v].reads)
        return [x for x in self.xs if x in seen]


def _undifferentiable(node: Node, result: str) -> bool:
    """Outputs that the standard's schema calls non-differentiable though they depend on floating-point inputs."""
    return node.op == "BatchNormalization" and result != node.outputs[0]


def _output_name(node: Node, i: int) -> str:
    s = schema(node.op)
    return str(s.outputs[i].name) if s is not None else str(i)
