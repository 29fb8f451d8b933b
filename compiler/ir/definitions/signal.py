"""Definitions of what signal processing computes from sizes alone: windows and the mel filter bank, as constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.proto import default
from compiler.ir.types import AnyArray, dtype_from_onnx, numpy_dtype

Numbers = npt.NDArray[np.float64]
Attrs = Mapping[str, Attr]

COSINES: dict[str, tuple[float, ...]] = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
"""Window -> coefficients of cos(2 pi k i / n) for k = 0, 1, .."""


def _value(b: Builder, v: str) -> AnyArray:
    value = b.known(v)
    if value is None or value.size != 1:
        raise InferenceError(f"{v!r} is not one number that is known at compile time")
    return value.reshape(())


def _as(op: str, attrs: Attrs, values: Numbers) -> AnyArray:
    """In the type that the attribute output_datatype asks for."""
    dtype = dtype_from_onnx(attrs.get("output_datatype", default(op, "output_datatype")))
    if dtype is None:
        raise InferenceError("output_datatype is no numeric type")
    return values.astype(numpy_dtype(dtype))


def _window(op: str) -> Callable[[Builder, Sequence[str], Attrs], Sequence[str]]:
    def window(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
        size = int(_value(b, inputs[0]).item())
        n = size if attrs.get("periodic", default(op, "periodic")) else size - 1
        angle = 2 * np.pi * np.arange(size) / max(n, 1)
        y = sum((c * np.cos(k * angle) for k, c in enumerate(COSINES[op])), np.zeros(size))
        return [b.const(_as(op, attrs, y))]

    window.__doc__ = f"{op}: a sum of cosines over one period, of `size` elements, or of one less if not periodic."
    return window


def mel_filters(bins: int, length: int, rate: float, low: float, high: float) -> Numbers:
    """Triangles [length // 2 + 1, bins] that are equally wide on the mel scale 2595 log10(1 + f / 700)."""
    lowest, highest = (2595 * np.log10(1 + f / 700) for f in (low, high))
    mel = lowest + np.arange(bins + 2) * (highest - lowest) / (bins + 2)  # as ONNX has it: the last is below `high`
    edges = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate).astype(np.int64)
    if not (bins >= 0 and edges.min() >= 0 and edges.max() <= length // 2):
        raise InferenceError(f"frequencies from {low} to {high} are not within half the sample rate {rate}")
    y = np.zeros((length // 2 + 1, bins))
    for i, (left, middle, right) in enumerate(zip(edges[:-2], edges[1:-1], edges[2:], strict=True)):
        y[left : middle + 1, i] = np.arange(middle - left + 1) / (middle - left) if middle > left else 1
        y[middle:right, i] = np.arange(right - middle, 0, -1) / max(right - middle, 1)
    return y


def mel_weight_matrix(b: Builder, inputs: Sequence[str], attrs: Attrs) -> Sequence[str]:
    """MelWeightMatrix(num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz)."""
    values: list[Any] = [_value(b, v).item() for v in inputs]
    return [b.const(_as("MelWeightMatrix", attrs, mel_filters(*values)))]


INTERNAL_OPS |= {op: _window(op) for op in COSINES}
INTERNAL_OPS["MelWeightMatrix"] = mel_weight_matrix
