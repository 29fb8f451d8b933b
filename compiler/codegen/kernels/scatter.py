"""ScatterElements, ScatterND and the gradient of Gather: writes by index, in the order of the indices.

Two updates of one element must meet in one thread. ScatterElements shares lines along its axis among threads. The
others share the rows they write: every thread reads all indices and takes those that fall in its rows.
"""

from __future__ import annotations

from math import prod
from typing import Any

from compiler.codegen.calls import Call, Site, Words, contiguous, lowers
from compiler.codegen.kernels.common import add, around, extremum, multiply, normalized
from compiler.codegen.kernels.index import in_range, index_checks
from compiler.codegen.kernels.strided import BITS, copy_call
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, i64, inline, kernel, per_target, pointer


@inline
def _replace(old: Any, new: Any) -> Any:
    return new


def _reduction(name: str, how: str) -> Any:
    """How an update joins what is there."""
    return {
        "none": _replace,
        "add": add,
        "mul": multiply,
        "max": extremum(name, True),
        "min": extremum(name, False),
    }[how]


def _memory_type(name: str, how: str) -> str:
    """Elements that are only replaced move as bits; booleans join as bytes."""
    return BITS[ITEMSIZE[name]] if how == "none" or name == "bool" else name


@per_target
def make_scatter_elements(name: str, index: str, how: str) -> Kernel:
    """The range counts lines along the axis: all combinations of the other axes of the indices.

    meta: number of updates in a line, their stride, extent and stride of the axis in dst, number of other axes; then
    extent, stride in the updates, stride in dst of each, innermost first.
    """
    ptr, at = pointer(name), pointer(index)
    size, index_size, join = ITEMSIZE[name], ITEMSIZE[index], _reduction(name, how)

    @kernel
    def scatter_elements(lo: int, hi: int, indices: int, updates: int, dst: int, meta: int) -> None:
        m = i64(meta, 3)
        count, step, n, along, rank = m[0], m[1], m[2], m[3], m[4]
        for u in range(hi - lo):
            rest, source, base = lo + u, 0, 0
            for a in range(rank):
                x = rest % m[5 + 3 * a]
                rest = rest // m[5 + 3 * a]
                source += x * m[6 + 3 * a]
                base += x * m[7 + 3 * a]
            p, g = at(indices + index_size * source, 0), ptr(updates + size * source, 1)
            y = ptr(dst + size * base, 2)
            for i in range(count):
                j = in_range(p[i * step], n) * along
                y[j] = join(y[j], g[i * step])

    return scatter_elements


@lowers("ScatterElements")
def scatter_elements_(site: Site) -> list[Call]:
    """Attributes axis, reduction."""
    t, indices, how = site.type(0), site.type(1), site.attr("reduction")
    axis = normalized(site.attr("axis"), t.rank)
    calls = index_checks(site, 1, [t.shape[axis]])
    if t.size:
        calls.append(copy_call(site.read(0), site.write(), t.nbytes))
    if not indices.size or not t.size:
        return calls
    axes = list(zip(indices.shape, contiguous(indices.shape), contiguous(t.shape), strict=True))
    words = [axes[axis][0], axes[axis][1], t.shape[axis], axes[axis][2], t.rank - 1]
    for a in reversed(range(t.rank)):
        if a != axis:
            words += axes[a]
    args = (site.read(1), site.read(2), site.write(), Words(tuple(words)))
    k = make_scatter_elements(_memory_type(t.dtype, how), indices.dtype, how)
    return [*calls, Call(k, indices.size // indices.shape[axis], args)]


@per_target
def make_scatter_nd(name: str, how: str) -> Kernel:
    """Dst = src with updates joined at tuples of int64 indices; the range counts rows of dst, of `inner` elements.

    meta: depth of a tuple, tuples, inner; then extent and stride, in rows, of each axis.
    """
    ptr, size, join = pointer(name), ITEMSIZE[name], _reduction(name, how)

    @kernel
    def scatter_nd(lo: int, hi: int, src: int, indices: int, updates: int, dst: int, meta: int) -> None:
        m = i64(meta, 4)
        depth, tuples, inner = m[0], m[1], m[2]
        x, y = ptr(src + size * lo * inner, 0), ptr(dst + size * lo * inner, 3)
        for i in range((hi - lo) * inner):
            y[i] = x[i]
        p = i64(indices, 1)
        for k in range(tuples):
            row = 0
            for a in range(depth):
                row += in_range(p[k * depth + a], m[3 + 2 * a]) * m[4 + 2 * a]
            if lo <= row < hi:
                g, z = ptr(updates + size * k * inner, 2), ptr(dst + size * row * inner, 3)
                for i in range(inner):
                    z[i] = join(z[i], g[i])

    return scatter_nd


@lowers("ScatterND")
def scatter_nd_(site: Site) -> list[Call]:
    """Attribute reduction."""
    t, indices, how = site.type(0), site.type(1), site.attr("reduction")
    depth = indices.shape[-1]
    extents = t.shape[:depth]
    calls = index_checks(site, 1, extents)
    if not t.size:
        return calls
    words = [depth, prod(indices.shape[:-1]), prod(t.shape[depth:])]
    for pair in zip(extents, contiguous(extents), strict=True):
        words += pair
    args = (site.read(0), site.read(1), site.read(2), site.write(), Words(tuple(words)))
    return [*calls, Call(make_scatter_nd(_memory_type(t.dtype, how), how), prod(extents), args)]


@per_target
def make_gather_grad(name: str, index: str) -> Kernel:
    """dst[o, j] = sum of dy[o, k] over k with indices[k] = j; the range counts rows (o, j) of `inner` elements."""
    ptr, at, size = pointer(name), pointer(index), ITEMSIZE[name]
    zero = dtype(name).value(0)

    @kernel
    def gather_grad(lo: int, hi: int, dy: int, indices: int, dst: int, n: int, count: int, inner: int) -> None:
        y, p = ptr(dst + size * lo * inner, 2), at(indices, 1)
        for i in range((hi - lo) * inner):
            y[i] = zero
        for o in range(lo // n, (hi + n - 1) // n):
            for k in range(count):
                row = o * n + in_range(p[k], n)
                if lo <= row < hi:
                    g, z = ptr(dy + size * (o * count + k) * inner, 0), ptr(dst + size * row * inner, 2)
                    for i in range(inner):
                        z[i] += g[i]

    return gather_grad


@lowers("onnxc.GatherGrad")
def gather_grad_(site: Site) -> list[Call]:
    """Inputs dy, indices; attributes axis and shape of the Gather's data."""
    t, indices = site.out(), site.type(1)
    outer, n, inner = around(t.shape, normalized(site.attr("axis"), t.rank))
    calls = index_checks(site, 1, [n])
    if not t.size:
        return calls
    args = (site.read(0), site.read(1), site.write(), n, indices.size, inner)
    return [*calls, Call(make_gather_grad(t.dtype, indices.dtype), outer * n, args)]
