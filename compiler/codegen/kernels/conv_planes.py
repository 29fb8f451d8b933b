"""Depthwise convolutions: one input channel a group, plane by plane, with vectors along rows of positions."""

from __future__ import annotations

from functools import cache

from compiler.codegen.calls import Call, In, Scratch, Site, Words
from compiler.codegen.kernels.conv_geometry import Geometry, Image, image, phases
from compiler.codegen.kernels.conv_image import make_pad
from compiler.codegen.kernels.gemm_tile import BLOCK, parts
from compiler.codegen.native import TILE, Kernel, i64, kernel
from compiler.codegen.native.shifts import CELLS, make_correlation, make_shifted_sum

HEADER = 42  # words of a plan before its phases
PHASE = 11  # words of a phase before its taps
MOST = 32
"""Taps up to which this is done."""
TOGETHER = 10
"""Taps whose sums stay in registers at once."""


def is_depthwise(geometry: Geometry, cin: int, cout: int) -> bool:
    """Whether a convolution with so many channels a group goes by planes."""
    return cin == 1 and cout <= 2 and geometry.taps <= MOST


def weight_is_depthwise(geometry: Geometry, cin: int, cout: int) -> bool:
    """The same for the gradient by the weights: where the padded image has no places that `pad` leaves out."""
    return is_depthwise(geometry, cin, cout) and all(a.kernel >= a.stride for a in geometry.axes if a.stride > 1)


def _vectors(dtype: str, width: int) -> int:
    """Vectors of a row that are computed at once."""
    return 1 if width <= TILE[dtype].vl else 2


@cache
def make_conv_planes(dtype: str, vectors: int) -> Kernel:
    """Items [lo, hi) of a convolution of either direction: a chunk of the positions of a group of an image.

    plan: see `_plan`. wg, wo, wc: from one group, output channel and input channel of the weights to the next. An
    element is one chain of multiply-adds that begins with the bias.
    """
    _, _, size, number, ptr = parts(dtype)
    pad, shifted = make_pad(dtype), make_shifted_sum(dtype, vectors)
    tall, width = CELLS // vectors, vectors * TILE[dtype].vl
    nothing = number(0)

    @kernel
    def conv_planes(
        lo: int, hi: int, x: int, w: int, bias: int, y: int, wg: int, wo: int, wc: int, plan: int, scratch: int
    ) -> None:
        s = i64(plan, 0)
        image_size, channel, groups, chunks, cin, cout = s[3], s[4], s[22], s[23], s[24], s[25]
        out_size, step_d, step_h, count_phases, terms, pitch = s[26], s[36], s[37], s[38], s[39], s[40]
        pairs, zero, sums = i64(scratch, 1), scratch + 16 * terms, scratch + 16 * terms + 64
        padded = sums + size * s[41]
        ptr(zero, 2)[0] = nothing
        at, n = HEADER, 0
        for _ in range(count_phases):
            for c in range(cin):
                for u in range(s[at + 10]):
                    pairs[2 * n] = c * channel + s[at + PHASE + 2 * u]
                    pairs[2 * n + 1] = c * wc + s[at + PHASE + 2 * u + 1]
                    n += 1
            at += PHASE + 2 * s[at + 10]
        for item in range(lo, hi):
            chunk, plane = item % chunks, item // chunks
            group = plane % groups
            pad(0, cin, x + size * plane * cin * image_size, plan, chunk, padded)
            base_d, base_h, base_w = s[27] + chunk * s[30], s[28] + chunk * s[31], s[29] + chunk * s[32]
            at, first = HEADER, scratch
            for _ in range(count_phases):
                d0, d1 = max(s[at], base_d), min(s[at + 3], base_d + s[33])
                h0, h1 = max(s[at + 1], base_h), min(s[at + 4], base_h + s[34])
                w0, w1 = max(s[at + 2], base_w), min(s[at + 5], base_w + s[35])
                out_d, out_h, out_w, k = s[at + 7], s[at + 8], s[at + 9], cin * s[at + 10]
                for o in range(cout):
                    start = bias + size * (group * cout + o) if bias != 0 else zero
                    weights, into = w + size * (group * wg + o * wo), y + size * (plane * cout + o) * out_size
                    for d in range(d0, d1):
                        rows = padded + size * ((d - base_d) * step_d + (h0 - base_h) * step_h + w0 - base_w)
                        for h in range(0, h1 - h0, tall):
                            for v in range(0, w1 - w0, width):
                                source, to = rows + size * (h * step_h + v), sums + size * (h * pitch + v)
                                shifted(source, step_h, first, k, weights, start, to, pitch)
                        for h in range(h1 - h0):
                            place = s[at + 6] + d * out_d + (h0 + h) * out_h + w0 * out_w
                            done, out = ptr(sums + size * h * pitch, 3), ptr(into + size * place, 4)
                            if out_w == 1:
                                for v in range(w1 - w0):
                                    out[v] = done[v]
                            else:
                                for v in range(w1 - w0):
                                    out[v * out_w] = done[v]
                first += 16 * k
                at += PHASE + 2 * s[at + 10]

    return conv_planes


