"""Gemm and MatMul."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from itertools import product as cartesian
from math import prod

import numpy as np

from compiler.codegen.calls import Call, In, Number, Out, Scratch, Site, Temp, Words, lowers
from compiler.codegen.kernels.gemm_dots import dot_call, is_dots
from compiler.codegen.kernels.gemm_few import few_call, is_few, is_turned_few
from compiler.codegen.kernels.gemm_integer import NUMBERS, make_integer_gemm
from compiler.codegen.kernels.gemm_panels import HEADER, make_gemm, make_sum_gemm
from compiler.codegen.kernels.gemm_shape import Operands, Shape
from compiler.codegen.kernels.gemm_small import make_small_gemm, scratch_bytes
from compiler.codegen.kernels.gemm_tile import (
    BLOCK,
    blocks,
    fitting,
    pack_columns,
    pack_panels,
    parts,
    rows_together,
    short_rows,
    tall_tiles,
)
from compiler.codegen.native import (
    ITEMSIZE,
    TILED,
)
from compiler.errors import Problem, UnsupportedError

SMALL = 32768
"""Multiplications of a product that is small: about a microsecond, which no threads need to share."""

RIGHT = 1 << 20
"""Bytes of b, at most, that stay in the cache while a product goes through its rows block by block."""


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
        # Rows of b, or of a that is read down its columns, which are far apart meet in few sets of the cache.
        packed_b = self.b[1] != 1 or (self.m > 2 * mr and self.k * self.b[0] * size > 16384)
        packed_a = self.a[0] == 1 and self.a[1] > 1 and self.k * self.a[1] * size > 16384 and len(self.offsets) == 1
        left: tuple[In | Temp, tuple[int, int]] = (a, self.a)
        right: tuple[In | Temp, tuple[int, int]] = (b, self.b)
        before: list[Call] = []
        if packed_a:
            columns = pack_columns(dtype, a, self.k, self.m, self.a[1], tile)
            before, left = [columns.call], (columns.memory, (0, mr))
        less, rows = short_rows(dtype, tile), 0
        if isinstance(b, In) and len(self.offsets) == 1 and self.k * panels * nr * size <= RIGHT:
            rows = rows_together(self.m, mr, mr if packed_a else less)
        if fixed or (rows and packed_b):
            assert isinstance(b, In)
            packed = pack_panels(dtype, b, self.k, self.n, self.b, tile)
            before, right, packed_b = [*before, packed.call], (packed.memory, (nr, self.k)), False
        height = rows or self._height(mr, panels)
        groups = -(-self.m // height) if height else 0
        tall, end = (mr * tall_tiles(n, mr, less) if n else 0 for n in (height, self.m - (groups - 1) * height))
        extents = (self.m, self.n, self.k, *left[1], *right[1], *self.c)
        flags = (int(packed_b), int(packed_a), tall, end, panels if rows else 0)
        words = (*extents, block, height, groups, panels, *flags)
        assert len(words) == HEADER
        scratch = Scratch(block * nr * size if packed_b else 0)
        # what goes together: all panels of a group of rows, or a matrix
        together, high = (panels, rows) if rows else (panels * groups, self.m)
        memory = replace(self, a=left[1], b=right[1]).in_pieces(Operands(left[0], right[0], c, y), size, high)
        kernel, more = (make_gemm(dtype, tile), ()) if anew is None else (make_sum_gemm(dtype, tile), (anew,))
        args = (*memory[:4], Number(self.alpha), Number(self.beta), self.table(*words), *more, scratch)
        items = len(self.offsets) * panels * groups
        return [*before, Call(kernel, items, args, together=max(1, together))]

    def _height(self, mr: int, panels: int) -> int:
        """Rows of a group, which packs its panel again: it has many tiles, unless there is too little to share out."""
        tiles = -(-self.m // mr)
        groups = min(-(-tiles // 4), max(-(-tiles // 64), -(-8 // max(1, panels * len(self.offsets)))))
        return -(-tiles // max(1, groups)) * mr

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
        if is_turned_few(dtype, self):
            return few_call(dtype, turned, operands.transposed())
        if is_few(dtype, self) and (self.m <= 4 or not packs):
            return few_call(dtype, self, operands)
        return None

    def _is_small(self, c: In | int) -> bool:
        """Whether `make_small_gemm` computes it."""
        plain = self.alpha == 1 and (not c or (self.beta == 1 and (self.c[1] == 1 or self.n == 1)))
        return plain and 0 < self.k <= BLOCK and self.m * self.n * self.k <= SMALL and 1 in self.b

    def _small_call(self, dtype: str, a: In, b: In | Temp, c: In | int, y: Out | Temp) -> Call:
        rsb, csb = self.b
        extents = (self.m, self.n, self.k, *self.a, rsb if csb == 1 else csb, self.c[0], int(csb == 1))
        scratch = Scratch(0 if csb == 1 else scratch_bytes(dtype, self.k))
        memory = self.in_pieces(Operands(a, b, c, y), ITEMSIZE[dtype], self.m)
        return Call(make_small_gemm(dtype), len(self.offsets), (*memory[:4], self.table(*extents), scratch))

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
