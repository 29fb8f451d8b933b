"""Elementwise work beside a node whose kernel goes over its elements anyway: done there, it needs no pass of its own.

A group of elementwise nodes that reads the first result of a node in `BEHIND`, or makes the first operand of one in
`BEFORE` or `REDUCTIONS`, joins that node's unit, if the two would run one after the other. The kernel gets functions,
as of `Joint`, and the bits stay what they are: every loop that sums remains as it was. As a rule this takes no more
memory, but it may take a little: operands of the first are in memory until the second has run, and a sum has parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from compiler.codegen.calls import LOWERINGS, Call, In, Joint, Listing, Out, Site, contiguous
from compiler.codegen.elementwise import wrap
from compiler.codegen.fuse import Group, Loop, broadcast_strides, collapse, formulas, inline_from, local_name, name_of
from compiler.codegen.kernels.reduce import computes
from compiler.codegen.native import ITEMSIZE, Inline
from compiler.codegen.units import Join, Schedule, Unit
from compiler.ir.graph import Node
from compiler.ir.types import TensorType

BEHIND, BEFORE = frozenset({"onnxc.BatchNorm"}), frozenset({"onnxc.BatchNormGrad"})
"""Ops whose kernels can do elementwise work with their first result, or for their first operand. Axis 1: channels."""

REDUCTIONS = frozenset(f"Reduce{op}" for op in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum"))
"""Ops whose kernels can compute the elements of their operand: those that read it once, so not ReduceLogSumExp."""

OPERAND, RESULT, FIRST, TABLE = 0, 5, 10, 23
"""Buffer numbers: those of the kernels in `BEFORE` for the first operand and result; the first one that kernels leave
free; that of the addresses."""

SMALL = 8
"""A value is small beside one of at least so many times its bytes."""


RUN = 128
"""Elements in a row, at least, after which a reduction may have to find its broadcast operands again. If it must every
10 elements it takes up to three times as long as with a loop of its own, every 64 as long."""


def join(units: list[tuple[int, Unit]], s: Schedule, keep: Collection[str]) -> list[tuple[int, Unit]]:
    """The units of a graph, each with its place in program order, after joining what can be. keep: as of `schedule`."""
    joining = _Joining(s, {s.root(v) for v in keep}, dict(enumerate(units)))
    for k in reversed(range(len(units))):  # of two results that a group adds, the later one takes it in
        node = units[k][1].nodes[0]
        if units[k][1].calls and node.op in BEHIND and node.outputs[0]:
            joining.behind(k, node, node.outputs[0])
        elif units[k][1].calls and node.op in BEFORE:
            joining.before(k, node, node.inputs[0])
    for k in reversed(range(len(units))):  # what a normalization could not take
        node = units[k][1].nodes[0]
        if units[k][1].calls and node.op in REDUCTIONS and computes(Site(node, s.types, s.consts)):
            joining.into(k, node, s.root(node.inputs[0]))
    return list(joining.units.values())


@dataclass
class _Joining:
    s: Schedule
    kept: set[str]
    """Roots of the values that must exist in memory."""
    units: dict[int, tuple[int, Unit]]
    producer: dict[str, int] = field(default_factory=dict)
    """Value -> key of the unit that writes it."""

    def __post_init__(self) -> None:
        self.producer = {v: k for k, (_, u) in self.units.items() for v in u.writes}

    def behind(self, k: int, node: Node, y: str) -> None:
        """Let a group that reads y join the unit k, which computes it."""
        unit = self.units[k][1]
        readers = [g for g, (_, u) in self.units.items() if y in u.reads and u.group is not None and u.join is None]
        for g in readers:
            group = self.units[g][1].group
            assert group is not None
            others = [v for v in group.inputs if v != y]
            if any(self.s.root(v) == y or self.producer.get(self.s.root(v)) == k for v in others):
                continue
            stored = y in self.kept or self._read(y, {g})
            if stored and not self._read(unit.reads[0], {k, g}):  # y could not take its place
                continue
            if self._fits(group, y, others) and self._near(k, g, y) and not self._waits(others, k):
                written = [*group.outputs, *([y] if stored else []), *(v for v in unit.writes if v != y)]
                joined = Unit([*unit.nodes, *group.nodes], _once(unit.reads, others), written, group)
                self._replace(k, g, joined, Join(node, y, stored, node.outputs[0]))
                return

    def before(self, k: int, node: Node, dy: str) -> None:
        """Let the group that computes dy join the unit k, which reads it."""
        g, unit = self.producer.get(dy, -1), self.units[k][1]
        group = self._group(g)
        others = [v for v in unit.reads if v != dy]
        if group is None or any(self.producer.get(self.s.root(v)) == g for v in others):
            return
        if self._fits(group, dy, group.inputs) and self._near(g, k, dy) and not self._waits(others, g):
            nodes, written = [*group.nodes, *unit.nodes], [*group.outputs, *unit.writes]
            joined = Unit(nodes, _once(group.inputs, others), written, group)
            self._replace(k, g, joined, Join(node, dy, stored=True, result=node.outputs[0]))

    def into(self, k: int, node: Node, x: str) -> None:
        """Let the group that computes x join the unit k, a reduction of it, whose other inputs are constants."""
        g, unit = self.producer.get(x, -1), self.units[k][1]
        group = self._group(g)
        if group is None or not self._reducible(group, node, x) or not self._near(g, k, x):
            return
        stored = x in self.kept or self._read(x, {k})
        written = [*(v for v in group.outputs if v != x or stored), *unit.writes]
        others = [v for v in unit.reads if self.s.root(v) != x]
        joined = Unit([*group.nodes, *unit.nodes], _once(group.inputs, others), written, group)
        self._replace(k, g, joined, Join(node, x, stored))

    def _group(self, g: int) -> Group | None:
        """The group of a unit that has joined no other."""
        return self.units[g][1].group if g in self.units and self.units[g][1].join is None else None

    def _read(self, v: str, but: Collection[int]) -> bool:
        """Whether units but these read the memory of a value."""
        root = self.s.root(v)
        return any(self.s.root(r) == root for h, (_, u) in self.units.items() if h not in but for r in u.reads)

    def _near(self, a: int, b: int, v: str) -> bool:
        """Whether unit b comes behind unit a, and only small values beside `v` are computed in between."""
        start, end = self.units[a][0], self.units[b][0]
        between = (w for at, u in self.units.values() if start < at < end for w in u.writes)
        return start < end and SMALL * sum(self.s.types[w].nbytes for w in between) <= self.s.types[v].nbytes

    def _fits(self, group: Group, v: str, operands: Sequence[str]) -> bool:
        """Whether the function of a group can find its operands beside the elements of a value."""
        shape = self.s.types[v].shape
        return (
            group.shape == shape
            and len(operands) + len(group.outputs) < TABLE - FIRST
            and all(r not in self.s.strided and _index(self.s.types[r], shape) for r in operands)
        )

    def _reducible(self, group: Group, node: Node, x: str) -> bool:
        """Whether a reduction can have the elements of its operand, or of x which it is a view of, from a group."""
        operand, loop = node.inputs[0], _loop(group, self.s)
        return (
            self.s.is_whole(operand)
            and self.s.types[operand].dtype == self.s.types[x].dtype
            and len(group.inputs) + len(group.outputs) < TABLE - FIRST
            and (len(loop.extents) == 1 or loop.extents[-1] >= RUN)
            and all(own[-1] in (0, 1) for own in loop.strides)
        )

    def _waits(self, values: Sequence[str], k: int) -> bool:
        """Whether unit k has to run before these values can be there."""
        todo, seen = list(values), set[int]()
        while todo:
            p = self.producer.get(self.s.root(todo.pop()))
            if p == k:
                return True
            if p is not None and p not in seen:
                seen.add(p)
                todo += self.units[p][1].reads
        return False

    def _replace(self, k: int, g: int, unit: Unit, join: Join) -> None:
        unit.join = join
        unit.calls = joined_calls(unit, self.s, {})
        self.units[k] = max(self.units[k][0], self.units[g][0]), unit
        del self.units[g]
        self.producer.update((v, k) for v in unit.writes)


def _once(*values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(v for some in values for v in some))


def _index(t: TensorType, shape: tuple[int, ...]) -> str:
    """Where the element of an operand lies that belongs to an element of the shape; "" if that cannot be said."""
    own = broadcast_strides(t, contiguous(t.shape), len(shape))
    if not any(own):
        return "0"
    if own == broadcast_strides(TensorType(t.dtype, shape), contiguous(shape), len(shape)):
        return "first + i"
    if own[1] != 1 or any((own[0], *own[2:])):
        return ""
    return "channel" if prod(shape[2:]) > 1 else "channel + i"


def joined_calls(u: Unit, s: Schedule, inplace: Mapping[str, str]) -> list[Call]:
    """The calls of a unit with a join. inplace: output -> the operand whose memory it takes over."""
    assert u.join is not None
    node = u.join.node
    make = _behind if node.op in BEHIND else _before if node.op in BEFORE else _into
    joint = make(u, s, inplace)
    return LOWERINGS[node.op](Site(node, s.types, s.consts, joint=joint))


def _behind(u: Unit, s: Schedule, inplace: Mapping[str, str]) -> Joint:
    """What becomes of an element of the result."""
    assert u.group is not None
    assert u.join is not None
    text = _Text(u.group, u.join.value, s, inplace)
    text.given("value")
    text.compute()
    for v in u.group.outputs:
        text.store(v, local_name(u.group, v))
    if u.join.stored:
        text.store(u.join.value, "value")
    name = name_of(u.group.nodes, "then")
    function = text.function(name, "value, table, first, i, channel", text.lines)
    return Joint(Listing(tuple(text.items)), function, function)


def _before(u: Unit, s: Schedule, inplace: Mapping[str, str]) -> Joint:
    """Where elements of the operand come from."""
    group, join = u.group, u.join
    assert group is not None
    assert join is not None
    homes = {join.value: OPERAND, join.result: RESULT}
    numbers = {inplace.get(v, v): number for v, number in homes.items()}
    text = _Text(group, join.value, s, inplace, numbers)
    text.compute()
    for v in group.outputs:
        text.store(v, local_name(group, v))
    address = f"return {text.addresses[join.value]} + {ITEMSIZE[s.types[join.value].dtype]} * first"
    parameters = "table, first, count, channel"
    lines = ["for i in range(count):", *(f"    {line}" for line in text.lines), address]
    function = text.function(name_of(group.nodes, "from"), parameters, lines)
    return Joint(Listing(tuple(text.items)), function, text.function("again", parameters, [address]))


def _into(u: Unit, s: Schedule, inplace: Mapping[str, str]) -> Joint:
    """Where a reduction's elements come from, which follow each other: in runs along the last axis of the group."""
    group, join = u.group, u.join
    assert group is not None
    assert join is not None
    x, loop = join.value, _loop(group, s)
    text = _Text(group, x, s, inplace, {inplace.get(x, x): OPERAND})
    written = [v for v in group.outputs if v != x or join.stored]
    behind = len(group.inputs) + sum(v not in inplace for v in written)  # the addresses: extents and strides
    words = list(loop.extents[1:])
    for v, strides in zip(group.inputs, loop.strides[1:], strict=True):
        terms = ["j + i"] if strides[-1] else []
        for k, step in enumerate(strides[:-1]):
            if step:
                terms.append(f"i{k} * T[{behind + len(words)}]")
                words.append(step)
        text.index[v] = "first + i" if strides == loop.strides[0] else " + ".join(terms) or "0"
    text.compute()
    for v in written:
        text.store(v, local_name(group, v))
    result = f"{text.addresses[x]} + {ITEMSIZE[s.types[x].dtype]} * begin" if join.stored else "room"
    if not join.stored:
        text.lines.append(f"p_{s.types[x].dtype}(room, {OPERAND})[first - begin + i] = {local_name(group, x)}")
    text.items += words
    run = ["for i in range(run):", *(f"    {line}" for line in text.lines)]
    if len(loop.extents) == 1:
        lines = ["first, run = begin, count", *run]
    else:
        *outer, n = (f"T[{behind + k}]" for k in range(len(loop.extents) - 1))
        place = [f"q, j = first // {n}, first % {n}", f"run = min({n} - j, begin + count - first)"]
        for k in range(len(outer), 0, -1):
            place.append(f"q, i{k} = q // {outer[k - 1]}, q % {outer[k - 1]}")
        runs = [*place, "i0 = q", *run, "first += run"]
        lines = ["first = begin", "while first < begin + count:", *(f"    {line}" for line in runs)]
    function = text.function(name_of(group.nodes, "from"), "table, room, begin, count", [*lines, f"return {result}"])
    return Joint(Listing(tuple(text.items)), function, function)


