"""Sums of shifted rows, natively and as plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import kernel, native, tile_for
from compiler.codegen.native.dtypes import numpy_dtype
from compiler.codegen.native.shifts import CELLS, make_correlation, make_shifted_sum


def address(a: Any) -> int:
    return int(a.ctypes.data)


def exact(shape: tuple[int, ...], name: str, seed: int) -> Any:
    """Small integers: sums of products have no rounding, so results must be equal."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(numpy_dtype(name))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("vectors", [1, 2])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_shifted_sum(name: str, vectors: int, plain: bool) -> None:
    shifted = make_shifted_sum(name, vectors)

    @kernel
    def call(lo: int, hi: int, x: int, row: int, terms: int, k: int, w: int, start: int, y: int, ldy: int) -> None:
        shifted(x, row, terms, k, w, start, y, ldy)

    rows, columns = CELLS // vectors, vectors * tile_for(name).vl
    x, w, start = exact((rows + 3, columns + 4), name, 1), exact((7,), name, 2), exact((1,), name, 3)
    terms = np.array([(0, 3), (2, 1), (x.shape[1] + 1, 6), (3 * x.shape[1] + 4, 0)], np.int64)
    for k in (0, 1, 4):
        y = exact((rows + 1, columns + 3), name, 4)
        want = y.copy()
        want[:rows, :columns] = start[0]
        for off, at in terms[:k]:
            d, v = divmod(int(off), x.shape[1])
            want[:rows, :columns] += w[at] * x[d : d + rows, v : v + columns]
        run = call.function if plain else native(call)
        run(0, 1, address(x), x.shape[1], address(terms), k, address(w), address(start), address(y), y.shape[1])
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_correlation(name: str, plain: bool) -> None:
    correlate, vl = make_correlation(name, 3), tile_for(name).vl

    @kernel
    def call(lo: int, hi: int, d: int, ldd: int, x: int, row: int, terms: int, rows: int, columns: int, s: int) -> None:
        correlate(d, ldd, x, row, terms, rows, columns, s)

    for rows, vectors in ((5, 2), (1, 1), (0, 2), (3, 0)):
        columns = vectors * vl
        d, x = exact((6, columns + 1), name, 1), exact((8, 2 * vl + 5), name, 2)
        terms = np.array([(0, 0), (x.shape[1] + 2, 0), (2 * x.shape[1] + 5, 0)], np.int64)
        sums = exact((3, vl), name, 3)
        want = sums.copy()
        for t, off in enumerate(terms[:, 0]):
            u, v = divmod(int(off), x.shape[1])
            products = d[:rows, :columns] * x[u : u + rows, v : v + columns]
            want[t] += products.reshape(rows, vectors, vl).sum((0, 1))
        run = call.function if plain else native(call)
        place = (address(d), d.shape[1], address(x), x.shape[1], address(terms))
        run(0, 1, *place, rows, columns, address(sums))
        np.testing.assert_array_equal(sums, want)
