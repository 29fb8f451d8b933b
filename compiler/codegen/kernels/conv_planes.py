"""Depthwise convolutions: one input channel a group, plane by plane, with vectors along rows of positions."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.calls import Call, In, Scratch, Site, Words
from compiler.codegen.kernels.conv_geometry import PHASE, Geometry, Image, image, phases
from compiler.codegen.kernels.conv_image import make_pad
from compiler.codegen.kernels.gemm_tile import BLOCK, parts
from compiler.codegen.native import Kernel, i64, kernel, per_target, tile_for
from compiler.codegen.native.shifts import CELLS, make_correlation, make_shifted_sum

HEADER = 41  # words of a plan before its phases
TOGETHER = 10
"""Taps whose sums stay in registers at once."""


def is_depthwise(geometry: Geometry, cin: int, cout: int) -> bool:
    """Whether a convolution with so many channels a group goes by planes."""
    return cin == 1 and cout <= 2


def weight_is_depthwise(geometry: Geometry, cin: int, cout: int) -> bool:
    """The same for the gradient by the weights: where the padded image has no places that `pad` leaves out."""
    return is_depthwise(geometry, cin, cout) and all(a.kernel >= a.stride for a in geometry.axes if a.stride > 1)


@per_target
def make_conv_planes(dtype: str, vectors: int) -> Kernel:
    """Items [lo, hi) of a convolution of either direction: a chunk of the positions of a channel of an image.

    plan: see `_plan`. wg, wo: from one group and output channel of the weights to the next. An element is one chain of
    multiply-adds that begins with the bias.
    """
    _, _, size, number, ptr = parts(dtype)
    pad, shifted = make_pad(dtype), make_shifted_sum(dtype, vectors)
    tall, width = CELLS // vectors, vectors * tile_for(dtype).vl
    nothing = number(0)

    @kernel
    def conv_planes(
        lo: int, hi: int, x: int, w: int, bias: int, y: int, wg: int, wo: int, plan: int, scratch: int
    ) -> None:
        s = i64(plan, 0)
        image_size, groups, chunks, cout, out_size = s[3], s[22], s[23], s[24], s[25]
        step_d, step_h, count_phases, pitch = s[35], s[36], s[37], s[38]
        zero, sums = scratch, scratch + 64
        padded = sums + size * s[39]
        ptr(zero, 1)[0] = nothing
        for item in range(lo, hi):
            chunk, plane = item % chunks, item // chunks
            group = plane % groups
            pad(0, 1, x + size * plane * image_size, plan, chunk, padded)
            base_d, base_h, base_w = s[26] + chunk * s[29], s[27] + chunk * s[30], s[28] + chunk * s[31]
            at = HEADER
            for _ in range(count_phases):
                d0, d1 = max(s[at], base_d), min(s[at + 3], base_d + s[32])
                h0, h1 = max(s[at + 1], base_h), min(s[at + 4], base_h + s[33])
                w0, w1 = max(s[at + 2], base_w), min(s[at + 5], base_w + s[34])
                out_d, out_h, out_w, taps = s[at + 7], s[at + 8], s[at + 9], s[at + 10]
                terms = plan + 8 * (at + PHASE)
                for o in range(cout):
                    start = bias + size * (group * cout + o) if bias != 0 else zero
                    weights, into = w + size * (group * wg + o * wo), y + size * (plane * cout + o) * out_size
                    for d in range(d0, d1):
                        rows = padded + size * ((d - base_d) * step_d + (h0 - base_h) * step_h + w0 - base_w)
                        for h in range(0, h1 - h0, tall):
                            for v in range(0, w1 - w0, width):
                                source, to = rows + size * (h * step_h + v), sums + size * (h * pitch + v)
                                shifted(source, step_h, terms, taps, weights, start, to, pitch)
                        for h in range(h1 - h0):
                            place = s[at + 6] + d * out_d + (h0 + h) * out_h + w0 * out_w
                            done, out = ptr(sums + size * h * pitch, 2), ptr(into + size * place, 3)
                            if out_w == 1:
                                for v in range(w1 - w0):
                                    out[v] = done[v]
                            else:
                                for v in range(w1 - w0):
                                    out[v * out_w] = done[v]
                at += PHASE + 2 * taps

    return conv_planes


@per_target
def make_conv_planes_weight(dtype: str, together: int) -> Kernel:
    """Output channels [lo, hi), of all groups, of dw: sums over all positions of all images, `together` taps at once.

    A tap's sum is kept in the lanes of a vector, each a chain of multiply-adds over its columns; about every BLOCK
    positions they are added to the totals, whose lanes are added up in order at the end. Rows of dy that do not fill
    vectors are copied, with zeros behind them; they meet elements of the next row, or zeros behind the padded image.
    """
    _, nr, size, number, ptr = parts(dtype)
    pad, correlate, vl = make_pad(dtype), make_correlation(dtype, together), tile_for(dtype).vl
    nothing = number(0)

    @kernel
    def conv_planes_weight(lo: int, hi: int, x: int, dy: int, dw: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        image_size, images, groups, chunks, cout, out_size = s[3], s[21], s[22], s[23], s[24], s[25]
        step_d, step_h, pitch, taps, terms = s[35], s[36], s[38], s[40], s[HEADER + 10]
        out_d, out_h, table = s[HEADER + 7], s[HEADER + 8], plan + 8 * (HEADER + PHASE)
        sums, totals = scratch, scratch + size * terms * vl
        filled = totals + size * terms * vl
        padded = filled + size * s[39]
        part, total, behind = ptr(sums, 1), ptr(totals, 2), ptr(padded + size * s[11] * s[12] * s[14] * s[15], 3)
        for item in range(lo, hi):
            for r in range(terms * vl):
                part[r] = nothing
                total[r] = nothing
            count = 0
            for n in range(images):
                for chunk in range(chunks):
                    pad(0, 1, x + size * (n * groups + item // cout) * image_size, plan, chunk, padded)
                    base_d, base_h, base_w = s[26] + chunk * s[29], s[27] + chunk * s[30], s[28] + chunk * s[31]
                    d0, d1 = max(s[HEADER], base_d), min(s[HEADER + 3], base_d + s[32])
                    h0, h1 = max(s[HEADER + 1], base_h), min(s[HEADER + 4], base_h + s[33])
                    w0, w1 = max(s[HEADER + 2], base_w), min(s[HEADER + 5], base_w + s[34])
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
                            into = sums + size * t * vl
                            correlate(given, ldd, rows, step_h, table + 16 * t, h1 - h0, columns, into)
                    count += (d1 - d0) * (h1 - h0) * (w1 - w0)
                    if count >= BLOCK:
                        for r in range(terms * vl):
                            total[r] += part[r]
                            part[r] = nothing
                        count = 0
            out = ptr(dw + size * item * taps, 6)
            for r in range(taps):
                tap = nothing
                for j in range(vl):
                    tap += total[r * vl + j] + part[r * vl + j]
                out[r] = tap

    return conv_planes_weight


def conv_planes(site: Site, geometry: Geometry, cout: int, weights: tuple[int, int]) -> list[Call]:
    """The call of a convolution of either direction; weights: strides from one group and output channel to the next."""
    t = site.type(0)
    images, groups = t.shape[0], site.node.attr("group", 1)
    bias: In | int = site.read(2) if site.has(2) else 0
    size = parts(t.dtype).size
    img = image(geometry, 1, size, min(-(-8 // max(1, images * groups)), max(1, geometry.output_size // 4096)))
    vectors = 1 if img.counts[2] <= tile_for(t.dtype).vl else 2
    tall, width = CELLS // vectors, vectors * tile_for(t.dtype).vl
    pitch = -(-max(1, img.counts[2]) // width) * width
    sums = -(-max(1, img.counts[1]) // tall) * tall * pitch
    plan = _plan(geometry, img, phases(geometry, img), (images, groups, img.chunks, cout), pitch, sums)
    beyond = tall * img.steps[1] * img.row + 2 * width
    scratch = Scratch(64 + size * (sums + img.channel + beyond))
    x, y = site.in_pieces(images * groups)
    args = (x, site.read(1), bias, y, *weights, plan, scratch)
    return [Call(make_conv_planes(t.dtype, vectors), images * groups * img.chunks, args, together=max(1, img.chunks))]


def conv_planes_weight(site: Site, geometry: Geometry, cout: int) -> list[Call]:
    """The call of the gradient by the weights: inputs dy [n, groups*cout, ...] and x [n, groups, ...]."""
    x, taps = site.type(1), geometry.taps
    groups, size, vl = site.node.attr("group", 1), parts(x.dtype).size, tile_for(x.dtype).vl
    img = image(geometry, 1, size)
    together = -(-taps // -(-taps // TOGETHER))
    terms = -(-taps // together) * together
    (phase,) = phases(geometry, img) or [(0,) * (PHASE + 2 * taps)]
    phase = (*phase[: PHASE - 1], terms, *phase[PHASE:], *phase[-2:] * (terms - taps))  # the last tap fills up a group
    pitch = -(-max(1, img.counts[2]) // vl) * vl
    rows = max(1, img.counts[1]) * pitch
    plan = _plan(geometry, img, [phase], (x.shape[0], groups, img.chunks, cout), pitch, rows)
    scratch = Scratch(size * (2 * terms * vl + rows + img.channel + 4 * tile_for(x.dtype).nr))
    args = (site.read(1), site.read(0), site.write(), plan, scratch)
    return [Call(make_conv_planes_weight(x.dtype, together), groups * cout, args)]


def _plan(
    geometry: Geometry,
    img: Image,
    found: Sequence[tuple[int, ...]],
    counts: tuple[int, int, int, int],
    pitch: int,
    rows: int,
) -> Words:
    """Words for the kernels: of the padded image, counts, places of chunks, then the phases.

    counts: images, groups, chunks, output channels of a group. pitch: from row to row of a buffer of `rows` elements.
    """
    words = (
        *img.words(geometry),
        *counts,
        geometry.output_size,
        *(*img.base, *img.moves, *img.counts, img.steps[0] * img.extent[1] * img.row, img.steps[1] * img.row),
        *(len(found), pitch, rows, geometry.taps),
    )
    assert len(words) == HEADER
    return Words((*words, *(v for p in found for v in p)))
