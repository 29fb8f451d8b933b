"""fuse_optimizer: every spelling of an optimizer update becomes a step node; small variables share one."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.ir.graph import Graph
from compiler.passes.dce import dce
from compiler.passes.rewrite import Rewrite, with_bodies
from compiler.passes.scalars import Emitter
from compiler.passes.updates import Update, gated, step_updates
from compiler.passes.written import written_updates

SMALL = 16 * 1024
"""Elements up to which variables share a step node, if their hyper-parameters are the same."""


def fuse_optimizer(graph: Graph) -> Graph:
    """Turn updates written out in arithmetic into step nodes, and share these and the given steps out among nodes anew.

    A variable of more than SMALL elements has a node of its own; others share one if their scalars are the same. A step
    stands where its gradient and scalars exist and the old values have been read for the last time, so that it can be
    done in place and the gradient's memory be used again; it never moves past a reader of its results. What only the
    replaced arithmetic needed is removed.
    """
    updates = [u for i, node in enumerate(graph.nodes) for u in step_updates(graph, node, i)]
    taken = {v for u in updates for v in u.results if v}
    updates += [u for u in written_updates(graph) if taken.isdisjoint(u.results)]
    if not updates and not any(node.bodies for node in graph.nodes):
        return graph
    schedule = _Schedule(graph, [gated(graph, u) for u in updates])
    while misfits := schedule.misfits():
        schedule = _Schedule(graph, [u for u in schedule.updates if u not in misfits])
    return dce(_rebuilt(graph, schedule))


class _Schedule:
    """Which nodes stay and between which nodes the steps can stand, once `updates` replace their arithmetic.

    Positions are those of nodes in the old graph, -1 is before all; a step at position p stands right behind node p.
    """

    def __init__(self, graph: Graph, updates: Iterable[Update]):
        self.graph = graph
        self.updates = tuple(updates)
        self.position = {v: i for i, node in enumerate(graph.nodes) for v in node.results}
        self.by_result = {v: u for u in self.updates for v in u.results if v}
        self.live, self.needed = self._find_live()
        self.hoisted = self._find_hoisted()
        self.readers: dict[str, list[int]] = {}
        for i in sorted(self.live):
            for v in dict.fromkeys(graph.nodes[i].reads):
                self.readers.setdefault(v, []).append(i)
        for u in self.needed:
            for v in u.operands():
                if v in self.by_result:
                    self.readers.setdefault(v, []).append(u.at)

    def _find_live(self) -> tuple[set[int], list[Update]]:
        """Positions of the nodes, and the updates, that a binding of the graph needs."""
        live: set[int] = set()
        needed: dict[Update, None] = {}
        seen: set[str] = set()
        pending = list(self.graph.results)
        while pending:
            v = pending.pop()
            if v in seen:
                continue
            seen.add(v)
            if (u := self.by_result.get(v)) is not None:
                needed[u] = None
                pending.extend(u.operands())
            elif (i := self.position.get(v)) is not None:
                live.add(i)
                pending.extend(self.graph.nodes[i].reads)
        return live, [u for u in self.updates if u in needed]

    def _find_hoisted(self) -> set[int]:
        """Positions of the arithmetic on single numbers that the steps' scalars are made of: it moves to the front.

        A learning rate that depends on an iteration counter would else keep all steps waiting for the counter's place.
        """
        early: set[int] = set()
        for i in sorted(self.live):
            node = self.graph.nodes[i]
            single = not node.bodies and all(self.graph.type(v).size == 1 for v in node.results)
            if single and all(v not in self.position or self.position[v] in early for v in node.reads):
                early.add(i)
        hoisted: set[int] = set()
        pending = [v for u in self.needed for _, scalar in u.scalars for v in scalar.values()]
        while pending:
            at = self.position.get(pending.pop())
            if at in early and at not in hoisted:
                hoisted.add(at)
                pending.extend(self.graph.nodes[at].reads)
        return hoisted

    def place(self, value: str) -> int:
        """The position behind which a value exists."""
        at = self.position.get(value, -1)
        return -1 if at in self.hoisted else at

    def available(self, u: Update) -> int:
        """The first position at which all operands of a step exist."""
        if any(v in self.by_result for v in u.operands()):
            return u.at  # behind another step, wherever that will be
        return max((self.place(v) for v in u.operands()), default=-1)

    def deadline(self, u: Update) -> int:
        """Position of the first reader of a step's results."""
        return min((self.readers[v][0] for v in u.results if v in self.readers), default=len(self.graph.nodes))

    def ready(self, u: Update) -> int:
        """The position to prefer: available, and no reader of the old values follows that comes before the old step."""
        readers = (i for v in u.tensors for i in self.readers.get(v, ()) if i < u.at)
        return max(self.available(u), min(max(readers, default=-1), self.deadline(u) - 1))

    def misfits(self) -> set[Update]:
        """Updates in written arithmetic that cannot become one node: an operand depends on a result, or is a step."""
        return {
            u
            for u in self.needed
            if u.written and (self.available(u) >= self.deadline(u) or any(v in self.by_result for v in u.operands()))
        }

    def groups(self) -> dict[int, list[list[Update]]]:
        """The steps, at their positions: updates that become one node each."""
        placed: list[tuple[int, list[Update]]] = []
        open_groups: dict[object, tuple[int, int, list[Update]]] = {}
        for at, u in sorted(((self.ready(u), u) for u in self.needed), key=lambda pair: pair[0]):
            t, deadline = self.graph.type(u.tensors[0]), self.deadline(u)
            if t.size > SMALL or any(v in self.by_result for v in u.operands()):
                placed.append((at, [u]))
                continue
            key = (u.step.op, t.dtype, u.scalars)
            _, other, members = open_groups.pop(key, (at, deadline, []))
            if members and at >= other:
                placed.append((self.ready(members[-1]), members))
                members = []
            open_groups[key] = (at, min(deadline, other) if members else deadline, [*members, u])
        placed += [(at, members) for at, _, members in open_groups.values()]
        slots: dict[int, list[list[Update]]] = {}
        for at, members in sorted(placed, key=lambda pair: pair[0]):
            slots.setdefault(at, []).append(members)
        return slots


