"""Definitions of DFT and STFT by matrix products with constant sines and cosines.

Complex numbers are the last axis: [n, 2], or [n, 1] where they are real. A transform of n elements is one product with
a matrix if n is small; else Cooley and Tukey's, over the factors of n, or Bluestein's where n has no factors: never
more than about n (p + q) operations, p and q being factors of a number near n, and never a large matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.types import numpy_dtype

Numbers = npt.NDArray[Any]

DENSE = 64
"""Elements up to which a transform is one product."""

PRIME = 256
"""The same where the number of elements is a prime."""


def _roots(n: int, products: Numbers, sign: int) -> Numbers:
    """exp(sign 2 pi i k / n) for integers k: the angle is reduced exactly before it is rounded."""
    return np.exp(sign * 2j * np.pi * (products % n) / n)


def _split(numbers: Numbers) -> Numbers:
    """Complex numbers as pairs along a new last axis."""
    return np.stack([numbers.real, numbers.imag], -1)


class _Transform:
    """Emits transforms of values [rows, n, 1 or 2] of one element type."""

    def __init__(self, b: Builder, dtype: str):
        self.b, self.dtype = b, numpy_dtype(dtype)

    def const(self, numbers: Numbers) -> str:
        return self.b.const(numbers.astype(self.dtype))

    def reshape(self, x: str, *shape: int) -> str:
        if self.b.shape(x) == shape:
            return x
        return self.b.op("Reshape", x, self.b.ints(shape), allowzero=1 if 0 in shape else None)

    def times(self, x: str, numbers: Numbers) -> str:
        """The product of [.., 1 or 2] with complex constants."""
        if self.b.shape(x)[-1] == 1:
            return self.b.op("Mul", x, self.const(_split(numbers)))
        same = self.b.op("Mul", x, self.const(numbers.real[..., None]))
        across = self.const(np.stack([-numbers.imag, numbers.imag], -1))
        return self.b.op("Add", same, self.b.op("Mul", self.b.op("Gather", x, self.b.ints([1, 0]), axis=-1), across))

    def product(self, x: str, matrix: Numbers, real: bool = False) -> str:
        """[rows, n, c] times complex numbers [n, m]: [rows, m, 2], or the real parts [rows, m, 1]."""
        rows, n, c = self.b.shape(x)
        m = matrix.shape[1]
        pairs = _split(matrix)[:, None]  # what a real number of x contributes: [n, 1, m, 2]
        if c == 2:
            pairs = np.concatenate([pairs, _split(1j * matrix)[:, None]], 1)
        if real:
            pairs = pairs[..., :1]
        width = pairs.shape[-1]
        y = self.b.op("MatMul", self.reshape(x, rows, n * c), self.const(pairs.reshape(n * c, m * width)))
        return self.reshape(y, rows, m, width)

    def run(self, x: str, sign: int) -> str:
        """All n complex elements of sum over j of x[j] exp(sign 2 pi i j k / n)."""
        n = self.b.shape(x)[1]
        p = next(d for d in range(isqrt(n), 0, -1) if n % d == 0)
        if n <= DENSE or (p == 1 and n <= PRIME):
            k = np.arange(n)
            return self.product(x, _roots(n, np.outer(k, k), sign))
        return self.by_factors(x, p, sign) if p > 1 else self.by_convolution(x, sign)

    def by_factors(self, x: str, p: int, sign: int) -> str:
        """With j = q j1 + j2 and k = k1 + p k2: transforms over j1, a factor for (j2, k1), transforms over j2."""
        b, (rows, n, c) = self.b, self.b.shape(x)
        q = n // p
        x = b.op("Transpose", self.reshape(x, rows, p, q, c), perm=(0, 2, 1, 3))
        y = self.reshape(self.run(self.reshape(x, rows * q, p, c), sign), rows, q, p, 2)
        y = self.times(y, _roots(n, np.outer(np.arange(q), np.arange(p)), sign))
        y = self.reshape(b.op("Transpose", y, perm=(0, 2, 1, 3)), rows * p, q, 2)
        y = self.reshape(self.run(y, sign), rows, p, q, 2)
        return self.reshape(b.op("Transpose", y, perm=(0, 2, 1, 3)), rows, n, 2)

    def by_convolution(self, x: str, sign: int) -> str:
        """Bluestein's: j k = (j^2 + k^2 - (k - j)^2) / 2 makes it a convolution, of a length with many factors."""
        n = self.b.shape(x)[1]
        length = 1 << (2 * n - 2).bit_length()
        chirp = _roots(2 * n, np.arange(n) ** 2, sign)
        kernel = np.zeros(length, complex)
        kernel[:n] = chirp.conj()
        kernel[length - n + 1 :] = chirp.conj()[:0:-1]
        x = self.resized(self.times(x, chirp), length)
        y = self.run(self.times(self.run(x, -1), np.fft.fft(kernel) / length), 1)
        return self.times(self.resized(y, n), chirp)

    def resized(self, x: str, n: int) -> str:
        """The first n elements; zeros where there are fewer."""
        b, before = self.b, self.b.shape(x)[1]
        if n < before:
            return b.op("Slice", x, b.ints([0]), b.ints([n]), b.ints([1]))
        return b.op("Pad", x, b.ints([0, 0, 0, 0, n - before, 0])) if n > before else x

    def whole(self, x: str, n: int) -> str:
        """All n frequencies of a real signal, from the first half of them [rows, n // 2 + 1, 2]."""
        k = np.arange(n)
        folded = np.minimum(k, n - k)
        x = self.b.op("Gather", x, self.b.ints(folded.tolist()), axis=1)
        return self.b.op("Mul", x, self.const(np.stack([np.ones(n), np.where(folded < k, -1.0, 1.0)], -1)))

    def dft(self, x: str, n: int, inverse: bool, onesided: bool) -> str:
        """DFT of [rows, any, c] with n as its length."""
        half = n // 2 + 1
        sign = 1 if inverse else -1
        x = self.resized(x, half if inverse and onesided else n)
        if n <= DENSE:
            matrix = _roots(n, np.outer(np.arange(n), np.arange(n)), sign) / (n if inverse else 1)
            if not onesided:
                return self.product(x, matrix)
            if not inverse:
                return self.product(x, matrix[:, :half])
            twice = np.where((np.arange(half) == 0) | (2 * np.arange(half) == n), 1, 2)
            return self.product(x, matrix[:half] * twice[:, None], real=True)
        y = self.run(self.whole(x, n) if inverse and onesided else x, sign)
        if inverse:
            y = self.b.op("Mul", y, self.b.scalar(1 / n, y))
            return self.b.op("Slice", y, self.b.ints([0]), self.b.ints([1]), self.b.ints([2])) if onesided else y
        return self.resized(y, half) if onesided else y


