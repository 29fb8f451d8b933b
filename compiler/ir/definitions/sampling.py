"""Reading images at points that are computed: GridSample, AffineGrid, DeformConv.

A point has an index and a weight for each of a few elements (*taps*) along each axis; their products, of all axes, are
those of the elements that are read. An index is made valid before it is cast, NaN included: a cast of what does not fit
is undefined. What must not be read has the weight 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.proto import default
from compiler.ir.types import AnyArray, numpy_dtype, onnx_dtype

Attrs = Mapping[str, Attr]

_LINEAR = ((1, 0), (-1, 1))
_A = -0.75
_CUBIC = (
    (0, 1, 0, 0),
    (_A, 0, -_A, 0),
    (-2 * _A, -(_A + 3), 2 * _A + 3, _A),
    (_A, _A + 2, -(_A + 2), -_A),
)
WEIGHTS: dict[str, Sequence[Sequence[float]]] = {"linear": _LINEAR, "cubic": _CUBIC}
"""Weights of the taps as polynomials of the distance behind the element below: coefficients of rising powers.

Cubic: the convolution kernel of Keys, IEEE TASSP 29 (1981), with a = -0.75, as in PyTorch.
"""

FIRST = {"linear": 0, "cubic": -1}
"""Where the first tap lies, from the element below."""


@dataclass(frozen=True)
class Taps:
    """Of one axis: indices (int64, valid) and weights, [.., count]; they are as many as points, or broadcast."""

    indices: str
    weights: str


def cast(b: Builder, x: str, dtype: str) -> str:
    """The value in another element type."""
    return x if b.type(x).dtype == dtype else b.op("Cast", x, to=onnx_dtype(dtype))


def reshape(b: Builder, x: str, shape: Sequence[int]) -> str:
    """The value in another shape."""
    if b.shape(x) == tuple(shape):
        return x
    return b.op("Reshape", x, b.ints(shape), allowzero=1 if 0 in shape else None)


def row(b: Builder, values: Sequence[float] | AnyArray, like: str) -> str:
    """A constant array of another value's element type."""
    return b.const(np.asarray(values, numpy_dtype(b.type(like).dtype)))


def between(b: Builder, x: str, low: float, high: float) -> str:
    """Booleans: low <= x <= high; false for NaN."""
    return b.op("And", b.op("GreaterOrEqual", x, b.scalar(low, x)), b.op("LessOrEqual", x, b.scalar(high, x)))


def clipped(b: Builder, x: str, low: float, high: float) -> str:
    """The value bounded, NaN to `low`; the gradient is 0 at the bounds as well, as in PyTorch's grid_sample."""
    top = b.scalar(high, x)
    above, below = b.op("GreaterOrEqual", x, top), b.op("Greater", x, b.scalar(low, x))
    inside = b.op("And", below, b.op("Not", above))
    return b.op("Where", inside, x, b.op("Where", above, top, b.scalar(low, x)))


def valid_index(b: Builder, x: str, size: int) -> str:
    """The integers in x as int64, those outside of [0, size) bounded."""
    return b.op("Cast", clipped(b, x, 0, size - 1), to=onnx_dtype("i64"))


def polynomial(b: Builder, x: str, coefficients: Sequence[Sequence[float]]) -> str:
    """Values of several polynomials at x [.., 1]: [.., count]; coefficients of rising powers."""
    *lower, result = [row(b, c, x) for c in coefficients]
    for c in reversed(lower):
        result = b.op("Add", b.op("Mul", result, x), c)
    return result


def neighbours(b: Builder, x: str, mode: str) -> tuple[str, str]:
    """The taps around points x [..]: where they lie, as real numbers, and their weights, both [.., count]."""
    x = reshape(b, x, [*b.shape(x), 1])
    below = b.op("Floor", x)
    count = len(WEIGHTS[mode][0])
    at = b.op("Add", below, row(b, range(FIRST[mode], FIRST[mode] + count), x))
    return at, polynomial(b, b.op("Sub", x, below), WEIGHTS[mode])


def zero_outside(b: Builder, at: str, weights: str, size: int) -> Taps:
    """Taps that count as zeros where they lie outside of the axis."""
    weights = b.op("Where", between(b, at, 0, size - 1), weights, b.scalar(0, weights))
    return Taps(valid_index(b, at, size), weights)


def _outer(b: Builder, op: str, parts: Sequence[str]) -> str:
    """[.., k1], [.., k2], .. joined by op in all combinations: [.., k1 k2 ..]."""
    result = parts[0]
    for part in parts[1:]:
        (*lead, m), (*other, k) = b.shape(result), b.shape(part)
        joined = b.op(op, reshape(b, result, [*lead, m, 1]), reshape(b, part, [*other, 1, k]))
        result = reshape(b, joined, [*b.shape(joined)[:-2], m * k])
    return result


