"""Matrix products with few columns of long sums, whose operands are read along the sums: scalar products of rows."""

from __future__ import annotations

from compiler.codegen.calls import Call, Scratch
from compiler.codegen.kernels.gemm_shape import Operands, Shape
from compiler.codegen.kernels.gemm_tile import BLOCK, parts
from compiler.codegen.native import (
    ITEMSIZE,
    Kernel,
    boolean,
    f64_of_bits,
    i64,
    kernel,
    make_dots,
    make_tile,
    per_target,
    tile_for,
)
from compiler.codegen.native.dots import COUNT

HEADER = 11  # words of a product before its table of offsets


def _block(dtype: str) -> int:
    """Terms that are added up before they go to memory: BLOCK for each part of a sum."""
    return BLOCK * tile_for(dtype).vl


@per_target
def make_dot_gemm(dtype: str, columns: int) -> Kernel:
    """Items [lo, hi) of y = alpha * a @ b + beta * c, with n <= columns: an item is COUNT / columns rows of a matrix.

    shape: m, n, k, row stride of a, whose columns are neighbours, strides of b, c and y; for each matrix the offsets of
    a, b and c. alpha, beta: bits of float64. c: 0 for none; anew: 0, or a boolean that tells to leave out c. Where rows
    of b are not neighbours, its columns are copied to scratch.
    """
    _, _, size, number, ptr = parts(dtype)
    rows, block = COUNT // columns, _block(dtype)
    dots, tile = make_dots(dtype, columns), make_tile(COUNT, dtype)

    @kernel
    def dot_gemm(
        lo: int, hi: int, a: int, b: int, c: int, y: int, alpha: int, beta: int, shape: int, anew: int, scratch: int
    ) -> None:
        s = i64(shape, 0)
        m, n, k, rsa, rsb, csb, rsc, csc, rsy, csy = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]
        tiles, scale, factor = s[10], number(f64_of_bits(alpha)), number(f64_of_bits(beta))
        added = c != 0 and (anew == 0 or not boolean(anew, 1)[0])
        at = tile()
        t = ptr(at, 2)
        item = lo
        while item < hi:
            z, first = item // tiles, item % tiles
            end = min(tiles, first + hi - item)
            left, right = a + size * s[HEADER + 3 * z], b + size * s[HEADER + 1 + 3 * z]
            term, out = ptr(c + size * s[HEADER + 2 + 3 * z], 3), ptr(y + size * z * m * n, 3)
            k0 = 0
            while k0 < k or k0 == 0:
                q = min(block, k - k0)
                column, step = right + size * k0 * rsb, csb
                if rsb != 1:
                    packed = ptr(scratch, 4)
                    for j in range(n):
                        source = ptr(column + size * j * csb, 5)
                        for p in range(q):
                            packed[j * q + p] = source[p * rsb]
                    column, step = scratch, q
                for i0 in range(first * rows, end * rows, rows):
                    ni = min(rows, m - i0)
                    dots(left + size * (i0 * rsa + k0), rsa, column, step, q, at, ni, n)
                    for i in range(ni):
                        for j in range(n):
                            value, to = scale * t[i * columns + j], (i0 + i) * rsy + j * csy
                            if k0 != 0:
                                value += out[to]
                            elif added:
                                value += factor * term[(i0 + i) * rsc + j * csc]
                            out[to] = value
                k0 += block
            item += end - first

    return dot_gemm


def is_dots(shape: Shape) -> bool:
    """Whether `dot_call` takes the least time: sums are long, and columns of b need no copies, or serve many rows."""
    few = 0 < shape.n <= 4 and shape.k >= 16 * (shape.n + 1)
    return few and shape.a[1] == 1 and shape.m >= (1 if shape.b[0] == 1 else 16)


def dot_call(dtype: str, shape: Shape, operands: Operands) -> Call:
    """The call of `make_dot_gemm`."""
    columns = 1 << (shape.n - 1).bit_length()
    tiles = -(-shape.m // (COUNT // columns))
    y = (1, shape.m) if operands.turned else (shape.n, 1)
    words = (shape.m, shape.n, shape.k, shape.a[0], *shape.b, *shape.c, *y, tiles)
    assert len(words) == HEADER
    elements = shape.n * min(shape.k, _block(dtype)) + tile_for(dtype).vl  # a vector is read behind the last
    scratch = Scratch(elements * ITEMSIZE[dtype] if shape.b[0] != 1 else 0)
    if len(shape.offsets) == 1 and not operands.turned:
        operands = shape.in_pieces(operands, ITEMSIZE[dtype], COUNT // columns)
    args = (*operands.args(shape, shape.table(*words)), scratch)
    return Call(make_dot_gemm(dtype, columns), len(shape.offsets) * tiles, args)