def _number(b: Builder, v: str) -> int:
    value = b.known(v)
    if value is None or value.size != 1:
        raise InferenceError(f"{v!r} is not one integer that is known at compile time")
    return int(value.reshape(()).item())


def dft(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """DFT of all forms: real or complex input, any length and axis, inverse, onesided (inverse: real output)."""
    x, length, at = (*inputs, "", "")[:3]
    shape = b.shape(x)
    axis = (_number(b, at) if at else -2) % len(shape)
    inverse, onesided = bool(attrs.get("inverse", 0)), bool(attrs.get("onesided", 0))
    n = _number(b, length) if length else 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    if n < 1 or axis == len(shape) - 1:
        raise InferenceError(f"a transform of {n} elements along axis {axis} of rank {len(shape)} does not exist")
    others = [a for a in range(len(shape) - 1) if a != axis]
    perm = (*others, axis, len(shape) - 1)
    transform = _Transform(b, b.type(x).dtype)
    moved = x if perm == tuple(range(len(shape))) else b.op("Transpose", x, perm=perm)
    rows = transform.reshape(moved, prod(shape[a] for a in others), shape[axis], shape[-1])
    y = transform.dft(rows, n, inverse, onesided)
    y = transform.reshape(y, *(shape[a] for a in others), *b.shape(y)[1:])
    back = tuple(int(a) for a in np.argsort(perm))
    return [y if back == tuple(range(len(shape))) else b.op("Transpose", y, perm=back)]


def stft(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """STFT: frames of the signal [batch, n, 1 or 2], times the window, transformed."""
    signal, hop, window, length = (*inputs, "", "")[:4]
    batch, n, c = b.shape(signal)
    size = _number(b, length) if length else b.shape(window)[0] if window else n
    step = _number(b, hop)
    if not (1 <= size <= n and step >= 1):
        raise InferenceError(f"there are no frames of {size} elements every {step} in a signal of {n}")
    frames = (n - size) // step + 1
    at = np.arange(frames)[:, None] * step + np.arange(size)
    x = b.op("Gather", signal, b.const(at.astype(np.int64)), axis=1)
    if window:
        x = b.op("Mul", x, b.op("Unsqueeze", window, b.ints([1])))
    transform = _Transform(b, b.type(signal).dtype)
    y = transform.dft(transform.reshape(x, batch * frames, size, c), size, False, bool(attrs.get("onesided", 1)))
    return [transform.reshape(y, batch, frames, *b.shape(y)[1:])]


INTERNAL_OPS["DFT"] = dft
INTERNAL_OPS["STFT"] = stft
