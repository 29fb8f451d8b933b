"""onnxc.BatchNorm and its gradient: BatchNormalization in training mode. Threads share the channels.

x is [N, C, S] with all spatial axes as one. With S > 1 a channel is N dense stretches; without spatial axes, blocks of
neighbouring channels are columns. Sums are as accurate as those of `reduce_kernels`, and for the same reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.codegen.calls import Arg, Call, Number, Site, lowers
from compiler.codegen.kernels.common import around, square_of_difference
from compiler.codegen.kernels.reduce_kernels import STRETCH, WIDTH
from compiler.codegen.native import (
    ITEMSIZE,
    Inline,
    Kernel,
    dtype,
    f64,
    f64_of_bits,
    inline,
    kernel,
    make_tile,
    per_target,
    pointer,
)

RUN = 4096
"""Elements in a row that a pass reads of neighbouring channels before it goes on to the next sample. The planes of one
channel lie far apart: to read them one by one takes up to three times as long, since memory is slow to begin anew."""


@inline
def _centered_product(g: Any, x: Any, m: Any) -> Any:
    return g * (x - m)


@inline
def _normalized(x: Any, m: Any, factor: Any, bias: Any) -> Any:
    return (x - m) * factor + bias


@inline
def _input_gradient(g: Any, x: Any, m: Any, along: Any, across: Any, factor: Any) -> Any:
    return factor * ((g - along) - (x - m) * across)


@inline
def _end_sums(width: int, count: Any, inv: Any, sum_g: Any, sum_gx: Any, dscale: Any, dbias: Any) -> None:
    """Of sums over g and g * (x - mean): the gradients of scale and bias, and what the input's gradient takes."""
    for j in range(width):
        sum_gx[j] *= inv[j]
        dscale[j] = sum_gx[j]
        dbias[j] = sum_g[j]
        sum_g[j] /= count
        sum_gx[j] *= inv[j] / count


@per_target
def make_store(name: str) -> Inline[..., None]:
    """What a kernel does with an element of y, the result: it writes it to memory."""
    ptr, size = pointer(name), ITEMSIZE[name]

    @inline
    def store(value: Any, memory: int, first: int, i: int, channel: int) -> None:
        ptr(memory + size * first, 3)[i] = value

    return store


@per_target
def make_load(name: str) -> Inline[..., int]:
    """Where a kernel finds elements of dy, the operand: in memory."""
    size = ITEMSIZE[name]

    @inline
    def load(memory: int, first: int, count: int, channel: int) -> int:
        return memory + size * first

    return load


