"""The gradient of a convolution by its weights, by Winograd's minimal filtering: the adjoint of `conv_winograd`.

Y = A' [(G g G') * (B' d B)] A gives dg = G' [(B' d B) * (A dY A')] G, summed over all tiles of all images: a*a
products [output channels, tiles] by [tiles, input channels], of which only the sum is transformed.

Error. With u = 2**-24, an element differs from the exact gradient by at most k*u / (1 - k*u) times the sum over the
tiles of |G'| ((|B'| |d| |B|) * (|A| |dY| |A'|)) |G|. k = t + s + p + r counts the roundings of a term: t for the tiles
of a run, s for the runs of a part, p for the parts, and those of the transforms: of F(2 x 2) 2 for B, 2 for A and 4 for
G, so r = 8, of F(4 x 4) 8, 8 and 10, so r = 26. (Sources: see `conv_winograd`.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from compiler.codegen.calls import Call, Scratch, Site, Temp, Words
from compiler.codegen.kernels.common import read_only
from compiler.codegen.kernels.conv_geometry import Geometry
from compiler.codegen.kernels.gemm_tile import fitting, make_line, make_pack, parts, short_rows, tall_tiles
from compiler.codegen.kernels.winograd_tiles import (
    RowTime,
    fastest,
    filtered,
    input_words,
    make_inputs,
    panels_of,
    spread_bytes,
    tiles,
)
from compiler.codegen.native import (
    ITEMSIZE,
    Kernel,
    Tile,
    i64,
    kernel,
    make_micro_add,
    make_tile,
    per_target,
    tile_for,
    transpose_block,
)
from compiler.codegen.native.winograd import F2, F4, Filter, make_transform, transposed

CACHE = 288 * 1024
"""Bytes of transformed tiles, of both operands, that a run should stay within."""
LEAST = 32
"""Tiles of a run, at least: every run adds to all sums."""
WIDE = 64
"""Output channels of an item: each item transforms all input channels again."""
ITEMS = 8
"""Items to share out, by shape alone: the order of the sum must not depend on the number of threads."""
SUMS = 1280 * 1024
"""Bytes of the sums of all parts from which on half as many items must do: they are memory that a step needs."""
MOST = 16 * 1024 * 1024
"""Bytes that those of more than one part should stay within."""
INPUT_WORDS = 10
END = 6
"""Time to add up a part's sum at the end; see `choose`."""


