"""Parts of tensors; sums of gradients that are of different parts: side by side, not added up with zeros between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from compiler.passes.gradients.value import Value

Spans = Mapping[tuple[int, int], Value]
"""First and behind the last index along an axis -> what is there."""


@dataclass
class Sums:
    """Adds up gradients, and knows of those that it has seen which are zero but for parts along one axis."""

    _parts: dict[str, tuple[int, Spans]] = field(default_factory=dict)
    """Value -> the axis, and its parts."""

    def add(self, a: Value, b: Value) -> Value:
        """Their sum; a Concat, padded where it does not reach, if both are parts that together have no gap."""
        axis, parts = self._known(a)
        along, more = self._known(b)
        both = {**parts, **more}
        if not parts or not more or axis != along or not _disjoint([*parts, *more]):
            return a + b
        spans = sorted(both)
        if any(end != start for (_, end), (start, _) in pairwise(spans)):
            total = a + b
        else:
            first, *others = (both[s] for s in spans)
            begin, end = [0] * a.rank, [0] * a.rank
            begin[axis], end[axis] = spans[0][0], a.shape[axis] - spans[-1][1]
            total = padded(first.op("Concat", *others, axis=axis), begin, end)
        self._parts[total.name] = axis, both
        return total

    def _known(self, v: Value) -> tuple[int, Spans]:
        if v.name not in self._parts:
            self._parts[v.name] = _padded_part(v)
        return self._parts[v.name]


def _disjoint(spans: list[tuple[int, int]]) -> bool:
    spans = sorted(spans)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def _padded_part(v: Value) -> tuple[int, Spans]:
    """The axis along which a Pad has put zeros around a value, and where that is; no parts if it is none such."""
    node = v.b.producer(v.name)
    if node is None or node.op != "Pad" or len(node.inputs) != 2 or node.attr("mode", "constant") != "constant":
        return 0, {}
    pads = v.b.known(node.inputs[1])
    if pads is None or pads.min(initial=0) < 0:
        return 0, {}
    before, after = pads.reshape(2, -1).tolist()
    axes = [i for i, around in enumerate(zip(before, after, strict=True)) if any(around)]
    if len(axes) != 1:
        return 0, {}
    (axis,) = axes
    return axis, {(before[axis], v.shape[axis] - after[axis]): Value(v.b, node.inputs[0])}


def sliced(x: Value, starts: list[int], ends: list[int], axes: list[int]) -> Value:
    """A part of x; x itself if it is all of it."""
    if all(s == 0 and e == x.shape[a] for s, e, a in zip(starts, ends, axes, strict=True)):
        return x
    return x.op("Slice", x.ints(starts), x.ints(ends), x.ints(axes))


def padded(x: Value, begin: list[int], end: list[int]) -> Value:
    """X with zeros around it; negative numbers cut off."""
    if min((*begin, *end), default=0) < 0:
        axes = list(range(x.rank))
        ends = [d + min(e, 0) for d, e in zip(x.shape, end, strict=True)]
        x = sliced(x, [-min(b, 0) for b in begin], ends, axes)
    begin, end = [max(b, 0) for b in begin], [max(e, 0) for e in end]
    return x.op("Pad", x.ints([*begin, *end])) if any(begin) or any(end) else x
