"""Columns back to images, and pools: Col2Im, MaxUnpool, RoiAlign, MaxRoiPool.

Regions of interest are run-time values: their coordinates are made valid indices, the numbers of their images are
checked by a Gather.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

import numpy as np

from compiler.ir.bodies import internal
from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.definitions.checked import confined
from compiler.ir.definitions.sampling import (
    Taps,
    between,
    cast,
    clipped,
    combined,
    neighbours,
    reshape,
    row,
    rows_of,
    valid_index,
    weighted,
)
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.proto import default
from compiler.ir.types import TensorType

Attrs = Mapping[str, Attr]


def _known_ints(b: Builder, v: str) -> list[int]:
    array = b.known(v)
    if array is None:
        raise InferenceError(f"{v!r} is not known at compile time")
    return [int(i) for i in array.reshape(-1)]


def col2im(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(columns [N, C k.., L], image shape, block shape) -> [N, C, d..]: what falls on one element is added up."""
    columns, image, block = inputs
    spatial, kernel = _known_ints(b, image), _known_ints(b, block)
    r = len(spatial)
    strides, dilations = (attrs.get(name, (1,) * r) for name in ("strides", "dilations"))
    pads = attrs.get("pads", (0,) * (2 * r))
    n, width, blocks = b.shape(columns)
    c = width // prod(kernel)
    padded = [d + pads[i] + pads[r + i] for i, d in enumerate(spatial)]
    places = np.zeros((), np.int64)  # of each tap of each block in the padded image: [k.., blocks..]
    for i in range(r):
        steps = (padded[i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        at = np.arange(kernel[i])[:, None] * dilations[i] + np.arange(steps) * strides[i]
        places = places[..., None, None] * padded[i] + at
    places = places.transpose(*range(0, 2 * r, 2), *range(1, 2 * r, 2))
    flat = reshape(b, columns, [n * c, prod(kernel) * blocks])
    shape = (n * c, prod(padded))
    if 0 in b.shape(flat):
        return [b.full(0, TensorType(b.type(columns).dtype, (n, c, *spatial)))]
    summed = b.op("onnxc.GatherGrad", flat, b.const(places.reshape(-1)), axis=1, shape=shape)
    y = reshape(b, summed, [n, c, *padded])
    if padded != spatial:
        ends = [pads[i] + d for i, d in enumerate(spatial)]
        y = b.op("Slice", y, b.ints(pads[:r]), b.ints(ends), b.ints(range(2, 2 + r)))
    return [y]


def max_unpool(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, i..], indices, output shape?) -> [N, C, o..]: zeros, but x at the indices.

    Indices count the elements of the tensor that was pooled, whose extents follow from the attributes; an output shape
    that is larger has zeros behind it.
    """
    x, indices, *rest = inputs
    n, c, *spatial = b.shape(x)
    kernel, r = attrs["kernel_shape"], len(spatial)
    strides, pads = attrs.get("strides", (1,) * r), attrs.get("pads", (0,) * (2 * r))
    pooled = [
        (d - 1) * s - pads[i] - pads[r + i] + kernel[i] for i, (d, s) in enumerate(zip(spatial, strides, strict=True))
    ]
    count = b.type(x).size
    zeros = b.full(0, TensorType(b.type(x).dtype, (n * c * prod(pooled),)))
    indices = confined(b, indices, max(n * c * prod(pooled) - 1, 0), "indices")
    y = b.op("ScatterElements", zeros, reshape(b, indices, [count]), reshape(b, x, [count]), axis=0)
    y = reshape(b, y, [n, c, *pooled])
    wanted = _known_ints(b, rest[0])[2:] if rest and rest[0] else pooled
    if any(w < p for w, p in zip(wanted, pooled, strict=True)):
        ends = [min(w, p) for w, p in zip(wanted, pooled, strict=True)]
        y = b.op("Slice", y, b.ints([0] * r), b.ints(ends), b.ints(range(2, 2 + r)))
    more = [max(w - p, 0) for w, p in zip(wanted, pooled, strict=True)]
    return [b.op("Pad", y, b.ints([0] * (r + 4) + more)) if any(more) else y]


# --- RoiAlign ------------------------------------------------------------------------------------------------------


class _Side:
    """One side of the regions: their start and extent [R] along an axis of `size` elements, cut into `bins` bins.

    count: samples in each bin, [R], in the element type of the coordinates. most: how many of them are looked at,
    beginning with `first` ([R, bins, 1], or '' for 0).
    """

    def __init__(self, b: Builder, start: str, extent: str, size: int, bins: int, ratio: int, all_samples: bool):
        self.b, self.size, self.bins, self.most, self.first = b, size, bins, ratio, ""
        self.step = b.op("Div", extent, b.scalar(bins, extent))
        if ratio > 0:
            self.count = b.op("Expand", b.scalar(ratio, extent), b.ints(b.shape(extent)))
        else:  # one sample for each element that a bin covers, rounded up
            self.count = clipped(b, b.op("Ceil", self.step), 0, 2.0**30)
        least = self._column(b.op("Max", self.count, b.scalar(1, extent)))
        bin_number = reshape(b, row(b, range(bins), extent), [1, bins, 1])
        self.begin = b.op("Add", self._column(start), b.op("Mul", self._column(self.step), bin_number))
        self.spacing = b.op("Div", self._column(self.step), least)
        if ratio <= 0 and all_samples:
            self._bound()
        elif ratio <= 0:
            self._skip()

    def _column(self, v: str) -> str:
        return reshape(self.b, v, [self.b.shape(v)[0], 1, 1])

    def _bound(self) -> None:
        """Look at all samples, of regions that are no larger than the image: reading a table checks that."""
        b = self.b
        self.most = ceil(self.size / self.bins) + 1
        table = row(b, range(self.most + 1), self.count)
        self.count = b.op("Gather", table, cast(b, self.count, "i64"), axis=0)

    def _skip(self) -> None:
        """Look at those near the image only: they are less than an element apart, but never much less, if many."""
        b = self.b
        self.most = self.size + 4
        ahead = b.op("Div", b.op("Sub", b.scalar(-1, self.begin), self.begin), self.spacing)
        before = b.op("Floor", b.op("Sub", ahead, b.scalar(0.5, ahead)))
        self.first = b.op("Max", before, b.scalar(0, before))

    def taps(self) -> Taps:
        """Where the samples read, and weights that are 0 for samples beyond the count: [R, bins, 2 most]."""
        b = self.b
        number = reshape(b, row(b, range(self.most), self.step), [1, 1, self.most])
        number = b.op("Add", self.first, number) if self.first else number
        x = b.op("Add", self.begin, b.op("Mul", b.op("Add", number, b.scalar(0.5, number)), self.spacing))
        valid = b.op("And", between(b, x, -1, self.size), b.op("Less", number, self._column(self.count)))
        at, weights = neighbours(b, clipped(b, x, 0, self.size - 1), "linear")
        weights = b.op("Where", reshape(b, valid, [*b.shape(valid), 1]), weights, b.scalar(0, weights))
        shape = [*b.shape(x)[:2], 2 * self.most]
        return Taps(reshape(b, valid_index(b, at, self.size), shape), reshape(b, weights, shape))

    def mean_taps(self) -> Taps:
        """The same, the weights divided by the number of samples."""
        t = self.taps()
        least = self._column(self.b.op("Max", self.count, self.b.scalar(1, self.count)))
        return Taps(t.indices, self.b.op("Div", t.weights, least))

    def matrix(self) -> str:
        """The weights of all elements in the mean of each bin: [R, bins, size]."""
        b, t = self.b, self.mean_taps()
        regions, bins, count = b.shape(t.weights)
        lines = (regions * bins, count)
        zeros = b.full(0, TensorType(b.type(t.weights).dtype, (regions * bins, self.size)))
        indices, weights = reshape(b, t.indices, lines), reshape(b, t.weights, lines)
        dense = b.op("ScatterElements", zeros, indices, weights, axis=1, reduction="add")
        return reshape(b, dense, [regions, bins, self.size])


def roi_align(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, H, W], rois [R, 4] of x1, y1, x2, y2, images [R]) -> [R, C, output_height, output_width].

    Of each bin, the mean of samples that are interpolated linearly, or with mode max the largest of their terms (weight
    times element), as in ONNX's reference implementation. Without sampling_ratio, the number of samples depends on the
    region; with mode max, no region may then be larger than the image.
    """
    x, rois, images = inputs
    kept = b.type(x).dtype
    if kept in ("f16", "bf16"):
        x, rois = cast(b, x, "f32"), cast(b, rois, "f32")
    names = (
        "mode",
        "output_height",
        "output_width",
        "sampling_ratio",
        "spatial_scale",
        "coordinate_transformation_mode",
    )
    mode, high, broad, ratio, scale, transformation = (attrs.get(k, default("RoiAlign", k)) for k in names)
    n, c, height, width = b.shape(x)
    count = b.shape(rois)[0]
    if 0 in (n, c, count):
        return [b.full(0, TensorType(kept, (count, c, high, broad)))]
    images = confined(b, images, n - 1, "batch_indices")
    scaled = b.op("Mul", rois, b.scalar(scale, rois))
    if transformation == "half_pixel":
        scaled = b.op("Sub", scaled, b.scalar(0.5, rois))
    x1, y1, x2, y2 = (b.op("Gather", scaled, b.const(np.int64(i)), axis=1) for i in range(4))
    extents = [b.op("Sub", end, start) for start, end in ((y1, y2), (x1, x2))]
    if transformation != "half_pixel":  # malformed regions have one element
        extents = [clipped(b, e, 1, np.inf) for e in extents]
    vertical = _Side(b, y1, extents[0], height, high, ratio, mode == "max")
    horizontal = _Side(b, x1, extents[1], width, broad, ratio, mode == "max")
    if mode != "max" and ratio <= 0:
        y = _products(b, x, vertical.matrix(), horizontal.matrix(), images)
        return [cast(b, b.op("Transpose", y, perm=(0, 2, 1, 3)), kept)]
    starts = b.op("Gather", b.const(np.arange(n, dtype=np.int64) * height * width), images, axis=0)
    rows, columns = (side.taps() if mode == "max" else side.mean_taps() for side in (vertical, horizontal))
    taps = [
        Taps(*(reshape(b, v, [count, high, 1, b.shape(v)[-1]]) for v in (rows.indices, rows.weights))),
        Taps(*(reshape(b, v, [count, 1, broad, b.shape(v)[-1]]) for v in (columns.indices, columns.weights))),
    ]
    numbers, weights = combined(b, taps, [height, width], reshape(b, starts, [count, 1, 1, 1]))
    if mode == "max":
        y = _largest(b, rows_of(b, x), numbers, weights, vertical, horizontal)
    else:
        y = weighted(b, rows_of(b, x), numbers, weights)
    return [cast(b, b.op("Transpose", y, perm=(0, 3, 1, 2)), kept)]


def _products(b: Builder, x: str, rows: str, columns: str, images: str) -> str:
    """Rows [R, P, H] times each region's image times columns [R, Q, W]: [R, P, C, Q], by two products of matrices."""
    n, c, height, width = b.shape(x)
    count, p, _ = b.shape(rows)
    q = b.shape(columns)[1]
    which = b.op("Gather", row(b, np.eye(n), rows), images, axis=0)
    left = b.op("Mul", reshape(b, which, [count, 1, n, 1]), reshape(b, rows, [count, p, 1, height]))
    flat = reshape(b, b.op("Transpose", x, perm=(0, 2, 1, 3)), [n * height, c * width])
    half = b.op("MatMul", reshape(b, left, [count * p, n * height]), flat)
    y = b.op("MatMul", reshape(b, half, [count, p * c, width]), b.op("Transpose", columns, perm=(0, 2, 1)))
    return reshape(b, y, [count, p, c, q])


def _largest(b: Builder, rows: str, numbers: str, weights: str, vertical: _Side, horizontal: _Side) -> str:
    """The largest term of each bin, of the samples that count; 0 if there are none."""
    terms = b.op("Mul", b.op("Gather", rows, numbers, axis=0), reshape(b, weights, [*b.shape(weights), 1]))
    counted = []
    for side, shape in ((vertical, (2 * vertical.most, 1)), (horizontal, (1, 2 * horizontal.most))):
        number = row(b, np.arange(2 * side.most) // 2, side.count)
        less = b.op("Less", number, reshape(b, side.count, [b.shape(side.count)[0], 1]))
        counted.append(reshape(b, less, [b.shape(less)[0], *shape]))
    both = b.op("And", *counted)
    regions = b.shape(both)[0]
    both = reshape(b, both, [regions, 1, 1, b.shape(terms)[3], 1])
    largest = b.op("ReduceMax", b.op("Where", both, terms, b.scalar(-np.inf, terms)), b.ints([3]), keepdims=0)
    some = b.op("And", *(b.op("Greater", side.count, b.scalar(0, side.count)) for side in (vertical, horizontal)))
    return b.op("Where", reshape(b, some, [regions, 1, 1, 1]), largest, b.scalar(0, largest))


# --- MaxRoiPool ----------------------------------------------------------------------------------------------------


def _bins(b: Builder, start: str, end: str, size: int, bins: int) -> tuple[str, str]:
    """First elements of the bins between rounded coordinates [R], and those behind the last: int64 [R, bins]."""
    lengths = clipped(b, b.op("Add", b.op("Sub", end, start), b.scalar(1, start)), 1, np.inf)
    column = [b.shape(start)[0], 1]
    step = reshape(b, b.op("Div", lengths, b.scalar(bins, start)), column)
    number = row(b, range(bins), start)
    bounds = []
    for op, n in (("Floor", number), ("Ceil", b.op("Add", number, b.scalar(1, start)))):
        at = b.op("Add", b.op(op, b.op("Mul", n, step)), reshape(b, start, column))
        bounds.append(valid_index(b, at, size + 1))
    return bounds[0], bounds[1]


def max_roi_pool(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, H, W], rois [R, 5] of image, x1, y1, x2, y2) -> [R, C, *pooled_shape]: the largest element of each bin.

    Coordinates are rounded, halves away from zero, and include their end; an empty bin gives 0, as in onnxruntime.
    """
    x, rois = inputs
    kept = b.type(x).dtype
    if kept in ("f16", "bf16"):
        x, rois = cast(b, x, "f32"), cast(b, rois, "f32")
    n, c, height, width = b.shape(x)
    high, broad = attrs["pooled_shape"]
    count = b.shape(rois)[0]
    if 0 in (n, c, count):
        return [b.full(0, TensorType(kept, (count, c, high, broad)))]
    image, *corners = (b.op("Gather", rois, b.const(np.int64(i)), axis=1) for i in range(5))
    number = cast(b, clipped(b, image, -(2.0**30), 2.0**30), "i64")
    number = confined(b, number, n - 1, "batch indices of rois")
    images = b.op("Gather", b.const(np.arange(n, dtype=np.int64)), number, axis=0)  # refuses constants as well
    scale, half = (
        b.scalar(attrs.get("spatial_scale", default("MaxRoiPool", "spatial_scale")), rois),
        b.scalar(0.5, rois),
    )
    rounded = []
    for v in corners:
        v = b.op("Mul", v, scale)
        up, down = b.op("Floor", b.op("Add", v, half)), b.op("Ceil", b.op("Sub", v, half))
        rounded.append(b.op("Where", b.op("Less", v, b.scalar(0, v)), down, up))
    x1, y1, x2, y2 = rounded
    bounds = [*_bins(b, y1, y2, height, high), *_bins(b, x1, x2, width, broad)]
    indices = b.op("onnxc.RegionArgMax", x, images, *bounds)
    some = b.op("GreaterOrEqual", indices, b.const(np.int64(0)))
    flat = reshape(b, x, [n * c * height * width])
    largest = b.op("Gather", flat, b.op("Max", indices, b.const(np.int64(0))), axis=0)
    return [cast(b, b.op("Where", some, largest, b.scalar(0, x)), kept)]


@internal("RegionArgMax")
def region_arg_max(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, H, W], images [R], tops, bottoms [R, P], lefts, rights [R, Q]) -> [R, C, P, Q], integers all but x.

    The number, in x as a list, of the first of the largest elements in rows tops <= h < bottoms and columns
    lefts <= w < rights of each channel; -1 where there are none.
    """
    x, images, tops, bottoms, lefts, rights = inputs
    _, c, height, width = b.shape(x)
    (count, p), q = b.shape(tops), b.shape(lefts)[1]
    masks = []
    for low, high, size, shape in (
        (tops, bottoms, height, [count, 1, p, 1, height, 1]),
        (lefts, rights, width, [count, 1, 1, q, 1, width]),
    ):
        at = row(b, range(size), low)
        first, end = (reshape(b, v, [*b.shape(v), 1]) for v in (low, high))
        masks.append(reshape(b, b.op("And", b.op("GreaterOrEqual", at, first), b.op("Less", at, end)), shape))
    mask = b.op("And", *masks)
    read = reshape(b, b.op("Gather", x, images, axis=0), [count, c, 1, 1, height, width])
    axes = b.ints([4, 5])
    largest = b.op("ReduceMax", b.op("Where", mask, read, b.scalar(-np.inf, x)), axes, keepdims=1)
    hits = cast(b, b.op("And", mask, b.op("Equal", read, largest)), "i32")
    hits = reshape(b, hits, [count, c, p, q, height * width])
    channel = b.op("Add", b.op("Mul", reshape(b, images, [count, 1]), b.const(np.int64(c))), row(b, range(c), images))
    start = reshape(b, b.op("Mul", channel, b.const(np.int64(height * width))), [count, c, 1, 1])
    found = b.op("Add", b.op("ArgMax", hits, axis=4, keepdims=0), start)
    some = b.op("Greater", b.op("ReduceMax", hits, b.ints([4]), keepdims=0), b.scalar(0, hits))
    return [b.op("Where", some, found, b.const(np.int64(-1)))]


INTERNAL_OPS["Col2Im"] = col2im
INTERNAL_OPS["MaxRoiPool"] = max_roi_pool
INTERNAL_OPS["MaxUnpool"] = max_unpool
INTERNAL_OPS["RoiAlign"] = roi_align
