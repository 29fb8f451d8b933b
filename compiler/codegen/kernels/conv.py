"""Conv and ConvTranspose: a panel of output positions at a time, all output channels against it."""

from __future__ import annotations

from functools import cache

from compiler.codegen.calls import Call, In, Scratch, Site, Words, lowers
from compiler.codegen.kernels.conv_geometry import Geometry, forward, image, phases, transposed
from compiler.codegen.kernels.conv_image import make_pad
from compiler.codegen.kernels.gemm import ONE, Product
from compiler.codegen.kernels.gemm_tile import blocks, factors_of, make_line, make_store, pack_rows, parts
from compiler.codegen.native import Kernel, i64, kernel, make_micro, make_tile

HEADER = 41  # words of a plan before its phases
PHASE = 11  # words of a phase before its taps


@cache
def make_conv(dtype: str) -> Kernel:
    """Items [lo, hi) of a convolution of either direction: an item is a chunk of positions of a group of an image.

    plan: see `convolution`. For each panel of nr positions, the product of the weights [output channels, k] with the
    columns [k, nr], k running over (input channel, tap): read from the padded image by a table of offsets where the
    panel's positions are neighbours there, else packed. Sums are cut into blocks as in `gemm`.
    """
    mr, nr, size, _, ptr = parts(dtype)
    micro = make_micro(dtype, b_table=True)
    pad, store, line, factors, prepare = make_pad(dtype), make_store(dtype), make_line(dtype), *factors_of(dtype)
    tile, lanes, segments = make_tile(mr * nr, dtype), make_tile(nr, "i64"), make_tile(2 * nr, "i64")

    @kernel
    def conv(lo: int, hi: int, x: int, w: int, bias: int, y: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        image_size, channel = s[3], s[4]
        groups, chunks, cin, cout, out_size, block, terms = s[21], s[22], s[23], s[24], s[25], s[26], s[27]
        cut, step = s[31], s[32]
        step_d, step_h, count_phases, neighbours, always = s[36], s[37], s[38], s[39], s[40]
        whole = (cout + mr - 1) // mr * mr
        # Offsets of the k terms in the padded image, and in a packed panel.
        in_image, in_panel = scratch, scratch + 8 * terms
        panel = (in_panel + 8 * block + 63) // 64 * 64
        padded = panel + size * (block + 1) * nr
        kx, places = i64(in_image, 1), i64(in_panel, 3)
        t, lane_at, segment_at = tile(), lanes(), segments()
        tp, to, seg, f = ptr(t, 6), i64(lane_at, 7), i64(segment_at, 8), factors()
        prepare(f, ONE, ONE)
        for q in range(block):
            places[q] = q * nr
        held = -1  # the phase that the tables are for
        for item in range(lo, hi):
            chunk, image_ = item % chunks, item // chunks
            group = image_ % groups
            pad(0, cin, x + size * image_ * cin * image_size, plan, chunk, padded)
            y0 = y + size * image_ * cout * out_size
            bias0 = bias + size * group * cout if bias != 0 else 0
            base_d, base_h, base_w = s[33], s[34], s[35]
            if cut == 0:
                base_d += chunk * step
            elif cut == 1:
                base_h += chunk * step
            else:
                base_w += chunk * step
            at, w0 = HEADER, w
            for phase in range(count_phases):
                d0, h0, v0, d1, h1, v1 = s[at], s[at + 1], s[at + 2], s[at + 3], s[at + 4], s[at + 5]
                out_d, out_h, out_w, taps = s[at + 7], s[at + 8], s[at + 9], s[at + 10]
                if cut == 0:
                    d0, d1 = max(d0, base_d), min(d1, base_d + step)
                elif cut == 1:
                    h0, h1 = max(h0, base_h), min(h1, base_h + step)
                else:
                    v0, v1 = max(v0, base_w), min(v1, base_w + step)
                k = cin * taps
                if held != phase:
                    for c in range(cin):
                        for u in range(taps):
                            kx[c * taps + u] = c * channel + s[at + PHASE + u]
                    held = phase
                d, h, v, left = d0, h0, v0, max(0, d1 - d0) * max(0, h1 - h0) * max(0, v1 - v0)
                while left > 0:
                    nj = min(nr, left)
                    left -= nj
                    out0 = s[at + 6] + d * out_d + h * out_h + v * out_w
                    lane, pieces = 0, 0  # the panel is pieces of rows: (first lane, offset in the image)
                    while lane < nj:
                        n = min(nj - lane, v1 - v)
                        seg[2 * pieces] = lane
                        seg[2 * pieces + 1] = (d - base_d) * step_d + (h - base_h) * step_h + v - base_w
                        pieces += 1
                        if neighbours == 0:
                            out = s[at + 6] + d * out_d + h * out_h + v * out_w
                            for j in range(n):
                                to[lane + j] = out + j * out_w
                        lane += n
                        v += n
                        if v == v1:
                            v = v0
                            h += 1
                            if h == h1:
                                h = h0
                                d += 1
                    k0 = 0
                    while k0 < k or k0 == 0:
                        nk = min(block, k - k0)
                        right, ldb = padded + size * seg[1], in_image + 8 * k0
                        if pieces > 1 or always != 0:
                            for q in range(nk):  # whole vectors: what runs over is written again by the next piece
                                for piece in range(pieces):
                                    src = padded + size * (kx[k0 + q] + seg[2 * piece + 1])
                                    line(f, 0, 0, src, 0, 1, panel + size * (q * nr + seg[2 * piece]), 0)
                            right, ldb = panel, in_panel
                        for o in range(0, cout, mr):
                            left_ = w0 + size * ((group * whole + o) * k + k0 * mr)
                            micro(left_, 1, mr, right, ldb, nk, t, nr)
                            no = min(mr, cout - o)
                            if neighbours != 0:
                                out = y0 + size * (o * out_size + out0)
                                term = out if k0 != 0 else (bias0 + size * o if bias0 != 0 else 0)
                                store(0, no, t, nj, out, out_size, term, 1, 0, f)
                            else:
                                for i in range(no):
                                    yp = ptr(y0 + size * (o + i) * out_size, 10)
                                    if k0 != 0:
                                        for j in range(nj):
                                            yp[to[j]] += tp[i * nr + j]
                                    elif bias0 != 0:
                                        term_ = ptr(bias0, 11)[o + i]
                                        for j in range(nj):
                                            yp[to[j]] = tp[i * nr + j] + term_
                                    else:
                                        for j in range(nj):
                                            yp[to[j]] = tp[i * nr + j]
                        k0 += block
                at += PHASE + taps
                w0 += size * groups * whole * k

    return conv


def convolution(site: Site, geometry: Geometry, cin: int, cout: int, weights: tuple[int, int, int]) -> list[Call]:
    """Calls that convolve input 0 with input 1 and add input 2, if there is one, to each output channel.

    cin, cout: channels of a group; weights: strides from one group, output channel and input channel to the next.
    """
    t = site.type(0)
    mr, nr, size, _, _ = parts(t.dtype)
    groups = t.shape[1] // cin if cin else site.out().shape[1] // cout
    images = t.shape[0] * groups
    bias: In | int = site.read(2) if site.has(2) else 0
    operands = (site.read(0), site.read(1), bias, site.write())
    if geometry.pointwise:
        offsets = tuple(
            (g * weights[0], (n * groups + g) * cin * geometry.input_size, g * cout)
            for n in range(t.shape[0])
            for g in range(groups)
        )
        p = Product(cout, geometry.output_size, cin, weights[1:], (geometry.input_size, 1), (1, 0), offsets)
        return p.calls(t.dtype, operands[1], operands[0], bias, operands[3])
    work = cin * cout * geometry.taps * geometry.output_size
    least = min(-(-8 // max(1, images)), max(1, work // 100_000))
    img = image(geometry, cin, size, least)
    found = phases(geometry, img)
    terms = cin * max((p[10] for p in found), default=0)
    block = blocks(terms)
    words = (
        *img.words(geometry),
        *(groups, img.chunks, cin, cout, geometry.output_size, block, terms, 0, 0, 0, img.cut, img.step, *img.base),
        *(img.steps[0] * img.extent[1] * img.row, img.steps[1] * img.row),
        *(len(found), int(len(found) == 1 and found[0][9] == 1), int(cout > ALWAYS * mr)),
    )
    assert len(words) == HEADER
    nbytes = 8 * (terms + block) + 64 + size * ((block + 1) * nr + cin * img.channel + nr)
    rows = pack_rows(t.dtype, operands[1], groups, cout, weights, cin, [p[PHASE + 1 :: 2] for p in found])
    plan = Words((*words, *(v for p in found for v in (*p[:PHASE], *p[PHASE::2]))))
    args = (operands[0], rows.memory, bias, operands[3], plan, Scratch(nbytes))
    return [rows.call, Call(make_conv(t.dtype), images * img.chunks, args)]


ALWAYS = 1 << 40
"""A panel is always packed if more than so many tiles of output channels read it."""


@lowers("Conv")
def conv(site: Site) -> list[Call]:
    """Conv with 1 to 3 axes of space: x [n, groups*cin, ...], w [groups*cout, cin, ...]."""
    x, w, y = site.type(0).shape, site.type(1).shape, site.out().shape
    geometry = forward(site, x[2:], w[2:], y[2:])
    cin, cout, taps = w[1], w[0] // site.attr("group"), geometry.taps
    return convolution(site, geometry, cin, cout, (cout * cin * taps, cin * taps, taps))


@lowers("ConvTranspose")
def conv_transpose(site: Site) -> list[Call]:
    """ConvTranspose with 1 to 3 axes of space: x [n, groups*cin, ...], w [groups*cin, cout, ...]."""
    x, w, y = site.type(0).shape, site.type(1).shape, site.out().shape
    geometry = transposed(site, x[2:], w[2:], y[2:])
    cin, cout, taps = w[0] // site.attr("group"), w[1], geometry.taps
    return convolution(site, geometry, cin, cout, (cin * cout * taps, taps, cout * taps))
