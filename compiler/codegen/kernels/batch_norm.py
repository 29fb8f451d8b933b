"""onnxc.BatchNorm and its gradient: BatchNormalization in training mode. Threads share the channels.

x is [N, C, S] with all spatial axes as one. With S > 1 a channel is N dense stretches; without spatial axes, blocks of
neighbouring channels are columns. Sums are as accurate as those of `reduce_kernels`, and for the same reason.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from compiler.codegen.calls import Arg, Call, Number, Site, lowers
from compiler.codegen.kernels.common import around, square_of_difference
from compiler.codegen.kernels.reduce_kernels import STRETCH, WIDTH
from compiler.codegen.native import ITEMSIZE, Kernel, dtype, f64, f64_of_bits, inline, kernel, make_tile, pointer


@inline
def _centered_product(g: Any, x: Any, m: Any) -> Any:
    return g * (x - m)


@inline
def _normalized(x: Any, m: Any, factor: Any, bias: Any) -> Any:
    return (x - m) * factor + bias


@inline
def _input_gradient(g: Any, x: Any, m: Any, along: Any, across: Any, factor: Any) -> Any:
    return factor * ((g - along) - (x - m) * across)


@cache
def make_planes(name: str) -> Kernel:
    """y, mean, variance of channels with spatial axes; the range counts channels."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)

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
        w, b, means, variances = ptr(scale, 1), ptr(bias, 2), ptr(mean, 4), ptr(variance, 5)
        eps = value(f64_of_bits(epsilon))
        count = np.float64(batch * spatial)
        for c in range(lo, hi):
            total = 0.0
            for n in range(batch):
                at = src + size * (n * channels + c) * spatial
                for first in range(0, spatial, STRETCH):
                    x, part = ptr(at + size * first, 0), zero
                    for i in range(min(STRETCH, spatial - first)):
                        part += x[i]
                    total += part
            m = value(total / count)
            total = 0.0
            for n in range(batch):
                at = src + size * (n * channels + c) * spatial
                for first in range(0, spatial, STRETCH):
                    x, part = ptr(at + size * first, 0), zero
                    for i in range(min(STRETCH, spatial - first)):
                        part += square_of_difference(x[i], m)
                    total += part
            v = value(total / count)
            means[c], variances[c] = m, v
            factor, offset = w[c] / np.sqrt(v + eps), b[c]
            for n in range(batch):
                at = size * (n * channels + c) * spatial
                x, y = ptr(src + at, 0), ptr(dst + at, 3)
                for i in range(spatial):
                    y[i] = _normalized(x[i], m, factor, offset)

    return batch_norm_planes


@cache
def make_columns(name: str) -> Kernel:
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
                at = size * (n * channels + c)
                x, y = ptr(src + at, 0), ptr(dst + at, 3)
                for j in range(width):
                    y[j] = _normalized(x[j], m[j], factor[j], b[j])

    return batch_norm_columns


@cache
def make_planes_grad(name: str) -> Kernel:
    """dx, dscale, dbias of channels with spatial axes; the range counts channels."""
    ptr, size, value = pointer(name), ITEMSIZE[name], dtype(name).value
    zero = value(0)

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
        for c in range(lo, hi):
            m, s, w = ptr(mean, 3)[c], ptr(inv, 4)[c], ptr(scale, 2)[c]
            sum_g, sum_gx = 0.0, 0.0
            for n in range(batch):
                at = size * (n * channels + c) * spatial
                for first in range(0, spatial, STRETCH):
                    g, x = ptr(dy + at + size * first, 0), ptr(src + at + size * first, 1)
                    part_g, part_gx = zero, zero
                    for i in range(min(STRETCH, spatial - first)):
                        part_g += g[i]
                        part_gx += _centered_product(g[i], x[i], m)
                    sum_g += part_g
                    sum_gx += part_gx
            sum_gx *= s
            ptr(dscale, 6)[c] = sum_gx
            ptr(dbias, 7)[c] = sum_g
            along, across, factor = value(sum_g / count), value(sum_gx / count * s), w * s
            for n in range(batch):
                at = size * (n * channels + c) * spatial
                g, x, y = ptr(dy + at, 0), ptr(src + at, 1), ptr(dst + at, 5)
                for i in range(spatial):
                    y[i] = _input_gradient(g[i], x[i], m, along, across, factor)

    return batch_norm_grad_planes


@cache
def make_columns_grad(name: str) -> Kernel:
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
                g, x = ptr(dy + size * (n * channels + c), 0), ptr(src + size * (n * channels + c), 1)
                for j in range(width):
                    sum_g[j] += g[j]
                    sum_gx[j] += _centered_product(g[j], x[j], m[j])
            ds, db = ptr(dscale + size * c, 6), ptr(dbias + size * c, 7)
            for j in range(width):
                sum_gx[j] *= s[j]
                ds[j] = sum_gx[j]
                db[j] = sum_g[j]
                sum_g[j] /= count
                sum_gx[j] *= s[j] / count
            for n in range(batch):
                at = size * (n * channels + c)
                g, x, y = ptr(dy + at, 0), ptr(src + at, 1), ptr(dst + at, 5)
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
    results = (site.write_or_drop(i, site.type(like)) for i, like in enumerate((0, 1, 1)))
    memory: tuple[Arg, ...] = (*(site.read(i) for i in range(3)), *results)
    epsilon = Number(site.attr("epsilon"))
    if spatial == 1:
        units = -(-channels // WIDTH)
        return [Call(make_columns(t.dtype), units, (*memory, batch, channels, epsilon))]
    return [Call(make_planes(t.dtype), channels, (*memory, batch, channels, spatial, epsilon))]


@lowers("onnxc.BatchNormGrad")
def batch_norm_grad(site: Site) -> list[Call]:
    """Inputs dy, x, scale, mean, inverse deviation; outputs the gradients of x, scale and bias."""
    t = site.type(1)
    if not t.shape[1]:
        return []
    batch, channels, spatial = around(t.shape, 1)
    results = (site.write_or_drop(i, site.type(like)) for i, like in enumerate((1, 2, 2)))
    memory: tuple[Arg, ...] = (*(site.read(i) for i in range(5)), *results)
    if spatial == 1:
        return [Call(make_columns_grad(t.dtype), -(-channels // WIDTH), (*memory, batch, channels))]
    return [Call(make_planes_grad(t.dtype), channels, (*memory, batch, channels, spatial))]
