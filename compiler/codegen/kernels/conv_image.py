"""The padded image of a convolution: the copy of an input that its kernels read."""

from __future__ import annotations

from functools import cache
from typing import Any

from compiler.codegen.kernels.gemm_tile import parts
from compiler.codegen.native import Kernel, i64, inline, kernel


@cache
def make_pad(dtype: str) -> Kernel:
    """pad(lo, hi, x, words, chunk, dst): channels [lo, hi) of an image, padded, to dst (channel 0's place).

    words: see `Image.words`. x: channel 0 of the image, from which its channels follow each other.
    """
    _, _, size, number, ptr = parts(dtype)
    zero = number(0)

    @inline
    def clear(d: Any, first: int, end: int) -> None:
        for j in range(end - first):
            d[first + j] = zero

    @kernel
    def pad(lo: int, hi: int, x: int, words: int, chunk: int, dst: int) -> None:
        s = i64(words, 0)
        depth, height, width, channel = s[0], s[1], s[2], s[4]
        d0, h0, w0 = s[5] + chunk * s[8], s[6] + chunk * s[9], s[7] + chunk * s[10]
        nd, nh, nw, split, part = s[11], s[12], s[13], s[14], s[15]
        for c in range(lo, hi):
            for u in range(nd * nh):
                i, j = d0 + u // nh, h0 + u % nh
                row = ptr(dst + size * (c * channel + u * split * part), 1)
                if i < 0 or i >= depth or j < 0 or j >= height:
                    clear(row, 0, split * part)
                    continue
                source = x + size * (c * s[3] + (i * height + j) * width)
                if split == 1:
                    src, left = ptr(source, 2), min(max(0, -w0), nw)
                    right = max(left, min(nw, width - w0))
                    clear(row, 0, left)
                    for k in range(right - left):
                        row[left + k] = src[w0 + left + k]
                    clear(row, right, nw)
                else:
                    src = ptr(source, 2)
                    for p in range(split):
                        for k in range(part):
                            at = w0 + k * split + p
                            row[p * part + k] = src[at] if 0 <= at < width else zero

    return pad
