"""RegionArgMax: where the largest elements of rectangles are, for MaxRoiPool."""

from __future__ import annotations

from compiler.codegen.calls import Call, Site, Words, lowers
from compiler.codegen.kernels.index import in_range
from compiler.codegen.native import ITEMSIZE, Kernel, i64, kernel, per_target, pointer


@per_target
def make_region_arg_max(name: str) -> Kernel:
    """The range counts pairs of a region and a channel. meta: images, channels, height, width; bins down and across."""
    ptr, size = pointer(name), ITEMSIZE[name]

    @kernel
    def region_arg_max(
        lo: int, hi: int, src: int, images: int, tops: int, bottoms: int, lefts: int, rights: int, dst: int, meta: int
    ) -> None:
        m = i64(meta, 7)
        n, channels, height, width, down, across = m[0], m[1], m[2], m[3], m[4], m[5]
        for u in range(hi - lo):
            region, channel = (lo + u) // channels, (lo + u) % channels
            image = in_range(i64(images, 1)[region], n)
            start = (image * channels + channel) * height * width
            x, y = ptr(src + size * start, 0), i64(dst + 8 * (lo + u) * down * across, 6)
            top, bottom = i64(tops + 8 * region * down, 2), i64(bottoms + 8 * region * down, 3)
            left, right = i64(lefts + 8 * region * across, 4), i64(rights + 8 * region * across, 5)
            for p in range(down):
                h0, h1 = max(top[p], 0), min(bottom[p], height)
                for q in range(across):
                    w0, w1 = max(left[q], 0), min(right[q], width)
                    if h0 < h1 and w0 < w1:
                        at = h0 * width + w0
                        best = x[at]
                        for h in range(h0, h1):
                            for w in range(w0, w1):
                                if x[h * width + w] > best:
                                    at = h * width + w
                                    best = x[at]
                        y[p * across + q] = start + at
                    else:
                        y[p * across + q] = -1

    return region_arg_max


@lowers("onnxc.RegionArgMax")
def region_arg_max_(site: Site) -> list[Call]:
    """Inputs x, images, tops, bottoms, lefts, rights; bounds outside of the image are cut."""
    x, out = site.type(0), site.out()
    if not out.size:
        return []
    regions, channels, down, across = out.shape
    meta = Words((*x.shape, down, across))
    reads = [site.read(i) for i in range(6)]
    return [Call(make_region_arg_max(x.dtype), regions * channels, (*reads, site.write(), meta))]
