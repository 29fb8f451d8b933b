"""Matrix products that are so small that tiles on the stack, panels and their tables cost more than the work."""

from __future__ import annotations

from compiler.codegen.kernels.gemm_tile import parts
from compiler.codegen.native import (
    Kernel,
    Tile,
    i64,
    kernel,
    make_micro_edge,
    make_transpose_edge,
    per_target,
    tile_for,
    transpose_block,
)

HEADER = 8  # words of a product before its table of offsets
NARROW_ROWS = 8


@per_target
def make_small_gemm(dtype: str) -> Kernel:
    """Matrices [lo, hi) of y = a @ b + c, whole; the bits are those of `make_gemm`.

    shape: m, n, k, strides of a, a stride of b, that of c's rows, and which of b's it is: 1 if its columns are
    neighbours, 0 if its rows are (then b is turned into scratch, in panels of nr columns); for each matrix the offsets
    of a, b and c. a is read with any strides. c: 0 for none; its columns are neighbours. k: at most one block of terms.
    """
    _, nr, size, _, _ = parts(dtype)
    mr, nv, vl = tile_for(dtype)
    wide, narrow = make_micro_edge(dtype, Tile(mr, nv, vl)), make_micro_edge(dtype, Tile(NARROW_ROWS, 1, vl))
    side, turn = transpose_block(size), make_transpose_edge(size)

    @kernel
    def small_gemm(lo: int, hi: int, a: int, b: int, c: int, y: int, shape: int, scratch: int) -> None:
        s = i64(shape, 0)
        m, n, k, rsa, csa, rsb, rsc, in_place = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
        for z in range(lo, hi):
            left, b0 = a + size * s[HEADER + 3 * z], b + size * s[HEADER + 1 + 3 * z]
            term, out = c, y + size * z * m * n
            if c != 0:
                term += size * s[HEADER + 2 + 3 * z]
            for j0 in range(0, n, nr):
                nj = min(nr, n - j0)
                right, ldb = b0 + size * j0, rsb
                if in_place == 0:
                    for j in range(0, nj, side):
                        for q in range(0, k, side):
                            at = b0 + size * ((j0 + j) * rsb + q)
                            turn(at, rsb, scratch + size * (q * nr + j), nr, nj - j)
                    right, ldb = scratch, nr
                to, more = out + size * j0, (term + size * j0 if c != 0 else 0)
                if nj <= vl:
                    for i in range(0, m, NARROW_ROWS):
                        row, plus = to + size * i * n, (more + size * i * rsc if c != 0 else 0)
                        narrow(left + size * i * rsa, rsa, csa, right, ldb, k, row, n, plus, rsc, m - i, nj)
                else:
                    for i in range(0, m, mr):
                        row, plus = to + size * i * n, (more + size * i * rsc if c != 0 else 0)
                        wide(left + size * i * rsa, rsa, csa, right, ldb, k, row, n, plus, rsc, m - i, nj)

    return small_gemm


def scratch_bytes(dtype: str, k: int) -> int:
    """What a product of k terms needs to turn a panel of b."""
    _, nr, size, _, _ = parts(dtype)
    side = transpose_block(size)
    return -(-k // side) * side * nr * size
