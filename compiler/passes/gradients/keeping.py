"""Where the backward pass of a loop has the values of the forward iterations from.

They become further stacked outputs of the forward node, but for what is cheaper: views and elementwise results whose
operands are there anyway are computed again, and what is the same in each iteration is computed once, outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from compiler.ir.builder import Builder
from compiler.ir.control import Iterated
from compiler.ir.evaluate import is_random
from compiler.ir.graph import Node
from compiler.passes.gradients.nested import Pulled, ancestors
from compiler.passes.gradients.rule import Call

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Expand"})
"""Ops whose results are not kept: their operand is, which is no larger."""

CHEAP = frozenset(
    {
        *("Add", "Sub", "Mul", "Neg", "Abs", "Sign", "Min", "Max", "Clip", "Relu", "Where", "Cast"),
        *("And", "Or", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    }
)
"""Elementwise ops that are computed again where their operands are there anyway."""


class Slices(NamedTuple):
    """A tensor of which each iteration has a slice: the axis, and whether the first iteration has the last one."""

    values: str
    axis: int = 0
    backward: int = 0


class Keeping:
    """Decides what the forward node stacks, and widens it by that.

    whole: value of the body -> the tensor that holds it for all iterations; to begin with, those that exist. way: the
    direction of rows that are added: that of the sequences, so that they can be read together. fixed: values that are
    the same in each iteration.
    """

    def __init__(self, r: Call, parts: Iterated, p: Pulled, whole: Mapping[str, Slices]):
        self.r, self.b, self.parts, self.p, self.graph = r, r.b, parts, p, p.graph
        self.way = 1 if parts.sequences and all(parts.sequence_reversed) else 0
        self.fixed = {*parts.body.captures, *self.graph.consts}
        for node in self.graph.nodes:
            if not is_random(node) and self.fixed.issuperset(node.reads):
                self.fixed.update(node.results)
        self.whole = {**self._stacked(), **whole}
        self._outer = dict(zip(parts.body.captures, r.node.captures, strict=True))
        self._saved: list[str] = []
        self._again: set[str] = set()  # first results of the nodes that are computed again

    def _stacked(self) -> dict[str, Slices]:
        """The values that the forward node stacks already, for copies what they copy."""
        parts, found = self.parts, dict[str, Slices]()
        outputs = zip(parts.stacked, parts.stacked_axes, parts.stacked_reversed, strict=True)
        first = len(self.p.forward) - len(parts.rows)
        for v, stacked in zip(self.p.forward[first:], outputs, strict=True):
            while (node := self.graph.producer(v)) is not None and node.op == "Identity":
                v = node.inputs[0]
            if stacked[0] and v not in self.fixed:
                found[v] = Slices(*stacked)
        return found

    def rows(self, v: str) -> str | None:
        """The tensor that holds the values of all iterations as rows in the direction `way`, if there is one."""
        whole = self.whole.get(v)
        return whole.values if whole is not None and whole[1:] == (0, self.way) else None

    def divide(self, roots: Sequence[str]) -> list[Node]:
        """The nodes of a backward body that computes `roots`; decides what of the forward iterations is saved."""
        position = {v: i for i, n in enumerate(self.graph.nodes) for v in n.results}
        primal = {n.results[0] for n in self.p.primal}
        needed = [n for n in ancestors(self.graph, roots) if n.results[0] not in self.fixed]
        backward = [n for n in needed if n.results[0] not in primal]
        own = {v for n in backward for v in n.results}
        read = {*roots}.union(*(n.reads for n in backward)) - own
        for v in sorted(read, key=lambda v: position.get(v, -1)):
            self._need(v)
        chosen = {n.results[0] for n in backward} | self._again
        return [n for n in self.graph.nodes if n.results[0] in chosen]

    def _need(self, v: str) -> None:
        """Make a value of the forward iteration available to the backward body."""
        node = self.graph.producer(v)
        if self._there(v):
            return
        if node is None or not (node.op in VIEWS or (node.op in CHEAP and all(map(self._there, node.reads)))):
            self._saved.append(v)
            return
        for operand in node.reads:
            self._need(operand)
        self._again.add(node.results[0])

    def _there(self, v: str) -> bool:
        """Whether a value is available without keeping anything more."""
        node = self.graph.producer(v)
        if node is not None and node.results[0] in self._again:
            return True
        if v in self.whole or v in self.fixed or v in self._saved:
            return True
        return node is None and v not in self.parts.state

    def widen(self) -> None:
        """Let the forward node stack what is saved, as far as its outputs do not hold that already."""
        node, parts = self.r.node, self.parts
        outputs, new = [*parts.final, *parts.stacked], self._saved
        if not new:
            return
        body = Builder(parts.body.name)
        names = {v: body.input(v, self.graph.type(v)) for v in parts.body.inputs}
        names.update((v, body.capture(v, self.graph.type(v))) for v in parts.body.captures)
        names.update((v, body.const(t, v)) for v, t in self.graph.consts.items())
        for n in self.p.primal:
            body.copy(n, names, self.graph)
        give_all(body, [names[v] for v in (*self.p.forward, *new)])
        attrs = {**node.attrs, "body": body.build()}
        if node.op == "Scan":
            attrs["scan_output_axes"] = [*parts.stacked_axes, *[0] * len(new)]
            attrs["scan_output_directions"] = [*parts.stacked_reversed, *[self.way] * len(new)]
        hints = [self.b.fresh(v) if v else "" for v in outputs] + [self.b.fresh(f"{v}.all") for v in new]
        added = self.b.add(node.op, node.inputs, attrs, hints, node.captures, node.origin)
        self.r.widened = self.b.nodes[-1]
        self.whole.update((v, Slices(rows, 0, self.way)) for v, rows in zip(new, added[len(outputs) :], strict=True))

    def outside(self, v: str) -> str:
        """A value that is the same in each iteration, in the graph around the node."""
        for node in ancestors(self.graph, [v]):
            if node.results[0] not in self._outer:
                for constant in self.graph.consts.keys() & {*node.reads} - self._outer.keys():
                    self._outer[constant] = self.b.const(self.graph.consts[constant])
                self.b.copy(node, self._outer, self.graph, self.b.origin)
        return self._outer[v] if v in self._outer else self.b.const(self.graph.consts[v])


def give_all(body: Builder, values: Iterable[str]) -> None:
    """Let a body give these values; copies of those that it is given itself, or has given before."""
    given: set[str] = set()
    for i, v in enumerate(values):
        copied = v in given or body.producer(v) is None
        given.add(v)
        body.output(f"y{i}", body.op("Identity", v) if copied else v)