def rows_of(b: Builder, x: str) -> str:
    """X [N, C, d..] as one row of C channels for each place: [N d.., C]."""
    n, c, *spatial = b.shape(x)
    return reshape(b, b.op("Transpose", reshape(b, x, [n, c, prod(spatial)]), perm=(0, 2, 1)), [n * prod(spatial), c])


def combined(b: Builder, taps: Sequence[Taps], spatial: Sequence[int], start: str) -> tuple[str, str]:
    """The numbers of the rows (see rows_of) that the taps of all axes together read, and the weights: [.., taps].

    start: the first row of the image that each point reads; it broadcasts against [.., taps].
    """
    strides = [prod(spatial[i + 1 :]) for i in range(len(spatial))]
    scaled = [
        b.op("Mul", t.indices, b.const(np.int64(s))) if s != 1 else t.indices
        for t, s in zip(taps, strides, strict=True)
    ]
    return b.op("Add", _outer(b, "Add", scaled), start), _outer(b, "Mul", [t.weights for t in taps])


def weighted(b: Builder, rows: str, numbers: str, weights: str) -> str:
    """Sums over the last axis of `numbers` [.., taps] of weights times rows [R, C]: [.., C]."""
    weights = cast(b, weights, b.type(rows).dtype)
    read = b.op("Gather", rows, numbers, axis=0)
    terms = b.op("Mul", read, reshape(b, weights, [*b.shape(weights), 1]))
    return b.op("ReduceSum", terms, b.ints([len(b.shape(terms)) - 2]), keepdims=0)


def image_starts(b: Builder, count: int, places: int, rank: int) -> str:
    """The first row of each of `count` images of `places` rows, as it broadcasts against `rank` dimensions."""
    return b.const((np.arange(count, dtype=np.int64) * places).reshape(count, *(1 for _ in range(rank - 1))))


def wide_enough(b: Builder, x: str) -> str:
    """Coordinates in at least float32."""
    return cast(b, x, "f32") if b.type(x).dtype in ("f16", "bf16") else x


def _part(b: Builder, x: str, i: int) -> str:
    """x[.., i]."""
    return b.op("Gather", x, b.const(np.int64(i)), axis=len(b.shape(x)) - 1)


# --- GridSample ----------------------------------------------------------------------------------------------------


def _reflected(b: Builder, x: str, low: float, high: float) -> str:
    """Points mirrored at low and high as often as it takes."""
    span = high - low
    if span == 0:
        return b.full(0, b.type(x))
    away = b.op("Sub", x, b.scalar(low, x))
    away = b.op("Where", b.op("Less", away, b.scalar(0, x)), b.op("Neg", away), away)
    away = b.op("Mod", away, b.scalar(2 * span, x), fmod=1)
    back = b.op("Sub", b.scalar(2 * span, x), away)
    return b.op("Add", b.op("Where", b.op("Greater", away, b.scalar(span, x)), back, away), b.scalar(low, x))


@dataclass(frozen=True)
class _Grid:
    """How a GridSample reads one axis."""

    size: int
    mode: str
    padding: str
    aligned: bool

    @property
    def borders(self) -> tuple[float, float]:
        return (0.0, self.size - 1.0) if self.aligned else (-0.5, self.size - 0.5)

    def taps(self, b: Builder, g: str) -> Taps:
        """Of points g [..] in [-1, 1]."""
        ahead = b.op("Add", g, b.scalar(1, g))
        if self.aligned:
            x = b.op("Mul", ahead, b.scalar((self.size - 1) / 2, g))
        else:
            x = b.op("Sub", b.op("Mul", ahead, b.scalar(self.size / 2, g)), b.scalar(0.5, g))
        if self.mode == "nearest":
            x = b.op("Round", x)
        if self.padding != "zeros" and self.mode == "linear":  # beyond the outermost elements all is constant
            moved = _reflected(b, x, *self.borders) if self.padding == "reflection" else x
            x = clipped(b, moved, 0, self.size - 1)
        if self.mode == "nearest":
            at = reshape(b, x, [*b.shape(x), 1])
            weights = row(b, [1], x)
        else:
            at, weights = neighbours(b, x, self.mode)
        if self.padding == "zeros":
            return zero_outside(b, at, weights, self.size)
        if self.padding == "reflection":
            at = _reflected(b, at, *self.borders)
        return Taps(valid_index(b, at, self.size), weights)


