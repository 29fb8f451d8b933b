"""Convolutions whose kernel is one tap: products of matrices; with strides, of every stride-th position."""

from __future__ import annotations

from math import prod

from compiler.codegen.calls import Call, In, Out, Site, Temp, Words
from compiler.codegen.kernels.common import item_size, read_only
from compiler.codegen.kernels.conv_geometry import Geometry
from compiler.codegen.kernels.gemm import Product
from compiler.codegen.kernels.strided import BITS, Axis, copy_box
from compiler.codegen.native import Kernel, i64, kernel, per_target, pointer


def pointwise(
    site: Site,
    geometry: Geometry,
    cin: int,
    cout: int,
    weights: tuple[int, int, int],
    x: In | Temp,
    y: Out | Temp,
) -> list[Call]:
    """Of each image and group w @ x, plus the bias in input 2, if there is one. Arguments as of `convolution`."""
    t, groups = site.type(0), site.node.attr("group", 1)
    bias: In | int = site.read(2) if site.has(2) else 0
    offsets = tuple(
        (g * weights[0], (n * groups + g) * cin * geometry.input_size, g * cout)
        for n in range(t.shape[0])
        for g in range(groups)
    )
    p = Product(cout, geometry.output_size, cin, weights[1:], (geometry.input_size, 1), (1, 0), offsets)
    return p.calls(t.dtype, site.read(1), x, bias, y)


def pointwise_strided(
    site: Site, geometry: Geometry, thin: Geometry, cin: int, cout: int, weights: tuple[int, int, int]
) -> list[Call]:
    """The same where only every stride-th position of x is read or, transposed and without bias, of y is not zero."""
    if not geometry.transposed:
        calls, x = thin_out(site, 0, geometry, thin)
        return [*calls, *pointwise(site, thin, cin, cout, weights, x, site.write())]
    t, y = site.type(0), site.out()
    few = Temp("thinned", item_size(t) * prod(y.shape[:2]) * thin.output_size)
    sizes = [n for a in geometry.axes for n in (a.out, a.stride, a.size)]
    rows = prod(y.shape[:2]) * geometry.axes[0].out * geometry.axes[1].out
    spread = Call(make_spread(item_size(t)), rows, (read_only(few), site.write(), Words(tuple(sizes))))
    return [*pointwise(site, thin, cin, cout, weights, site.read(0), few), spread]


def thin_out(site: Site, i: int, geometry: Geometry, thin: Geometry) -> tuple[list[Call], Temp]:
    """A copy of the positions of input i, an image, that are read: its calls, and the copy for those that read it."""
    t = site.type(i)
    (d, h, w), (nd, nh, nw) = geometry.axes, (a.out for a in thin.axes)
    box = [
        Axis(prod(t.shape[:2]), geometry.input_size, thin.input_size),
        Axis(nd, d.stride * h.size * w.size, nh * nw),
        Axis(nh, h.stride * w.size, nw),
        Axis(nw, w.stride, 1),
    ]
    few = Temp("thinned", item_size(t) * prod(t.shape[:2]) * thin.input_size)
    return copy_box(item_size(t), box, site.read(i), few), read_only(few)


@per_target
def make_spread(size: int) -> Kernel:
    """Rows [lo, hi) of dst [planes, ...space]: src at every stride-th position, zero bits elsewhere.

    meta: for each of the three axes the extent of dst, the stride, the extent of src.
    """
    ptr = pointer(BITS[size])

    @kernel
    def spread(lo: int, hi: int, src: int, dst: int, meta: int) -> None:
        m = i64(meta, 2)
        depth, step_d, nd, height, step_h, nh = m[0], m[1], m[2], m[3], m[4], m[5]
        width, step_w, nw = m[6], m[7], m[8]
        h, d, plane = lo % height, lo // height % depth, lo // height // depth
        for row in range(lo, hi):
            to = ptr(dst + size * row * width, 0)
            if d % step_d != 0 or d // step_d >= nd or h % step_h != 0 or h // step_h >= nh:
                for i in range(width):
                    to[i] = 0
            else:
                s = ptr(src + size * ((plane * nd + d // step_d) * nh + h // step_h) * nw, 1)
                if step_w == 2 and width == 2 * nw:  # interleaved as vectors
                    for i in range(nw):
                        to[2 * i] = s[i]
                        to[2 * i + 1] = 0
                else:
                    for i in range(width):
                        to[i] = 0
                    for i in range(nw):
                        to[i * step_w] = s[i]
            h += 1
            if h == height:
                h, d = 0, d + 1
            if d == depth:
                d, plane = 0, plane + 1

    return spread
