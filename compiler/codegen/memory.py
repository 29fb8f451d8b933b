"""Where values live: lifetimes over the schedule, best-fit offsets in one arena, results over their operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MappingProxyType

from compiler.codegen.calls import Temp
from compiler.codegen.offsets import Pieces
from compiler.codegen.steps import renewed
from compiler.codegen.units import Schedule, Unit
from compiler.ir.graph import Graph, Node
from compiler.ir.types import TensorType
from compiler.runtime.layout import ARENA, CONST, STATE, padded


@dataclass(frozen=True, slots=True)
class Place:
    """An address: a block and an offset in it."""

    block: int
    offset: int


@dataclass(frozen=True, slots=True)
class Life:
    """When a value has memory of its own in the arena: from the position of a unit to before another one.

    value: "" for memory that only the unit at `start` works in. nbytes: with slack.
    """

    value: str
    nbytes: int
    start: int
    end: int


@dataclass
class Memory:
    """Places of all values that own memory (views lie where their root lies), and sizes of the blocks."""

    places: dict[str, Place] = field(default_factory=dict)
    inplace: dict[int, dict[str, str]] = field(default_factory=dict)
    """id of a unit -> output -> the input whose memory it takes over."""
    committed: set[str] = field(default_factory=set)
    """States whose new value is computed in their own memory."""
    temps: dict[tuple[int, str], Place] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    """Of all that has been in the arena; a result that takes over an operand's memory begins when that ends."""
    arena_bytes: int = 0
    state_bytes: int = 0
    const_bytes: int = 0


def positions(units: list[Unit]) -> Iterator[Unit]:
    """All units in the order of execution; one with bodies comes before the units of these, which come one by one."""
    for u in units:
        yield u
        for nested in u.inner:
            yield from positions(nested)


def state_offsets(types: Mapping[str, TensorType]) -> tuple[dict[str, int], int]:
    """Where states lie in their block, and its size: the same for all graphs that share them."""
    offsets, top = {}, 0
    for v, t in types.items():
        offsets[v] = top
        top += padded(t.nbytes)
    return offsets, top


FARTHEST = 4
"""Units, at most, for which what another one is done with stays."""


def lingering(s: Schedule, m: Memory) -> dict[int, int]:
    """Position of a unit -> that of a later one with which it may run together, if what it is done with stays so long.

    Each of them works piece by piece on what the one before it computes, and meanwhile the arena is not full. m: as it
    is without.
    """
    order = list(positions(s.units))
    gone, change = [0] * (len(order) + 2), [0] * (len(order) + 2)
    for life in m.lives:
        gone[life.end] += life.nbytes
        change[life.start] += life.nbytes
        change[life.end] -= life.nbytes
    live = list(accumulate(change))
    most, found = max(live), {}
    goes_on = [
        u.in_pieces and after.in_pieces and not {*map(s.root, u.writes)}.isdisjoint(map(s.root, after.reads))
        for u, after in pairwise(order)
    ]
    for at in range(len(goes_on)):
        end = at
        while end < min(at + FARTHEST, len(goes_on)) and goes_on[end] and live[end + 1] + gone[at + 1] <= most:
            end += 1
            live[end] += gone[at + 1]
            found[at] = end
    return found


def place(
    graph: Graph,
    s: Schedule,
    reserved: int,
    states: Mapping[str, TensorType],
    linger: Mapping[int, int] = MappingProxyType({}),
) -> Memory:
    """Give every value memory. reserved: bytes taken at the arena's start; states: all that share the block.

    linger: position of a unit -> that of the one up to which all stays that it is done with: see `lingering`.
    """
    m = Memory()
    offsets, m.state_bytes = state_offsets(states)
    for v in graph.states:
        m.places[v] = Place(STATE, offsets[v])
    shared: dict[tuple[int, TensorType], Place] = {}  # a constant that bodies read is one in each of them
    for v, c in s.consts.items():
        own = Place(CONST, m.const_bytes)
        m.places[v] = shared.setdefault((c.array.ctypes.data, c.type), own)
        if m.places[v] is own:
            m.const_bytes += padded(c.type.nbytes)
    placement = _Placement(graph, s, m, linger)
    placement.run()
    of_piece, m.arena_bytes = placement.pieces.offsets(reserved)
    settled = [Place(ARENA, offset) for offset in of_piece]
    m.places = {v: settled[p.offset] if p.block == ARENA else p for v, p in m.places.items()}
    m.temps = {key: settled[p.offset] for key, p in m.temps.items()}
    return m


