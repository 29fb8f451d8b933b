"""The padded image of a convolution: the copy of an input that its kernels read."""

from __future__ import annotations

from compiler.codegen.kernels.gemm_tile import make_line, parts
from compiler.codegen.native import Kernel, i64, inline, kernel, make_tile, per_target


@per_target
def make_pad(dtype: str) -> Kernel:
    """pad(lo, hi, x, words, chunk, dst): channels [lo, hi) of an image, padded, to dst (channel 0's place).

    words: see `Image.words`. x: channel 0 of the image, from which its channels follow each other. What no tap reads is
    left out. Writes run up to nr elements over the end of a row: the next row comes later, behind the last is slack.
    """
    _, nr, size, number, ptr = parts(dtype)
    line, factor, one = make_line(dtype), make_tile(1, dtype), number(1)

    @inline
    def clear(f: int, dst: int, n: int) -> None:
        for j in range(0, n, nr):
            line(f, 0, 0, f, 0, 0, dst + size * j, 0)

    @inline
    def copy(f: int, src: int, dst: int, n: int) -> None:
        for j in range(0, n, nr):
            line(f, 0, 0, src + size * j, 0, 1, dst + size * j, 0)

    @kernel
    def pad(lo: int, hi: int, x: int, words: int, chunk: int, dst: int) -> None:
        s = i64(words, 0)
        depth, height, width, plane = s[0], s[1], s[2], s[3]
        d0, h0, w0 = s[5] + chunk * s[8], s[6] + chunk * s[9], s[7] + chunk * s[10]
        nd, nh, split, part = s[11], s[12], s[14], s[15]
        step_d, step_h, used_d, used_h, used_w = s[16], s[17], s[18], s[19], s[20]
        f = factor()
        ptr(f, 1)[0] = one
        for c in range(lo, hi):
            for u in range(nd):
                i = d0 + u
                if u % step_d >= used_d:
                    continue
                for v in range(nh):
                    j = h0 + v
                    if v % step_h >= used_h:
                        continue
                    to = dst + size * (c * s[4] + (u * nh + v) * split * part)
                    source = x + size * (c * plane + (i * height + j) * width)
                    if i < 0 or i >= depth or j < 0 or j >= height:
                        clear(f, to, split * part)
                    elif split == 1:
                        left = min(max(0, -w0), part)
                        right = max(left, min(part, width - w0))
                        clear(f, to, left)
                        copy(f, source + size * (w0 + left), to + size * left, right - left)
                        clear(f, to + size * right, part - right)
                    else:
                        for p in range(used_w):
                            first = w0 + p
                            left = min(max(0, -(first // split)), part)
                            right = max(left, min(part, (width - first + split - 1) // split))
                            clear(f, to + size * p * part, part)
                            src, row = (
                                ptr(source + size * (first + left * split), 2),
                                ptr(to + size * (p * part + left), 3),
                            )
                            for k in range(right - left):
                                row[k] = src[k * split]

    return pad
