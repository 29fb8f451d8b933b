"""Convolutions with few output channels a group: vectors along positions, a tile's rows are output channels.

The kernel of `conv.py` has nr output channels side by side in a tile. A group of four of them would leave most of it
empty, so here an input is multiplied by all of them while it is in a register. The sums are the same, and so
are their bits.
"""

from __future__ import annotations

from typing import NamedTuple

from compiler.codegen.kernels.conv_geometry import PHASE, Image
from compiler.codegen.kernels.conv_image import make_pad
from compiler.codegen.kernels.gemm_tile import parts
from compiler.codegen.native import Kernel, i64, kernel, make_micro, per_target, tile_for

HEADER = 46
"""Words of a plan before its phases, see `conv.convolution`."""


class Rows(NamedTuple):
    """How a tile lies: `rows` output channels of `vectors` vectors of positions.

    pitch: places from one row of sums to the next; if that is a step in the image, all are one row, with what lies
    between them. cells: places of all rows.
    """

    rows: int
    vectors: int
    pitch: int
    cells: int


def rows_of(dtype: str, img: Image, cout: int) -> Rows | None:
    """The tile for a convolution; None where that of `conv.py` computes less beside what is wanted."""
    mr, nr, _, _, _ = parts(dtype)
    vl, (_, high, wide) = tile_for(dtype).vl, img.counts
    blocks = -(-cout // mr)
    rows = -(-cout // blocks)
    flat = img.steps[1] == 1 and img.parts == 1
    length = (high - 1) * img.row + wide if flat else wide
    fit = -(-length // vl)
    vectors = 1 if fit == 1 else 4 if rows <= 2 and fit >= 4 else 2
    width = vectors * vl
    padded = -(-length // width) * width
    pitch, cells = (img.row, padded) if flat else (padded, high * padded)
    # Loads of vectors that lie across two lines of the cache make it slower by about a fifth.
    if 6 * blocks * rows * cells >= 5 * -(-cout // nr) * nr * high * wide:
        return None
    return Rows(rows, vectors, pitch, cells)


@per_target
def make_conv_rows(dtype: str, rows: int, vectors: int) -> Kernel:
    """Items [lo, hi) of a convolution of either direction: a chunk of positions of a group of an image.

    plan: see `conv.convolution`; weights: blocks of `rows` output channels, interleaved. An element is one chain of
    multiply-adds that begins with the bias.
    """
    _, _, size, number, ptr = parts(dtype)
    tile = tile_for(dtype)._replace(mr=rows, nv=vectors)
    micro, pad = make_micro(dtype, tile, b_table=True, accumulate=True), make_pad(dtype)
    width, nothing = tile.nr, number(0)

    @kernel
    def conv_rows(lo: int, hi: int, x: int, w: int, bias: int, y: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        image_size, channel = s[3], s[4]
        groups, chunks, cin, cout = s[22], s[23], s[25], s[26]
        out_size, block, terms = s[27], s[28], s[29]
        step_d, step_h, count_phases, pitch, cells = s[40], s[41], s[42], s[44], s[45]
        in_terms, sums = scratch, (scratch + 8 * terms + 63) // 64 * 64
        padded = sums + size * rows * cells
        terms_at, blocks, ready = i64(in_terms, 1), (cout + rows - 1) // rows, 0
        for item in range(lo, hi):
            chunk, plane = item % chunks, item // chunks
            group = plane % groups
            pad(0, cin, x + size * plane * cin * image_size, plan, chunk, padded)
            base_d, base_h, base_w = s[31] + chunk * s[34], s[32] + chunk * s[35], s[33] + chunk * s[36]
            at, w0 = HEADER, w
            for _ in range(count_phases):
                d0, d1 = max(s[at], base_d), min(s[at + 3], base_d + s[37])
                h0, h1 = max(s[at + 1], base_h), min(s[at + 4], base_h + s[38])
                v0, v1 = max(s[at + 2], base_w), min(s[at + 5], base_w + s[39])
                out_d, out_h, out_w, taps = s[at + 7], s[at + 8], s[at + 9], s[at + 10]
                k, high, wide = cin * taps, max(0, h1 - h0), max(0, v1 - v0)
                lines, length = high, wide
                if pitch == step_h and high > 0:
                    lines, length = 1, (high - 1) * pitch + wide
                if ready == 0:
                    for c in range(cin):
                        for u in range(taps):
                            terms_at[c * taps + u] = c * channel + s[at + PHASE + u]
                    ready = 1 if count_phases == 1 else 0
                for o in range(blocks if wide > 0 else 0):
                    right = w0 + size * (group * blocks + o) * k * rows
                    for d in range(d0, d1):
                        source = padded + size * ((d - base_d) * step_d + (h0 - base_h) * step_h + v0 - base_w)
                        for i in range(rows):
                            start, row = nothing, ptr(sums + size * i * cells, 2)
                            if bias != 0:
                                start = ptr(bias + size * (group * cout + min(o * rows + i, cout - 1)), 3)[0]
                            for p in range(cells):
                                row[p] = start
                        for k0 in range(0, k, block):
                            left, columns, nk = right + size * k0 * rows, in_terms + 8 * k0, min(block, k - k0)
                            for q in range(lines):
                                for p in range(0, length, width):
                                    b, c = source + size * (q * step_h + p), sums + size * (q * pitch + p)
                                    micro(left, 1, rows, b, columns, nk, c, cells)
                        for i in range(min(rows, cout - o * rows)):
                            to = y + size * (plane * cout + o * rows + i) * out_size
                            for h in range(high):
                                place = s[at + 6] + d * out_d + (h0 + h) * out_h + v0 * out_w
                                done, out = ptr(sums + size * (i * cells + h * pitch), 4), ptr(to + size * place, 5)
                                if out_w == 1:
                                    for v in range(wide):
                                        out[v] = done[v]
                                else:
                                    for v in range(wide):
                                        out[v * out_w] = done[v]
                at += PHASE + taps
                w0 += size * groups * blocks * k * rows

    return conv_rows
