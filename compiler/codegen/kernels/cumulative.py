"""CumSum and CumProd along any axis. Floats accumulate in double. Threads share everything but the axis."""

from __future__ import annotations

import numpy as np

from compiler.codegen.calls import Call, Site, lowers
from compiler.codegen.kernels.common import add, around, kind_of, known_ints, multiply, normalized
from compiler.codegen.kernels.reduce_kernels import WIDTH
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, kernel, make_tile, per_target, pointer


@per_target
def make_cumulative(name: str, product: bool) -> Kernel:
    """Running results along the middle axis of outer x n x inner; the range counts blocks of WIDTH of inner."""
    wide = {"float": "f64", "signed": "i64", "unsigned": "u64"}[kind_of(name)]
    ptr, ptr_wide, size = pointer(name), pointer(wide), ITEMSIZE[name]
    start = getattr(np, dtype(wide).numpy)(int(product))
    join, totals = multiply if product else add, make_tile(WIDTH, wide)

    @kernel
    def cumulative(lo: int, hi: int, src: int, dst: int, n: int, inner: int, exclusive: int, reverse: int) -> None:
        blocks = (inner + WIDTH - 1) // WIDTH
        total = ptr_wide(totals(), 2)
        first, step = (n - 1, -1) if reverse else (0, 1)
        for u in range(hi - lo):
            o, column = (lo + u) // blocks, (lo + u) % blocks * WIDTH
            width = min(WIDTH, inner - column)
            if width == 1:
                t = start
                x, y = ptr(src + size * (o * n * inner + column), 0), ptr(dst + size * (o * n * inner + column), 1)
                for k in range(n):
                    i = (first + k * step) * inner
                    before = t
                    t = join(t, x[i])
                    y[i] = before if exclusive else t
            else:
                for j in range(width):
                    total[j] = start
                for k in range(n):
                    at = size * ((o * n + first + k * step) * inner + column)
                    x, y = ptr(src + at, 0), ptr(dst + at, 1)
                    if exclusive:
                        for j in range(width):
                            y[j] = total[j]
                            total[j] = join(total[j], x[j])
                    else:
                        for j in range(width):
                            total[j] = join(total[j], x[j])
                            y[j] = total[j]

    return cumulative


@lowers("CumSum", "CumProd")
def cumulative_(site: Site) -> list[Call]:
    """Inputs x and a constant axis; attributes exclusive, reverse."""
    t = site.type(0)
    if not t.size:
        return []
    (axis,) = known_ints(site, 1, "axes")
    outer, n, inner = around(t.shape, normalized(axis, t.rank))
    args = (site.read(0), site.write(), n, inner, site.attr("exclusive"), site.attr("reverse"))
    return [Call(make_cumulative(t.dtype, site.node.op == "CumProd"), outer * -(-inner // WIDTH), args)]
