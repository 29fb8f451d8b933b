"""The geometry of Resize: output sizes, and which input elements each output element of an axis is made of.

Formulas: the ONNX documentation of Resize-19; where it is silent or ambiguous (fractional output widths, taps outside
of the tensor, rounding of integers), ONNX's reference implementation and its node tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.ir.graph import Attr
from compiler.ir.proto import default
from compiler.ir.types import AnyArray

Reals = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]


def resize_attr(attrs: Mapping[str, Attr], name: str) -> Attr:
    """An attribute of a Resize, or its default."""
    return attrs.get(name, default("Resize", name))


@dataclass(frozen=True)
class Axis:
    """One axis that is resized.

    width: the output's extent before rounding down, `scale * size`. given: whether there are fractions that the model
    gives as float32: a scale (and no quotient of sizes), a roi. roi: start and end.
    """

    axis: int
    size: int
    out: int
    scale: float
    width: float
    given: bool
    roi: tuple[float, float] = (0.0, 1.0)


def _scaled(size: int, scale: float) -> int:
    """Elements of an axis that is scaled, counted in float32 as by onnx's inference: 0.7 of 10 are 7. At most 2^60."""
    with np.errstate(all="ignore"):
        out = float(np.float32(size) * np.float32(scale))
    return floor(out) if out < 2.0**60 else 2**60


def resized_axes(
    shape: Sequence[int],
    attrs: Mapping[str, Attr],
    roi: AnyArray | None,
    scales: AnyArray | None,
    sizes: AnyArray | None,
) -> list[Axis]:
    """The axes that a Resize names, in its order. Exactly one of scales and sizes is present, empty ones are absent."""
    rank = len(shape)
    axes = [a % rank for a in attrs.get("axes", range(rank))]
    count = len(axes)
    spans = [(0.0, 1.0)] * count
    crop = resize_attr(attrs, "coordinate_transformation_mode") == "tf_crop_and_resize"
    if crop and roi is not None:
        spans = [(float(roi[i]), float(roi[count + i])) for i in range(count)]
    if scales is not None:
        outs = [_scaled(shape[a], float(s)) for a, s in zip(axes, scales, strict=True)]
        factors = [float(s) for s in scales]
        widths = [s * shape[a] for a, s in zip(axes, factors, strict=True)]
    else:
        assert sizes is not None
        outs = [int(s) for s in sizes]
        policy = resize_attr(attrs, "keep_aspect_ratio_policy")
        factors = [o / max(shape[a], 1) for a, o in zip(axes, outs, strict=True)]
        if policy != "stretch":
            factors = [(min if policy == "not_larger" else max)(factors)] * count
            outs = [floor(s * shape[a] + 0.5) for a, s in zip(axes, factors, strict=True)]
        widths = [s * shape[a] if policy != "stretch" else o for a, s, o in zip(axes, factors, outs, strict=True)]
    geometry = zip(axes, outs, factors, widths, spans, strict=True)
    given = crop or scales is not None
    return [Axis(a, shape[a], out, s, width, given, span) for a, out, s, width, span in geometry]


def _origins(axis: Axis, mode: str, real: type[np.float32] | type[np.float64]) -> Reals:
    """Where each output element lies among the input's elements, computed in the type `real`."""
    x: Reals = np.arange(axis.out).astype(real)
    n, wide = axis.size, axis.out > 1
    scale, width, half, one = real(axis.scale), real(axis.width), real(0.5), real(1)
    if mode == "align_corners":
        # the official tests divide by the width before it is rounded down
        return np.asarray(x * real(n - 1) / (width - one) if wide else x)
    if mode == "asymmetric":
        return np.asarray(x / scale)
    if mode == "tf_crop_and_resize":
        start, end = (real(v) for v in axis.roi)
        if wide:
            return np.asarray(start * real(n - 1) + x * (end - start) * real(n - 1) / real(axis.out - 1))
        return np.full_like(x, half * (start + end) * real(n - 1))
    if mode == "pytorch_half_pixel" and not wide:
        return np.zeros_like(x)
    middle = real(n) / 2 * (one - real(axis.out) / width) if mode == "half_pixel_symmetric" else real(0)
    return np.asarray(middle + (x + half) / scale - half)


_ROUND: dict[str, Callable[[Reals], Reals]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic(distance: Reals, a: float) -> Reals:
    """The cubic convolution kernel, Equation (4) of Keys, IEEE TASSP 29 (1981), for any coefficient a."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


@dataclass(frozen=True)
class Taps:
    """Output element o of an axis is the sum of `weights[o, k] * x[indices[o, k]]` over k.

    outside: the output elements that are the extrapolation value instead.
    """

    indices: Ints
    weights: Reals
    outside: npt.NDArray[np.bool_]

    @property
    def picks(self) -> bool:
        """Whether every output element is an input element."""
        return self.indices.shape[1] == 1 and bool((self.weights == 1).all())

    def matrix(self, size: int) -> Reals:
        """The weights of all `size` input elements: [out, size]."""
        dense = np.zeros((len(self.indices), size))
        np.add.at(dense, (np.arange(len(dense))[:, None], self.indices), self.weights)
        return dense


def taps(axis: Axis, attrs: Mapping[str, Attr]) -> Taps:
    """What one axis of a Resize with these attributes computes; axis.size is at least 1."""
    mode, transformation = (resize_attr(attrs, k) for k in ("mode", "coordinate_transformation_mode"))
    last = axis.size - 1
    # the nearest element in the type of the fractions, as in onnxruntime: 1.5 / 0.6 is then 2.5, not a bit less
    x = _origins(axis, transformation, np.float32 if mode == "nearest" and axis.given else np.float64)
    outside = np.zeros(len(x), np.bool_)
    if transformation == "tf_crop_and_resize":
        outside = (x < 0) | (x > last)
    if mode == "nearest":
        picked = _ROUND[resize_attr(attrs, "nearest_mode")](x).clip(0, last)
        return Taps(picked.astype(np.int64)[:, None], np.ones((len(x), 1)), outside)
    stretch = min(axis.scale, 1.0) if resize_attr(attrs, "antialias") else 1.0  # the filter is wider by 1 / stretch
    first = floor(-(2 if mode == "cubic" else 1) / stretch) + 1
    at = np.floor(x)[:, None] + np.arange(first, 2 - first)
    distance = (at - x[:, None]) * stretch
    weights = _cubic(distance, resize_attr(attrs, "cubic_coeff_a")) if mode == "cubic" else 1 - np.abs(distance)
    weights = weights if mode == "cubic" else weights.clip(0)
    if resize_attr(attrs, "exclude_outside"):
        weights = np.where((at < 0) | (at > last), 0, weights)
    total = weights.sum(1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    used = (weights != 0).any(0)
    used[0] |= not used.any()
    indices = at.clip(0, last).astype(np.int64)
    return Taps(indices[:, used], weights[:, used], outside)
