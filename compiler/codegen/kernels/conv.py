"""Conv and ConvTranspose: output positions against packed weights, with nothing copied but a padded image.

The kernel here takes most of them; `conv_rows`, `conv_planes`, `conv_pointwise` and `conv_winograd` the rest.
"""

from __future__ import annotations

from compiler.codegen.calls import Call, In, Scratch, Site, Words, lowers
from compiler.codegen.kernels.conv_geometry import PHASE, Geometry, forward, image, phases, transposed
from compiler.codegen.kernels.conv_image import make_pad
from compiler.codegen.kernels.conv_planes import conv_planes, is_depthwise
from compiler.codegen.kernels.conv_pointwise import pointwise, pointwise_strided
from compiler.codegen.kernels.conv_rows import HEADER, make_conv_rows, rows_of
from compiler.codegen.kernels.conv_winograd import choose, winograd
from compiler.codegen.kernels.gemm_tile import blocks, make_line, make_unpack, pack_rows, parts
from compiler.codegen.native import Kernel, i64, kernel, make_micro, make_tile, per_target, tile_for

POSITIONS = 1024
"""Output positions of an item (at least a row): their sums, nr channels wide, stay in the second-level cache."""


@per_target
def make_conv(dtype: str) -> Kernel:
    """Items [lo, hi) of a convolution of either direction: a chunk of positions of a group of `span` images.

    plan: see `convolution`. An item is a product for each panel of nr output channels: rows are positions, read from
    the padded images by tables (where a position is, and where each of the k terms (input channel, tap) is from
    there); columns are channels, from the packed weights. An element is one chain of multiply-adds that begins with
    the bias; the sums [positions, nr] are then turned around into y.
    """
    mr, nr, size, number, ptr = parts(dtype)
    micro = make_micro(dtype, a_row_table=True, a_col_table=True, accumulate=True)
    pad, unpack, line = make_pad(dtype), make_unpack(dtype), make_line(dtype)
    factor, one = make_tile(1, dtype), number(1)

    @kernel
    def conv(lo: int, hi: int, x: int, w: int, bias: int, y: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        image_size, channel = s[3], s[4]
        images, groups, chunks, span, cin, cout = s[21], s[22], s[23], s[24], s[25], s[26]
        out_size, block, terms, longest = s[27], s[28], s[29], s[30]
        step_d, step_h, count_phases, neighbours = s[40], s[41], s[42], s[43]
        # Places in the padded image of the k terms and of the positions, places of the positions in y; sums; images.
        in_image, in_rows = scratch, scratch + 8 * terms
        in_out = in_rows + 8 * (span * longest + mr)
        sums = (in_out + 8 * longest + 63) // 64 * 64
        padded = sums + size * (span * longest + mr) * nr
        terms_at, rows, outs, f = i64(in_image, 1), i64(in_rows, 2), i64(in_out, 3), factor()
        ptr(f, 4)[0] = one
        whole, panels = cin * channel, (cout + nr - 1) // nr
        ready = 0
        for item in range(lo, hi):
            chunk, group, image0 = item % chunks, item // chunks % groups, item // chunks // groups * span
            some = min(span, images - image0)
            for e in range(some):
                source = x + size * ((image0 + e) * groups + group) * cin * image_size
                pad(0, cin, source, plan, chunk, padded + size * e * whole)
            base_d, base_h, base_w = s[31] + chunk * s[34], s[32] + chunk * s[35], s[33] + chunk * s[36]
            at, w0 = HEADER, w
            for _ in range(count_phases):
                d0, d1 = max(s[at], base_d), min(s[at + 3], base_d + s[37])
                h0, h1 = max(s[at + 1], base_h), min(s[at + 4], base_h + s[38])
                w_0, w_1 = max(s[at + 2], base_w), min(s[at + 5], base_w + s[39])
                out_d, out_h, out_w, taps = s[at + 7], s[at + 8], s[at + 9], s[at + 10]
                k, count = cin * taps, max(0, d1 - d0) * max(0, h1 - h0) * max(0, w_1 - w_0)
                out0 = s[at + 6] + d0 * out_d + h0 * out_h + w_0 * out_w
                if ready == 0 and count > 0:
                    for c in range(cin):
                        for u in range(taps):
                            terms_at[c * taps + u] = c * channel + s[at + PHASE + u]
                    n = 0
                    for e in range(span):
                        for d in range(d0, d1):
                            for h in range(h0, h1):
                                row = e * whole + (d - base_d) * step_d + (h - base_h) * step_h - base_w
                                for v in range(w_0, w_1):
                                    rows[n] = row + v
                                    if e == 0:
                                        outs[n] = (d - d0) * out_d + (h - h0) * out_h + (v - w_0) * out_w
                                    n += 1
                    for i in range(mr):
                        rows[n + i] = rows[n - 1]
                    ready = 1 if chunks == 1 and count_phases == 1 else 0
                total = some * count
                for o in range(panels):
                    nj, right = min(nr, cout - o * nr), w0 + size * (group * panels + o) * k * nr
                    if bias != 0:
                        for p in range(total):
                            line(f, 0, 0, bias + size * (group * cout + o * nr), 0, 1, sums + size * p * nr, 0)
                    else:
                        for p in range(total):
                            line(f, 0, 0, f, 0, 0, sums + size * p * nr, 0)
                    for k0 in range(0, k, block):
                        nk, b, columns = min(block, k - k0), right + size * k0 * nr, in_image + 8 * k0
                        for p in range(0, total, mr):
                            micro(padded, in_rows + 8 * p, columns, b, nr, nk, sums + size * p * nr, nr)
                    for e in range(some):
                        plane = y + size * (((image0 + e) * groups + group) * cout + o * nr) * out_size
                        done = sums + size * e * count * nr
                        if neighbours != 0:
                            unpack(0, count, done, plane + size * out0, out_size, nj)
                        else:
                            for j in range(nj):
                                result, out = ptr(done + size * j, 5), ptr(plane + size * (j * out_size + out0), 6)
                                for p in range(count):
                                    out[outs[p]] = result[p * nr]
                at += PHASE + taps
                w0 += size * groups * panels * k * nr

    return conv


def convolution(site: Site, geometry: Geometry, cin: int, cout: int, weights: tuple[int, int, int]) -> list[Call]:
    """Calls that convolve input 0 with input 1 and add input 2, if there is one, to each output channel.

    cin, cout: channels of a group; weights: strides from one group, output channel and input channel to the next.
    """
    t = site.type(0)
    mr, nr, size, _, _ = parts(t.dtype)
    images, groups = t.shape[0], site.node.attr("group", 1)
    bias: In | int = site.read(2) if site.has(2) else 0
    if geometry.pointwise:
        return pointwise(site, geometry, cin, cout, weights, site.read(0), site.write())
    if (thin := geometry.thinned) is not None and not (geometry.transposed and bias):
        return pointwise_strided(site, geometry, thin, cin, cout, weights)
    if is_depthwise(geometry, cin, cout):
        return conv_planes(site, geometry, cout, weights[:2])
    if scheme := choose(geometry, t.dtype, images, groups, cin, cout):
        return winograd(site, scheme, geometry, cin, cout, weights)
    work = cin * cout * geometry.taps * geometry.output_size
    least = min(-(-8 // max(1, images * groups)), max(1, work // 100_000))
    img = image(geometry, cin, size, least, POSITIONS)
    found = phases(geometry, img)
    terms = cin * max((p[10] for p in found), default=0)
    longest = max((img.positions(p[:6]) for p in found), default=0)
    span, width, pitch, cells = 1, nr, 0, 0
    if few := rows_of(t.dtype, img, cout):
        width, pitch, cells = few.rows, few.pitch, few.cells
        body = make_conv_rows(t.dtype, few.rows, few.vectors)
        line = max(nr, few.vectors * tile_for(t.dtype).vl)
        nbytes = 8 * terms + 64 + size * (width * cells + cin * img.channel + line)
    else:
        span = min(-(-64 // max(1, longest)), max(1, images * groups // 8)) if img.chunks == 1 else 1
        body = make_conv(t.dtype)
        nbytes = 8 * (terms + span * longest + mr + longest) + 64
        nbytes += size * ((span * longest + mr) * nr + span * cin * img.channel + nr)
    words = (
        *img.words(geometry),
        *(images, groups, img.chunks, span, cin, cout, geometry.output_size, blocks(terms), terms, longest),
        *(*img.base, *img.moves, *img.counts, img.steps[0] * img.extent[1] * img.row, img.steps[1] * img.row),
        *(len(found), int(len(found) == 1 and found[0][9] == 1), pitch, cells),
    )
    assert len(words) == HEADER
    rows = pack_rows(t.dtype, site.read(1), width, groups, cout, weights, cin, [p[PHASE + 1 :: 2] for p in found])
    plan = Words((*words, *(v for p in found for v in (*p[:PHASE], *p[PHASE::2]))))
    x, y = site.in_pieces(images * groups) if span == 1 else site.in_pieces(images, span)
    together = img.chunks if span == 1 else groups
    args = (x, rows.memory, bias, y, plan, Scratch(nbytes))
    return [rows.call, Call(body, -(-images // span) * groups * img.chunks, args, together=max(1, together))]


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
