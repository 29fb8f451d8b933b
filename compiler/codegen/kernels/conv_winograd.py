"""Conv and ConvTranspose with 3 x 3 taps and no strides by Winograd's minimal filtering (native/winograd.py).

The outputs of all images are cut into tiles of m x m. Inputs and weights are transformed, the sums over the input
channels are a*a products of matrices, [output channels, input channels] by [input channels, tiles], and their results
are transformed back. F(2 x 2, 3 x 3) needs 16 multiplications where the direct sum needs 36.

Error. With n input channels and u = 2**-24, an output of F(2 x 2, 3 x 3) differs from the exact one by at most
(n + 11)*u / (1 - (n + 11)*u) times the sum over the channels of |A'| ((|G| |g| |G'|) * (|B'| |d| |B|)) |A| (| | element
by element; plus |bias|): an output is a chain of 2 additions for B (both sides), 4 for G (whose halves are exact), n
for the sum, 4 for A and 1 for the bias, each within u. This factor is at most 64 n max|g| max|d|, where the direct sum
has 9*n * 9*n*u max|g| max|d|: for 42 channels and more, Winograd's bound is the smaller one. (The reasoning is that of
B. Barabasz, A. Anderson, K. Soodhalter, D. Gregg, "Error Analysis and Improving the Accuracy of Winograd Convolution
for Deep Neural Networks", 2018, arXiv:1803.10986.) docs/numerics.md tells users what that means.
"""

from __future__ import annotations

from functools import cache

from compiler.codegen.calls import Call, In, Scratch, Site, Temp, Words
from compiler.codegen.kernels.common import read_only
from compiler.codegen.kernels.conv_geometry import Geometry
from compiler.codegen.kernels.gemm_tile import blocks, parts
from compiler.codegen.native import ITEMSIZE, TILE, Inline, Kernel, i64, inline, kernel, make_micro, make_tile
from compiler.codegen.native.winograd import F2, Filter, Matrix, make_collect, make_transform

CACHE = 256 * 1024
"""Bytes of transformed inputs of an item: they should stay in a core's second-level cache, with a panel of weights."""
NEAR = 16 * 1024
"""Bytes of untransformed results that should stay in the first-level cache."""

INPUTS, OUTPUTS, WEIGHTS = 112, 106, 25
"""Times to transform a tile of inputs or of outputs, or, for each lane, the weights of two channels; see `pays`."""
LARGE = 8 * 1024 * 1024
"""Bytes of transformed weights from which on they take twice as long: they do not stay in any cache."""
START = 5
"""Time that the start and end of a register tile's sum cost, in terms of the sum."""
FEW = 8
"""Input channels below which the estimate does not hold: sums are too short."""
GAIN = 1.1
"""How much faster than the direct sum it must be by this estimate."""


@cache
def make_copy() -> Inline[[int, int, int, int], None]:
    """copy(one, src, dst, n): n floats, by vectors, none beyond; `one` is the address of the number 1."""
    _, _, size, _, ptr = parts("f32")
    vl = TILE["f32"].vl
    line = make_micro("f32", TILE["f32"]._replace(mr=1, nv=1))

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


@cache
def make_weights(scheme: Filter) -> Kernel:
    """U = G g G' of panels [lo, hi) of mr output channels, as [group][panel][a*a][mr][depth].

    words: output channels, input channels, strides from one group, output channel and input channel to the next, the
    first tap, stride from tap to tap. depth: the input channels, rounded up to whole vectors. Rows beyond the last
    output channel repeat it.
    """
    mr, _, size, _, ptr = parts("f32")
    a, vl = scheme.a, TILE["f32"].vl
    transform, tile = make_transform(scheme.g), make_tile(9 * vl, "f32")

    @kernel
    def winograd_weights(lo: int, hi: int, w: int, words: int, u: int) -> None:
        s = i64(words, 0)
        cout, cin, group_step, out_step, in_step, first, tap = s[0], s[1], s[2], s[3], s[4], s[5], s[6]
        panels, depth = (cout + mr - 1) // mr, (cin + vl - 1) // vl * vl
        at = tile()
        taps = ptr(at, 1)
        for item in range(lo, hi):
            group, panel = item // panels, item % panels
            for i in range(mr):
                o = min(panel * mr + i, cout - 1)
                g = ptr(w + size * (group * group_step + o * out_step + first), 2)
                to = u + size * (item * a * a * mr + i) * depth
                for c in range(0, cin, vl):
                    for v in range(min(vl, cin - c)):
                        for k in range(9):
                            taps[k * vl + v] = g[(c + v) * in_step + k * tap]
                    transform(at, vl, to + size * c, mr * depth)

    return winograd_weights


