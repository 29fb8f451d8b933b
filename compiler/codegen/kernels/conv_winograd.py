"""Conv and ConvTranspose with 3 x 3 taps and no strides by Winograd's minimal filtering (native/winograd.py).

The outputs of all images are cut into tiles of m x m. Inputs and weights are transformed, the sums over the input
channels are a*a products of matrices, [output channels, input channels] by [input channels, tiles], and their results
are transformed back. F(2 x 2, 3 x 3) needs 16 multiplications where the direct sum needs 36, F(4 x 4, 3 x 3) 36 where
it needs 144.

Error. With n input channels and u = 2**-24, an output differs from the exact one by at most k*u / (1 - k*u) times the
sum over the channels of |A'| ((|G| |g| |G'|) * (|B'| |d| |B|)) |A| (| | element by element; plus |bias|). k = n + r
counts the roundings of a term, each within u: n of the sum, and those of the transforms, of both sides, and of the
bias. F(2 x 2): 2 for B, 4 for G (whose halves are exact), 4 for A, so r = 11. F(4 x 4): 8 for each of B, G (its numbers
are rounded) and A, so r = 25; fewer where multiply-adds are fused. The sum is at most s*n max|g| max|d|, s = 64 and
564, where the direct sum has 9*n * 9*n*u max|g| max|d|. (The reasoning is that of B. Barabasz, A. Anderson, K.
Soodhalter, D. Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks",
2018, arXiv:1803.10986.) docs/numerics.md tells users what that means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from compiler.codegen.calls import Call, In, Scratch, Site, Temp, Words
from compiler.codegen.kernels.common import read_only
from compiler.codegen.kernels.conv_geometry import Geometry
from compiler.codegen.kernels.gemm_tile import blocks, fitting, parts, short_rows
from compiler.codegen.kernels.winograd_tiles import (
    RowTime,
    fastest,
    filtered,
    input_words,
    make_copy,
    make_inputs,
    panels_of,
    spread_bytes,
    tiles,
)
from compiler.codegen.native import ITEMSIZE, Kernel, i64, kernel, make_micro, make_tile, per_target, tile_for
from compiler.codegen.native.winograd import F2, F4, Filter, make_collect, make_transform

CACHE = 256 * 1024
"""Bytes of transformed inputs of an item: they should stay in a core's second-level cache, with a panel of weights."""
NEAR = 28 * 1024
"""Bytes of untransformed results that should stay in the first-level cache."""

LARGE = 8 * 1024 * 1024
"""Bytes of transformed weights from which on they take twice as long: they do not stay in any cache."""
START = 5
"""Time that the start and end of a register tile's sum cost, in terms of the sum."""
EVEN = 1.1
"""How much more the waste in panels may cost with whole images, or whole shares of them."""
FEW = 8
"""Input channels below which the estimate does not hold: sums are too short."""


@dataclass(frozen=True)
class Cost:
    """Times to transform inputs, a tile of outputs, or the weights of two channels for each lane; see `choose`."""

    inputs: RowTime
    outputs: int
    weights: int

    def time(self, scheme: Filter, geometry: Geometry, images: int, groups: int, cin: int, cout: int) -> int:
        """Of a group of a convolution."""
        vl, a = tile_for("f32").vl, scheme.a
        _, chunks, pitch = shares_of(scheme, geometry, images, groups, cin)
        count = chunks * pitch
        products = count * a * a * (cin + START) * panels_of(cout).rows
        weights = self.weights * vl * cin * cout * (2 if ITEMSIZE["f32"] * a * a * cin * cout > LARGE else 1)
        return products + self.inputs.time(scheme, geometry, images, cin) + self.outputs * count * cout + weights


COSTS = {F2: Cost(RowTime(950, 45), 90, 25), F4: Cost(RowTime(2240, 256), 280, 60)}


