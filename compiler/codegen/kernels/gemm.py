"""Gemm and MatMul."""

from __future__ import annotations

from itertools import pairwise
from itertools import product as cartesian
from math import prod

import numpy as np

from compiler.codegen.calls import Arg, Call, In, Number, Out, Scratch, Site, Temp, Words, lowers
from compiler.codegen.kernels.gemm_dots import dot_call, is_dots
from compiler.codegen.kernels.gemm_integer import NUMBERS, make_integer_gemm
from compiler.codegen.kernels.gemm_shape import Operands, Shape
from compiler.codegen.kernels.gemm_small import make_small_gemm, scratch_bytes
from compiler.codegen.kernels.gemm_strips import is_strips, is_turned_strips, strip_call
from compiler.codegen.kernels.gemm_tile import (
    BLOCK,
    blocks,
    factors_of,
    fitting,
    make_pack,
    make_store,
    pack_columns,
    pack_panels,
    parts,
    short_rows,
    tall_tiles,
)
from compiler.codegen.native import (
    ITEMSIZE,
    TILED,
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
from compiler.errors import Problem, UnsupportedError

SMALL = 32768
"""Multiplications of a product that is small: about a microsecond, which no threads need to share."""

HEADER = 16  # words of a product before its table of offsets
ONE = bits_of(1.0, "f64")


@per_target
def make_gemm(dtype: str, tile: Tile | None = None) -> Kernel:
    """Items [lo, hi) of y = alpha * a @ b + beta * c: an item is a panel of nr columns of a group of rows of a matrix.

    shape: words as `Product.calls` makes them. a and b are read with any strides. alpha, beta: bits of float64. c: 0
    for none. b is packed into scratch, a panel and a block of its rows at a time, unless shape says to read it in
    place. Sums are cut into blocks; an element is a chain of multiply-adds for each, added in order. A whole tile goes
    from registers to y where alpha is 1 and c, if there is one, is added as it is; others go through `store`, which
    gives the same bits. Tiles from the row `cut` on are short ones.
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
        packed_b, packed_a, cut = s[13], s[14], s[15]
        t, at, f = result(), table(), factors()
        rows = i64(at, 1)
        prepare(f, alpha, beta)
        plain = alpha == ONE and (c == 0 or (beta == ONE and csc == 1))
        held = -1  # the panel that scratch holds whole
        for item in range(lo, hi):
            panel = item // groups
            z, j0, first = panel // panels, panel % panels * nr, item % groups * height
            a0, b0 = a + size * s[HEADER + 3 * z], b + size * (s[HEADER + 1 + 3 * z] + j0 * csb)
            c0, y0 = c + size * (s[HEADER + 2 + 3 * z] + j0 * csc), y + size * (z * m * n + j0)
            nj, last = min(nr, n - j0), min(first + height, m)
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
                    tall = mr if i0 < cut else less
                    if not plain or nj < nr or i0 + tall > last:
                        micro(left, at, csa, right, ldb, q, t, nr)
                        store(0, min(tall, last - i0), t, nj, out, n, term, rsc, csc, f)
                    elif i0 < cut:
                        whole_micro(left, at, csa, right, ldb, q, out, n, term, ldt)
                    else:
                        short_micro(left, at, csa, right, ldb, q, out, n, term, ldt)
                    i0 += tall
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
        s[13], s[14], s[15], s[16], s[17], s[18] = pack, 0, tall_tiles(m, mr, less) * mr, 0, 0, 0
        to = y + size * lo * n
        if m > 0:
            gemm(0, panels, a + size * lo * rsa, b, to if add != 0 else 0, to, ONE, ONE, at, scratch)

    return multiply


class Product(Shape):
    """A product and the calls that compute it."""

    def calls(
        self,
        dtype: str,
        a: In,
        b: In | Temp,
        c: In | int,
        y: Out | Temp,
        *,
        fixed_b: bool = False,
        anew: In | None = None,
    ) -> list[Call]:
        """The calls that compute it. c: 0 if there is none. UnsupportedError: not for this element type.

        fixed_b: b is the same in all iterations of a loop around, so that it pays to pack it in a call of its own.
        anew: a boolean that tells whether c is to be left out.
        """
        if dtype in NUMBERS:
            return [self._integer_call(dtype, a, b, c, y)]
        if dtype not in TILED:
            raise UnsupportedError(Problem(f"there are no matrix products of {dtype}", remedy="cast to f32"))
        fixed = b if fixed_b and isinstance(b, In) and self._is_worth_packing(dtype) else None
        if self._is_small(c) and not fixed and anew is None:
            return [self._small_call(dtype, a, b, c, y)]
        few = self._few(dtype, Operands(a, b, c, y, anew or 0), packs=fixed is not None)
        if few is not None:
            return [few]
        tile, _ = fitting(dtype, self.n)
        mr, nr, size, _, _ = parts(dtype, tile)
        block, panels = blocks(self.k), -(-self.n // nr)
        # A group of rows packs its panel again: it has many tiles, unless there would be too little to share out.
        tiles = -(-self.m // mr)
        groups = min(-(-tiles // 4), max(-(-tiles // 64), -(-8 // max(1, panels * len(self.offsets)))))
        height = -(-tiles // max(1, groups)) * mr
        groups = -(-self.m // height) if height else 0
        # Rows of b, or of a that is read down its columns, which are far apart meet in few sets of the cache.
        packed_b = self.b[1] != 1 or (tiles > 2 and self.k * self.b[0] * size > 16384)
        packed_a = self.a[0] == 1 and self.a[1] > 1 and self.k * self.a[1] * size > 16384 and len(self.offsets) == 1
        left: tuple[In | Temp, tuple[int, int]] = (a, self.a)
        right: tuple[In | Temp, tuple[int, int]] = (b, self.b)
        before: list[Call] = []
        if packed_a:
            columns = pack_columns(dtype, a, self.k, self.m, self.a[1], tile)
            before, left = [columns.call], (columns.memory, (0, mr))
        if fixed:
            packed = pack_panels(dtype, fixed, self.k, self.n, self.b, tile)
            before, right, packed_b = [*before, packed.call], (packed.memory, (nr, self.k)), False
        extents = (self.m, self.n, self.k, *left[1], *right[1], *self.c)
        above = (groups - 1) * height  # rows of the other groups, which are whole tiles
        cut = above + mr * tall_tiles(self.m - above, mr, short_rows(dtype, tile)) if self.m else 0
        words = (*extents, block, height, groups, panels, int(packed_b), int(packed_a), cut)
        assert len(words) == HEADER
        table = self.table(*words)
        args: tuple[Arg, ...] = (left[0], right[0], c, y, Number(self.alpha), Number(self.beta), table)
        scratch = Scratch(block * nr * size if packed_b else 0)
        items = len(self.offsets) * panels * groups
        if anew is not None:
            return [*before, Call(make_sum_gemm(dtype, tile), items, (*args, anew, scratch))]
        return [*before, Call(make_gemm(dtype, tile), items, (*args, scratch))]

    def _is_worth_packing(self, dtype: str) -> bool:
        """Whether a fixed b is packed by a call of its own."""
        return self.k * self.n * ITEMSIZE[dtype] > 4096 and len(self.offsets) == 1

    def _few(self, dtype: str, operands: Operands, *, packs: bool) -> Call | None:
        """The call for a product of few rows or columns, if it is one. packs: else b is packed, for many products."""
        turned = self.transposed()
        if is_dots(self):
            return dot_call(dtype, self, operands)
        if is_dots(turned):
            return dot_call(dtype, turned, operands.transposed())
        if is_turned_strips(dtype, self):
            return strip_call(dtype, turned, operands.transposed())
        if is_strips(dtype, self) and (self.m <= 4 or not packs):
            return strip_call(dtype, self, operands)
        return None

    def _is_small(self, c: In | int) -> bool:
        """Whether `make_small_gemm` computes it."""
        plain = self.alpha == 1 and (not c or (self.beta == 1 and (self.c[1] == 1 or self.n == 1)))
        return plain and 0 < self.k <= BLOCK and self.m * self.n * self.k <= SMALL and 1 in self.b

    def _small_call(self, dtype: str, a: In, b: In | Temp, c: In | int, y: Out | Temp) -> Call:
        rsb, csb = self.b
        extents = (self.m, self.n, self.k, *self.a, rsb if csb == 1 else csb, self.c[0], int(csb == 1))
        table = Words((*extents, *(v for offsets in self.offsets for v in offsets)))
        scratch = Scratch(0 if csb == 1 else scratch_bytes(dtype, self.k))
        return Call(make_small_gemm(dtype), len(self.offsets), (a, b, c, y, table, scratch))

    def _integer_call(self, dtype: str, a: In, b: In | Temp, c: In | int, y: Out | Temp) -> Call:
        if self.alpha % 1 or (self.beta % 1 and c):
            what = f"a Gemm of {dtype} with alpha {self.alpha}, beta {self.beta}"
            raise UnsupportedError(Problem(what, remedy="only whole numbers are exact: cast to f64"))
        words = (self.m, self.n, self.k, *self.a, *self.b, *self.c, *(v for o in self.offsets for v in o))
        args = (a, b, c, y, int(self.alpha), int(self.beta), Words(words))
        return Call(make_integer_gemm(dtype), len(self.offsets) * self.m, args)


@lowers("Gemm", "onnxc.AddProduct")
def gemm(site: Site) -> list[Call]:
    """Gemm of matrices; C of any shape that broadcasts to [m, n]. AddProduct: C may be left out at run time."""
    t, out = site.type(0), site.out()
    trans_a, trans_b = bool(site.attr("transA")), bool(site.attr("transB"))
    m, n = out.shape
    k = t.shape[0] if trans_a else t.shape[1]
    c: In | int = 0
    strides, beta = (0, 0), float(site.attr("beta", 1.0))
    if site.has(2) and beta != 0:
        rows, columns = (1, 1, *site.type(2).shape)[-2:]
        c, strides = site.read(2), (columns if rows > 1 else 0, 1 if columns > 1 else 0)
    (ra, ca), (rb, cb) = site.strides(0), site.strides(1)
    a, b = (ca, ra) if trans_a else (ra, ca), (cb, rb) if trans_b else (rb, cb)
    p = Product(m, n, k, a, b, strides, alpha=float(site.attr("alpha", 1.0)), beta=beta)
    anew = site.read(3) if site.has(3) else None
    return p.calls(t.dtype, site.read(0), site.read(1), c, site.write(), fixed_b=site.is_fixed(1), anew=anew)


@lowers("MatMul")
def matmul(site: Site) -> list[Call]:
    """numpy.matmul: operands of rank 1, and batches that broadcast."""
    left, right = site.type(0).shape, site.type(1).shape
    m, k, n = (left[-2] if len(left) > 1 else 1), left[-1], (right[-1] if len(right) > 1 else 1)
    a, b = (site.strides(0) if len(left) > 1 else (k, 1)), (site.strides(1) if len(right) > 1 else (n, 1))
    batch_a, batch_b = left[:-2], right[:-2]
    rows = merged((*batch_a, m), a[:-1]) if prod(batch_b) == 1 else None
    if rows is not None:  # one matrix for all: its rows are those of the whole batch
        p = Product(prod(batch_a) * m, n, k, (rows, a[-1]), (b[-2], b[-1]))
    else:
        batch = np.broadcast_shapes(batch_a, batch_b)
        steps = [_steps(batch_a, batch, a), _steps(batch_b, batch, b)]
        offsets = tuple(
            (
                sum(i * s for i, s in zip(z, steps[0], strict=True)),
                sum(i * s for i, s in zip(z, steps[1], strict=True)),
                0,
            )
            for z in cartesian(*map(range, batch))
        )
        p = Product(m, n, k, (a[-2], a[-1]), (b[-2], b[-1]), offsets=offsets)
    return p.calls(site.type(0).dtype, site.read(0), site.read(1), 0, site.write(), fixed_b=site.is_fixed(1))


def merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The stride of axes that are one, None if they are not."""
    axes = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    one = all(a[1] == b[0] * b[1] for a, b in pairwise(axes))
    return (axes[-1][1] if axes else strides[-1]) if one else None


def _steps(shape: tuple[int, ...], batch: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index of each batch axis to the next, for an operand with these batch axes and strides."""
    missing = len(batch) - len(shape)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=False))
