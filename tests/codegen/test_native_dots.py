"""Scalar products of rows."""

import numpy as np
import pytest

from compiler.codegen.native import Kernel, kernel, make_dots, native, tile_for
from compiler.codegen.native.dots import COUNT
from compiler.codegen.native.dtypes import numpy_dtype


def make_call(name: str, columns: int) -> Kernel:
    dots = make_dots(name, columns)

    @kernel
    def call(lo: int, hi: int, a: int, rsa: int, b: int, rsb: int, k: int, t: int, ni: int, nj: int) -> None:
        dots(a, rsa, b, rsb, k, t, ni, nj)

    return call


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("columns", [1, 2, 4, 8])
def test_dots(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits are those of plain Python: of so many chains as a vector has elements, added in pairs."""
    compiled = native(make_call(name, columns))
    monkeypatch.setenv("ONNXC_PLAIN", "1")
    plain = native(make_call(name, columns))
    rows, vl, rng = COUNT // columns, tile_for(name).vl, np.random.default_rng(0)
    for k in (0, 1, vl - 1, vl, 5 * vl + 3):
        for ni, nj in ((rows, columns), (1, 1), (rows, max(1, columns - 1))):
            a, b = (rng.standard_normal((n, k + 40)).astype(numpy_dtype(name)) for n in (ni, nj))
            a[:, k:] = b[:, k:] = np.nan
            got, want = (np.full(COUNT + 1, 7, a.dtype) for _ in range(2))
            for call, t in ((compiled, got), (plain, want)):
                call(0, 1, a.ctypes.data, k + 40, b.ctypes.data, k + 40, k, t.ctypes.data, ni, nj)
            if name == "f64":  # plain Python rounds a product and a sum of float64 apart
                np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)
            else:
                np.testing.assert_array_equal(got, want)
            table = got[:COUNT].reshape(rows, columns)[:ni, :nj]
            bound = {"f32": 1e-5, "f64": 1e-13}[name]
            np.testing.assert_allclose(table, a[:, :k].astype("f8") @ b[:, :k].T.astype("f8"), rtol=0, atol=bound)
            assert got[COUNT] == 7