@per_target
def make_weights(scheme: Filter) -> Kernel:
    """U = G g G' of panels [lo, hi) of output channels, as [group][panel][a*a][rows of the panel][depth].

    words: output channels, input channels, strides from one group, output channel and input channel to the next, the
    first tap, stride from tap to tap, panels of a group, those of them that have mr rows (the others have
    `short_rows`), output channels of all panels. depth: the input channels, rounded up to whole vectors. Rows beyond
    the last output channel repeat it.
    """
    mr, _, size, _, ptr = parts("f32")
    a, vl, less = scheme.a, tile_for("f32").vl, short_rows("f32")
    transform, tile = make_transform(scheme.g), make_tile(9 * vl, "f32")

    @kernel
    def winograd_weights(lo: int, hi: int, w: int, words: int, u: int) -> None:
        s = i64(words, 0)
        cout, cin, group_step, out_step, in_step, first, tap = s[0], s[1], s[2], s[3], s[4], s[5], s[6]
        panels, tall, padded, depth = s[7], s[8], s[9], (cin + vl - 1) // vl * vl
        at = tile()
        taps = ptr(at, 1)
        for item in range(lo, hi):
            group, panel = item // panels, item % panels
            rows = mr if panel < tall else less
            o0 = min(panel, tall) * mr + max(0, panel - tall) * less
            for i in range(rows):
                o = min(o0 + i, cout - 1)
                g = ptr(w + size * (group * group_step + o * out_step + first), 2)
                to = u + size * ((group * padded + o0) * a * a + i) * depth
                for c in range(0, cin, vl):
                    for v in range(min(vl, cin - c)):
                        for k in range(9):
                            taps[k * vl + v] = g[(c + v) * in_step + k * tap]
                    transform(at, vl, 0, to + size * c, rows * depth)

    return winograd_weights


