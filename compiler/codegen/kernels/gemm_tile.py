"""What matrix products and convolutions are made of: the register tile, its store, and panels of packed columns.

A product runs tile by tile: `micro` computes mr rows of nr columns into a tile on the stack (always whole tiles: rows
beyond the edge repeat the last one), and `store` moves the part that exists to memory. So no kernel writes past an
edge, and the bits of an element do not depend on the tile it falls in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from compiler.codegen.calls import Call, In, Temp, Words
from compiler.codegen.native import (
    ITEMSIZE,
    Inline,
    Kernel,
    Primitive,
    Tile,
    f64_of_bits,
    i64,
    inline,
    kernel,
    make_micro,
    make_micro_edge,
    make_tile,
    make_transpose,
    per_target,
    pointer,
    tile_for,
    transpose_block,
)
from compiler.codegen.native.dispatch import share

BLOCK = 384
"""Terms of a sum that one tile adds up before it goes to memory: nr columns of so many rows stay in the L1 cache."""


Micro = Primitive[[int, int, int, int, int, int, int, int], None]


class Parts(NamedTuple):
    """Building blocks of one element type, for kernels to pick from.

    mr, nr: size of the tile; size: bytes of an element; number: NumPy's scalar type; ptr: the pointer constructor.
    """

    mr: int
    nr: int
    size: int
    number: Any
    ptr: Any


def parts(dtype: str, tile: Tile | None = None) -> Parts:
    """The tile (by default the usual one) and element of "f32" or "f64"."""
    tile = tile or tile_for(dtype)
    return Parts(tile.mr, tile.nr, ITEMSIZE[dtype], np.float64 if dtype == "f64" else np.float32, pointer(dtype))


NARROW = 1.2
"""Time of a multiply-add in a narrow tile, in terms of the usual one: fewer of them for each load."""


def fitting(dtype: str, columns: int, *, whole: bool = False) -> tuple[Tile, float]:
    """The tile that takes the least time for so many columns: the usual or a narrow one; and that time, in columns.

    whole: its vectors are those of the usual one.
    """
    best = tile = tile_for(dtype)
    least, factor = float(-(-columns // tile.nr) * tile.nr), 1.0
    shortest = best.vl if whole else 16 // ITEMSIZE[dtype]
    for _ in range(2):
        nv, vl = (tile.nv // 2, tile.vl) if tile.nv > 1 else (1, tile.vl // 2)
        tile, factor = Tile(8, nv, vl), factor * NARROW
        if vl >= shortest and factor * -(-columns // tile.nr) * tile.nr < least:
            best, least = tile, factor * -(-columns // tile.nr) * tile.nr
    return best, least


def short_rows(dtype: str, tile: Tile | None = None) -> int:
    """Rows of a short tile: with it few numbers of rows are left over, and it is nearly as fast as a whole one."""
    return max(1, parts(dtype, tile)[0] - 2)


@inline
def tall_tiles(rows: int, mr: int, less: int) -> int:
    """How many tiles of mr rows come before the short ones of `less`, so that all have the fewest rows in sum."""
    tall = (rows + mr - 1) // mr
    fewest = tall * mr
    for short in range(1, mr):
        rest = (max(0, rows - short * less) + mr - 1) // mr
        if rest * mr + short * less < fewest:
            tall, fewest = rest, rest * mr + short * less
    return tall


TOGETHER = 24, 56
"""Rows, at least and at most, of a group that goes through all panels: these come from the cache for each, and the
rows of many columns should stay there."""

SHARES = 8
"""Such groups that there are at least, so that threads can share them out."""


@cache
def rows_together(m: int, mr: int, less: int) -> int:
    """Rows of each such group of a matrix of m rows, in tiles of mr and `less`; 0 if it is too low.

    What the thread that computes the most tiles does should be least, for 1, 2 and 4 of them.
    """
    best = (inf, 0)
    low, high = TOGETHER
    for tiles in range(-(-low // mr), high // mr + 1):
        for rows in range(tiles * less, tiles * mr + 1, max(1, mr - less)):
            groups = -(-m // rows)
            spared = tiles - -(-(m - (groups - 1) * rows) // mr)  # in the last group
            efforts = []
            for threads in (1, 2, 4):
                *others, last = (len(share(groups, t, threads)) * tiles for t in range(threads))
                efforts.append(threads * max([*others, last - spared]))
            if groups >= SHARES:
                best = min(best, (sum(efforts), -rows))
    return -best[1]


def blocks(k: int) -> int:
    """Length of the blocks that a sum of k terms is cut into: near equal, at most BLOCK. By shape: it decides bits."""
    return -(-k // max(1, -(-k // BLOCK))) if k else 1


@per_target
def make_line(dtype: str, tile: Tile | None = None) -> Micro:
    """A micro kernel for one row of nr columns; with k = 1 and a factor 1, it copies a row of vectors.

    (A loop of nr turns in Python would be unrolled to scalar moves before LLVM thinks of vectors.)
    """
    return make_micro(dtype, (tile or tile_for(dtype))._replace(mr=1))


@per_target
def make_pack(dtype: str, tile: Tile | None = None) -> Kernel:
    """pack(lo, hi, src, rs, cs, n, dst): dst[q*nr + j] = src[q*rs + j*cs] for q in [lo, hi), j < n <= nr.

    Lanes from n on are rubbish if cs is 1 (nr elements of each row are read), else zeros.
    """
    _, nr, size, number, ptr = parts(dtype, tile)
    side, zero = min(transpose_block(size), max(4, nr // 2)), number(0)
    turn, line, unit, one = make_transpose(size, side), make_line(dtype, tile), make_tile(1, dtype), number(1)

    @kernel
    def pack(lo: int, hi: int, src: int, rs: int, cs: int, n: int, dst: int) -> None:
        count = hi - lo
        s, d = ptr(src + size * lo * rs, 0), ptr(dst + size * lo * nr, 1)
        if cs == 1:
            u = unit()
            ptr(u, 2)[0] = one
            for q in range(count):
                line(u, 0, 0, src + size * (lo + q) * rs, 0, 1, dst + size * (lo + q) * nr, 0)
            return
        whole = count // side * side if rs == 1 else 0
        if n < nr:
            for q in range(whole * nr):
                d[q] = zero
        for j in range(n // side * side, n if whole else 0):
            for q in range(whole):
                d[q * nr + j] = s[q + j * cs]
        for j0 in range(0, n // side * side, side):
            for q0 in range(0, whole, side):
                turn(src + size * (lo + q0 + j0 * cs), cs, dst + size * ((lo + q0) * nr + j0), nr)
        for q in range(whole, count):
            for j in range(nr):
                d[q * nr + j] = s[q * rs + j * cs] if j < n else zero

    return pack


@per_target
def make_unpack(dtype: str) -> Kernel:
    """unpack(lo, hi, src, dst, ldd, n): dst[j*ldd + p] = src[p*nr + j] for p in [lo, hi), j < n <= nr."""
    _, nr, size, _, ptr = parts(dtype)
    side, turn = transpose_block(size), make_transpose(size)

    @kernel
    def unpack(lo: int, hi: int, src: int, dst: int, ldd: int, n: int) -> None:
        end, whole = lo + (hi - lo) // side * side, n // side * side
        s, d = ptr(src, 0), ptr(dst, 1)
        for p in range(lo, end, side):
            for j in range(0, whole, side):
                turn(src + size * (p * nr + j), nr, dst + size * (j * ldd + p), ldd)
            for j in range(whole, n):
                for i in range(side):
                    d[j * ldd + p + i] = s[(p + i) * nr + j]
        for j in range(n):
            for p in range(end, hi):
                d[j * ldd + p] = s[p * nr + j]

    return unpack


@per_target
def make_pack_rows(dtype: str) -> Kernel:
    """pack_rows(lo, hi, src, words, dst): groups of `width` rows, interleaved: dst[phase][group][block][k][width].

    words: see `pack_rows`, which makes the call. An item is one block. Rows beyond the last repeat it.
    """
    _, nr, size, _, ptr = parts(dtype)
    table = make_tile(nr, "i64")

    @kernel
    def pack_rows(lo: int, hi: int, src: int, words: int, dst: int) -> None:
        s = i64(words, 0)
        width, groups, blocks, m, group_step, row_step, in_step, cin = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
        at_rows = table()
        row = i64(at_rows, 3)
        for item in range(lo, hi):
            block, group, phase = item % blocks, item // blocks % groups, item // blocks // groups
            at, to = 8, dst
            for _ in range(phase):
                to += size * groups * blocks * width * cin * s[at]
                at += 1 + s[at]
            taps = s[at]
            a = src + size * group * group_step
            d = ptr(to + size * (group * blocks + block) * cin * taps * width, 1)
            for i in range(width):
                row[i] = min(block * width + i, m - 1) * row_step
            for c in range(cin):
                for u in range(taps):
                    r = ptr(a + size * (c * in_step + s[at + 1 + u]), 2)
                    for i in range(width):
                        d[(c * taps + u) * width + i] = r[row[i]]

    return pack_rows


class Packed(NamedTuple):
    """What packs an operand: the call, and its memory for the kernel that reads it."""

    call: Call
    memory: Temp


def pack_rows(
    dtype: str,
    src: In,
    width: int,
    groups: int,
    m: int,
    steps: tuple[int, int, int],
    cin: int,
    phases: Sequence[Sequence[int]],
) -> Packed:
    """Interleave `width` <= nr rows at a time: row i of group g is src[g*steps[0] + i*steps[1] + c*steps[2] + offset].

    Its elements run over c < cin, then over the offsets of a phase. Memory: for each phase [group][block][k][width].
    """
    blocks, size = -(-m // width), ITEMSIZE[dtype]
    nbytes = size * groups * blocks * width * cin * sum(map(len, phases))
    words = Words((width, groups, blocks, m, *steps, cin, *(v for phase in phases for v in (len(phase), *phase))))
    call = Call(make_pack_rows(dtype), len(phases) * groups * blocks, (src, words, Temp("rows", nbytes)))
    return Packed(call, Temp("rows", nbytes, writes=False))


STRIP = 16
"""Rows that `pack_columns` goes through at a time: as many lines at a large stride as surely stay in the L1 cache."""


@per_target
def make_pack_columns(dtype: str, tile: Tile | None = None) -> Kernel:
    """pack_columns(lo, hi, src, k, m, ld, dst): blocks of mr columns of a matrix [k, m]: dst[block][k][mr].

    ld: from row to row. Columns beyond the last repeat it. A range counts blocks. It moves whole vectors, which are
    longer than mr elements: what is written too much the next row overwrites, so the last row goes by elements.
    """
    mr, _, size, number, ptr = parts(dtype, tile)
    line = make_micro(dtype, Tile(1, 1, 1 << (mr - 1).bit_length()))
    unit, one = make_tile(1, dtype), number(1)

    @kernel
    def pack_columns(lo: int, hi: int, src: int, k: int, m: int, ld: int, dst: int) -> None:
        u = unit()
        ptr(u, 2)[0] = one
        for q0 in range(0, k, STRIP):
            q1 = min(q0 + STRIP, k)
            for block in range(lo, hi):
                at, to = src + size * block * mr, dst + size * block * k * mr
                whole = min(q1, k - 1) if (block + 1) * mr <= m else q0
                for q in range(q0, whole):
                    line(u, 0, 0, at + size * q * ld, 0, 1, to + size * q * mr, 0)
                for q in range(whole, q1):
                    s, d = ptr(at + size * q * ld, 0), ptr(to + size * q * mr, 1)
                    for i in range(mr):
                        d[i] = s[min(i, m - 1 - block * mr)]

    return pack_columns


def pack_columns(dtype: str, src: In, k: int, m: int, ld: int, tile: Tile) -> Packed:
    """Columns of a matrix [k, m] in blocks of mr: the call, and the memory [block][k][mr]."""
    mr, _, size, _, _ = parts(dtype, tile)
    blocks = -(-m // mr)
    nbytes = size * blocks * k * mr
    call = Call(make_pack_columns(dtype, tile), blocks, (src, k, m, ld, Temp("columns", nbytes)))
    return Packed(call, Temp("columns", nbytes, writes=False))


@per_target
def make_pack_panels(dtype: str, tile: Tile | None = None) -> Kernel:
    """pack_panels(lo, hi, src, k, n, rs, cs, dst): panels of nr columns of a matrix [k, n]: dst[panel][k][nr].

    rs, cs: from row to row and from column to column. A range counts panels.
    """
    _, nr, size, _, _ = parts(dtype, tile)
    pack = make_pack(dtype, tile)

    @kernel
    def pack_panels(lo: int, hi: int, src: int, k: int, n: int, rs: int, cs: int, dst: int) -> None:
        for panel in range(lo, hi):
            at = src + size * panel * nr * cs
            pack(0, k, at, rs, cs, min(nr, n - panel * nr), dst + size * panel * k * nr)

    return pack_panels


def pack_panels(dtype: str, src: In, k: int, n: int, strides: tuple[int, int], tile: Tile) -> Packed:
    """Columns of a matrix [k, n] in panels of nr: the call, and the memory [panel][k][nr]."""
    _, nr, size, _, _ = parts(dtype, tile)
    panels = -(-n // nr)
    nbytes = size * panels * k * nr
    call = Call(make_pack_panels(dtype, tile), panels, (src, k, n, *strides, Temp("panels", nbytes)))
    return Packed(call, Temp("panels", nbytes, writes=False))


FACTORS = 6
"""Elements of a block of factors before its nr ones."""


def factors_of(dtype: str, tile: Tile | None = None) -> tuple[Primitive[[], int], Inline[[int, int, int], None]]:
    """(block, prepare): memory on the stack for the factors of `store`, and prepare(f, alpha, beta) to fill it.

    alpha and beta are bits of float64. The block: alpha, beta; alpha, 1; alpha, a free place; nr ones.
    """
    _, nr, _, number, ptr = parts(dtype, tile)
    one = number(1)

    @inline
    def prepare(f: int, alpha: int, beta: int) -> None:
        p = ptr(f, 23)
        p[0], p[1], p[3] = number(f64_of_bits(alpha)), number(f64_of_bits(beta)), one
        p[2] = p[4] = p[0]
        for j in range(nr):
            p[FACTORS + j] = one

    return make_tile(FACTORS + nr, dtype), prepare


@per_target
def make_store(dtype: str, tile: Tile | None = None) -> Kernel:
    """store(lo, hi, t, nj, y, ldy, c, rsc, csc, f): rows [lo, hi), nj columns, of a tile t to y.

    y[i, j] = alpha * t[i, j] + beta * c[i*rsc + j*csc], csc being 0 or 1. c may be 0: no such term; or y: then
    y[i, j] += alpha * t[i, j]. f: the block of factors.
    """
    tile = tile or tile_for(dtype)
    _, nr, size, _, ptr = parts(dtype, tile)
    line = make_micro_edge(dtype, tile._replace(mr=1))

    @kernel
    def store(lo: int, hi: int, t: int, nj: int, y: int, ldy: int, c: int, rsc: int, csc: int, f: int) -> None:
        if c == 0:
            for i in range(lo, hi):
                line(f, 0, 1, t + size * i * nr, 0, 1, y + size * i * ldy, 0, 0, 0, 1, nj)
        elif c == y or csc == 1:
            step, factors = (ldy, f + 2 * size) if c == y else (rsc, f)
            for i in range(lo, hi):
                source, to = t + size * i * nr, y + size * i * ldy
                line(factors, 0, 1, source, (c + size * i * step - source) // size, 2, to, 0, 0, 0, 1, nj)
        else:
            factor, term = ptr(f, 0), ptr(c, 1)
            for i in range(lo, hi):
                source, to = t + size * i * nr, y + size * i * ldy
                factor[5] = factor[1] * term[i * rsc]
                line(f + 4 * size, 0, 1, source, (f + FACTORS * size - source) // size, 2, to, 0, 0, 0, 1, nj)

    return store
