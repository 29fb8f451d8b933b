"""Det and onnxc.Cofactors by elimination in f64, with row and column exchanges (complete pivoting).

Of P A Q = L U with ones on the diagonal of L, the adjugate is det(P Q) Q adj(U) inverse(L) P. With the last column
apart, U = [[V, w], [0, u]], adj(U) = det(V) [[u inverse(V), -inverse(V) w], [0, 1]]: nothing is divided by u, the
smallest pivot. If V is singular as well, A has a rank below n - 1, and all cofactors are 0.
"""

from __future__ import annotations

from math import prod
from typing import Any

from compiler.codegen.calls import Call, Scratch, Site, lowers
from compiler.codegen.native import ITEMSIZE, Kernel, f64, i64, inline, kernel, per_target, pointer


@inline
def _eliminate(a: Any, rows: Any, columns: Any, n: Any) -> Any:
    """L below the diagonal of a and U on and above it, in place, and the order of rows and columns; gives det(P Q)."""
    sign = 1.0
    for i in range(n):
        rows[i] = i
        columns[i] = i
    for k in range(n):
        best, p, q = abs(a[k * n + k]), k, k
        for i in range(k, n):
            for j in range(k, n):
                size = abs(a[i * n + j])
                if size > best or size != size:
                    best, p, q = size, i, j
        if p != k:
            sign = -sign
            rows[k], rows[p] = rows[p], rows[k]
            for j in range(n):
                a[k * n + j], a[p * n + j] = a[p * n + j], a[k * n + j]
        if q != k:
            sign = -sign
            columns[k], columns[q] = columns[q], columns[k]
            for i in range(n):
                a[i * n + k], a[i * n + q] = a[i * n + q], a[i * n + k]
        if best != 0.0:
            for i in range(k + 1, n):
                factor = a[i * n + k] / a[k * n + k]
                a[i * n + k] = factor
                for j in range(k + 1, n):
                    a[i * n + j] -= factor * a[k * n + j]
    return sign


@per_target
def make_det(name: str) -> Kernel:
    """Determinants of matrices of n x n; the range counts matrices."""
    ptr, size = pointer(name), ITEMSIZE[name]

    @kernel
    def det(lo: int, hi: int, src: int, dst: int, n: int, scratch: int) -> None:
        a, rows, columns = f64(scratch, 2), i64(scratch + 8 * n * n, 2), i64(scratch + 8 * n * (n + 1), 2)
        y = ptr(dst + size * lo, 1)
        for m in range(hi - lo):
            x = ptr(src + size * (lo + m) * n * n, 0)
            for i in range(n * n):
                a[i] = x[i]
            product = _eliminate(a, rows, columns, n)
            for k in range(n):
                product *= a[k * n + k]
            y[m] = product

    return det


@per_target
def make_cofactors(name: str) -> Kernel:
    """Matrices of cofactors; the range counts matrices of n x n, n > 0.

    Column r of the adjugate is made from the unit vector r: inverse(L) P of it, then adj(U), then Q. It is row r here.
    """
    ptr, size = pointer(name), ITEMSIZE[name]

    @kernel
    def cofactors(lo: int, hi: int, src: int, dst: int, n: int, scratch: int) -> None:
        a, column = f64(scratch, 2), f64(scratch + 8 * n * n, 2)
        rows, columns = i64(scratch + 8 * n * (n + 1), 2), i64(scratch + 8 * n * (n + 2), 2)
        for m in range(hi - lo):
            x, y = ptr(src + size * (lo + m) * n * n, 0), ptr(dst + size * (lo + m) * n * n, 1)
            for i in range(n * n):
                a[i] = x[i]
            product = _eliminate(a, rows, columns, n)
            for k in range(n - 1):
                product *= a[k * n + k]
            smallest = a[n * n - 1]
            for r in range(n):
                for i in range(n):
                    total = 1.0 if rows[i] == r else 0.0
                    for j in range(i):
                        total -= a[i * n + j] * column[j]
                    column[i] = total
                if product == 0.0:
                    for i in range(n):
                        y[r * n + i] = 0.0
                else:
                    last = column[n - 1]
                    for k in range(n - 1):
                        i = n - 2 - k
                        total = smallest * column[i] - a[i * n + n - 1] * last
                        for j in range(i + 1, n - 1):
                            total -= a[i * n + j] * column[j]
                        column[i] = total / a[i * n + i]
                    for i in range(n):
                        y[r * n + columns[i]] = product * column[i]

    return cofactors


@lowers("Det", "onnxc.Cofactors")
def determinants(site: Site) -> list[Call]:
    """Matrices [.., n, n]; empty ones have the determinant 1."""
    t = site.type(0)
    n = t.shape[-1]
    if not site.out().size:
        return []
    made = make_det(t.dtype) if site.node.op == "Det" else make_cofactors(t.dtype)
    return [Call(made, prod(t.shape[:-2]), (site.read(0), site.write(), n, Scratch(8 * n * (n + 3))))]