@per_target
def make_planes(name: str, store: Inline[..., None]) -> Kernel:
    """y, mean, variance of channels with spatial axes; the range counts channels. store: as of `make_store`."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)
    sums, factors = make_tile(WIDTH, "f64"), make_tile(WIDTH, name)

    @kernel(reassoc=True)
    def batch_norm_planes(
        lo: int,
        hi: int,
        src: int,
        scale: int,
        bias: int,
        dst: int,
        mean: int,
        variance: int,
        batch: int,
        channels: int,
        spatial: int,
        epsilon: int,
    ) -> None:
        eps, count = value(f64_of_bits(epsilon)), np.float64(batch * spatial)
        total, factor = f64(sums(), 6), ptr(factors(), 7)
        together = max(1, min(WIDTH, RUN // spatial))
        for c in range(lo, hi, together):
            width = min(together, hi - c)
            w, b = ptr(scale + size * c, 1), ptr(bias + size * c, 2)
            m, variances = ptr(mean + size * c, 4), ptr(variance + size * c, 5)
            for j in range(width):
                total[j] = 0.0
            for n in range(batch):
                for j in range(width):
                    start = (n * channels + c + j) * spatial
                    for at in range(start, start + spatial, STRETCH):
                        x, part = ptr(src + size * at, 0), zero
                        for i in range(min(STRETCH, start + spatial - at)):
                            part += x[i]
                        total[j] += part
            for j in range(width):
                m[j] = total[j] / count
                total[j] = 0.0
            for n in range(batch):
                for j in range(width):
                    start, middle = (n * channels + c + j) * spatial, m[j]
                    for at in range(start, start + spatial, STRETCH):
                        x, part = ptr(src + size * at, 0), zero
                        for i in range(min(STRETCH, start + spatial - at)):
                            part += square_of_difference(x[i], middle)
                        total[j] += part
            for j in range(width):
                v = value(total[j] / count)
                variances[j] = v
                factor[j] = w[j] / np.sqrt(v + eps)
            for n in range(batch):
                for j in range(width):
                    at, middle, by, offset = (n * channels + c + j) * spatial, m[j], factor[j], b[j]
                    x = ptr(src + size * at, 0)
                    for i in range(spatial):
                        store(_normalized(x[i], middle, by, offset), dst, at, i, c + j)

    return batch_norm_planes


@per_target
def make_columns(name: str, store: Inline[..., None]) -> Kernel:
    """The same without spatial axes; the range counts blocks of WIDTH channels."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    sums, middle, factors = make_tile(WIDTH, "f64"), make_tile(WIDTH, name), make_tile(WIDTH, name)

    @kernel
    def batch_norm_columns(
        lo: int,
        hi: int,
        src: int,
        scale: int,
        bias: int,
        dst: int,
        mean: int,
        variance: int,
        batch: int,
        channels: int,
        epsilon: int,
    ) -> None:
        eps, count = value(f64_of_bits(epsilon)), np.float64(batch)
        total, m, factor = f64(sums(), 6), ptr(middle(), 7), ptr(factors(), 8)
        for u in range(lo, hi):
            c = u * WIDTH
            width = min(WIDTH, channels - c)
            w, b = ptr(scale + size * c, 1), ptr(bias + size * c, 2)
            means, variances = ptr(mean + size * c, 4), ptr(variance + size * c, 5)
            for j in range(width):
                total[j] = 0.0
            for n in range(batch):
                x = ptr(src + size * (n * channels + c), 0)
                for j in range(width):
                    total[j] += x[j]
            for j in range(width):
                m[j] = total[j] / count
                means[j] = m[j]
                total[j] = 0.0
            for n in range(batch):
                x = ptr(src + size * (n * channels + c), 0)
                for j in range(width):
                    total[j] += square_of_difference(x[j], m[j])
            for j in range(width):
                v = value(total[j] / count)
                variances[j] = v
                factor[j] = w[j] / np.sqrt(v + eps)
            for n in range(batch):
                at = n * channels + c
                x = ptr(src + size * at, 0)
                for j in range(width):
                    store(_normalized(x[j], m[j], factor[j], b[j]), dst, at, j, c)

    return batch_norm_columns


