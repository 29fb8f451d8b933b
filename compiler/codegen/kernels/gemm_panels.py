"""Matrix products of panels: the columns of b that fit in a register tile, by groups of rows of a."""

from __future__ import annotations

from compiler.codegen.kernels.gemm_tile import (
    BLOCK,
    factors_of,
    make_pack,
    make_store,
    parts,
    short_rows,
    tall_tiles,
)
from compiler.codegen.native import (
    Kernel,
    Tile,
    bits_of,
    boolean,
    i64,
    kernel,
    make_micro,
    make_micro_add,
    make_tile,
    per_target,
    tile_for,
)

HEADER = 18  # words of a product before its table of offsets
ONE = bits_of(1.0, "f64")


@per_target
def make_gemm(dtype: str, tile: Tile | None = None) -> Kernel:
    """Items [lo, hi) of y = alpha * a @ b + beta * c: an item is a panel of nr columns of a group of rows of a matrix.

    shape: words as `Product.calls` makes them. a and b are read with any strides. alpha, beta: bits of float64. c: 0
    for none. b is packed into scratch, a panel and a block of its rows at a time, unless shape says to read it in
    place. Sums are cut into blocks; an element is a chain of multiply-adds for each, added in order. A whole tile goes
    from registers to y where alpha is 1 and c, if there is one, is added as it is; others go through `store`, which
    gives the same bits. Behind the first `tall` rows of a group, or `end` of the last one, tiles are short. All groups
    of a panel follow each other; if `across` is not 0, all panels of a group do, and there are so many.
    """
    tile = tile or tile_for(dtype)
    mr, nr, size, _, _ = parts(dtype, tile)
    micro, whole_micro = make_micro(dtype, tile, a_row_table=True), make_micro_add(dtype, tile, a_row_table=True)
    less = short_rows(dtype, tile)
    short_micro = make_micro_add(dtype, tile._replace(mr=less), a_row_table=True)
    pack, store = make_pack(dtype, tile), make_store(dtype, tile)
    result, table, (factors, prepare) = make_tile(mr * nr, dtype), make_tile(mr, "i64"), factors_of(dtype, tile)

    @kernel
    def gemm(lo: int, hi: int, a: int, b: int, c: int, y: int, alpha: int, beta: int, shape: int, scratch: int) -> None:
        s = i64(shape, 0)
        m, n, k, rsa, csa, rsb, csb, rsc, csc = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]
        block, height, groups, panels = s[9], s[10], s[11], s[12]
        packed_b, packed_a, tall, end, across = s[13], s[14], s[15], s[16], s[17]
        t, at, f = result(), table(), factors()
        rows = i64(at, 1)
        prepare(f, alpha, beta)
        plain = alpha == ONE and (c == 0 or (beta == ONE and csc == 1))
        held = -1  # the panel that scratch holds whole
        for item in range(lo, hi):
            panel, group = (item // groups, item % groups) if across == 0 else (item % across, item // across)
            z, j0, first = panel // panels, panel % panels * nr, group * height
            a0, b0 = a + size * s[HEADER + 3 * z], b + size * (s[HEADER + 1 + 3 * z] + j0 * csb)
            c0, y0 = c + size * (s[HEADER + 2 + 3 * z] + j0 * csc), y + size * (z * m * n + j0)
            nj, last = min(nr, n - j0), min(first + height, m)
            cut = first + (tall if last < m else end)
            k0 = 0
            while k0 < k or k0 == 0:
                q = min(block, k - k0)
                right, ldb = b0 + size * k0 * rsb, rsb
                if packed_b != 0:
                    if held != panel:
                        pack(0, q, right, rsb, csb, nj, scratch)
                        held = panel if q == k else -1
                    right, ldb = scratch, nr
                left, i0 = a0 + size * k0 * csa, first
                while i0 < last:
                    if packed_a == 0:
                        for i in range(mr):
                            rows[i] = min(i0 + i, m - 1) * rsa
                    elif i0 < cut:
                        for i in range(mr):
                            rows[i] = i0 * k + i
                    else:
                        for i in range(mr):
                            row = min(i0 + i, m - 1)
                            rows[i] = row // mr * mr * k + row % mr
                    out = y0 + size * i0 * n
                    term, ldt = (out, n) if k0 != 0 else (c0 + size * i0 * rsc if c != 0 else 0, rsc)
                    step = mr if i0 < cut else less
                    if not plain or nj < nr or i0 + step > last:
                        micro(left, at, csa, right, ldb, q, t, nr)
                        store(0, min(step, last - i0), t, nj, out, n, term, rsc, csc, f)
                    elif i0 < cut:
                        whole_micro(left, at, csa, right, ldb, q, out, n, term, ldt)
                    else:
                        short_micro(left, at, csa, right, ldb, q, out, n, term, ldt)
                    i0 += step
                k0 += block

    return gemm


@per_target
def make_sum_gemm(dtype: str, tile: Tile | None = None) -> Kernel:
    """`gemm`, but without c if the boolean at `anew` is set. y may be c."""
    gemm = make_gemm(dtype, tile)

    @kernel
    def sum_gemm(
        lo: int, hi: int, a: int, b: int, c: int, y: int, alpha: int, beta: int, shape: int, anew: int, scratch: int
    ) -> None:
        gemm(lo, hi, a, b, 0 if boolean(anew, 0)[0] else c, y, alpha, beta, shape, scratch)

    return sum_gemm


@per_target
def make_multiply(dtype: str) -> Kernel:
    """multiply(lo, hi, a, rsa, csa, b, rsb, csb, pack, y, n, k, add, scratch): rows [lo, hi) of y [m, n] = a @ b.

    For other kernels: `gemm` with extents that are known only there. a: [m, k], b: [k, n], with any strides; b is
    packed into scratch (`blocks(k)` rows of nr elements) if pack is not 0, which it must be unless its columns follow
    each other in panels of nr. add: not 0: y += a @ b. The bits do not depend on lo and hi.
    """
    mr, nr, size, _, _ = parts(dtype)
    gemm, words, less = make_gemm(dtype), make_tile(HEADER + 3, "i64"), short_rows(dtype)

    @kernel
    def multiply(
        lo: int,
        hi: int,
        a: int,
        rsa: int,
        csa: int,
        b: int,
        rsb: int,
        csb: int,
        pack: int,
        y: int,
        n: int,
        k: int,
        add: int,
        scratch: int,
    ) -> None:
        at, m = words(), hi - lo
        s, panels, cuts = i64(at, 0), (n + nr - 1) // nr, max(1, (k + BLOCK - 1) // BLOCK)
        s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8] = m, n, k, rsa, csa, rsb, csb, n, 1
        s[9], s[10], s[11], s[12] = max(1, (k + cuts - 1) // cuts), (m + mr - 1) // mr * mr, 1, panels
        s[13], s[14], s[15], s[16], s[17] = pack, 0, 0, tall_tiles(m, mr, less) * mr, 0
        s[18], s[19], s[20] = 0, 0, 0
        to = y + size * lo * n
        if m > 0:
            gemm(0, panels, a + size * lo * rsa, b, to if add != 0 else 0, to, ONE, ONE, at, scratch)

    return multiply