@cache
def make_conv_planes_weight(dtype: str, together: int) -> Kernel:
    """Output channels [lo, hi), of all groups, of dw: sums over all positions of all images, `together` terms at once.

    A term's sum is kept in the lanes of a vector, each a chain of multiply-adds over its columns; about every BLOCK
    positions they are added to the totals, whose lanes are added up in order at the end. Rows of dy that do not fill
    vectors are copied, with zeros behind them; they meet elements of the next row, or zeros behind the padded image.
    """
    _, nr, size, number, ptr = parts(dtype)
    pad, correlate, vl = make_pad(dtype), make_correlation(dtype, together), TILE[dtype].vl
    nothing = number(0)

    @kernel
    def conv_planes_weight(lo: int, hi: int, x: int, dy: int, dw: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        image_size, channel, images, groups, chunks = s[3], s[4], s[21], s[22], s[23]
        cin, cout, out_size, step_d, step_h, terms = s[24], s[25], s[26], s[36], s[37], s[39]
        taps, out_d, out_h = s[HEADER + 10], s[HEADER + 7], s[HEADER + 8]
        pairs, sums = i64(scratch, 1), scratch + 16 * terms
        totals = sums + size * terms * vl
        filled, pitch = totals + size * terms * vl, s[40]
        padded = filled + size * s[41]
        part, total, image_end = ptr(sums, 2), ptr(totals, 3), s[11] * s[12] * s[14] * s[15]
        behind = ptr(padded + size * image_end, 7)
        for r in range(terms):
            q = min(r, cin * taps - 1)
            pairs[2 * r] = q // taps * channel + s[HEADER + PHASE + 2 * (q % taps)]
            pairs[2 * r + 1] = q // taps * taps + s[HEADER + PHASE + 2 * (q % taps) + 1]
        for item in range(lo, hi):
            for r in range(terms * vl):
                part[r] = nothing
                total[r] = nothing
            count = 0
            for n in range(images):
                for chunk in range(chunks):
                    pad(0, cin, x + size * (n * groups + item // cout) * cin * image_size, plan, chunk, padded)
                    base_d, base_h, base_w = s[27] + chunk * s[30], s[28] + chunk * s[31], s[29] + chunk * s[32]
                    d0, d1 = max(s[HEADER], base_d), min(s[HEADER + 3], base_d + s[33])
                    h0, h1 = max(s[HEADER + 1], base_h), min(s[HEADER + 4], base_h + s[34])
                    w0, w1 = max(s[HEADER + 2], base_w), min(s[HEADER + 5], base_w + s[35])
                    columns = (w1 - w0 + vl - 1) // vl * vl
                    for j in range(2 * nr):
                        behind[j] = nothing
                    for d in range(d0, d1):
                        rows = padded + size * ((d - base_d) * step_d + (h0 - base_h) * step_h + w0 - base_w)
                        place = (n * groups * cout + item) * out_size + d * out_d + h0 * out_h + w0
                        given, ldd = dy + size * place, out_h
                        if columns != w1 - w0:
                            for h in range(h1 - h0):
                                g, to = ptr(given + size * h * out_h, 4), ptr(filled + size * h * pitch, 5)
                                for v in range(w1 - w0):
                                    to[v] = g[v]
                                for v in range(w1 - w0, columns):
                                    to[v] = nothing
                            given, ldd = filled, pitch
                        for t in range(0, terms, together):
                            to_sums = sums + size * t * vl
                            correlate(given, ldd, rows, step_h, scratch + 16 * t, h1 - h0, columns, to_sums)
                    count += (d1 - d0) * (h1 - h0) * (w1 - w0)
                    if count >= BLOCK:
                        for r in range(terms * vl):
                            total[r] += part[r]
                            part[r] = nothing
                        count = 0
            out = ptr(dw + size * item * cin * taps, 6)
            for r in range(cin * taps):
                whole_sum = nothing
                for j in range(vl):
                    whole_sum += total[r * vl + j] + part[r * vl + j]
                out[pairs[2 * r + 1]] = whole_sum

    return conv_planes_weight


def conv_planes(site: Site, geometry: Geometry, cin: int, cout: int, weights: tuple[int, int, int]) -> list[Call]:
    """The calls of a convolution of either direction; arguments as for `conv.convolution`."""
    t = site.type(0)
    images, groups = t.shape[0], site.node.attr("group", 1)
    bias: In | int = site.read(2) if site.has(2) else 0
    size = parts(t.dtype).size
    img = image(geometry, cin, size, min(-(-8 // max(1, images * groups)), max(1, geometry.output_size // 4096)))
    found = phases(geometry, img)
    terms = cin * sum(p[10] for p in found)
    vectors = _vectors(t.dtype, img.counts[2])
    tall, width = CELLS // vectors, vectors * TILE[t.dtype].vl
    pitch = -(-max(1, img.counts[2]) // width) * width
    sums = -(-max(1, img.counts[1]) // tall) * tall * pitch
    plan = _plan(geometry, img, found, (images, groups, img.chunks, cin, cout), terms, pitch, sums)
    beyond = tall * img.steps[1] * img.row + 2 * width
    scratch = Scratch(16 * terms + 64 + size * (sums + cin * img.channel + beyond))
    args = (site.read(0), site.read(1), bias, site.write(), *weights, plan, scratch)
    return [Call(make_conv_planes(t.dtype, vectors), images * groups * img.chunks, args)]


def conv_planes_weight(site: Site, geometry: Geometry, cin: int, cout: int) -> list[Call]:
    """The call of the gradient by the weights: inputs dy [n, groups*cout, ...] and x [n, groups*cin, ...]."""
    x = site.type(1)
    groups, size, vl = site.node.attr("group", 1), parts(x.dtype).size, TILE[x.dtype].vl
    img = image(geometry, cin, size)
    found = phases(geometry, img)
    count = cin * geometry.taps
    together = -(-count // -(-count // TOGETHER))
    terms = -(-count // together) * together
    nowhere = (*(0,) * (PHASE - 1), geometry.taps, *(v for t in range(geometry.taps) for v in (0, t)))
    pitch = -(-max(1, img.counts[2]) // vl) * vl
    rows = max(1, img.counts[1]) * pitch
    plan = _plan(geometry, img, found or [nowhere], (x.shape[0], groups, img.chunks, cin, cout), terms, pitch, rows)
    scratch = Scratch(16 * terms + size * (2 * terms * vl + rows + cin * img.channel + 4 * TILE[x.dtype].nr))
    args = (site.read(1), site.read(0), site.write(), plan, scratch)
    return [Call(make_conv_planes_weight(x.dtype, together), groups * cout, args)]


def _plan(
    geometry: Geometry,
    img: Image,
    found: list[tuple[int, ...]],
    counts: tuple[int, int, int, int, int],
    terms: int,
    pitch: int,
    sums: int,
) -> Words:
    """Words for the kernels: of the padded image, counts, places of chunks, then the phases.

    counts: images, groups, chunks, input and output channels of a group. terms: pairs of a table; pitch: from row to
    row of the sums; sums: their elements.
    """
    words = (
        *img.words(geometry),
        *counts,
        geometry.output_size,
        *(*img.base, *img.moves, *img.counts, img.steps[0] * img.extent[1] * img.row, img.steps[1] * img.row),
        *(len(found), terms, pitch, sums),
    )
    assert len(words) == HEADER
    return Words((*words, *(v for p in found for v in p)))
