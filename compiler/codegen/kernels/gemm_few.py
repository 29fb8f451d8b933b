"""Matrix products with few rows: strips of the other matrix, which is large, are read from left to right once."""

from __future__ import annotations

from compiler.codegen.calls import Call, Scratch
from compiler.codegen.kernels.gemm_shape import Operands, Shape
from compiler.codegen.kernels.gemm_tile import (
    STRIP,
    blocks,
    factors_of,
    fitting,
    make_store,
    parts,
    short_rows,
    tall_tiles,
)
from compiler.codegen.native import (
    ITEMSIZE,
    Kernel,
    Tile,
    boolean,
    i64,
    kernel,
    make_micro,
    make_tile,
    make_transpose,
    per_target,
    tile_for,
    transpose_block,
)

HEADER = 14  # words of a product before its table of offsets

MOST = 48
"""Rows of a product: with more, reading the other matrix is little of the work."""

SUMS = 16384
"""Bytes of sums that products of a strip are added to: half of an L1 cache."""

LARGE = 4 << 20
"""Bytes of a matrix that is surely not in a cache near the core."""

TURNING = 0.85
"""Rows of a transposed product, in terms of the columns that tiles would compute else, from which on it pays."""


def few_rows(dtype: str, rows: int) -> Tile:
    """The tile for so many rows: the usual one, or one of 1, 2 or 4 rows.

    That has about eight vectors, the least that keep multiply-adds busy, and at most 128 bytes of columns: whole rows
    of b are read, and so many bytes behind a value may be.
    """
    usual = tile_for(dtype)
    if rows > 4:
        return usual
    mr = _power(rows)
    return usual._replace(mr=mr, nv=min(8 // mr, 128 // (usual.vl * ITEMSIZE[dtype])))


def _power(rows: int) -> int:
    """The least power of two from `rows` on: so many rows a tile has for `make_turned_store`."""
    return 1 << (max(rows, 1) - 1).bit_length()


def _rows_of_tiles(dtype: str, rows: int) -> tuple[int, int]:
    """Rows of the whole tiles, and of all of them."""
    tile = few_rows(dtype, rows)
    less = short_rows(dtype, tile)
    cut = tall_tiles(rows, tile.mr, less) * tile.mr
    return cut, cut + max(0, -(-(rows - cut) // less)) * less


@per_target
def make_turned_store(dtype: str, tile: Tile) -> Kernel:
    """As `make_store`, but of the transposed tile: y[j, i] = alpha * t[i, j] + beta * c[i*rsc + j*csc], rsc 0 or 1.

    t has rows up to a power of two, lo is 0.
    """
    mr, nr, size, _, _ = parts(dtype, tile)
    width = _power(mr)
    side = min(width, nr, transpose_block(size))
    turn, columns = make_transpose(size, side), make_tile(width * nr, dtype)
    store = make_store(dtype, Tile(nr, 1, width))

    @kernel
    def turned_store(lo: int, hi: int, t: int, nj: int, y: int, ldy: int, c: int, rsc: int, csc: int, f: int) -> None:
        at = columns()
        for i in range(0, width, side):
            for j in range(0, nr, side):
                turn(t + size * (i * nr + j), nr, at + size * (j * width + i), width)
        store(0, nj, at, hi, y, ldy, c, csc, rsc, f)

    return turned_store


@per_target
def make_few_gemm(dtype: str, tile: Tile, turned: bool) -> Kernel:
    """Items [lo, hi) of y = alpha * a @ b + beta * c, with m <= MOST: an item is a panel of nr columns of a matrix.

    shape: m, n, k, strides of a, row stride of b, whose columns are neighbours, strides of c; terms of a block, panels
    of a matrix, panels at a time, the row from which on tiles are short ones, rows of all tiles, the distance of lines
    of y; for each matrix the offsets of a, b and c. alpha, beta: bits of float64. c: 0 for none; anew: 0, or a boolean
    that tells to leave out c. turned: y is transposed. The bits are those of `make_gemm`: scratch holds the sums of a
    block, in tiles, to which each strip of its rows adds.
    """
    mr, nr, size, number, ptr = parts(dtype, tile)
    less, zero = short_rows(dtype, tile), number(0)
    micro = make_micro(dtype, tile, a_row_table=True, accumulate=True)
    short_micro = make_micro(dtype, tile._replace(mr=less), a_row_table=True, accumulate=True)
    store = make_turned_store(dtype, tile) if turned else make_store(dtype, tile)
    table, (factors, prepare) = make_tile(MOST + mr, "i64"), factors_of(dtype, tile)

    @kernel
    def few_gemm(
        lo: int, hi: int, a: int, b: int, c: int, y: int, alpha: int, beta: int, shape: int, anew: int, scratch: int
    ) -> None:
        s = i64(shape, 0)
        m, n, k, rsa, csa, rsb, rsc, csc = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
        block, panels, span, cut, height, ldy = s[8], s[9], s[10], s[11], s[12], s[13]
        added = c != 0 and (anew == 0 or not boolean(anew, 1)[0])
        rsy, csy = (1, ldy) if turned else (ldy, 1)
        at, f, sums = table(), factors(), ptr(scratch, 2)
        rows = i64(at, 3)
        for i in range(height):
            rows[i] = min(i, m - 1) * rsa
        prepare(f, alpha, beta)
        item = lo
        while item < hi:
            z, j0 = item // panels, item % panels * nr
            count = min(span, hi - item, panels - item % panels)
            left, right = a + size * s[HEADER + 3 * z], b + size * (s[HEADER + 1 + 3 * z] + j0)
            c0, y0 = c + size * (s[HEADER + 2 + 3 * z] + j0 * csc), y + size * (z * m * n + j0 * csy)
            k0 = 0
            while k0 < k or k0 == 0:
                end = min(k, k0 + block)
                for i in range(count * height * nr):
                    sums[i] = zero
                for q in range(k0, end, STRIP):
                    more = min(STRIP, end - q)
                    for p in range(count):
                        i0 = 0
                        while i0 < height:
                            source, to = right + size * (q * rsb + p * nr), scratch + size * nr * (p * height + i0)
                            if i0 < cut:
                                micro(left + size * q * csa, at + 8 * i0, csa, source, rsb, more, to, nr)
                                i0 += mr
                            else:
                                short_micro(left + size * q * csa, at + 8 * i0, csa, source, rsb, more, to, nr)
                                i0 += less
                for p in range(count):
                    nj, i0 = min(nr, n - j0 - p * nr), 0
                    while i0 < height:
                        tall = mr if i0 < cut else less
                        out = y0 + size * (i0 * rsy + p * nr * csy)
                        term = c0 + size * (i0 * rsc + p * nr * csc) if added else 0
                        t = scratch + size * nr * (p * height + i0)
                        store(0, min(tall, m - i0), t, nj, out, ldy, out if k0 != 0 else term, rsc, csc, f)
                        i0 += tall
                k0 += block
            item += count

    return few_gemm


def is_few(dtype: str, shape: Shape) -> bool:
    """Whether `few_call` takes the least time: there are so few rows, or b so large, that it is read but once."""
    large = shape.k * shape.n * ITEMSIZE[dtype] > LARGE
    few = shape.m <= 4 or (large and shape.m <= 3 * tile_for(dtype).mr)
    return few and shape.n > 8 and shape.b[1] == 1


def is_turned_few(dtype: str, shape: Shape) -> bool:
    """Whether `few_call` of the transposed product does: a is read down its columns, y has few of them."""
    turned = shape.transposed()
    columns = fitting(dtype, shape.n)[1]
    _, rows = _rows_of_tiles(dtype, turned.m)
    long = shape.k >= min(shape.n, STRIP)  # else storing takes the time
    return long and turned.b[1] == 1 != turned.b[0] and turned.m < turned.n and rows <= min(MOST, TURNING * columns)


def few_call(dtype: str, shape: Shape, operands: Operands) -> Call:
    """The call of `make_few_gemm`."""
    tile = few_rows(dtype, shape.m)
    mr, nr, size, _, _ = parts(dtype, tile)
    panels, (cut, height) = -(-shape.n // nr), _rows_of_tiles(dtype, shape.m)
    span = min(panels, max(1, SUMS // max(1, height * nr * size)))
    extents = (shape.m, shape.n, shape.k, *shape.a, shape.b[0], *shape.c)
    words = (*extents, blocks(shape.k), panels, span, cut, height, shape.m if operands.turned else shape.n)
    assert len(words) == HEADER
    args = (*operands.args(shape, shape.table(*words)), Scratch((span * height + _power(mr)) * nr * size))
    return Call(make_few_gemm(dtype, tile, operands.turned), len(shape.offsets) * panels, args)