class _Placement:
    """Gives out pieces; until all their lives are known, the offset of a place in the arena is its piece's number."""

    def __init__(self, graph: Graph, s: Schedule, m: Memory, linger: Mapping[int, int]) -> None:
        self.graph, self.s, self.m, self.linger = graph, s, m, linger
        self.pieces = Pieces()
        self.owned: dict[str, tuple[int, int]] = {}
        """Value -> its piece, and the position from which it has it."""
        self.order = list(positions(s.units))
        self.position = {id(u): i for i, u in enumerate(self.order)}
        self.keep = {s.root(v) for v in graph.results}
        self.read: dict[str, list[int]] = {}
        """Positions up to which the memory of a value is read, one for each unit that reads it."""
        self.end: dict[int, int] = {}
        """id of a unit -> position of the last unit in it."""
        self.last = self._last_reads()
        self.targets = self._state_targets()
        self.cycles = self._cycle_targets()

    def _last_reads(self) -> dict[str, int]:
        """Position after which the memory of a value is needed no more."""
        last: dict[str, int] = {}

        def walk(units: list[Unit]) -> int:
            end = 0
            for u in units:
                at = end = self.position[id(u)]
                for nested in u.inner:
                    end = max(end, walk(nested))
                self.end[id(u)] = end
                for v in u.reads:
                    until = end if v in u.held else at
                    last[self.s.root(v)] = max(last.get(self.s.root(v), 0), until)
                    self.read.setdefault(self.s.root(v), []).append(until)
                for v in u.writes:
                    last[v] = max(last.get(v, 0), end)
            return end

        walk(self.s.units)
        last.update((v, len(self.order)) for v in self.keep)
        return last

    def _state_targets(self) -> dict[str, str]:
        """Value -> the state that it updates, where it may be written over the state: after the last check."""
        checks = [i for i, u in enumerate(self.s.units) if u.checks]
        safe = {v for u in self.s.units[checks[-1] + 1 if checks else 0 :] for v in u.writes}
        targets: dict[str, str] = {}
        for state, v in self.graph.updates.items():
            if v in safe and v not in targets:
                targets[v] = state
        return targets

    def _cycle_targets(self) -> dict[str, tuple[str, int]]:
        """Value -> the carried value whose next value it is, if it may lie there; and where its last iteration ends.

        Only what the body itself computes, in each iteration: a branch, or a loop in the body, may be passed over. Not
        where what is carried is itself a slice that moves with a loop around: the place of a value does not move.
        """
        targets: dict[str, tuple[str, int]] = {}
        for u in self.order:
            if u.cycle is not None:
                written = {v for inner in u.cycle.body for v in inner.writes} - {*u.writes}
                for v, carried in u.cycle.carried:
                    root = self.s.root(v)
                    same = self.s.types[root].nbytes == self.s.types[carried].nbytes
                    moves = self.s.windows_of(carried)
                    if root in written and root not in targets and same and not moves:
                        targets[root] = self.s.root(carried), self.end[id(u)]
        return targets

    def run(self) -> None:
        leaving: dict[int, list[str]] = {}
        for v, at in self.last.items():
            leaving.setdefault(self._until(at), []).append(v)
        for v in self.graph.inputs:
            self._own(v, 0, self.pieces.take(self._size(v)))
        temps: dict[int, list[int]] = {}
        for at, u in enumerate(self.order):
            temps.setdefault(self._until(at), []).extend(self._temps(u, at))
            for v in u.writes:  # (a slice of what a loop stacks, the result of a branch, or a part is a view)
                root = self.s.root(v)
                if root not in self.m.places and v in self.s.views:  # the first part that is written
                    self._own(root, at, self.pieces.take(self._size(root)))
                elif root not in self.m.places:
                    self._place_output(u, at, v)
            for temp in temps.get(at, ()):
                self.pieces.give(temp)
            for v in leaving.get(at, ()):
                if v in self.owned:
                    self.pieces.give(self._leave(v, at + 1))
        for v in list(self.owned):
            self._leave(v, len(self.order))

    def _until(self, at: int) -> int:
        """The position of the unit up to which what the one at this position is done with has to stay."""
        return self.linger.get(at, at)

    def _size(self, v: str) -> int:
        return padded(self.s.types[v].nbytes)

    def _own(self, v: str, at: int, piece: int) -> None:
        self.owned[v] = piece, at
        self.m.places[v] = Place(ARENA, piece)

    def _leave(self, v: str, at: int) -> int:
        """Note the life of a value that ends before `at`; gives its piece."""
        piece, start = self.owned.pop(v)
        if start < at:
            self.m.lives.append(Life(v, self._size(v), start, at))
        return piece

    def _place_output(self, u: Unit, at: int, v: str) -> None:
        if u.step is not None and id(u) not in self.m.inplace:
            self._place_step(u, u.step, at)
            if v in self.m.places:
                return
        state = self.targets.get(v) if u.step is None else None
        if state is not None and self._over_state(u, at, v, state):
            self.m.places[v] = self.m.places[state]
            self.m.committed.add(state)
            return
        if v in self.cycles and self._over_carried(u, at, v, *self.cycles[v]):
            self.m.places[v] = self.m.places[self.cycles[v][0]]
            return
        donor = self._donor(u, at, v)
        if donor is not None:
            self.m.inplace.setdefault(id(u), {})[v] = donor
            self._own(v, at, self._leave(self.s.root(donor), at))
            return
        self._own(v, at, self.pieces.take(self._size(v)))

    def _place_step(self, u: Unit, node: Node, at: int) -> None:
        """All results of an optimizer step over their states, or none."""
        pairs = renewed(node)
        roots = {v: self.s.root(v) for _, v in pairs}
        reads = Counter(self.s.root(v) for v in node.reads)
        alone = all(
            self.targets.get(new) == roots[v]
            and self.last[roots[v]] == at
            and roots[v] not in self.keep
            and reads[roots[v]] == 1
            for new, v in pairs
        )
        self.m.inplace[id(u)] = dict(pairs) if alone else {}
        if alone:
            for new, v in pairs:
                self.m.places[new] = self.m.places[roots[v]]
                self.m.committed.add(roots[v])

    def _over_state(self, u: Unit, at: int, v: str, state: str) -> bool:
        """Whether `u` may write `v` into the memory of `state`: nobody reads the old value afterwards."""
        if self.last.get(state, -1) > at or state in self.keep:
            return False
        if self.last.get(state, -1) < at:
            return True
        if not self._takes_over(u, v, state):  # this unit reads the old value while it writes
            return False
        self.m.inplace.setdefault(id(u), {})[v] = next(r for r in u.reads if self.s.root(r) == state)
        return True

    def _over_carried(self, u: Unit, at: int, v: str, carried: str, end: int) -> bool:
        """Whether `u` may write `v`, the next value, into the memory of the carried value of this iteration."""
        last = max((p for p in self.read.get(carried, ()) if p <= end), default=-1)
        if last != at:
            return last < at
        if not self._takes_over(u, v, carried):
            return False
        self.m.inplace.setdefault(id(u), {})[v] = next(r for r in u.reads if self.s.root(r) == carried)
        return True

    def _donor(self, u: Unit, at: int, v: str) -> str | None:
        """An input of a fused loop whose memory its output can take over."""
        taken = self.m.inplace.get(id(u), {}).values()
        for r in u.over(v):
            root = self.s.root(r)
            if root in self.owned and r not in taken and self.last[root] == at and self._takes_over(u, v, root):
                return r
        return None

    def _takes_over(self, u: Unit, v: str, root: str) -> bool:
        """Whether a loop may write `v` where it reads `root`: each element from its own place, through one pointer."""
        same = [r for r in u.reads if self.s.root(r) == root]
        if len(same) != 1 or same[0] not in u.over(v) or not self.s.is_whole(same[0]):
            return False
        a, b = self.s.types[same[0]], self.s.types[v]
        return a.dtype == b.dtype and a.shape == b.shape

    def _temps(self, u: Unit, at: int) -> list[int]:
        """Take the memory that the calls of a unit work in; gives its pieces."""
        taken = []
        for call in u.calls:
            for a in call.args:
                if isinstance(a, Temp) and (key := (id(u), a.key)) not in self.m.temps:
                    taken.append(self.pieces.take(padded(a.nbytes)))
                    self.m.temps[key] = Place(ARENA, taken[-1])
                    self.m.lives.append(Life("", padded(a.nbytes), at, self._until(at) + 1))
        return taken