@per_target
def make_planes_grad(name: str, load: Inline[..., int], again: Inline[..., int]) -> Kernel:
    """dx, dscale, dbias of channels with spatial axes; the range counts channels.

    load, again: where the first and the second pass find dy, as of `make_load`.
    """
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)
    sums, products = make_tile(WIDTH, "f64"), make_tile(WIDTH, "f64")

    @kernel(reassoc=True)
    def batch_norm_grad_planes(
        lo: int,
        hi: int,
        dy: int,
        src: int,
        scale: int,
        mean: int,
        inv: int,
        dst: int,
        dscale: int,
        dbias: int,
        batch: int,
        channels: int,
        spatial: int,
    ) -> None:
        count = np.float64(batch * spatial)
        sum_g, sum_gx = f64(sums(), 8), f64(products(), 9)
        together = max(1, min(WIDTH, RUN // spatial))
        for c in range(lo, hi, together):
            width = min(together, hi - c)
            w, m, s = ptr(scale + size * c, 2), ptr(mean + size * c, 3), ptr(inv + size * c, 4)
            for j in range(width):
                sum_g[j] = 0.0
                sum_gx[j] = 0.0
            for n in range(batch):
                for j in range(width):
                    start, middle = (n * channels + c + j) * spatial, m[j]
                    for at in range(start, start + spatial, STRETCH):
                        length = min(STRETCH, start + spatial - at)
                        g, x = ptr(load(dy, at, length, c + j), 0), ptr(src + size * at, 1)
                        part_g, part_gx = zero, zero
                        for i in range(length):
                            part_g += g[i]
                            part_gx += _centered_product(g[i], x[i], middle)
                        sum_g[j] += part_g
                        sum_gx[j] += part_gx
            ds, db = ptr(dscale + size * c, 6), ptr(dbias + size * c, 7)
            _end_sums(width, count, s, sum_g, sum_gx, ds, db)
            for n in range(batch):
                for j in range(width):
                    start, middle, factor = (n * channels + c + j) * spatial, m[j], w[j] * s[j]
                    along, across = value(sum_g[j]), value(sum_gx[j])
                    for at in range(start, start + spatial, STRETCH):
                        length = min(STRETCH, start + spatial - at)
                        g = ptr(again(dy, at, length, c + j), 0)
                        x, y = ptr(src + size * at, 1), ptr(dst + size * at, 5)
                        for i in range(length):
                            y[i] = _input_gradient(g[i], x[i], middle, along, across, factor)

    return batch_norm_grad_planes


@per_target
def make_columns_grad(name: str, load: Inline[..., int], again: Inline[..., int]) -> Kernel:
    """The same without spatial axes; the range counts blocks of WIDTH channels."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    sums, products = make_tile(WIDTH, "f64"), make_tile(WIDTH, "f64")

    @kernel
    def batch_norm_grad_columns(
        lo: int,
        hi: int,
        dy: int,
        src: int,
        scale: int,
        mean: int,
        inv: int,
        dst: int,
        dscale: int,
        dbias: int,
        batch: int,
        channels: int,
    ) -> None:
        count = np.float64(batch)
        sum_g, sum_gx = f64(sums(), 8), f64(products(), 9)
        for u in range(lo, hi):
            c = u * WIDTH
            width = min(WIDTH, channels - c)
            w, m, s = ptr(scale + size * c, 2), ptr(mean + size * c, 3), ptr(inv + size * c, 4)
            for j in range(width):
                sum_g[j] = 0.0
                sum_gx[j] = 0.0
            for n in range(batch):
                at = n * channels + c
                g, x = ptr(load(dy, at, width, c), 0), ptr(src + size * at, 1)
                for j in range(width):
                    sum_g[j] += g[j]
                    sum_gx[j] += _centered_product(g[j], x[j], m[j])
            ds, db = ptr(dscale + size * c, 6), ptr(dbias + size * c, 7)
            _end_sums(width, count, s, sum_g, sum_gx, ds, db)
            for n in range(batch):
                at = n * channels + c
                g = ptr(again(dy, at, width, c), 0)
                x, y = ptr(src + size * at, 1), ptr(dst + size * at, 5)
                for j in range(width):
                    y[j] = _input_gradient(g[j], x[j], m[j], value(sum_g[j]), value(sum_gx[j]), w[j] * s[j])

    return batch_norm_grad_columns


@lowers("onnxc.BatchNorm")
def batch_norm(site: Site) -> list[Call]:
    """Inputs x, scale, bias; outputs y and the mean and variance of the batch; attribute epsilon."""
    t = site.type(0)
    if not t.shape[1]:
        return []
    batch, channels, spatial = around(t.shape, 1)
    y = site.joint.memory if site.joint else site.write_or_drop(0, t)
    store = site.joint.first if site.joint else make_store(t.dtype)
    statistics = (site.write_or_drop(i, site.type(1)) for i in (1, 2))
    memory: tuple[Arg, ...] = (*(site.read(i) for i in range(3)), y, *statistics)
    epsilon = Number(site.attr("epsilon"))
    if spatial == 1:
        units = -(-channels // WIDTH)
        return [Call(make_columns(t.dtype, store), units, (*memory, batch, channels, epsilon))]
    return [Call(make_planes(t.dtype, store), channels, (*memory, batch, channels, spatial, epsilon))]


@lowers("onnxc.BatchNormGrad")
def batch_norm_grad(site: Site) -> list[Call]:
    """Inputs dy, x, scale, mean, inverse deviation; outputs the gradients of x, scale and bias."""
    t = site.type(1)
    if not t.shape[1]:
        return []
    batch, channels, spatial = around(t.shape, 1)
    results = (site.write_or_drop(i, site.type(like)) for i, like in enumerate((1, 2, 2)))
    dy = site.joint.memory if site.joint else site.read(0)
    load, again = (site.joint.first, site.joint.again) if site.joint else (make_load(t.dtype),) * 2
    memory: tuple[Arg, ...] = (dy, *(site.read(i) for i in range(1, 5)), *results)
    if spatial == 1:
        return [Call(make_columns_grad(t.dtype, load, again), -(-channels // WIDTH), (*memory, batch, channels))]
    return [Call(make_planes_grad(t.dtype, load, again), channels, (*memory, batch, channels, spatial))]
