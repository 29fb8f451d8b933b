"""Gather, GatherElements, GatherND and OneHot, and the checks of indices for all ops that have them.

A wrong index is reported before the step writes anything. The kernels that read by index nevertheless stay inside their
memory: they clamp, as nothing else stops them in the step that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from compiler.codegen.calls import Call, In, Site, Status, Words, contiguous, lowers
from compiler.codegen.kernels.common import around, item_size, normalized
from compiler.codegen.kernels.strided import BITS, copy_call
from compiler.codegen.native import ITEMSIZE, Kernel, atomic_max, i64, inline, kernel, per_target, pointer


@inline
def in_range(index: Any, n: Any) -> Any:
    """An index of an axis of n > 0 elements: from the end if negative, clamped if it is out of range."""
    i = np.int64(index)
    i = i + n if i < 0 else i
    return min(max(i, 0), n - 1)


@per_target
def make_check(index: str) -> Kernel:
    """Report the first index outside [-n, n). Element i belongs to axis i % depth, whose n is in `extents`."""
    ptr, size = pointer(index), ITEMSIZE[index]

    @kernel
    def check_indices(lo: int, hi: int, indices: int, extents: int, depth: int, status: int, code: int) -> None:
        p, n = ptr(indices + size * lo, 0), i64(extents, 1)
        wrong = hi
        for i in range(hi - lo):
            extent, at = n[(lo + i) % depth], np.int64(p[i])
            if at < -extent or at >= extent:
                wrong = min(wrong, lo + i)
        if wrong < hi:
            atomic_max(status, code - wrong)

    return check_indices


def index_checks(site: Site, i: int, extents: Sequence[int]) -> list[Call]:
    """The call that checks the i-th input as indices of axes of these extents; none for constants: those are right."""
    t = site.type(i)
    if site.constant(i) is not None or not t.size:
        return []
    allowed = " x ".join(f"[-{n}, {n})" for n in dict.fromkeys(extents))
    status = Status(f"{site.node.op_type}: index out of range {allowed}", site.node.inputs[i])
    args = (site.read(i), Words(tuple(extents)), len(extents), status)
    return [Call(make_check(t.dtype), t.size, args, check=True)]


@per_target
def make_bound_check(index: str) -> Kernel:
    """Report the first number outside [0, high]."""
    ptr, size = pointer(index), ITEMSIZE[index]

    @kernel
    def check_bound(lo: int, hi: int, numbers: int, high: int, status: int, code: int) -> None:
        p = ptr(numbers + size * lo, 0)
        wrong = hi
        for i in range(hi - lo):
            at = np.int64(p[i])
            if at < 0 or at > high:
                wrong = min(wrong, lo + i)
        if wrong < hi:
            atomic_max(status, code - wrong)

    return check_bound


def bound_checks(site: Site, i: int, high: int, what: str) -> list[Call]:
    """The call that checks the i-th input as numbers from 0 to `high`; none for constants: those are right."""
    t = site.type(i)
    if site.constant(i) is not None or not t.size:
        return []
    args = (site.read(i), high, Status(f"{what} out of range [0, {high + 1})", site.node.inputs[i]))
    return [Call(make_bound_check(t.dtype), t.size, args, check=True)]


@lowers("onnxc.Within")
def within(site: Site) -> list[Call]:
    """The input, if its numbers are from 0 to `high`."""
    checks = bound_checks(site, 0, site.attr("high"), site.attr("what"))
    return [*checks, copy_call(site.read(0), site.write(), site.type(0).nbytes)]


@per_target
def make_gather(size: int, index: str) -> Kernel:
    """dst[o, k] = src[o, indices[k]]: rows of `inner` elements. The range counts rows (o, k)."""
    ptr, at, index_size = pointer(BITS[size]), pointer(index), ITEMSIZE[index]

    @kernel
    def gather(lo: int, hi: int, src: int, indices: int, dst: int, n: int, count: int, inner: int) -> None:
        if inner == 1:
            p, y = at(indices, 1), ptr(dst + size * lo, 2)
            for u in range(hi - lo):
                x = ptr(src + size * ((lo + u) // count * n), 0)
                y[u] = x[in_range(p[(lo + u) % count], n)]
        else:
            for u in range(hi - lo):
                o, k = (lo + u) // count, (lo + u) % count
                j = in_range(at(indices + index_size * k, 1)[0], n)
                x, z = ptr(src + size * (o * n + j) * inner, 0), ptr(dst + size * (lo + u) * inner, 2)
                for i in range(inner):
                    z[i] = x[i]

    return gather


@lowers("Gather")
def gather_(site: Site) -> list[Call]:
    """Attribute axis; indices may be negative."""
    t, out = site.type(0), site.out()
    outer, n, inner = around(t.shape, normalized(site.attr("axis"), t.rank))
    checks = index_checks(site, 1, [n])
    if not out.size or n == 0:
        return checks
    indices = site.type(1)
    args = (site.read(0), site.read(1), site.write(piece=inner * item_size(t)), n, indices.size, inner)
    return [*checks, Call(make_gather(item_size(t), indices.dtype), outer * indices.size, args)]


@per_target
def make_gather_elements(size: int, index: str) -> Kernel:
    """dst[.., c, ..] = src[.., indices[.., c, ..], ..]; the range counts rows of the indices.

    meta: length of a row, stride of src along it (0 if that is the axis), extent and stride of the axis in src, number
    of other axes; then extent (of the indices) and stride (in src, 0 for the axis) of each, innermost first.
    """
    ptr, at, index_size = pointer(BITS[size]), pointer(index), ITEMSIZE[index]

    @kernel
    def gather_elements(lo: int, hi: int, src: int, indices: int, dst: int, meta: int) -> None:
        m = i64(meta, 3)
        count, step, n, along, rank = m[0], m[1], m[2], m[3], m[4]
        for u in range(hi - lo):
            rest, base = lo + u, 0
            for a in range(rank):
                base += rest % m[5 + 2 * a] * m[6 + 2 * a]
                rest = rest // m[5 + 2 * a]
            x = ptr(src + size * base, 0)
            p, y = at(indices + index_size * (lo + u) * count, 1), ptr(dst + size * (lo + u) * count, 2)
            for i in range(count):
                y[i] = x[i * step + in_range(p[i], n) * along]

    return gather_elements


@lowers("GatherElements")
def gather_elements_(site: Site) -> list[Call]:
    """Attribute axis; the output has the shape of the indices."""
    t, indices = site.type(0), site.type(1)
    axis = normalized(site.attr("axis"), t.rank)
    checks = index_checks(site, 1, [t.shape[axis]])
    if not indices.size or not t.size:
        return checks
    strides = contiguous(t.shape)
    others = [(n, 0 if a == axis else s) for a, (n, s) in enumerate(zip(indices.shape, strides, strict=True))]
    (count, step), outer = others[-1], others[-2::-1]
    words = [count, step, t.shape[axis], strides[axis], len(outer)]
    for pair in outer:
        words += pair
    args = (site.read(0), site.read(1), site.write(), Words(tuple(words)))
    return [*checks, Call(make_gather_elements(item_size(t), indices.dtype), indices.size // count, args)]


@per_target
def make_gather_nd(size: int) -> Kernel:
    """Rows of `inner` elements at tuples of `depth` int64 indices; the range counts tuples.

    meta: depth, inner, tuples of a batch, elements of a batch of src; then extent and stride in src of each axis.
    """
    ptr = pointer(BITS[size])

    @kernel
    def gather_nd(lo: int, hi: int, src: int, indices: int, dst: int, meta: int) -> None:
        m = i64(meta, 3)
        depth, inner, count, batch = m[0], m[1], m[2], m[3]
        for u in range(hi - lo):
            at = (lo + u) // count * batch
            p = i64(indices + 8 * (lo + u) * depth, 1)
            for k in range(depth):
                at += in_range(p[k], m[4 + 2 * k]) * m[5 + 2 * k]
            x, y = ptr(src + size * at, 0), ptr(dst + size * (lo + u) * inner, 2)
            for i in range(inner):
                y[i] = x[i]

    return gather_nd


@lowers("GatherND")
def gather_nd_(site: Site) -> list[Call]:
    """Attribute batch_dims: leading axes that data and indices share."""
    t, indices, b = site.type(0), site.type(1), site.attr("batch_dims")
    depth = indices.shape[-1]
    extents, strides = t.shape[b : b + depth], contiguous(t.shape)[b : b + depth]
    checks = index_checks(site, 1, extents)
    if not site.out().size or not t.size:
        return checks
    tuples = prod(indices.shape[:-1])
    words = [depth, prod(t.shape[b + depth :]), prod(indices.shape[b:-1]), prod(t.shape[b:])]
    for pair in zip(extents, strides, strict=True):
        words += pair
    args = (site.read(0), site.read(1), site.write(), Words(tuple(words)))
    return [*checks, Call(make_gather_nd(item_size(t)), tuples, args)]


@per_target
def make_one_hot(size: int, index: str) -> Kernel:
    """dst[o, j, i] = values[indices[o, i] == j]; the range counts o. An index outside [-depth, depth) is nowhere."""
    ptr, at, index_size = pointer(BITS[size]), pointer(index), ITEMSIZE[index]

    @kernel
    def one_hot(lo: int, hi: int, indices: int, values: int, dst: int, depth: int, inner: int) -> None:
        v = ptr(values, 1)
        off, on = v[0], v[1]
        for o in range(hi - lo):
            p, y = at(indices + index_size * (lo + o) * inner, 0), ptr(dst + size * (lo + o) * depth * inner, 2)
            for i in range(depth * inner):
                y[i] = off
            for i in range(inner):
                j: Any = np.int64(p[i])
                j = j + depth if j < 0 else j
                if 0 <= j < depth:
                    y[j * inner + i] = on

    return one_hot


@lowers("OneHot")
def one_hot_(site: Site) -> list[Call]:
    """Inputs indices, depth (by the output's shape), values [off, on]; attribute axis."""
    t, out = site.type(0), site.out()
    if not out.size:
        return []
    outer, depth, inner = around(out.shape, normalized(site.attr("axis"), out.rank))
    indices: In = site.read(0)
    args = (indices, site.read(2), site.write(), depth, inner)
    return [Call(make_one_hot(item_size(out), t.dtype), outer, args)]