def _loop(group: Group, s: Schedule) -> Loop:
    """The axes of a group, those that are one as one; strides of a dense value first, then those of the inputs."""
    shape, rank = group.shape, len(group.shape)
    given = {v: s.strided[v].strides if v in s.strided else contiguous(s.types[v].shape) for v in group.inputs}
    dense = broadcast_strides(s.types[group.outputs[0]], contiguous(shape), rank)
    return collapse(shape, [dense, *(broadcast_strides(s.types[v], own, rank) for v, own in given.items())])


@dataclass
class _Text:
    """Source of a function over one element of a group; `items` of its table come about as it names them.

    numbers: values -> their buffers, where these are not free ones. index: inputs -> where their element lies.
    """

    group: Group
    value: str
    s: Schedule
    inplace: Mapping[str, str]
    numbers: Mapping[str, int] = field(default_factory=dict)
    index: dict[str, str] = field(default_factory=dict)
    items: list[In | Out | int] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def given(self, expression: str) -> None:
        """Let the value between the node and the group be this expression."""
        self.names[self.value] = "x"
        self.lines.append(f"xv = {wrap(expression, self.s.types[self.value].dtype)}")

    def compute(self) -> None:
        """Load what the group reads, and compute its nodes."""
        taken = {v: out for out, v in self.inplace.items()}
        for v in self.group.inputs:
            if v not in self.names:
                x = self.names[v] = f"x{len(self.items)}"
                self._point(v, Out(taken[v]) if v in taken else In(v))
                self.lines.append(f"{x}v = {self.pointers[v]}[{self._place(v)}]")
        body, self.constants = formulas(self.group, self.s.types, self.s.consts, self.names)
        self.lines += body

    def store(self, v: str, expression: str) -> None:
        """Write an element of a value, to its own memory or over an operand."""
        if v in self.inplace:
            self.addresses[v], self.pointers[v] = self.addresses[self.inplace[v]], self.pointers[self.inplace[v]]
        else:
            self._point(v, Out(v))
        self.lines.append(f"{self.pointers[v]}[first + i] = {expression}")

    def function(self, name: str, parameters: str, lines: Sequence[str]) -> Inline[..., Any]:
        """The function of these lines, which look things up in the table."""
        head = [f"def {name}({parameters}):", f"    T = p_i64(table, {TABLE})"]
        return inline_from(name, "\n".join([*head, *(f"    {line}" for line in lines)]) + "\n", self.constants)

    def _place(self, v: str) -> str:
        return self.index[v] if v in self.index else _index(self.s.types[v], self.group.shape)

    def _point(self, v: str, item: In | Out) -> None:
        self.addresses[v] = f"T[{len(self.items)}]"
        number = self.numbers.get(v, FIRST + len(self.items))
        self.pointers[v] = f"p_{self.s.types[v].dtype}({self.addresses[v]}, {number})"
        self.items.append(item)
