"""Movement of elements, of any dtype: Transpose, Expand, Slice, Concat, Split, Tile, DepthToSpace, Range, ..."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from compiler.codegen.calls import Call, Data, In, Out, Site, Words, contiguous, lowers
from compiler.codegen.kernels.common import item_size, known_ints, normalized
from compiler.codegen.kernels.index import bound_checks
from compiler.codegen.kernels.strided import BITS, Axis, copy_box
from compiler.codegen.native import ITEMSIZE, Kernel, f32, f64, i64, kernel, per_target, pointer
from compiler.ir.slices import slice_range
from compiler.ir.types import Tensor
from compiler.ir.types import numpy_dtype as numpy_dtype_of


def transposed(
    size: int, shape: Sequence[int], perm: Sequence[int], src: In, dst: Out, strides: Sequence[int] | None = None
) -> list[Call]:
    """The tensor of `shape` in src, dense or with strides, its axes permuted, densely to dst."""
    steps = contiguous([shape[p] for p in perm])
    source = strides or contiguous(shape)
    return copy_box(size, [Axis(shape[p], source[p], steps[i]) for i, p in enumerate(perm)], src, dst)


@lowers("Transpose")
def transpose(site: Site) -> list[Call]:
    """Attribute perm; reversed axes by default."""
    t = site.type(0)
    perm = site.attr("perm") or tuple(reversed(range(t.rank)))
    return transposed(item_size(t), t.shape, perm, site.read(0), site.write(), site.strides(0))


@lowers("DepthToSpace")
def depth_to_space(site: Site) -> list[Call]:
    """Blocks of channels become blocks of pixels; modes DCR and CRD."""
    t, b = site.type(0), site.attr("blocksize")
    n, c, h, w = t.shape
    if site.attr("mode") == "CRD":
        return transposed(item_size(t), (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3), site.read(0), site.write())
    return transposed(item_size(t), (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2), site.read(0), site.write())


@lowers("SpaceToDepth")
def space_to_depth(site: Site) -> list[Call]:
    """The inverse of DepthToSpace."""
    t, b = site.type(0), site.attr("blocksize")
    n, c, h, w = t.shape
    perm = (0, 1, 3, 5, 2, 4) if site.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return transposed(item_size(t), (n, c, h // b, b, w // b, b), perm, site.read(0), site.write())


@lowers("Expand")
def expand(site: Site) -> list[Call]:
    """Broadcast to the output's shape."""
    t, out = site.type(0), site.out()
    shape, source = (1,) * (out.rank - t.rank) + t.shape, (0,) * (out.rank - t.rank) + site.strides(0)
    box = [
        Axis(n, 0 if have == 1 else s, d)
        for n, have, s, d in zip(out.shape, shape, source, contiguous(out.shape), strict=True)
    ]
    return copy_box(item_size(t), box, site.read(0), site.write())