@per_target
def make_winograd(scheme: Filter) -> Kernel:
    """Items [lo, hi) of a convolution: `span` rows of tiles of a group; those of all groups follow each other.

    plan: see `winograd`. u: the transformed weights. The sums of `near` output channels for nr tiles are made and
    transformed back while they are in the first-level cache; `lines` collects the rows of outputs of these channels
    where they cannot go to y at once.
    """
    mr, nr, size, number, ptr = parts("f32")
    m, a, vl, less = scheme.m, scheme.a, tile_for("f32").vl, short_rows("f32")
    short = tile_for("f32")._replace(mr=less)
    micro, more = make_micro("f32"), make_micro("f32", accumulate=True)
    short_micro, short_more = make_micro("f32", short), make_micro("f32", short, accumulate=True)
    inputs, collect, copy = make_inputs(scheme.bt, scheme.m), make_collect(scheme.at), make_copy()
    factors, one, zero = make_tile(2, "f32"), number(1), number(0)

    @kernel
    def winograd(lo: int, hi: int, x: int, u: int, bias: int, y: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        height, width, th, tw, pitch, plane = s[0], s[1], s[5], s[6], s[8], s[9]
        images, groups, cin, cout, out_h, out_w = s[10], s[11], s[12], s[13], s[14], s[15]
        span, block, near, cut, whole, direct = s[16], s[17], s[18], s[19], s[20], s[21]
        image_out = groups * cout * out_h * out_w
        depth = (cin + vl - 1) // vl * vl
        sums = scratch + size * a * a * plane
        lines = sums + size * near * a * a * nr
        spread = lines + size * near * m * m * pitch
        f = factors()
        ptr(f, 1)[0], ptr(f, 1)[1] = one, zero
        for item in range(lo, hi):
            group, row0 = item % groups, item // groups * span
            row1 = min(row0 + span, images * th)
            inputs(row0, row1, x + size * group * cin * height * width, plan, cin, spread, scratch)
            o0 = 0
            while o0 < cout:
                some = 0
                while o0 + some < cout and some + (mr if o0 + some < cut else less) <= near:
                    some += mr if o0 + some < cut else less
                real = min(some, cout - o0)
                for p in range(0, (row1 - row0) * tw, nr):
                    for q in range(a * a):
                        for k0 in range(0, cin, block):
                            k, right = min(block, cin - k0), scratch + size * (q * plane + k0 * pitch + p)
                            o = 0
                            while o < some:
                                rows = mr if o0 + o < cut else less
                                left = u + size * (((group * whole + o0 + o) * a * a + q * rows) * depth + k0)
                                to = sums + size * (o * a * a + q) * nr
                                if rows == mr and k0 == 0:
                                    micro(left, depth, 1, right, pitch, k, to, a * a * nr)
                                elif rows == mr:
                                    more(left, depth, 1, right, pitch, k, to, a * a * nr)
                                elif k0 == 0:
                                    short_micro(left, depth, 1, right, pitch, k, to, a * a * nr)
                                else:
                                    short_more(left, depth, 1, right, pitch, k, to, a * a * nr)
                                o += rows
                    for o in range(real):
                        channel = y + size * ((group * cout + o0 + o) * out_h * out_w)
                        add = bias + size * (group * cout + o0 + o) if bias != 0 else f + size
                        for t in range(p, p + nr, vl):
                            source = sums + size * (o * a * a * nr + t - p)
                            if direct == 0:
                                collect(source, nr, add, lines + size * m * (o * m * pitch + t), m * pitch)
                            elif t < (row1 - row0) * tw:
                                at = row0 + t // tw
                                to = at // th * image_out + at % th * m * out_w + t % tw * m
                                collect(source, nr, add, channel + size * to, out_w)
                for o in range(0 if direct != 0 else real):
                    for at in range(row0, row1):
                        h = at % th * m
                        source = lines + size * m * (o * m * pitch + (at - row0) * tw)
                        to = y + size * (((at // th * groups + group) * cout + o0 + o) * out_h + h) * out_w
                        for i in range(min(m, out_h - h)):
                            copy(f, source + size * i * m * pitch, to + size * i * out_w, out_w)
                o0 += some

    return winograd


class Shares(NamedTuple):
    """How the tiles are shared out: rows of them to an item, items of a group, places for tiles in an item."""

    span: int
    chunks: int
    pitch: int


def shares_of(scheme: Filter, geometry: Geometry, images: int, groups: int, cin: int) -> Shares:
    """By shapes alone: as many tiles as fit the cache, but a panel, in panels that are nearly full, in eight shares.

    Rather a share of an image, or whole images: they can run in strips.
    """
    nr, size = parts("f32").nr, ITEMSIZE["f32"]
    th, tw = tiles(scheme, geometry)
    rows, most = images * th, max(nr, CACHE // (size * scheme.a * scheme.a * cin))
    most = max(1, min(most // tw, max(-(-rows // -(-8 // groups)), -(-nr // tw)), rows))

    def cost(n: int) -> float:
        return -(-n * tw // nr) * nr / (n * tw) * (1 + 16 / (n * tw)) * (1 if th % n == 0 or n % th == 0 else EVEN)

    span = min(range(1, most + 1), key=cost)
    return Shares(span, -(-rows // span), -(-span * tw // nr) * nr)


def choose(geometry: Geometry, dtype: str, images: int, groups: int, cin: int, cout: int) -> Filter | None:
    """The scheme that is clearly faster than the direct sum, None if there is none. cin, cout: channels of a group.

    F(4 x 4) is for ConvTranspose only, which data gradients are. Results of Conv mostly go on to a Relu or a maximum,
    where the last bits decide which way a gradient takes: they stay as near to the exact ones as the direct sum's.
    Times in multiply-adds of the micro kernel, measured on Zen 4 (AVX-512, and AVX2 on the same): of the products of
    either way with their waste at the edges of tiles and panels, and of Winograd's transforms.
    """
    if not filtered(geometry, dtype) or cin < FEW or not images * geometry.output_size * cout:
        return None
    of_image = geometry.output_size * (9 * cin + START) * fitting(dtype, cout)[1]
    costs = COSTS if geometry.transposed else {F2: COSTS[F2]}

    def times(n: int) -> Mapping[Filter | None, float]:
        return {None: n * of_image, **{s: c.time(s, geometry, n, groups, cin, cout) for s, c in costs.items()}}

    return fastest(times, images)


def winograd(
    site: Site, scheme: Filter, geometry: Geometry, cin: int, cout: int, weights: tuple[int, int, int]
) -> list[Call]:
    """As `conv.convolution`, by a scheme."""
    mr, nr, size, _, _ = parts("f32")
    m, a, vl = scheme.m, scheme.a, tile_for("f32").vl
    images, groups = site.type(0).shape[0], site.node.attr("group", 1)
    bias: In | int = site.read(2) if site.has(2) else 0
    th, tw = tiles(scheme, geometry)
    span, chunks, pitch = shares_of(scheme, geometry, images, groups, cin)
    near, panels = max(1, NEAR // (size * mr * a * a * nr)) * mr, panels_of(cout)
    words = input_words(scheme, geometry, groups * cin, cin, span, pitch)
    nbytes = size * (a * a * words[9] + near * (a * a * nr + m * m * pitch) + nr) + spread_bytes(scheme, geometry, span)
    out = tuple(axis.out for axis in geometry.axes[1:])
    direct = int(tw % vl == 0 and out == (m * th, m * tw))  # vectors of tiles are pieces of rows, and all of them whole
    words = (
        *words,
        images,
        groups,
        cin,
        cout,
        *out,
        span,
        blocks(cin),
        near,
        panels.tall * mr,
        panels.rows,
        direct,
    )
    u = Temp("weights", size * groups * panels.rows * a * a * (-(-cin // vl) * vl))
    taps = (8, -1) if geometry.transposed else (0, 1)
    shape = Words((cout, cin, *weights, *taps, *panels))
    first = Call(make_weights(scheme), groups * panels.panels, (site.read(1), shape, u))
    together = lcm(span, th)  # rows of tiles of whole images
    x, y = site.in_pieces(images, together // th)
    args = (x, read_only(u), bias, y, Words(words), Scratch(nbytes))
    return [first, Call(make_winograd(scheme), groups * chunks, args, together=together // span * groups)]
