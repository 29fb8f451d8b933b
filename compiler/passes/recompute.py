"""recompute: values are computed twice, rather than kept, until a step fits into a limit of memory.

It runs after all other passes, which would merge what is equal. A value that is large, alive where the most memory is
in use, and read again only later, can be dropped after its last reader before and be computed once more before its
next one, by the same operators from the same operands: so the results keep their bits. The pass is greedy: the most
bytes for the estimated time first, and what is expensive (convolutions, products of matrices) only if nothing else
helps. Every decision is measured by the planner itself; in the end, repeats without which it fits as well are undone.
The idea of trading time for memory is that of Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory
Cost" (2016); choosing by bytes and cost at the peak is our own heuristic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.errors import MemoryLimitError, Problem
from compiler.ir.graph import Graph
from compiler.passes.repeating import NEGLIGIBLE, Plan, Repeat, Repeats, cost_of, merged, repeated

Planner = Callable[[Graph], Plan]
"""Plans the memory of a graph: code generation's, which hands it in."""

UNDONE = 32
"""How many repeats are tried to be left out, in the end; each takes a plan."""

SMALLEST = 1024
"""The part of the peak that a value must be, to be repeated."""

SHOWN = 4
"""Values at the peak that a message tells."""


def recompute(graph: Graph, limit: int, planner: Planner) -> Graph:
    """The graph, changed so that its plan takes at most `limit` bytes. MemoryLimitError: that cannot be reached.

    Where the search for the limit gets stuck, the one for the least memory is asked: so all limits from `least` on are
    reached.
    """
    for aim in (limit, 0):
        found = _Search(graph, planner)
        if found.plan.total <= limit:
            return graph
        while found.plan.total > limit and found.lower(aim):
            pass
        if found.plan.total <= limit:
            return found.cheapest(limit)
    raise _unreachable(found, limit)


def least(graph: Graph, planner: Planner) -> int:
    """The smallest limit that `recompute` reaches."""
    found = _Search(graph, planner)
    while found.lower(0):
        pass
    return found.plan.total


class _Search:
    """The best graph so far, with its plan."""

    def __init__(self, graph: Graph, planner: Planner) -> None:
        self.graph, self.planner = graph, planner
        self.plan = planner(graph)
        self.copies: dict[str, str] = {}
        """Repeated value -> what it repeats, which may be repeated itself."""
        self.banned: set[tuple[str, int]] = set()
        """Repeats that did not help, by value and number of nodes of the graph."""

    def lower(self, limit: int) -> bool:
        """Take less memory, once: as many repeats together as are needed. Whether any did."""
        offers = Repeats(self.graph, self.plan)
        for expensive in (False, True):
            while chosen := self._choose(offers, limit, expensive):
                while chosen:
                    graph, copies = repeated(self.graph, self.plan, chosen)
                    plan = self.planner(graph)
                    if plan.total < self.plan.total:
                        self.graph, self.plan = graph, plan
                        self.copies |= copies
                        self.banned.clear()
                        return True
                    if len(chosen) == 1:
                        self.banned.add((chosen[0].value, chosen[0].first))
                    chosen = chosen[: len(chosen) // 2]
        return False

    def _choose(self, offers: Repeats, limit: int, expensive: bool) -> list[Repeat]:
        """Repeats that bring the plan below the limit, or as far as it goes, judged by the lives of values."""
        used = usage(self.plan)
        target = int(used.max()) - (self.plan.total - limit)
        least = max(NEGLIGIBLE, int(used.max()) // SMALLEST)
        chosen: list[Repeat] = []
        while int(used.max()) > target:
            peak = int(used.argmax())
            possible = [r for r in offers.at(peak, least, expensive=expensive) if self._possible(r, chosen)]
            if not possible:
                break
            best = max(possible, key=lambda r: r.gain(peak) / r.cost)
            chosen.append(best)
            used[best.before + 1 : best.first] -= best.nbytes
            for nbytes, end in best.kept.values():
                used[end : best.first + 1] += nbytes
        return chosen

    def _possible(self, r: Repeat, chosen: Sequence[Repeat]) -> bool:
        """Whether a repeat may join: none takes away what another one reads."""
        if (r.value, r.first) in self.banned:
            return False
        reads = {self.plan.roots[v] for node in r.nodes for v in node.reads}
        for other in chosen:
            others = {self.plan.roots[v] for node in other.nodes for v in node.reads}
            if other.value == r.value or other.value in reads or r.value in others:
                return False
        return True

    def cheapest(self, limit: int) -> Graph:
        """The graph without those repeats that it fits without, the costly ones first."""
        costs = {v: cost_of(node, self.graph) for node in self.graph.nodes for v in node.results if v in self.copies}
        for v in sorted(costs, key=lambda v: -costs[v])[:UNDONE]:
            node = self.graph.producer(v)
            if node is None:
                continue  # it went with another one
            if (names := self._earlier(v)) is None:
                continue
            graph = merged(self.graph, names)
            plan = self.planner(graph)
            if plan.total <= limit:
                self.graph, self.plan = graph, plan
        return self.graph

    def _earlier(self, v: str) -> dict[str, str] | None:
        """The results of the node of `v`, and for each the latest equal value before it."""
        node = self.graph.producer(v)
        assert node is not None
        names = {}
        for own in node.results:
            source = self._source(own)
            equal = [w for n in self.graph.nodes for w in n.results if self._source(w) == source]
            before = equal[: equal.index(own)]
            if not before:
                return None
            names[own] = before[-1]
        return names

    def _source(self, v: str) -> str:
        while v in self.copies:
            v = self.copies[v]
        return v


def usage(plan: Plan) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bytes of all values in the arena at each position."""
    ends = max((end for _, _, _, end in plan.lives), default=0)
    used = np.zeros(ends + 1, np.int64)
    for _, nbytes, start, end in plan.lives:
        used[start:end] += nbytes
    return used


def peak_of(plan: Plan) -> list[tuple[str, int]]:
    """Values in the arena when it is fullest, with their bytes, the largest first; "" is what one kernel works in."""
    at = int(usage(plan).argmax())
    return sorted(((v, n) for v, n, start, end in plan.lives if start <= at < end), key=lambda pair: -pair[1])


def _unreachable(found: _Search, limit: int) -> MemoryLimitError:
    largest = ", ".join(f"{repr(v) if v else 'working memory'} ({n} bytes)" for v, n in peak_of(found.plan)[:SHOWN])
    total = found.plan.total
    what = f"the step needs at least {total} bytes, the limit is {limit}: {total - limit} bytes over"
    what += f"; the largest values at its peak are {largest}" if largest else ""
    return MemoryLimitError(Problem(what, "", "give a higher limit, or a smaller batch"), total, limit)
