"""Ops that resample images: every size must follow from the others, and no image may be empty that is read."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite, prod

import numpy as np

from compiler.ir.checks.base import NodeFacts, bad_axes, precondition, shown, wrong_shape
from compiler.ir.checks.spatial import window_lists
from compiler.ir.resizing import resize_attr, resized_axes
from compiler.ir.types import AnyArray
from compiler.ir.windows import windows

MOST_SAMPLES = 1024
"""The sampling_ratio of a RoiAlign: its square is the number of samples of each output element."""


def _given(f: NodeFacts, i: int) -> AnyArray | None:
    """The i-th input, which is a list, unless it is absent or empty."""
    value = f.known(i)
    return None if value is None or value.size == 0 else value


@precondition("Resize")
def _resize(f: NodeFacts) -> Iterator[str]:
    shape, attrs = f.shape(0), f.node.attrs
    axes = attrs.get("axes", tuple(range(len(shape))))
    if problems := list(bad_axes(axes, len(shape))):
        yield from problems
        return
    roi, scales, sizes = (_given(f, i) for i in (1, 2, 3))
    if (scales is None) == (sizes is None) and axes:
        yield "exactly one of scales and sizes must be given"
        return
    crop = resize_attr(attrs, "coordinate_transformation_mode") == "tf_crop_and_resize"
    for name, values, count in (
        ("scales", scales, len(axes)),
        ("sizes", sizes, len(axes)),
        ("roi", roi if crop else None, 2 * len(axes)),
    ):
        if values is not None and values.size != count:
            yield f"{name} has {values.size} elements, where {count} are expected"
            return
    if crop and roi is None:
        yield "tf_crop_and_resize needs a roi"
        return
    if crop and roi is not None and not np.isfinite(roi).all():
        yield f"the roi {shown(roi.tolist())} is not finite"
        return
    if scales is not None and not all(isfinite(s) and s > 0 for s in scales.tolist()):
        yield f"the scales {shown(scales.tolist())} are not all positive"
        return
    if sizes is not None and min(sizes.tolist()) < 0:
        yield f"the sizes {shown(sizes.tolist())} are not all positive"
        return
    if resize_attr(attrs, "mode") == "nearest" and resize_attr(attrs, "antialias"):
        yield "antialias is for the modes linear and cubic only"
    if not isfinite(resize_attr(attrs, "cubic_coeff_a")):
        yield f"cubic_coeff_a is {resize_attr(attrs, 'cubic_coeff_a')}"
    if f.type(0).dtype == "bool" and resize_attr(attrs, "mode") != "nearest":
        yield "booleans can only be resized in the mode nearest"
    if not axes:
        yield from wrong_shape(f, shape)
        return
    expected = list(shape)
    for a in resized_axes(shape, attrs, roi, scales, sizes):
        if a.size == 0 < a.out:
            yield f"axis {a.axis} is empty, and cannot get {a.out} elements"
        expected[a.axis] = a.out
    yield from wrong_shape(f, expected)


def _image(f: NodeFacts, rank: int = 0) -> Iterator[str]:
    """The first input as [N, C, d..], of this rank if it is not 0, with spatial elements."""
    x = f.shape(0)
    if rank and len(x) != rank:
        yield f"the input {shown(x)} is not of rank {rank}"
    elif len(x) < 3 or 0 in x[2:]:
        yield f"the input {shown(x)} has no spatial elements"


@precondition("GridSample")
def _grid_sample(f: NodeFacts) -> Iterator[str]:
    if problems := list(_image(f)):
        yield from problems
        return
    x, grid = f.shape(0), f.shape(1)
    if len(grid) != len(x) or grid[0] != x[0] or grid[-1] != len(x) - 2:
        yield f"the grid {shown(grid)} does not fit the input {shown(x)}"
        return
    if f.type(0).dtype == "bool" and f.attr("mode") != "nearest":
        yield "booleans can only be sampled in the mode nearest"
    yield from wrong_shape(f, [*x[:2], *grid[1:-1]])


@precondition("AffineGrid")
def _affine_grid(f: NodeFacts) -> Iterator[str]:
    theta, size = f.shape(0), f.ints(1) or []
    r = len(size) - 2
    if r not in (2, 3) or theta != (size[0], r, r + 1):
        yield f"theta {shown(theta)} does not fit the size {shown(size)}"
        return
    if min(size) < 0:
        yield f"the size {shown(size)} is not positive"
        return
    yield from wrong_shape(f, [size[0], *size[2:], r])


@precondition("DeformConv")
def _deform_conv(f: NodeFacts) -> Iterator[str]:
    if problems := [*_image(f), *window_lists(f, len(f.shape(0)) - 2)]:
        yield from problems
        return
    x, w, offset = f.shape(0), f.shape(1), f.shape(2)
    group, groups, r = f.attr("group"), f.attr("offset_group"), len(x) - 2
    kernel, k = w[2:], prod(w[2:])
    if len(w) != len(x) or k == 0 or f.node.attr("kernel_shape", kernel) != kernel:
        yield f"the weights {shown(w)} do not fit the input {shown(x)} or the attribute kernel_shape"
        return
    if group < 1 or x[1] != w[1] * group or x[1] == 0 or w[0] % group or w[0] == 0:
        yield f"{x[1]} channels in {group} groups do not fit the weights {shown(w)}"
        return
    if groups < 1 or x[1] % groups:
        yield f"{x[1]} channels cannot be divided into {groups} offset groups"
        return
    out = [a.out for a in windows(f.node, x[2:], kernel)]
    if min(out) < 1:
        yield f"the kernel {shown(kernel)} exceeds the input {shown(x)}, padding included"
        return
    for i, name, expected in (
        (2, "offset", (x[0], groups * k * r, *out)),
        (3, "bias", (w[0],)),
        (4, "mask", (x[0], groups * k, *out)),
    ):
        if f.has(i) and f.shape(i) != expected:
            yield f"the {name} has the shape {shown(f.shape(i))}, where {shown(expected)} is expected"
    if offset:
        yield from wrong_shape(f, [x[0], w[0], *out])


def _regions(f: NodeFacts, columns: int) -> Iterator[str]:
    x, rois = f.shape(0), f.shape(1)
    if len(rois) != 2 or rois[1] != columns:
        yield f"the regions have the shape {shown(rois)}, where [.., {columns}] is expected"
    elif rois[0] and not x[0]:
        yield "there are regions, but no images"
    if not isfinite(f.attr("spatial_scale")) or f.attr("spatial_scale") <= 0:
        yield f"spatial_scale is {f.attr('spatial_scale')}"


@precondition("RoiAlign")
def _roi_align(f: NodeFacts) -> Iterator[str]:
    if problems := [*_image(f, 4), *_regions(f, 4)]:
        yield from problems
        return
    high, wide, ratio = f.attr("output_height"), f.attr("output_width"), f.attr("sampling_ratio")
    if high < 1 or wide < 1 or not 0 <= ratio <= MOST_SAMPLES:
        yield f"output_height {high}, output_width {wide} or sampling_ratio {ratio} is too small, or too large"
        return
    if f.shape(2) != f.shape(1)[:1]:
        yield f"the images have the shape {shown(f.shape(2))}, where {shown(f.shape(1)[:1])} is expected"
    images = f.ints(2)
    if images and not 0 <= min(images) <= max(images) < f.shape(0)[0]:
        yield f"batch_indices from {min(images)} to {max(images)} are not within the {f.shape(0)[0]} images"
    yield from wrong_shape(f, [f.shape(1)[0], f.shape(0)[1], high, wide])


@precondition("MaxRoiPool")
def _max_roi_pool(f: NodeFacts) -> Iterator[str]:
    if problems := [*_image(f, 4), *_regions(f, 5)]:
        yield from problems
        return
    pooled = f.attr("pooled_shape")
    if len(pooled) != 2 or min(pooled) < 1:
        yield f"pooled_shape is {shown(pooled)}, where two positive numbers are expected"
        return
    yield from wrong_shape(f, [f.shape(1)[0], f.shape(0)[1], *pooled])


@precondition("Col2Im")
def _col2im(f: NodeFacts) -> Iterator[str]:
    columns, image, block = f.shape(0), f.ints(1) or [], f.ints(2) or []
    r = len(image)
    if len(columns) != 3 or r == 0 or len(block) != r or min(image) < 1 or min(block) < 1:
        yield f"the columns {shown(columns)}, image {shown(image)} and block {shown(block)} do not fit"
        return
    if problems := list(window_lists(f, r)):
        yield from problems
        return
    if columns[1] % prod(block):
        yield f"{columns[1]} rows of columns are not made of blocks of {prod(block)} elements"
        return
    if f.type(0).dtype == "bool":
        yield "booleans cannot be added up"
    blocks = [a.out for a in windows(f.node, image, block)]
    if min(blocks) < 1 or prod(blocks) != columns[2]:
        yield f"there are {columns[2]} columns, where {shown(blocks)} blocks are expected"
        return
    yield from wrong_shape(f, [columns[0], columns[1] // prod(block), *image])
