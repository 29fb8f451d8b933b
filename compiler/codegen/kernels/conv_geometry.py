"""Where a convolution reads and writes: attributes -> a plan of offsets, which the kernels follow without knowing why.

Space has three axes here (of size 1 in front for 1-D and 2-D). A *phase* is a set of output positions that use the
same taps of the kernel. Along an axis, its positions q give outputs o = q*out_step + out_start and read inputs
i = q*in_step + shift(tap):

- convolution: one phase with every tap, o = q, i = q*stride + tap*dilation - pad;
- transposed convolution: o + pad = i*stride + tap*dilation, so for r in [0, stride) one phase of the outputs
  o = q*stride + r - pad, with the taps whose tap*dilation is r modulo stride, i = q - tap*dilation // stride.

So a transposed convolution is a few ordinary ones without a multiplication by an inserted zero, and the data gradient
of a convolution costs what the convolution costs.

A kernel first copies the inputs that an image (or a chunk of its rows) needs to a *padded image*: zeros around, and
a row with in_step > 1 split into in_step parts, so that neighbouring positions always read neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product as cartesian
from math import prod
from typing import NamedTuple

from compiler.codegen.calls import Site
from compiler.codegen.kernels.common import in_space
from compiler.ir.windows import Window, transposed_windows, windows

PHASE = 11
"""Words of a phase before its taps, see `phases`."""

CACHE = 192 * 1024
"""Bytes of a padded image that should stay in a core's second-level cache."""


