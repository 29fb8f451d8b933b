"""What both uses of Winograd's minimal filtering share: reading inputs as tiles, and panels of output channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from compiler.codegen.kernels.conv_geometry import Geometry
from compiler.codegen.kernels.gemm_tile import parts, short_rows, tall_tiles
from compiler.codegen.native import Inline, Kernel, i64, inline, kernel, make_micro, make_tile, per_target, tile_for
from compiler.codegen.native.winograd import Filter, Matrix, make_spread, make_transform

GAIN = 1.05
"""How much faster than the direct sum a scheme must be by the estimate of its time."""
SLACK = 32
"""Elements that may be read behind any value."""


def filtered(geometry: Geometry, dtype: str) -> bool:
    """Whether there is a scheme for these taps: 3 x 3 next to each other, at every position, in float32."""
    d, h, w = geometry.axes
    flat = d.kernel == 1 and d.stride == 1 and d.before == 0 and d.size == d.out == 1
    return dtype == "f32" and flat and all(x.kernel == 3 and x.stride == 1 and x.dilation == 1 for x in (h, w))


def fastest(times: Mapping[Filter, int], direct: float) -> Filter | None:
    """The scheme that takes the least time, if that is clearly less than the time of the direct sum."""
    best = min(times, key=lambda scheme: times[scheme])
    return best if GAIN * times[best] < direct else None


def tiles(scheme: Filter, geometry: Geometry) -> tuple[int, int]:
    """Rows and columns of tiles of an image's outputs."""
    return -(-geometry.axes[1].out // scheme.m), -(-geometry.axes[2].out // scheme.m)


class Panels(NamedTuple):
    """Output channels of a group in panels: how many there are, those of them with mr rows, and all their rows."""

    panels: int
    tall: int
    rows: int


def panels_of(cout: int) -> Panels:
    """With short panels at the end where fewer rows are then wasted."""
    mr, less = parts("f32").mr, short_rows("f32")
    tall = tall_tiles(cout, mr, less)
    short = -(-max(0, cout - tall * mr) // less)
    return Panels(tall + short, tall, tall * mr + short * less)


def input_words(scheme: Filter, geometry: Geometry, channels: int, of_group: int, pitch: int) -> tuple[int, ...]:
    """What `make_inputs` needs to transform `of_group` of `channels` channels.

    pitch: elements from one channel's tiles to the next. Words: input height and width, elements from one image to the
    next, row and column of the first tap, rows and columns of tiles, elements of a padded row, pitch, elements from
    one of the a*a planes to the next.
    """
    _, h, w = geometry.axes
    vl = tile_for("f32").vl
    th, tw = tiles(scheme, geometry)
    first = [axis.before - 2 if geometry.transposed else -axis.before for axis in (h, w)]
    row = scheme.m * (-(-tw // vl) * vl + vl)
    return (h.size, w.size, channels * h.size * w.size, *first, th, tw, row, pitch, of_group * pitch + 16)


@per_target
def make_copy() -> Inline[[int, int, int, int], None]:
    """copy(one, src, dst, n): n floats, by vectors, none beyond; `one` is the address of the number 1."""
    _, _, size, _, ptr = parts("f32")
    vl = tile_for("f32").vl
    line = make_micro("f32", tile_for("f32")._replace(mr=1, nv=1))

    @inline
    def copy(one: int, src: int, dst: int, n: int) -> None:
        if n >= vl:
            for j in range(0, n - vl, vl):
                line(one, 0, 0, src + size * j, 0, 1, dst + size * j, 0)
            line(one, 0, 0, src + size * (n - vl), 0, 1, dst + size * (n - vl), 0)
        else:
            s, d = ptr(src, 20), ptr(dst, 21)
            for j in range(n):
                d[j] = s[j]

    return copy


@per_target
def make_inputs(matrix: Matrix, m: int) -> Kernel:
    """Rows [lo, hi) of tiles of all images: P d P', P = matrix [a, n], as [a*a][channel][tile]; tiles are m apart.

    words: see `input_words`. x: the first of `channels` channels, of image 0. padded: memory for the rows of one
    channel and one more; a row has zeros around, and its elements are spread: all that are first of their m, then all
    that are second, and so on, so that those at one place of neighbouring tiles are neighbours. Writes run up to vl
    elements over the end of the tiles: the next channel comes later, behind the last is slack.
    """
    _, _, size, number, ptr = parts("f32")
    vl, halo = tile_for("f32").vl, len(matrix[0]) - m
    transform, copy, spread = make_transform(matrix, m), make_copy(), make_spread(m)
    factor, one, zero = make_tile(1, "f32"), number(1), number(0)

    @kernel
    def winograd_inputs(lo: int, hi: int, x: int, words: int, channels: int, padded: int, v: int) -> None:
        s = i64(words, 0)
        height, width, image, h0, w0 = s[0], s[1], s[2], s[3], s[4]
        th, tw, row, pitch, plane = s[5], s[6], s[7], s[8], s[9]
        part = row // m
        wide = part - vl
        left = min(max(0, -w0), row)
        end = max(left, min(row, width - w0))
        used = m * tw + halo
        limit = (hi - 1) // th * image + channels * height * width + SLACK
        f = factor()
        ptr(f, 1)[0] = one
        line, rows = padded, padded + size * row
        e = ptr(line, 2)
        for j in range(left):  # beside the rows, for all channels
            e[j] = zero
        for j in range(end, row):
            e[j] = zero
        for c in range(channels):
            at = lo
            while at < hi:
                r0 = at % th
                n, h = min(th - r0, hi - at), h0 + m * r0
                first = at // th * image + c * height * width + h * width + w0
                for q in range(m * n + halo):
                    source, to = first + q * width, rows + size * q * row
                    d = ptr(to, 3)
                    if h + q < 0 or h + q >= height:
                        for j in range(row):
                            d[j] = zero
                    elif source >= 0 and source + row <= limit:  # of what is not in the image, the rows beside are read
                        for t in range(0, wide, vl):
                            spread(x + size * (source + m * t), to + size * t, part)
                        g = ptr(x + size * (source + m * wide), 2)
                        for j in range(halo):
                            d[j * part + wide] = g[j]
                        for j in range(left):
                            d[j % m * part + j // m] = zero
                        for j in range(end, used):
                            d[j % m * part + j // m] = zero
                    else:
                        copy(f, x + size * (source + left), line + size * left, end - left)
                        for t in range(0, wide, vl):
                            spread(line + size * m * t, to + size * t, part)
                        for j in range(halo):
                            d[j * part + wide] = e[m * wide + j]
                for r in range(n):
                    to = v + size * (c * pitch + (at - lo + r) * tw)
                    for t in range(0, tw, vl):
                        transform(rows + size * (m * r * row + t), row, to + size * t, plane)
                at += n

    return winograd_inputs
