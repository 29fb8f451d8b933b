"""Ops that move elements without looking at them: sizes must add up exactly."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from compiler.ir.checks.base import NodeFacts, axes_of, bad_axes, broadcasts_to, precondition, shown, wrong_shape
from compiler.ir.slices import slice_range


@precondition("Reshape")
def _reshape(f: NodeFacts) -> Iterator[str]:
    old, asked = f.shape(0), f.ints(1) or []
    zero_copies = not f.attr("allowzero")
    if any(d == 0 and zero_copies and i >= len(old) for i, d in enumerate(asked)):
        yield f"the shape {shown(asked)} copies a dimension that the operand {shown(old)} has not"
        return
    new = [old[i] if d == 0 and zero_copies else d for i, d in enumerate(asked)]
    if new.count(-1) == 1:
        rest = prod(d for d in new if d != -1)
        if rest == 0 or prod(old) % rest:
            yield f"the elements of {shown(old)} cannot be arranged in the shape {shown(asked)}"
            return
        new[new.index(-1)] = prod(old) // rest
    if prod(new) != prod(old):
        yield f"{prod(old)} elements, those of {shown(old)}, do not fit the shape {shown(new)} of {prod(new)}"
    yield from wrong_shape(f, new)


@precondition("Flatten")
def _flatten(f: NodeFacts) -> Iterator[str]:
    shape, axis = f.shape(0), f.attr("axis")
    axis += len(shape) if axis < 0 else 0
    yield from wrong_shape(f, [prod(shape[:axis]), prod(shape[axis:])])


@precondition("Squeeze")
def _squeeze(f: NodeFacts) -> Iterator[str]:
    shape = f.shape(0)
    axes = f.ints(1)
    if axes is None:
        axes = [i for i, d in enumerate(shape) if d == 1]
    if problems := list(bad_axes(axes, len(shape))):
        yield from problems
        return
    gone = axes_of(axes, len(shape))
    yield from (f"axis {a} has {shape[a]} elements, not 1" for a in gone if shape[a] != 1)
    yield from wrong_shape(f, [d for i, d in enumerate(shape) if i not in gone])


@precondition("Unsqueeze")
def _unsqueeze(f: NodeFacts) -> Iterator[str]:
    shape, axes = f.shape(0), f.ints(1) or []
    rank = len(shape) + len(axes)
    if problems := list(bad_axes(axes, rank)):
        yield from problems
        return
    new, old = set(axes_of(axes, rank)), iter(shape)
    yield from wrong_shape(f, [1 if i in new else next(old) for i in range(rank)])


@precondition("Transpose")
def _transpose(f: NodeFacts) -> Iterator[str]:
    shape = f.shape(0)
    perm = f.node.attr("perm", tuple(reversed(range(len(shape)))))
    if sorted(perm) != list(range(len(shape))):
        yield f"perm {shown(perm)} is no order of the {len(shape)} axes of {shown(shape)}"
        return
    yield from wrong_shape(f, [shape[a] for a in perm])


@precondition("Concat")
def _concat(f: NodeFacts) -> Iterator[str]:
    shapes = [f.shape(i) for i in range(len(f.ins))]
    axis = axes_of([f.attr("axis")], len(shapes[0]))[0]
    for i, shape in enumerate(shapes):
        if shape[:axis] + shape[axis + 1 :] != shapes[0][:axis] + shapes[0][axis + 1 :]:
            yield f"operand {i}, {shown(shape)}, and operand 0, {shown(shapes[0])}, differ outside of axis {axis}"
            return
    total = sum(shape[axis] for shape in shapes)
    yield from wrong_shape(f, [*shapes[0][:axis], total, *shapes[0][axis + 1 :]])


@precondition("Split")
def _split(f: NodeFacts) -> Iterator[str]:
    shape, count = f.shape(0), len(f.node.outputs)
    axis = axes_of([f.attr("axis")], len(shape))[0]
    sizes = f.ints(1)
    if sizes is None:
        parts = f.node.attr("num_outputs", count)
        if parts != count:
            yield f"num_outputs is {parts}, but there are {count} outputs"
            return
        each = -(-shape[axis] // count)
        sizes = [each] * (count - 1) + [shape[axis] - each * (count - 1)]
    if len(sizes) != count or sum(sizes) != shape[axis] or min(sizes) < 0:
        yield f"the {shape[axis]} elements of axis {axis} cannot be split into {shown(sizes)} for {count} outputs"
        return
    for i, size in enumerate(sizes):
        yield from wrong_shape(f, [*shape[:axis], size, *shape[axis + 1 :]], i)


@precondition("Slice")
def _slice(f: NodeFacts) -> Iterator[str]:
    shape = f.shape(0)
    starts, ends = f.ints(1) or [], f.ints(2) or []
    axes = f.ints(3) if f.has(3) else list(range(len(starts)))
    steps = f.ints(4) if f.has(4) else [1] * len(starts)
    if axes is None or steps is None or len({len(starts), len(ends), len(axes), len(steps)}) != 1:
        yield "starts, ends, axes and steps have different lengths"
        return
    problems = list(bad_axes(axes, len(shape)))
    problems += ["a step is 0"] if 0 in steps else []
    if problems:
        yield from problems
        return
    new = list(shape)
    for a, start, end, step in zip(axes_of(axes, len(shape)), starts, ends, steps, strict=True):
        new[a] = len(slice_range(shape[a], start, end, step))
    yield from wrong_shape(f, new)


@precondition("Expand")
def _expand(f: NodeFacts) -> Iterator[str]:
    shape, asked = f.shape(0), f.ints(1) or []
    if any(d < 0 for d in asked):
        yield f"the shape {shown(asked)} has a negative dimension"
        return
    n = max(len(shape), len(asked))
    pairs = list(zip([1] * (n - len(shape)) + list(shape), [1] * (n - len(asked)) + asked, strict=True))
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        yield f"{shown(shape)} cannot be broadcast with {shown(asked)}"
        return
    yield from wrong_shape(f, [b if a == 1 else a for a, b in pairs])


@precondition("Tile")
def _tile(f: NodeFacts) -> Iterator[str]:
    shape, repeats = f.shape(0), f.ints(1) or []
    if len(repeats) != len(shape) or any(r < 0 for r in repeats):
        yield f"the repeats {shown(repeats)} are not one number, at least 0, for each axis of {shown(shape)}"
        return
    yield from wrong_shape(f, [d * r for d, r in zip(shape, repeats, strict=True)])


@precondition("Pad")
def _pad(f: NodeFacts) -> Iterator[str]:
    shape, pads, mode = f.shape(0), f.ints(1) or [], f.attr("mode")
    axes = f.ints(3) if f.has(3) else list(range(len(shape)))
    if axes is None or len(pads) != 2 * len(axes):
        yield f"{len(pads)} pads are given where twice the number of axes, {len(axes or ())}, is expected"
        return
    if problems := list(bad_axes(axes, len(shape))):
        yield from problems
        return
    new = list(shape)
    for i, a in enumerate(axes_of(axes, len(shape))):
        before, after = pads[i], pads[len(axes) + i]
        new[a] += before + after
        # what is cut off goes first: the pads of the other side have to find their elements in the rest
        rest = shape[a] + min(before, 0) + min(after, 0)
        most = max(before, after)
        if rest < 0 or new[a] < 0:
            yield f"pads of {before} and {after} cut more off axis {a} than its {shape[a]} elements"
        elif mode == "reflect" and most > 0 and most >= rest:
            yield f"a pad of {most} on axis {a} reflects more than its {rest} elements, the edge not counted"
        elif mode in ("edge", "wrap") and most > 0 and rest == 0:
            yield f"axis {a} has no element for the pad of {most}"
        elif mode == "wrap" and most > rest:
            yield f"a pad of {most} on axis {a} wraps around its {rest} elements more than once"
    yield from wrong_shape(f, new)


@precondition("ConstantOfShape")
def _constant_of_shape(f: NodeFacts) -> Iterator[str]:
    asked, value = f.ints(0) or [], f.attr("value")
    if value is not None and value.type.shape != (1,):
        yield f"the value is a {value.type}, not one element in a list"
    if any(d < 0 for d in asked):
        yield f"the shape {shown(asked)} has a negative dimension"
        return
    yield from wrong_shape(f, asked)


@precondition("Range")
def _range(f: NodeFacts) -> Iterator[str]:
    start, limit, delta = (float(v.item()) if (v := f.known(i)) is not None else 0.0 for i in range(3))
    if delta == 0 or not all(abs(v) < float("inf") for v in (start, limit, delta)):
        yield f"from {start:g} to {limit:g} in steps of {delta:g} is no finite range"


@precondition("DepthToSpace")
def _depth_to_space(f: NodeFacts) -> Iterator[str]:
    shape, block = f.shape(0), f.attr("blocksize")
    if len(shape) != 4 or block < 1 or shape[1] % (block * block):
        yield f"the channels of {shown(shape)} cannot be divided into blocks of {block} by {block}"


@precondition("SpaceToDepth")
def _space_to_depth(f: NodeFacts) -> Iterator[str]:
    shape, block = f.shape(0), f.attr("blocksize")
    if len(shape) != 4 or block < 1 or shape[2] % block or shape[3] % block:
        yield f"the rows and columns of {shown(shape)} cannot be divided into blocks of {block}"


@precondition("CenterCropPad")
def _center_crop_pad(f: NodeFacts) -> Iterator[str]:
    shape, asked = f.shape(0), f.ints(1) or []
    axes = f.node.attr("axes", tuple(range(len(shape))))
    yield from bad_axes(axes, len(shape))
    if len(asked) != len(axes) or any(d < 0 for d in asked):
        yield f"the shape {shown(asked)} is not one size, at least 0, for each of the axes {shown(axes)}"


@precondition("EyeLike")
def _eye_like(f: NodeFacts) -> Iterator[str]:
    if len(f.shape(0)) != 2:
        yield f"the operand {shown(f.shape(0))} is no matrix"


@precondition("PRelu")
def _prelu(f: NodeFacts) -> Iterator[str]:
    if not broadcasts_to(f.shape(1), f.shape(0)):
        yield f"the slope {shown(f.shape(1))} cannot be broadcast to {shown(f.shape(0))}"