@cache
def make_inputs(matrix: Matrix, m: int) -> Kernel:
    """Rows [lo, hi) of tiles of all images: P d P', P = matrix [a, n], as [a*a][channel][tile]; tiles are m apart.

    words: see `input_words`. x: the first of `channels` channels, of image 0. padded: memory for the rows of one
    channel, with zeros around; rows that need none are read in place, up to m*(vl - 1) elements over their end, which
    is at most 128 bytes for m = 2. Writes run up to vl elements over the end of the tiles: the next channel comes
    later, behind the last is slack.
    """
    _, _, size, number, ptr = parts("f32")
    vl, halo = TILE["f32"].vl, len(matrix[0]) - m
    transform, copy = make_transform(matrix, m), make_copy()
    factor, one, zero = make_tile(1, "f32"), number(1), number(0)

    @kernel
    def winograd_inputs(lo: int, hi: int, x: int, words: int, channels: int, padded: int, v: int) -> None:
        s = i64(words, 0)
        height, width, image, h0, w0 = s[0], s[1], s[2], s[3], s[4]
        th, tw, row, pitch, plane = s[5], s[6], s[7], s[8], s[9]
        left = min(max(0, -w0), row)
        end = max(left, min(row, width - w0))
        inside = w0 >= 0 and w0 + m * tw + halo <= width
        f = factor()
        ptr(f, 1)[0] = one
        for q in range(m * min(th, hi - lo) + halo):  # beside the rows, for all channels
            d = ptr(padded + size * q * row, 2)
            for j in range(left):
                d[j] = zero
            for j in range(end, row):
                d[j] = zero
        for c in range(channels):
            at = lo
            while at < hi:
                r0 = at % th
                n, h = min(th - r0, hi - at), h0 + m * r0
                source = x + size * (at // th * image + c * height * width + h * width + w0)
                lines, step = source, width
                if not inside or h < 0 or h + m * n + halo > height:
                    lines, step = padded, row
                    for q in range(m * n + halo):
                        line = padded + size * q * row
                        if h + q < 0 or h + q >= height:
                            d = ptr(line, 2)
                            for j in range(left, end):
                                d[j] = zero
                        else:
                            copy(f, source + size * (q * width + left), line + size * left, end - left)
                for r in range(n):
                    to = v + size * (c * pitch + (at - lo + r) * tw)
                    for t in range(0, tw, vl):
                        transform(lines + size * m * (r * step + t), step, to + size * t, plane)
                at += n

    return winograd_inputs


@cache
def make_winograd(scheme: Filter) -> Kernel:
    """Items [lo, hi) of a convolution: `span` rows of tiles of a group.

    plan: see `winograd`. u: the transformed weights. The sums of `near` output channels for nr tiles are made and
    transformed back while they are in the first-level cache; `lines` collects the rows of outputs of these channels.
    """
    mr, nr, size, number, ptr = parts("f32")
    m, a, vl = scheme.m, scheme.a, TILE["f32"].vl
    micro, more = make_micro("f32"), make_micro("f32", accumulate=True)
    inputs, collect, copy = make_inputs(scheme.bt, scheme.m), make_collect(scheme.at), make_copy()
    factors, one, zero = make_tile(2, "f32"), number(1), number(0)

    @kernel
    def winograd(lo: int, hi: int, x: int, u: int, bias: int, y: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        height, width, th, tw, pitch, plane = s[0], s[1], s[5], s[6], s[8], s[9]
        images, groups, cin, cout, out_h, out_w = s[10], s[11], s[12], s[13], s[14], s[15]
        span, chunks, block, near, panels = s[16], s[17], s[18], s[19], s[20]
        depth = (cin + vl - 1) // vl * vl
        sums = scratch + size * a * a * plane
        lines = sums + size * near * a * a * nr
        padded = lines + size * near * m * m * pitch
        f = factors()
        ptr(f, 1)[0], ptr(f, 1)[1] = one, zero
        for item in range(lo, hi):
            group, row0 = item // chunks, item % chunks * span
            row1 = min(row0 + span, images * th)
            inputs(row0, row1, x + size * group * cin * height * width, plan, cin, padded, scratch)
            for o0 in range(0, cout, near):
                some = min(near, cout - o0)
                for p in range(0, (row1 - row0) * tw, nr):
                    for q in range(a * a):
                        for k0 in range(0, cin, block):
                            k, right = min(block, cin - k0), scratch + size * (q * plane + k0 * pitch + p)
                            for o in range(0, some, mr):
                                panel = group * panels + (o0 + o) // mr
                                left = u + size * ((panel * a * a + q) * mr * depth + k0)
                                to = sums + size * (o * a * a + q) * nr
                                if k0 == 0:
                                    micro(left, depth, 1, right, pitch, k, to, a * a * nr)
                                else:
                                    more(left, depth, 1, right, pitch, k, to, a * a * nr)
                    for o in range(some):
                        add = bias + size * (group * cout + o0 + o) if bias != 0 else f + size
                        for t in range(0, nr, vl):
                            to = lines + size * (o * m * m * pitch + m * (p + t))
                            collect(sums + size * (o * a * a * nr + t), nr, add, to, m * pitch)
                for o in range(some):
                    for at in range(row0, row1):
                        h = at % th * m
                        source = lines + size * m * (o * m * pitch + (at - row0) * tw)
                        to = y + size * (((at // th * groups + group) * cout + o0 + o) * out_h + h) * out_w
                        for i in range(min(m, out_h - h)):
                            copy(f, source + size * i * m * pitch, to + size * i * out_w, out_w)

    return winograd


def tiles(scheme: Filter, geometry: Geometry) -> tuple[int, int]:
    """Rows and columns of tiles of an image's outputs."""
    return -(-geometry.axes[1].out // scheme.m), -(-geometry.axes[2].out // scheme.m)


def span_of(rows: int, columns: int, most: int, shares: int) -> int:
    """Rows of tiles of an item: at most `most` tiles, in panels that are nearly full, for at least so many shares."""
    nr = parts("f32").nr
    most = max(1, min(most // columns, max(-(-rows // shares), -(-nr // columns)), rows))
    return min(range(1, most + 1), key=lambda n: -(-n * columns // nr) * nr / (n * columns) * (1 + 16 / (n * columns)))


def input_words(scheme: Filter, geometry: Geometry, channels: int, of_group: int, pitch: int) -> tuple[int, ...]:
    """What `make_inputs` needs to transform `of_group` of `channels` channels.

    pitch: elements from one channel's tiles to the next. Words: input height and width, elements from one image to the
    next, row and column of the first tap, rows and columns of tiles, elements of a padded row, pitch, elements from
    one of the a*a planes to the next.
    """
    _, h, w = geometry.axes
    vl = TILE["f32"].vl
    th, tw = tiles(scheme, geometry)
    first = [axis.before - 2 if geometry.transposed else -axis.before for axis in (h, w)]
    row = scheme.m * (-(-tw // vl) * vl + 1)
    return (h.size, w.size, channels * h.size * w.size, *first, th, tw, row, pitch, of_group * pitch + 16)


def filtered(geometry: Geometry, dtype: str) -> bool:
    """Whether there is a scheme for these taps: 3 x 3 next to each other, at every position, in float32."""
    d, h, w = geometry.axes
    flat = d.kernel == 1 and d.stride == 1 and d.before == 0 and d.size == d.out == 1
    return dtype == "f32" and flat and all(x.kernel == 3 and x.stride == 1 and x.dilation == 1 for x in (h, w))


def pays(geometry: Geometry, dtype: str, images: int, cin: int, cout: int) -> bool:
    """Whether there is a scheme for these taps, and it is clearly the faster way. cin, cout: channels of a group.

    Times in multiply-adds of the micro kernel, measured on Zen 3 (AVX2): of the products of either way with their
    waste at the edges of tiles and panels, and of Winograd's transforms. (Wider vectors make all
    of them faster alike.)
    """
    if not filtered(geometry, dtype) or cin < FEW:
        return False
    mr, nr, _, _, _ = parts(dtype)
    a, vl = F2.a, TILE[dtype].vl
    th, tw = tiles(F2, geometry)
    lanes, count = images * th * -(-tw // vl) * vl, -(-images * th * tw // nr) * nr
    direct = images * geometry.output_size * (9 * cin + START) * (-(-cout // nr) * nr)
    products = count * a * a * (cin + START) * (-(-cout // mr) * mr)
    weights = WEIGHTS * vl * cin * cout * (2 if ITEMSIZE[dtype] * a * a * cin * cout > LARGE else 1)
    transforms = INPUTS * lanes * cin + OUTPUTS * count * cout + weights
    return 0 < GAIN * (products + transforms) < direct


def winograd(site: Site, geometry: Geometry, cin: int, cout: int, weights: tuple[int, int, int]) -> list[Call]:
    """As `conv.convolution`, where it `pays`."""
    scheme = F2
    mr, nr, size, _, _ = parts("f32")
    m, a, vl = scheme.m, scheme.a, TILE["f32"].vl
    images, groups = site.type(0).shape[0], site.node.attr("group", 1)
    bias: In | int = site.read(2) if site.has(2) else 0
    th, tw = tiles(scheme, geometry)
    span = span_of(images * th, tw, CACHE // (size * a * a * cin), -(-8 // groups))
    chunks, pitch = -(-images * th // span), -(-span * tw // nr) * nr
    near, panels = max(1, NEAR // (size * mr * a * a * nr)) * mr, -(-cout // mr)
    words = input_words(scheme, geometry, groups * cin, cin, pitch)
    row, plane = words[7], words[9]
    nbytes = size * (a * a * plane + near * (a * a * nr + m * m * pitch) + (m * span + 2) * row + nr)
    out = tuple(axis.out for axis in geometry.axes[1:])
    words = (*words, images, groups, cin, cout, *out, span, chunks, blocks(cin), near, panels)
    u = Temp("weights", size * groups * panels * a * a * mr * (-(-cin // vl) * vl))
    taps = (8, -1) if geometry.transposed else (0, 1)
    first = Call(make_weights(scheme), groups * panels, (site.read(1), Words((cout, cin, *weights, *taps)), u))
    args = (site.read(0), read_only(u), bias, site.write(), Words(words), Scratch(nbytes))
    return [first, Call(make_winograd(scheme), groups * chunks, args)]