def _rebuilt(graph: Graph, schedule: _Schedule) -> Graph:
    rewrite, slots = Rewrite(graph), schedule.groups()
    emit = Emitter(rewrite.b, rewrite.names)
    for i in sorted(schedule.hoisted):
        rewrite.keep(graph.nodes[i])
    for members in (group for at in sorted(slots) for group in slots[at]):
        rewrite.b.origin = members[0].origin
        for name, scalar in members[0].scalars:
            if all(schedule.place(v) < 0 for v in scalar.values()):
                emit(scalar, name)
    for members in slots.get(-1, ()):
        _emit_step(rewrite, emit, members)
    for i, node in enumerate(graph.nodes):
        if i in schedule.live and i not in schedule.hoisted:
            rewrite.keep(with_bodies(node, fuse_optimizer))
        for members in slots.get(i, ()):
            _emit_step(rewrite, emit, members)
    return rewrite.build()


def _emit_step(rewrite: Rewrite, emit: Emitter, members: list[Update]) -> None:
    """One step node for updates that share step, scalars and dtype."""
    b, first = rewrite.b, members[0]
    step, scalars = first.step, dict(first.scalars)
    b.origin = first.origin
    inputs = [emit(scalars[name], name) if name in scalars else "" for name in step.scalars]
    for role in range(len(step.roles)):
        inputs += [rewrite.names[u.tensors[role]] for u in members]
    results = [u.results[role] for role in range(len(step.results)) for u in members]
    hints = [v or b.fresh("unused") for v in results]
    types = [rewrite.graph.type(u.tensors[0]) for _ in step.results for u in members]
    added = b.add(step.op, inputs, {}, hints, types=types)
    rewrite.names.update((old, new) for old, new in zip(results, added, strict=True) if old)
