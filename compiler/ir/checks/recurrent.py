"""RNN, GRU and LSTM: sizes by the input and by the recurrence weights."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.checks.base import NodeFacts, precondition, shown, wrong_shape
from compiler.ir.definitions.recurrent import ACTIVATION_DEFAULTS, FAMILIES, activation_names

DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@precondition(*FAMILIES)
def _recurrent(f: NodeFacts) -> Iterator[str]:
    ranks = [len(f.shape(i)) for i in range(3)]
    if ranks != [3, 3, 3]:
        yield f"X, W and R have the ranks {shown(ranks)}: 3 each are expected"
        return
    way = f.attr("direction")
    if way not in DIRECTIONS:
        yield f"direction is {way!r}, not one of {', '.join(DIRECTIONS)}"
        return
    yield from _activations(f, DIRECTIONS[way])
    yield from _sizes(f, DIRECTIONS[way])


def _sizes(f: NodeFacts, directions: int) -> Iterator[str]:
    family = FAMILIES[f.node.op]
    (length, batch, size), hidden = f.shape(0), f.shape(2)[2]
    if f.attr("layout"):
        length, batch = batch, length
    if (given := f.node.attr("hidden_size", hidden)) != hidden:
        yield f"hidden_size is {given}, R of shape {shown(f.shape(2))} is for {hidden}"
        return
    rows, state = family.gates * hidden, [directions, batch, hidden]
    if f.attr("layout"):
        state = [batch, directions, hidden]
    expected = {
        "W": [directions, rows, size],
        "R": [directions, rows, hidden],
        "B": [directions, 2 * rows],
        "sequence_lens": [batch],
        "initial_h": state,
        "initial_c": state,
        "P": [directions, 3 * hidden],
    }
    lengths = f.ints(4)
    if lengths and not 0 <= min(lengths) <= max(lengths) <= length:
        yield f"sequence_lens from {min(lengths)} to {max(lengths)} are not within {length} times"
    found = False
    for i, (name, shape) in enumerate(expected.items(), start=1):
        if f.has(i) and list(f.shape(i)) != shape:
            found = True
            yield f"{name} has the shape {shown(f.shape(i))}, where {shown(shape)} is expected"
    if not found:
        y = [batch, length, directions, hidden] if f.attr("layout") else [length, directions, batch, hidden]
        yield from wrong_shape(f, y)
        for i in range(1, 1 + family.states):
            yield from wrong_shape(f, state, i)


def _activations(f: NodeFacts, directions: int) -> Iterator[str]:
    family = FAMILIES[f.node.op]
    names = activation_names(family, f.node.attrs, directions)
    count = len(family.activations) * directions
    if len(names) != count:
        yield f"there are {len(names)} activations, where {count} are expected"
    if unknown := [name for name in names if name not in ACTIVATION_DEFAULTS]:
        yield f"{unknown[0]!r} is no activation; these are: {', '.join(ACTIVATION_DEFAULTS)}"
    if f.node.attr("clip", 0.0) < 0:
        yield f"clip is {f.node.attr('clip')}: a threshold is not negative"
