"""Products of integer matrices: exact (they wrap), by a plain loop; nothing in training is made of them."""

from __future__ import annotations

import numpy as np

from compiler.codegen.native import ITEMSIZE, Kernel, i64, kernel, per_target, pointer

NUMBERS = {"i32": np.int32, "i64": np.int64, "u32": np.uint32, "u64": np.uint64}


@per_target
def make_integer_gemm(dtype: str) -> Kernel:
    """Rows [lo, hi) of y = alpha * a @ b + beta * c, all matrices of a batch one after the other.

    shape (words): m, n, k, strides (row, column) of a, b and c, then for each matrix the offsets of a, b and c, in
    elements. c may be 0; alpha and beta are integers.
    """
    ptr, size, number = pointer(dtype), ITEMSIZE[dtype], NUMBERS[dtype]
    zero = number(0)

    @kernel
    def integer_gemm(lo: int, hi: int, a: int, b: int, c: int, y: int, alpha: int, beta: int, shape: int) -> None:
        s = i64(shape, 0)
        m, n, k = s[0], s[1], s[2]
        al, be = number(alpha), number(beta)  # of one type: uint64 times int64 would be float64
        for item in range(lo, hi):
            z, i = item // m, item % m
            left, right = ptr(a + size * (s[9 + 3 * z] + i * s[3]), 1), ptr(b + size * s[10 + 3 * z], 2)
            term, out = ptr(c + size * (s[11 + 3 * z] + i * s[7]), 3), ptr(y + size * item * n, 4)
            for j in range(n):
                out[j] = be * term[j * s[8]] if c != 0 else zero
            for q in range(k):
                factor = al * left[q * s[4]]
                for j in range(n):
                    out[j] += factor * right[q * s[5] + j * s[6]]

    return integer_gemm