def grid_sample(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, d..], grid [N, o.., r]) -> [N, C, o..], for any number r of spatial axes.

    The last axis of the grid counts the spatial axes backwards. In the mode nearest the grid gets no gradient.
    """
    x, grid = inputs
    mode, padding, aligned = (attrs.get(k, default("GridSample", k)) for k in ("mode", "padding_mode", "align_corners"))
    kept = b.type(x).dtype
    if not b.type(x).is_float and mode != "nearest":
        x = cast(b, x, "f64")
    grid = wide_enough(b, grid)
    n, c, *spatial = b.shape(x)
    points = list(b.shape(grid)[1:-1])
    if 0 in (n, c, *points):
        return [b.full(0, type(b.type(x))(kept, (n, c, *points)))]
    r = len(spatial)
    taps = [_Grid(d, mode, padding, bool(aligned)).taps(b, _part(b, grid, r - 1 - i)) for i, d in enumerate(spatial)]
    numbers, weights = combined(b, taps, spatial, image_starts(b, n, prod(spatial), r + 2))
    rows = rows_of(b, x)
    if mode != "nearest":
        y = weighted(b, rows, numbers, weights)
    else:
        y = reshape(b, b.op("Gather", rows, numbers, axis=0), [n, *points, c])
        if padding == "zeros":
            y = b.op("Where", b.op("Greater", weights, b.scalar(0, weights)), y, b.scalar(0, y))
    y = b.op("Transpose", reshape(b, y, [n, prod(points), c]), perm=(0, 2, 1))
    return [cast(b, reshape(b, y, [n, c, *points]), kept)]


def affine_grid(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(theta [N, r, r + 1], size [N, C, d..]) -> [N, d.., r]: theta times the places (x, y, .., 1) of each element."""
    theta, size = inputs
    known = b.known(size)
    assert known is not None
    spatial = [int(d) for d in known[2:]]
    n, r, _ = b.shape(theta)
    lead = [1] * r
    result = reshape(b, _part(b, theta, r), [n, *lead, r])
    for i, d in enumerate(spatial):
        if attrs.get("align_corners", default("AffineGrid", "align_corners")):
            places = np.linspace(-1, 1, d) if d != 1 else np.zeros(1)
        else:
            places = (2 * np.arange(d) + 1) / d - 1
        column = row(b, list(places), theta)
        column = reshape(b, column, [d if j == i else 1 for j in range(r)] + [1])
        factor = reshape(b, _part(b, theta, r - 1 - i), [n, *lead, r])
        result = b.op("Add", result, b.op("Mul", column, factor))
    return [result]


# --- DeformConv ----------------------------------------------------------------------------------------------------


def deform_conv(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """(x [N, C, d..], w [M, C/group, k..], offset [N, G k.. r, o..], bias [M]?, mask [N, G k.., o..]?) -> [N, M, o..].

    Each tap of the kernel reads x, by linear interpolation, at its usual place plus an offset; each of the G offset
    groups of channels has its own. Elements outside of x are zeros.
    """
    x, w, offset, bias, mask = (*inputs, "", "")[:5]
    (n, c, *spatial), (m, _, *kernel), out = b.shape(x), b.shape(w), list(b.shape(offset)[2:])
    r, k, p = len(spatial), prod(kernel), prod(out)
    groups, group = attrs.get("offset_group", 1), attrs.get("group", 1)
    if 0 in (n, p):
        return [b.full(0, type(b.type(x))(b.type(x).dtype, (n, m, *out)))]
    strides, dilations = (attrs.get(name, (1,) * r) for name in ("strides", "dilations"))
    pads = attrs.get("pads", (0,) * (2 * r))
    offset = reshape(b, wide_enough(b, offset), [n, groups, k, r, *out])
    taps = []
    for i in range(r):
        usual = np.arange(kernel[i])[:, None] * dilations[i] + np.arange(out[i]) * strides[i] - pads[i]
        shape = [d if j == i else 1 for j, d in enumerate(kernel)] + [d if j == i else 1 for j, d in enumerate(out)]
        whole = np.broadcast_to(usual.reshape(shape), (*kernel, *(d if j == i else 1 for j, d in enumerate(out))))
        places = whole.reshape(k, *whole.shape[r:]).astype(numpy_dtype(b.type(offset).dtype))
        moved = b.op("Gather", offset, b.const(np.int64(i)), axis=3)
        at, weights = neighbours(b, b.op("Add", moved, b.const(places)), "linear")
        taps.append(zero_outside(b, at, weights, spatial[i]))
    rows = rows_of(b, reshape(b, x, [n * groups, c // groups, *spatial]))
    start = reshape(b, image_starts(b, n * groups, prod(spatial), 1), [n, groups, *(1 for _ in range(r + 2))])
    numbers, weights = combined(b, taps, spatial, start)
    if mask:
        given = reshape(b, cast(b, mask, b.type(weights).dtype), [n, groups, k, *out, 1])
        weights = b.op("Mul", weights, given)
    read = reshape(b, weighted(b, rows, numbers, weights), [n, groups, k, p, c // groups])
    columns = reshape(b, b.op("Transpose", read, perm=(0, 1, 4, 2, 3)), [n, group, c // group * k, p])
    y = b.op("MatMul", reshape(b, w, [group, m // group, c // group * k]), columns)
    y = reshape(b, y, [n, m, *out])
    if bias:
        y = b.op("Add", y, reshape(b, bias, [m, *(1 for _ in out)]))
    return [y]


INTERNAL_OPS["GridSample"] = grid_sample
INTERNAL_OPS["AffineGrid"] = affine_grid
INTERNAL_OPS["DeformConv"] = deform_conv
