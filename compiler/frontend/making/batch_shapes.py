"""Operators that change shapes, or compute them: where the axis of samples goes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from compiler.frontend.making.batch_tracker import Mixed, N, Rule, Tracker, only_first, same
from compiler.frontend.making.facts import int_attribute
from compiler.ir.types import AnyArray


def _cast(t: Tracker, node: NodeProto) -> None:
    if node.input[0] in t.content:
        t.put(node, t.content[node.input[0]])
    else:
        same(t, node)


def _cast_like(t: Tracker, node: NodeProto) -> None:
    """Only the type of the second operand counts."""
    if node.input[0] in t.axis:
        t.set(node, t.axis[node.input[0]])


def _prefix(dims: list[int | str | None], axis: int) -> int | None:
    sizes = dims[:axis]
    return prod(d for d in sizes if isinstance(d, int)) if all(isinstance(d, int) for d in sizes) else None


def _new_axis(t: Tracker, node: NodeProto, out: list[int | str | None]) -> int | None:
    """Where a reshape puts the axis of samples: elements before it must be as many as they were. None: nowhere."""
    axis = t.axis[node.input[0]]
    before = t.dims(node.input[0])
    count = _prefix(before, axis)
    fits = [i for i, d in enumerate(out) if d == 1 and (_prefix(out, i) == count or (out[:i] == before[:axis]))]
    if axis in fits:
        return axis
    return fits[0] if fits else None


def _moved(t: Tracker, node: NodeProto, out: list[int | str | None]) -> int:
    """A reshape that, for one sample, moves its axis: for more it must be a Transpose, and becomes one. The axis."""
    axis = t.axis[node.input[0]]
    before = t.dims(node.input[0])
    rest = [i for i in range(len(before)) if i != axis]
    for new, d in enumerate(out):
        if d == 1 and [before[i] for i in rest] == out[:new] + out[new + 1 :]:
            node.op_type = "Transpose"
            t.replaced.add(node.input[1])
            del node.input[1:]
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("perm", [*rest[:new], axis, *rest[new:]]))
            return new
    raise Mixed(f"it makes {_shown(out)} of {_shown(before)}, in which the samples have no axis of their own")


def _shown(dims: list[int | str | None]) -> str:
    """Dims for a message; those that nothing is known of as ?."""
    return f"[{', '.join('?' if d is None or str(d).startswith('unk__') else str(d) for d in dims)}]"


def _reshape(t: Tracker, node: NodeProto) -> None:
    if node.input[0] not in t.axis:
        raise Mixed("the number of samples decides the shape of a constant")
    target = t.known(node.input[1])
    if target is None:
        raise Mixed("its shape is computed")
    out = t.dims(node.output[0])
    entries: list[Any] = target.reshape(-1).tolist()
    if len(entries) != len(out):
        raise Mixed("its shape is not known")
    axis = entries.index(N) if N in entries else _new_axis(t, node, out)
    if axis is None:
        t.set(node, _moved(t, node, out))
        return
    t.set(node, axis)
    copied = entries[axis] == 0 and not int_attribute(node, "allowzero", 0) and axis == t.axis[node.input[0]]
    if entries[axis] == N or copied:
        return
    free = [i for i, e in enumerate(entries) if e == -1]
    if free == [axis]:
        return
    if any(e == N for e in entries) or (free and not isinstance(out[free[0]], int)):
        raise Mixed("its shape is not known")
    new = [out[i] if e == -1 else e for i, e in enumerate(entries)]
    new[axis] = -1
    t.replace(node, 1, np.array(new, np.int64))


def _flatten(t: Tracker, node: NodeProto) -> None:
    axis = int_attribute(node, "axis", 1) % max(t.rank(node.input[0]), 1)
    own = only_first(t, node)
    if own == 0 and axis == 1:
        t.set(node, 0)
    else:
        before = t.dims(node.input[0])
        if all(d == 1 for i, d in enumerate(before[:axis]) if i != own) and own < axis:
            t.set(node, 0)
        else:
            raise Mixed("it makes one axis of the samples and another")


def axes_of(t: Tracker, node: NodeProto, position: int = 1) -> list[int] | None:
    """Axes from an attribute or an operand; None if there are none. Mixed: they are computed."""
    given = next((list(a.ints) for a in node.attribute if a.name == "axes"), None)
    if given is None and len(node.input) > position and node.input[position]:
        known = t.known(node.input[position])
        if known is None:
            raise Mixed("its axes are computed")
        given = [int(v) for v in known.reshape(-1)]
    return given


def _squeeze(t: Tracker, node: NodeProto) -> None:
    axes = axes_of(t, node)
    if node.input[0] in t.content:
        t.put(node, t.content[node.input[0]].reshape(()))
        return
    axis, rank = only_first(t, node), t.rank(node.input[0])
    if axes is None:
        raise Mixed("it removes every axis of size 1, so that of the samples")
    gone = {a % rank for a in axes}
    if axis in gone:
        raise Mixed("it removes the axis of samples")
    t.set(node, axis - sum(a < axis for a in gone))


def _unsqueeze(t: Tracker, node: NodeProto) -> None:
    axes = axes_of(t, node)
    if node.input[0] in t.content:
        t.put(node, t.content[node.input[0]].reshape(-1))
        return
    rank = t.rank(node.output[0])
    new = {a % rank for a in axes or []}
    t.set(node, [i for i in range(rank) if i not in new][only_first(t, node)])


def _concat(t: Tracker, node: NodeProto) -> None:
    over = int_attribute(node, "axis", 1)
    if not any(v in t.axis for v in node.input):
        parts = [t.known(v) for v in node.input]
        if any(p is None for p in parts):
            raise Mixed("a shape is computed")
        t.put(node, np.concatenate([p.reshape(-1) for p in parts if p is not None]))
        return
    axes = {t.axis.get(v, -1) for v in node.input}
    if len(axes) > 1 or -1 in axes:
        raise Mixed("it joins samples with what has a batch of 1 by itself")
    (axis,) = axes
    if over % t.rank(node.output[0]) == axis:
        raise Mixed("it is along the axis of samples")
    t.set(node, axis)


def _slice(t: Tracker, node: NodeProto) -> None:
    def part(name: str, position: int) -> list[int] | None:
        given = next((list(a.ints) for a in node.attribute if a.name == name), None)
        if given is None and len(node.input) > position and node.input[position]:
            known = t.known(node.input[position])
            if known is None:
                raise Mixed("what it takes is computed")
            given = [int(v) for v in known.reshape(-1)]
        return given

    starts, ends, axes, steps = (part(n, i) for i, n in enumerate(("starts", "ends", "axes", "steps"), 1))
    if node.input[0] in t.content:
        assert starts is not None
        assert ends is not None
        t.put(node, t.content[node.input[0]][starts[0] : ends[0] : (steps or [1])[0]])
        return
    axis, rank = only_first(t, node), t.rank(node.input[0])
    over = [a % rank for a in (axes if axes is not None else range(len(starts or [])))]
    if axis in over:
        raise Mixed("it is along the axis of samples")
    t.set(node, axis)


def _gather(t: Tracker, node: NodeProto) -> None:
    data, indices = node.input
    over = int_attribute(node, "axis", 0)
    if data in t.content:
        known = t.known(indices)
        if known is None:
            raise Mixed("a shape is computed")
        t.put(node, np.asarray(t.content[data][known.astype(np.int64)], object))
        return
    over %= max(t.rank(data), 1)
    if data in t.axis and indices not in t.axis and t.axis[data] != over:
        axis = t.axis[data]
        t.set(node, axis if axis < over else axis - 1 + t.rank(indices))
    elif indices in t.axis and data not in t.axis:
        t.set(node, over + t.axis[indices])
    else:
        raise Mixed("it is along the axis of samples")


def _shape(t: Tracker, node: NodeProto) -> None:
    dims = list(t.dims(node.input[0]))
    if not all(isinstance(d, int) for d in dims):
        raise Mixed("other dims are symbols")
    content: AnyArray = np.array(dims, object)
    content[t.axis[node.input[0]]] = N
    start = int_attribute(node, "start", 0)
    t.put(node, content[start : int_attribute(node, "end", len(dims))])


def _of_shape(t: Tracker, node: NodeProto) -> None:
    """ConstantOfShape and Expand."""
    shape = t.known(node.input[-1])
    own = t.axis.get(node.input[0]) if node.op_type == "Expand" else None
    if shape is None:
        if own is not None:
            raise Mixed("its shape is computed")
        return
    entries: list[Any] = shape.reshape(-1).tolist()
    if own is not None:
        rank = t.rank(node.output[0])
        axis = own + rank - t.rank(node.input[0])
        entry = entries[axis - rank + len(entries)] if axis - rank + len(entries) >= 0 else 1
        if entry not in (1, N) or (N in entries and entry != N):
            raise Mixed("it repeats the samples")
        t.set(node, axis)
    elif N in entries:
        t.set(node, entries.index(N) + t.rank(node.output[0]) - len(entries))


SHAPE_RULES: dict[str, Rule] = {
    **dict.fromkeys(["Cast", "Identity"], _cast),
    **dict.fromkeys(["Expand", "ConstantOfShape"], _of_shape),
    "CastLike": _cast_like,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Shape": _shape,
}