@per_target
def make_winograd_weight(scheme: Filter, tile: Tile) -> Kernel:
    """Items [lo, hi) of the a*a sums: a part of the rows of tiles, for `wide` output channels of a group.

    plan: see `winograd_weight`. w: [group][block of channels][part][a*a][panel of input channels][wide][nr]. A run of
    `span` rows is one chain of multiply-adds; runs add up in order.
    """
    mr, nr, size, _, _ = parts("f32", tile)
    a, side, less = scheme.a, min(transpose_block(size), nr), short_rows("f32", tile)
    micro, short_micro = make_micro_add("f32", tile), make_micro_add("f32", tile._replace(mr=less))
    pack = make_pack("f32", tile)
    inputs, gradients = make_inputs(scheme.bt, scheme.m), make_inputs(transposed(scheme.at), scheme.m)

    @kernel
    def winograd_weight(lo: int, hi: int, x: int, dy: int, w: int, plan: int, scratch: int) -> None:
        s, g = i64(plan, 0), plan + 8 * INPUT_WORDS
        height, width, tw, pitch, plane = s[0], s[1], s[6], s[8], s[9]
        out_h, out_w, plane_g = s[10], s[11], s[19]
        cin, cout, rows, span, part_rows, count_parts = s[20], s[21], s[22], s[23], s[24], s[25]
        count_blocks, wide, panels = s[26], s[27], s[28]
        right = scratch + size * a * a * plane
        packed = (right + size * a * a * plane_g + 63) // 64 * 64
        spread = packed + size * pitch * nr
        for item in range(lo, hi):
            part, block = item % count_parts, item // count_parts
            group, o0 = block // count_blocks, block % count_blocks * wide
            some, sums = min(wide, cout - o0), w + size * item * a * a * panels * wide * nr
            cut = mr * tall_tiles(some, mr, less)
            first, end = part * part_rows, min(part * part_rows + part_rows, rows)
            for row0 in range(first, end, span):
                row1 = min(row0 + span, end)
                count = (row1 - row0) * tw
                inputs(row0, row1, x + size * group * cin * height * width, plan, cin, spread, scratch)
                gradients(row0, row1, dy + size * (group * cout + o0) * out_h * out_w, g, some, spread, right)
                for q in range(a * a):
                    for p in range(panels):
                        source = scratch + size * (q * plane + p * nr * pitch)
                        pack(0, (count + side - 1) // side * side, source, 1, pitch, min(nr, cin - p * nr), packed)
                        o = 0
                        while o < some:
                            to = sums + size * ((q * panels + p) * wide + o) * nr
                            left = right + size * (q * plane_g + o * pitch)
                            add = 0 if row0 == first else to
                            if o < cut:
                                micro(left, pitch, 1, packed, nr, count, to, nr, add, nr)
                                o += mr
                            else:
                                short_micro(left, pitch, 1, packed, nr, count, to, nr, add, nr)
                                o += less

    return winograd_weight


@per_target
def make_winograd_weight_end(scheme: Filter, tile: Tile) -> Kernel:
    """Output channels [lo, hi) of dw, of all groups: the parts added up in order, then G' W G."""
    _, nr, size, number, ptr = parts("f32", tile)
    a, vl = scheme.a, tile_for("f32").vl
    line, transform = make_line("f32", tile), make_transform(transposed(scheme.g))
    factor, nine = make_tile(1, "f32"), make_tile(9 * vl, "f32")
    one = number(1)

    @kernel
    def winograd_weight_end(lo: int, hi: int, w: int, dw: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        cin, cout, count_parts, count_blocks, wide, panels = s[20], s[21], s[25], s[26], s[27], s[28]
        stride = a * a * panels * wide * nr
        f, at = factor(), nine()
        ptr(f, 0)[0] = one
        taps = ptr(at, 1)
        for item in range(lo, hi):
            group, o = item // cout, item % cout
            first = (group * count_blocks + o // wide) * count_parts * stride + o % wide * nr
            for q in range(a * a * panels):
                line(f, 0, 0, w + size * (first + q * wide * nr), stride, count_parts, scratch + size * q * nr, 0)
            d = ptr(dw + size * item * cin * 9, 2)
            for c in range(0, cin, vl):
                transform(scratch + size * c, panels * nr, 0, at, vl)
                for v in range(min(vl, cin - c)):
                    for k in range(9):
                        d[(c + v) * 9 + k] = taps[k * vl + v]

    return winograd_weight_end


class Split(NamedTuple):
    """How the work is cut: output channels of an item, blocks of them, rows of tiles of a part and of a run."""

    wide: int
    blocks: int
    part_rows: int
    span: int


def split(scheme: Filter, geometry: Geometry, images: int, groups: int, cin: int, cout: int) -> Split:
    """By shapes alone."""
    tile, _ = fitting("f32", cin, whole=True)
    a, nr, size, (th, tw) = scheme.a, tile.nr, ITEMSIZE["f32"], tiles(scheme, geometry)
    wide = panels_of(-(-cout // -(-cout // WIDE)), tile).rows
    rows, blocks = images * th, -(-cout // wide)
    of_part = size * groups * blocks * a * a * -(-cin // nr) * wide * nr
    shares = min(rows, -(-ITEMS // (groups * blocks)))
    if shares * of_part > SUMS:
        shares = max(1, min(-(-shares // 2), MOST // of_part))
    part_rows = -(-rows // shares)
    most = max(1, max(LEAST, CACHE // (size * a * a * (cin + wide))) // tw)
    return Split(wide, blocks, part_rows, -(-part_rows // -(-part_rows // most)))


@dataclass(frozen=True)
class Cost:
    """Times to transform x and dy, or the weights of two channels for each lane, or to add a run to a sum."""

    x: RowTime
    dy: RowTime
    weights: int
    run: int

    def time(self, scheme: Filter, geometry: Geometry, images: int, groups: int, cin: int, cout: int) -> int:
        """Of the gradient of a group's weights."""
        vl, a = tile_for("f32").vl, scheme.a
        th, tw = tiles(scheme, geometry)
        wide, blocks, part_rows, span = split(scheme, geometry, images, groups, cin, cout)
        count_parts = -(-images * th // part_rows)
        terms = images * th * tw + count_parts * (-(-part_rows // span) * self.run + END)
        products = int(terms * a * a * fitting("f32", cin, whole=True)[1] * blocks * wide)
        x, dy = (c.time(scheme, geometry, images, n) for c, n in ((self.x, cin * blocks), (self.dy, cout)))
        return products + x + dy + self.weights * vl * cin * cout


COSTS = {F2: Cost(RowTime(950, 45), RowTime(680, 33), 25, 10), F4: Cost(RowTime(2240, 256), RowTime(1600, 192), 60, 20)}


def choose(geometry: Geometry, dtype: str, images: int, groups: int, cin: int, cout: int) -> Filter | None:
    """The scheme that is clearly the faster way, None if there is none; by an estimate as that of `conv_winograd`."""
    if not filtered(geometry, dtype) or not images * geometry.output_size * cin * cout:
        return None
    of_image = geometry.output_size * 9 * cin * fitting(dtype, cout)[1]

    def times(n: int) -> Mapping[Filter | None, float]:
        return {None: n * of_image, **{s: c.time(s, geometry, n, groups, cin, cout) for s, c in COSTS.items()}}

    return fastest(times, images)


def winograd_weight(site: Site, scheme: Filter, geometry: Geometry, cin: int, cout: int) -> list[Call]:
    """As `conv_weight.conv_weight_grad`, by a scheme. cin, cout: channels of a group."""
    tile, _ = fitting("f32", cin, whole=True)
    a, nr, size = scheme.a, tile.nr, ITEMSIZE["f32"]
    images, groups = site.type(0).shape[0], site.node.attr("group", 1)
    th, tw = tiles(scheme, geometry)
    wide, blocks, part_rows, span = split(scheme, geometry, images, groups, cin, cout)
    rows, panels = images * th, -(-cin // nr)
    pitch, count_parts = -(-span * tw // nr) * nr, -(-rows // part_rows)
    x_words = input_words(scheme, geometry, groups * cin, cin, span, pitch)
    out_h, out_w = (axis.out for axis in geometry.axes[1:])
    whole, line = groups * cout * out_h * out_w, x_words[7]
    dy_words = (out_h, out_w, whole, 0, 0, th, tw, line, pitch, wide * pitch + tile_for("f32").vl)
    words = (*x_words, *dy_words, cin, cout, rows, span, part_rows, count_parts, blocks, wide, panels)
    sums = Temp("sums", size * groups * blocks * count_parts * a * a * panels * wide * nr)
    nbytes = size * (a * a * (x_words[9] + dy_words[9]) + pitch * nr) + 64 + spread_bytes(scheme, geometry, span)
    args = (site.read(1), site.read(0), sums, Words(words), Scratch(nbytes))
    end = (read_only(sums), site.write(piece=size * cin * 9), Words(words), Scratch(size * a * a * panels * nr))
    return [
        Call(make_winograd_weight(scheme, tile), groups * blocks * count_parts, args),
        Call(make_winograd_weight_end(scheme, tile), groups * cout, end),
    ]