@lowers("Tile")
def tile(site: Site) -> list[Call]:
    """Each axis repeated as often as the output is longer."""
    t, out = site.type(0), site.out()
    box = []
    for n, m, s, d in zip(t.shape, out.shape, contiguous(t.shape), contiguous(out.shape), strict=True):
        box += [Axis(m // n if n else 0, 0, n * d), Axis(n, s, d)]
    return copy_box(item_size(t), box, site.read(0), site.write())


@lowers("Slice")
def slice_(site: Site) -> list[Call]:
    """Inputs data, starts, ends, axes, steps; the last four must be constants."""
    t, out = site.type(0), site.out()
    starts, ends = known_ints(site, 1, "starts"), known_ints(site, 2, "ends")
    axes = known_ints(site, 3, "axes") if site.has(3) else range(len(starts))
    steps = known_ints(site, 4, "steps") if site.has(4) else (1,) * len(starts)
    source = site.strides(0)
    step, at = [1] * t.rank, 0
    for axis, start, end, by in zip((normalized(a, t.rank) for a in axes), starts, ends, steps, strict=True):
        at += slice_range(t.shape[axis], start, end, by).start * source[axis]
        step[axis] = by
    box = [Axis(n, s * by, d) for n, s, by, d in zip(out.shape, source, step, contiguous(out.shape), strict=True)]
    return copy_box(item_size(t), box, site.read(0), site.write(), at if out.size else 0)


def _corners(sizes: Iterable[int]) -> Iterable[int]:
    """Where parts that follow each other along an axis begin."""
    return accumulate(sizes, initial=0)


@lowers("Concat")
def concat(site: Site) -> list[Call]:
    """Attribute axis. A call for each input, on disjoint parts of the output."""
    out, count = site.out(), len(site.node.inputs)
    axis, steps, size = normalized(site.attr("axis"), out.rank), contiguous(out.shape), item_size(out)
    calls = []
    for i, corner in zip(range(count), _corners(site.type(i).shape[axis] for i in range(count)), strict=False):
        box = [Axis(*a) for a in zip(site.type(i).shape, site.strides(i), steps, strict=True)]
        calls += copy_box(size, box, site.read(i), site.write(), dst_at=corner * steps[axis])
    return calls


@lowers("Split")
def split(site: Site) -> list[Call]:
    """Attribute axis; input split or attribute num_outputs: the sizes. Outputs may be absent."""
    t, count = site.type(0), len(site.node.outputs)
    axis, steps = normalized(site.attr("axis", 0), t.rank), site.strides(0)
    sizes = site.ints(1)
    if sizes is None:
        whole = -(-t.shape[axis] // site.attr("num_outputs", count))
        sizes = tuple(max(0, min(whole, t.shape[axis] - i * whole)) for i in range(count))
    calls = []
    for i, (n, corner) in enumerate(zip(sizes[:count], _corners(sizes), strict=False)):
        if site.node.outputs[i]:
            shape = (*t.shape[:axis], n, *t.shape[axis + 1 :])
            box = [Axis(*a) for a in zip(shape, steps, contiguous(shape), strict=True)]
            calls += copy_box(item_size(t), box, site.read(0), site.write(i), src_at=corner * steps[axis])
    return calls


@lowers("ConstantOfShape")
def constant_of_shape(site: Site) -> list[Call]:
    """Attribute value: a tensor of one element, float32 zero by default."""
    value = site.attr("value")
    out = site.out()
    one = Tensor(np.zeros(1, np.float32) if value is None else value.array.reshape(1))
    return copy_box(item_size(out), [Axis(out.size, 0, 1)], Data(one), site.write())


@per_target
def make_eye(size: int) -> Kernel:
    """Rows of a matrix that is `one` (bits) where column - row = k, else zero bits."""
    ptr = pointer(BITS[size])

    @kernel
    def eye(lo: int, hi: int, dst: int, columns: int, k: int, one: int) -> None:
        d = ptr(dst + size * lo * columns, 0)
        for i in range((hi - lo) * columns):
            d[i] = 0
        for r in range(hi - lo):
            at = lo + r + k
            if 0 <= at < columns:
                d[r * columns + at] = one

    return eye


@lowers("EyeLike")
def eye_like(site: Site) -> list[Call]:
    """Attribute k; the input gives its shape only."""
    out = site.out()
    rows, columns = out.shape
    size = item_size(out)
    one = int(np.ones(1, numpy_dtype_of(out.dtype)).view(f"u{size}")[0])
    return [Call(make_eye(size), rows, (site.write(), columns, site.attr("k", 0), one))] if out.size else []


@per_target
def make_trilu(size: int) -> Kernel:
    """Rows of stacked matrices with the part above (upper = 0) or below (upper = 1) diagonal k zeroed."""
    ptr = pointer(BITS[size])

    @kernel
    def trilu(lo: int, hi: int, src: int, dst: int, diagonal: int, rows: int, columns: int, upper: int) -> None:
        k = i64(diagonal, 2)[0]
        k = min(max(k, -rows), columns)
        for u in range(hi - lo):
            row = lo + u
            s, d = ptr(src + size * row * columns, 0), ptr(dst + size * row * columns, 1)
            cut = min(max(row % rows + k + 1 - upper, 0), columns)  # kept: before it, or for upper from it on
            if upper:
                for i in range(cut):
                    d[i] = 0
                for i in range(cut, columns):
                    d[i] = s[i]
            else:
                for i in range(cut):
                    d[i] = s[i]
                for i in range(cut, columns):
                    d[i] = 0

    return trilu


@lowers("Trilu")
def trilu_(site: Site) -> list[Call]:
    """Attribute upper; k may be computed at run time."""
    t = site.type(0)
    if not t.size:
        return []
    rows, columns = t.shape[-2:]
    k = site.read(1) if site.has(1) else Words((0,))
    args = (site.read(0), site.write(), k, rows, columns, int(site.attr("upper")))
    return [Call(make_trilu(item_size(t)), t.size // columns, args)]


@per_target
def make_range(dtype: str) -> Kernel:
    """dst[i] = start + i * delta, in the dtype (f32 in double, rounded once)."""
    size = ITEMSIZE[dtype]
    ptr = pointer(dtype)
    if dtype in ("f32", "f64"):
        wide = f32 if dtype == "f32" else f64

        @kernel
        def range_float(lo: int, hi: int, start: int, delta: int, dst: int) -> None:
            first, step = np.float64(wide(start, 0)[0]), np.float64(wide(delta, 1)[0])
            d = wide(dst + size * lo, 2)
            for i in range(hi - lo):
                d[i] = first + np.float64(lo + i) * step

        return range_float

    @kernel
    def range_int(lo: int, hi: int, start: int, delta: int, dst: int) -> None:
        first, step = ptr(start, 0)[0], ptr(delta, 1)[0]
        d = ptr(dst + size * lo, 2)
        for i in range(hi - lo):
            d[i] = first + (lo + i) * step

    return range_int


@lowers("Range")
def range_(site: Site) -> list[Call]:
    """Inputs start, limit, delta; the output's shape is how many elements that gives."""
    out = site.out()
    return [Call(make_range(out.dtype), out.size, (site.read(0), site.read(2), site.write()))] if out.size else []


@per_target
def make_reverse(size: int) -> Kernel:
    """Rows (b, t) of `inner` elements, reversed over the first lengths[b] of t; the range counts rows."""
    ptr = pointer(BITS[size])

    @kernel
    def reverse_sequence(
        lo: int, hi: int, src: int, lengths: int, dst: int, batch: int, time: int, batch_first: int, inner: int
    ) -> None:
        count = i64(lengths, 1)
        for u in range(hi - lo):
            row = lo + u
            b, t = (row // time, row % time) if batch_first else (row % batch, row // batch)
            n = min(max(count[b], 0), time)  # whatever the lengths, no read outside
            t = n - 1 - t if t < n else t
            source = b * time + t if batch_first else t * batch + b
            s, d = ptr(src + size * source * inner, 0), ptr(dst + size * row * inner, 2)
            for i in range(inner):
                d[i] = s[i]

    return reverse_sequence


@lowers("ReverseSequence")
def reverse_sequence_(site: Site) -> list[Call]:
    """Attributes batch_axis and time_axis (0 and 1 in some order); lengths may be computed at run time."""
    t = site.type(0)
    if not t.size:
        return []
    batch_first = int(site.attr("batch_axis") == 0)
    batch, time = t.shape[:2] if batch_first else t.shape[1::-1]
    args = (site.read(0), site.read(1), site.write(), batch, time, batch_first, prod(t.shape[2:]))
    checks = bound_checks(site, 1, time, "length")
    return [*checks, Call(make_reverse(item_size(t)), batch * time, args)]
