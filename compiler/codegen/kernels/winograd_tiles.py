"""What both uses of Winograd's minimal filtering share: reading inputs as tiles, and panels of output channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from compiler.codegen.kernels.conv_geometry import Geometry
from compiler.codegen.kernels.gemm_tile import parts, short_rows, tall_tiles
from compiler.codegen.native import (
    Inline,
    Kernel,
    Tile,
    i64,
    inline,
    kernel,
    make_micro,
    make_tile,
    per_target,
    tile_for,
)
from compiler.codegen.native.winograd import Filter, Matrix, make_spread, make_transform

GAIN = 1.05
"""How much faster than the direct sum a scheme must be by the estimate of its time."""
USUAL = 32
"""Images for which a scheme is chosen: other numbers of them then need no other kernels."""
SLACK = 32
"""Elements that may be read behind any value."""


class RowTime(NamedTuple):
    """Time of `make_inputs` for a row of tiles of a channel, in multiply-adds: to begin with, and for each tile."""

    row: int
    tile: int

    def time(self, scheme: Filter, geometry: Geometry, images: int, channels: int) -> int:
        """Of these channels of all images."""
        th, tw = tiles(scheme, geometry)
        return images * channels * th * (self.row + self.tile * tw)


def filtered(geometry: Geometry, dtype: str) -> bool:
    """Whether there is a scheme for these taps: 3 x 3 next to each other, at every position, in float32."""
    d, h, w = geometry.axes
    flat = d.kernel == 1 and d.stride == 1 and d.before == 0 and d.size == d.out == 1
    return dtype == "f32" and flat and all(x.kernel == 3 and x.stride == 1 and x.dilation == 1 for x in (h, w))


def fastest(times: Callable[[int], Mapping[Filter | None, float]], images: int) -> Filter | None:
    """The scheme that takes the least time for the usual number of images, None where the direct sum is the better way.

    times: of the schemes and, as None, of the direct sum, for a number of images. A scheme must be clearly faster than
    the direct sum, for these images too.
    """

    def gains(n: int) -> Mapping[Filter, float]:
        estimate = times(n)
        return {scheme: estimate[None] / (GAIN * t) for scheme, t in estimate.items() if scheme is not None}

    usual = gains(USUAL)
    best = max(usual, key=lambda scheme: usual[scheme])
    return best if usual[best] > 1 and gains(images)[best] > 1 else None


def tiles(scheme: Filter, geometry: Geometry) -> tuple[int, int]:
    """Rows and columns of tiles of an image's outputs."""
    return -(-geometry.axes[1].out // scheme.m), -(-geometry.axes[2].out // scheme.m)


class Panels(NamedTuple):
    """Output channels of a group in panels: how many there are, those of them with mr rows, and all their rows."""

    panels: int
    tall: int
    rows: int


def panels_of(cout: int, tile: Tile | None = None) -> Panels:
    """With short panels at the end where fewer rows are then wasted."""
    mr, less = parts("f32", tile).mr, short_rows("f32", tile)
    tall = tall_tiles(cout, mr, less)
    short = -(-max(0, cout - tall * mr) // less)
    return Panels(tall + short, tall, tall * mr + short * less)


def input_words(
    scheme: Filter, geometry: Geometry, channels: int, of_group: int, span: int, pitch: int
) -> tuple[int, ...]:
    """What `make_inputs` needs to transform `of_group` of `channels` channels, `span` rows of tiles at most.

    pitch: elements from one channel's tiles to the next. Words: input height and width, elements from one image to the
    next, row and column of the first tap, rows and columns of tiles, elements of a line of spread rows, pitch, elements
    from one of the a*a planes to the next.
    """
    _, h, w = geometry.axes
    th, tw = tiles(scheme, geometry)
    first = [axis.before - 2 if geometry.transposed else -axis.before for axis in (h, w)]
    plane = of_group * pitch + tile_for("f32").vl
    return (h.size, w.size, channels * h.size * w.size, *first, th, tw, line_of(scheme, geometry, span), pitch, plane)


def line_of(scheme: Filter, geometry: Geometry, span: int) -> int:
    """Elements of a line of `make_inputs`: `span` rows of an image's tiles and one more, at one place of a tile."""
    vl, (th, tw) = tile_for("f32").vl, tiles(scheme, geometry)
    return -(-(min(span, th) + 1) * tw // vl) * vl + vl


def spread_bytes(scheme: Filter, geometry: Geometry, span: int) -> int:
    """Bytes of the memory `spread` of `make_inputs`."""
    vl, (_, tw), a, m = tile_for("f32").vl, tiles(scheme, geometry), scheme.a, scheme.m
    return parts("f32").size * m * (2 * (-(-tw // vl) * vl + vl) + a * line_of(scheme, geometry, span))


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

    words: see `input_words`. x: the first of `channels` channels, of image 0. spread: memory for a row with zeros
    around, one of zeros, and for the rows of an image's channel: [m][n][line]. A line has the elements at one place of
    a row of m rows of an image after the other, those of all tiles next to each other, so that vectors take tiles from
    several rows. Writes run up to vl elements over the end of tiles: the next channel comes later, behind the last is
    slack.
    """
    _, _, size, number, ptr = parts("f32")
    vl, n = tile_for("f32").vl, len(matrix[0])
    transform, copy, part = make_transform(matrix, m), make_copy(), make_spread(m, n)
    factor, one, zero = make_tile(1, "f32"), number(1), number(0)

    @inline
    def clear(d: Any, u: int, line: int, tw: int) -> None:
        """Element u of a row is zero, in both tiles that it is of."""
        j, t = u % m, u // m
        if t < tw:
            d[j * line + t] = zero
        if j + m < n and t > 0:
            d[(j + m) * line + t - 1] = zero

    @kernel
    def winograd_inputs(lo: int, hi: int, x: int, words: int, channels: int, spread: int, v: int) -> None:
        s = i64(words, 0)
        height, width, image, h0, w0 = s[0], s[1], s[2], s[3], s[4]
        th, tw, line, pitch, plane = s[5], s[6], s[7], s[8], s[9]
        row = m * ((tw + vl - 1) // vl * vl + vl)
        left = min(max(0, -w0), row)
        end = max(left, min(row, width - w0))
        limit = (hi - 1) // th * image + channels * height * width + SLACK
        f = factor()
        ptr(f, 1)[0] = one
        zeros, lines = spread + size * row, spread + 2 * size * row
        e, nothing = ptr(spread, 2), ptr(zeros, 4)
        for j in range(left):  # beside the rows, for all channels
            e[j] = zero
        for j in range(end, row):
            e[j] = zero
        for j in range(row):
            nothing[j] = zero
        for c in range(channels):
            at = lo
            while at < hi:
                r0 = at % th
                count, h = min(th - r0, hi - at), h0 + m * r0
                first = at // th * image + c * height * width + h * width + w0
                for q in range(m * count + n - m):
                    source, to = first + q * width, lines + size * (q % m * n * line + q // m * tw)
                    beside = source >= 0 and source + row <= limit  # what is not in the image is read, and lost
                    start = x + size * source
                    if h + q < 0 or h + q >= height:
                        start, beside = zeros, False
                    elif not beside:
                        copy(f, start + size * left, spread + size * left, end - left)
                        start = spread
                    for t in range(0, tw, vl):
                        part(start + size * m * t, to + size * t, line)
                    if beside:
                        d = ptr(to, 3)
                        for u in range(left):
                            clear(d, u, line, tw)
                        for u in range(end, m * tw + n - m):
                            clear(d, u, line, tw)
                for t in range(0, count * tw, vl):
                    transform(lines + size * t, line, tw, v + size * (c * pitch + (at - lo) * tw + t), plane)
                at += count

    return winograd_inputs
