"""onnxc.SgdRows: a step of gradient descent on the rows of a table that were read by index.

The indices are sorted, so that the memory for that depends on their number and not on the table's; each row then gets
the sum of its gradients, in the order of the indices, in one update: the bits are those of the gradient of the whole
table and a step with it. Rows without an index stay as they are, since x - rate * 0 is x; where that is not so (a rate
that is negative, or not finite), they are computed as well.
"""

from __future__ import annotations

from math import prod

from compiler.codegen.calls import Call, Scratch, Site, Temp, lowers
from compiler.codegen.kernels.common import item_size, read_only
from compiler.codegen.kernels.index import in_range, index_checks
from compiler.codegen.kernels.strided import copy_call
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, i64, kernel, per_target, pointer

DIGIT = 8
"""Bits of a row that a pass of the sort looks at."""


@per_target
def make_sort_rows(index: str) -> Kernel:
    """Put the numbers of `count` indices in the order of their rows, equal rows as they come; in a range of one.

    memory: room for the result, for the numbers of another pass, and for one more count than a digit has values.
    """
    at, digits = pointer(index), 1 << DIGIT

    @kernel
    def sort_rows(lo: int, hi: int, indices: int, memory: int, n: int, count: int, passes: int) -> None:
        p, first = at(indices, 0), i64(memory + 16 * count, 1)
        for _ in range(hi - lo):
            a = i64(memory + 8 * count * (passes % 2), 1)
            for k in range(count):
                a[k] = k
            for step in range(passes):
                half = (passes - step) % 2  # so that the last pass writes the first half
                a, b = i64(memory + 8 * count * half, 1), i64(memory + 8 * count * (1 - half), 1)
                for d in range(digits + 1):
                    first[d] = 0
                for k in range(count):
                    first[(in_range(p[k], n) >> DIGIT * step) % digits + 1] += 1
                for d in range(digits):
                    first[d + 1] += first[d]
                for k in range(count):
                    d = (in_range(p[a[k]], n) >> DIGIT * step) % digits
                    b[first[d]] = a[k]
                    first[d] += 1

    return sort_rows


@per_target
def make_sgd_rows(name: str, index: str) -> Kernel:
    """x[j] -= rate * (sum of dy[k] over k with indices[k] = j), for rows of `inner` elements.

    The range counts the indices as `order` has them, and the end behind: the first of a row computes it, and the rows
    between it and the one before, if they change.
    """
    ptr, at, size = pointer(name), pointer(index), ITEMSIZE[name]
    zero = dtype(name).value(0)

    @kernel
    def sgd_rows(
        lo: int,
        hi: int,
        rate: int,
        dy: int,
        indices: int,
        order: int,
        dst: int,
        n: int,
        count: int,
        inner: int,
        scratch: int,
    ) -> None:
        r, p, o, s = ptr(rate, 0)[0], at(indices, 2), i64(order, 3), ptr(scratch, 5)
        others = not zero < 1 / r  # whether x - r * 0 may be other than x
        for u in range(lo, hi):
            row = in_range(p[o[u]], n) if u < count else n
            before = in_range(p[o[u - 1]], n) if u > 0 else -1
            if row == before:
                continue
            if others:
                x = ptr(dst + size * (before + 1) * inner, 4)
                for i in range((row - before - 1) * inner):
                    x[i] = x[i] - r * zero
            if u == count:
                continue
            for i in range(inner):
                s[i] = zero
            k = u
            while k < count and in_range(p[o[k]], n) == row:
                g = ptr(dy + size * o[k] * inner, 1)
                for i in range(inner):
                    s[i] += g[i]
                k += 1
            x = ptr(dst + size * row * inner, 4)
            for i in range(inner):
                x[i] = x[i] - r * s[i]

    return sgd_rows


@lowers("onnxc.SgdRows")
def sgd_rows_(site: Site) -> list[Call]:
    """Inputs rate, X, dy, indices: a copy of X, unless the result lies there, whose rows change."""
    t, indices = site.type(1), site.type(3)
    if not t.size:
        return index_checks(site, 3, t.shape[:1])
    n, inner, count = t.shape[0], prod(t.shape[1:]), indices.size
    order = Temp("order", 8 * (2 * count + (1 << DIGIT) + 1))
    passes = -(-(n - 1).bit_length() // DIGIT)
    args = (site.read(0), site.read(2), site.read(3), read_only(order), site.write(), n, count, inner)
    return [
        *index_checks(site, 3, [n]),
        copy_call(site.read(1), site.write(), t.nbytes),
        Call(make_sort_rows(indices.dtype), 1, (site.read(3), order, n, count, passes)),
        Call(make_sgd_rows(t.dtype, indices.dtype), count + 1, (*args, Scratch(inner * item_size(t)))),
    ]
