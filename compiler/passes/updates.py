"""Optimizer updates, one variable each: what fuse_optimizer finds in a graph and shares out among step nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.definitions.optimizers import DUE, STEPS, Step
from compiler.ir.graph import Graph, Node, Origin
from compiler.passes.scalars import Scalar, scalar_of


@dataclass(frozen=True)
class Update:
    """One variable to take a step with: all values by the names of the old graph.

    scalars: by operand name; those that are absent are left out. tensors: by role. results: the values that the step's
    results are, by role ('' if nothing reads one). at: position of the last of the nodes that compute these now.
    written: whether these nodes are ordinary arithmetic, which may as well stay.
    """

    step: Step
    scalars: tuple[tuple[str, Scalar], ...]
    tensors: tuple[str, ...]
    results: tuple[str, ...]
    origin: Origin
    at: int
    written: bool = False

    def operands(self) -> list[str]:
        """All values of the graph that the step reads."""
        return [*self.tensors, *(v for _, scalar in self.scalars for v in scalar.values())]


def step_updates(graph: Graph, node: Node, at: int) -> list[Update]:
    """The updates that a step node stands for; [] for any other node."""
    step = STEPS.get(node.op)
    if step is None:
        return []
    n = step.variables(node)
    operands = zip(step.scalars, node.inputs, strict=False)
    scalars = tuple((name, scalar_of(graph, v)) for name, v in operands if v)
    return [
        Update(
            step,
            scalars,
            tuple(step.tensors(node.inputs, i)),
            tuple(node.output(role * n + i) for role in range(len(step.results))),
            node.origin,
            at,
        )
        for i in range(n)
    ]


def proposed(graph: Graph, state: str) -> tuple[str, str]:
    """(value, due) of a state that is bound to Where(due, value, state), (value, "") of another."""
    value = graph.updates.get(state, "")
    node = graph.producer(value)
    if node is not None and node.op == "Where" and node.inputs[2] == state and graph.type(node.inputs[0]).size == 1:
        return node.inputs[1], node.inputs[0]
    return value, ""


def gated(graph: Graph, u: Update) -> Update:
    """The update with the choice behind it, if all its results are taken, or not, together."""
    states = [u.tensors[u.step.roles.index(role)] for role in u.step.results]
    choices = [proposed(graph, state) for state in states]
    due = {condition for _, condition in choices}
    if u.results != tuple(value for value, _ in choices) or len(due) != 1 or "" in due or DUE in dict(u.scalars):
        return u
    results = tuple(graph.updates[state] for state in states)
    at = max(i for i, node in enumerate(graph.nodes) if not {*results}.isdisjoint(node.results))
    return replace(u, scalars=(*u.scalars, (DUE, scalar_of(graph, due.pop()))), results=results, at=at)