class Line(NamedTuple):
    """One phase along one axis: positions [first, end), and (tap, shift) of each tap they use."""

    first: int
    end: int
    out_step: int
    out_start: int
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Geometry:
    """The three axes of a convolution, forward or transposed."""

    axes: tuple[Window, Window, Window]
    transposed: bool = False

    def lines(self, axis: Window) -> list[Line]:
        """The phases along an axis that have outputs."""
        if not self.transposed:
            taps = tuple((t, t * axis.dilation - axis.before) for t in range(axis.kernel))
            return [Line(0, axis.out, 1, 0, taps)] if axis.out else []
        lines = []
        for r in range(axis.stride):
            first, end = -(-(axis.before - r) // axis.stride), -(-(axis.out + axis.before - r) // axis.stride)
            reach = [(t, -(t * axis.dilation // axis.stride)) for t in range(axis.kernel)]
            taps = tuple(p for p in reach if p[0] * axis.dilation % axis.stride == r)
            if first < end:
                lines.append(Line(first, end, axis.stride, r - axis.before, taps))
        return lines

    @property
    def input_size(self) -> int:
        """Elements of one channel of the input."""
        return prod(a.size for a in self.axes)

    @property
    def output_size(self) -> int:
        """Elements of one channel of the output."""
        return prod(a.out for a in self.axes)

    @property
    def taps(self) -> int:
        """Taps of the kernel: elements of the weights for one input and one output channel."""
        return prod(a.kernel for a in self.axes)

    @property
    def pointwise(self) -> bool:
        """Whether output position p depends on input position p alone."""
        return all(a.kernel == 1 and a.stride == 1 and a.before == 0 and a.size == a.out for a in self.axes)

    @property
    def thinned(self) -> Geometry | None:
        """The pointwise convolution of every stride-th position, if it reads (transposed: writes) no others."""
        coarse = [a.size if self.transposed else a.out for a in self.axes]
        fine = [a.out if self.transposed else a.size for a in self.axes]
        inside = all(0 <= (n - 1) * a.stride < m for a, n, m in zip(self.axes, coarse, fine, strict=True))
        if not inside or any(a.kernel > 1 or a.before for a in self.axes) or all(a.stride == 1 for a in self.axes):
            return None
        d, h, w = (Window(n, 1, 1, 1, 0, 0, n) for n in coarse)
        return Geometry((d, h, w), self.transposed)


@dataclass(frozen=True)
class Image:
    """The padded image of a chunk: positions [base + chunk*move, + count) of each axis.

    cut: the one axis that is cut in chunks, `step` positions each: its move and count; of the others the move is 0.
    origin: input coordinate of its first element for chunk 0; extent: elements along each axis; steps: in_step of
    each axis; used: of each in_step elements, the first so many are read; parts, part: a row is `parts` parts of `part`
    elements; channel: elements from one channel to the next.
    """

    cut: int
    step: int
    base: tuple[int, ...]
    counts: tuple[int, ...]
    chunks: int
    origin: tuple[int, ...]
    extent: tuple[int, ...]
    steps: tuple[int, ...]
    used: tuple[int, ...]
    part: int
    channel: int

    @property
    def parts(self) -> int:
        """Parts of a row: as many as positions take steps along it."""
        return self.steps[2]

    @property
    def moves(self) -> tuple[int, ...]:
        """Positions from one chunk to the next."""
        return tuple(self.step if i == self.cut else 0 for i in range(3))

    @property
    def row(self) -> int:
        """Elements of a row."""
        return self.parts * self.part

    def positions(self, box: Sequence[int]) -> int:
        """The most positions of a box (first d, h, w, end d, h, w) in one chunk."""
        return prod(min(e - f, c) for f, e, c in zip(box[:3], box[3:], self.counts, strict=True))

    def tap(self, shifts: Sequence[int]) -> int:
        """Offset of what a tap reads, from what the tap with shift `lowest` and part 0 reads at the same position."""
        d, h, w = (s - (o - b * st) for s, o, b, st in zip(shifts, self.origin, self.base, self.steps, strict=True))
        return (d * self.extent[1] + h) * self.row + w % self.parts * self.part + w // self.parts

    def words(self, geometry: Geometry) -> tuple[int, ...]:
        """What the kernel `pad` needs (conv_image.py): input extents, channel strides, origin, cut, extent, row."""
        sizes = tuple(a.size for a in geometry.axes)
        moves = tuple(m * st for m, st in zip(self.moves, self.steps, strict=True))
        row = (*self.extent, self.parts, self.part)
        return (*sizes, geometry.input_size, self.channel, *self.origin, *moves, *row, *self.steps[:2], *self.used)


def image(geometry: Geometry, channels: int, itemsize: int, least: int = 1, most: int = 1 << 40) -> Image:
    """The padded images for a number of channels.

    They are chunks of rows that fit the cache, if it takes at least `least` chunks, and have at most `most` positions
    (but always a row at least).
    """
    lines = [geometry.lines(a) for a in geometry.axes]
    steps = tuple(1 if geometry.transposed else a.stride for a in geometry.axes)
    first = [min((ln.first for ln in axis), default=0) for axis in lines]
    end = [max((ln.end for ln in axis), default=0) for axis in lines]
    shifts = [[s for ln in axis for _, s in ln.taps] or [0] for axis in lines]
    counts = [e - f for f, e in zip(first, end, strict=True)]
    cut = next((i for i in range(3) if counts[i] > 1), 2)
    spread = [max(s) - min(s) for s in shifts]
    full = [(c - 1) * st + sp + 1 for c, st, sp in zip(counts, steps, spread, strict=True)]
    slab = channels * itemsize * max(1, prod(full) // max(1, full[cut]))  # bytes of one index of the cut axis
    fit = max(1, (CACHE // max(1, slab) - spread[cut]) // steps[cut])
    fit = max(1, min(fit, most // max(1, prod(counts) // max(1, counts[cut]))))
    if fit < counts[cut] and fit < 4 * (spread[cut] + 1) // steps[cut]:  # mostly halo: rather leave the cache
        fit = min(max(fit, 4 * (spread[cut] + 1) // steps[cut]), max(1, most // max(1, prod(counts) // counts[cut])))
    chunks = max(-(-counts[cut] // fit), min(least, counts[cut]), 1)
    step = max(1, -(-counts[cut] // chunks))
    full[cut] = (step - 1) * steps[cut] + spread[cut] + 1
    part = -(-full[2] // steps[2])
    line = 64 // itemsize
    lines_of_channel = -(-full[0] * full[1] * steps[2] * part // line)
    return Image(
        cut,
        step,
        tuple(first),
        tuple(step if i == cut else counts[i] for i in range(3)),
        max(1, -(-counts[cut] // step)),
        tuple(f * st + min(s) for f, st, s in zip(first, steps, shifts, strict=True)),
        (full[0], full[1], full[2]),
        steps,
        tuple(min(st, sp + 1) for st, sp in zip(steps, spread, strict=True)),
        part,
        (lines_of_channel | 1) * line,  # odd: equal places of all channels must not meet in one set of the cache
    )


def phases(geometry: Geometry, img: Image) -> list[tuple[int, ...]]:
    """Words of each phase: positions, outputs, then its taps as (offset in the padded image, offset in the weights).

    (first d, h, w, end d, h, w, output offset of position 0, output steps d, h, w, number of taps, taps ...).
    """
    strides = [prod(a.out for a in geometry.axes[i + 1 :]) for i in range(3)]
    kernel = [prod(a.kernel for a in geometry.axes[i + 1 :]) for i in range(3)]
    found = []
    for lines in cartesian(*map(geometry.lines, geometry.axes)):
        taps = [
            (img.tap([s for _, s in taps]), sum(t * k for (t, _), k in zip(taps, kernel, strict=True)))
            for taps in cartesian(*(ln.taps for ln in lines))
        ]
        found.append(
            (
                *(ln.first for ln in lines),
                *(ln.end for ln in lines),
                sum(ln.out_start * st for ln, st in zip(lines, strides, strict=True)),
                *(ln.out_step * st for ln, st in zip(lines, strides, strict=True)),
                len(taps),
                *(v for tap in taps for v in tap),
            )
        )
    return found


def _three(site: Site, axes: Sequence[Window], out: Sequence[int]) -> tuple[Window, Window, Window]:
    """The axes with the extents that the output's type has: the kernels write that much memory and no more."""
    return in_space(site, [replace(a, out=o) for a, o in zip(axes, out, strict=True)])


def forward(site: Site, size: Sequence[int], kernel: Sequence[int], out: Sequence[int]) -> Geometry:
    """Geometry of a Conv (or ConvWeightGrad) whose input, weights and output (or dy) have these extents of space."""
    return Geometry(_three(site, windows(site.node, size, kernel), out))


def transposed(site: Site, size: Sequence[int], kernel: Sequence[int], out: Sequence[int]) -> Geometry:
    """Geometry of a ConvTranspose whose input, weights and output have these extents of space."""
    return Geometry(_three(site, transposed_windows(site.node, size, kernel), out), transposed=True)
