"""Micro kernels and block transposes."""

from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import (
    Kernel,
    Target,
    Tile,
    assembly,
    kernel,
    make_micro,
    make_micro_edge,
    make_transpose,
    make_transpose_edge,
    native,
    tile_for,
    transpose_block,
)
from compiler.codegen.native.dtypes import numpy_dtype

OPTIONS = ["a_row_table", "a_col_table", "b_table", "accumulate"]


def address(a: Any) -> int:
    return int(a.ctypes.data)


def make_call(name: str, tile: Tile | None = None, **options: bool) -> Kernel:
    micro = make_micro(name, tile, **options)

    @kernel
    def call(lo: int, hi: int, a: int, rsa: int, csa: int, b: int, ldb: int, k: int, c: int, ldc: int) -> None:
        micro(a, rsa, csa, b, ldb, k, c, ldc)

    return call


def exact(shape: tuple[int, ...], name: str, seed: int) -> Any:
    """Small integers: sums of products have no rounding, so results must be equal."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(numpy_dtype(name))


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("chosen", [(), *((o,) for o in OPTIONS), tuple(OPTIONS)])
def test_micro_kernel(name: str, chosen: tuple[str, ...]) -> None:
    tile, options = tile_for(name), dict.fromkeys(chosen, True)
    k = native(make_call(name, **options))
    for depth in (0, 1, 2, 3, 17):
        a, b = exact((tile.mr, depth + 2), name, 1), exact((depth, tile.nr + 3), name, 2)
        c = exact((tile.mr + 1, tile.nr + 5), name, 3)
        rows = np.random.default_rng(4).permutation(tile.mr) if "a_row_table" in options else np.arange(tile.mr)
        columns = np.random.default_rng(5).permutation(depth) if "a_col_table" in options else np.arange(depth)
        lines = np.random.default_rng(6).permutation(depth) if "b_table" in options else np.arange(depth)
        expected = c.copy()
        start = c[: tile.mr, : tile.nr] if "accumulate" in options else 0
        expected[: tile.mr, : tile.nr] = start + a[rows][:, columns] @ b[lines][:, : tile.nr]
        tables = rows * a.shape[1], columns * 1, lines * b.shape[1]
        rsa = address(tables[0]) if "a_row_table" in options else a.shape[1]
        csa = address(tables[1]) if "a_col_table" in options else 1
        ldb = address(tables[2]) if "b_table" in options else b.shape[1]
        k(0, 1, address(a), rsa, csa, address(b), ldb, depth, address(c), c.shape[1])
        np.testing.assert_array_equal(c, expected)


def test_splitting_k_keeps_the_bits() -> None:
    tile = tile_for("f32")
    r = np.random.default_rng(0)
    a, b = r.standard_normal((50, tile.mr), np.float32), r.standard_normal((50, tile.nr), np.float32)
    whole, split = np.zeros((2, tile.mr, tile.nr), np.float32)
    first, more = native(make_call("f32")), native(make_call("f32", accumulate=True))
    first(0, 1, address(a), 1, tile.mr, address(b), tile.nr, 50, address(whole), tile.nr)
    first(0, 1, address(a), 1, tile.mr, address(b), tile.nr, 20, address(split), tile.nr)
    more(0, 1, address(a[20:]), 1, tile.mr, address(b[20:]), tile.nr, 30, address(split), tile.nr)
    assert whole.tobytes() == split.tobytes()


def test_micro_kernel_as_plain_python() -> None:
    tile = Tile(2, 1, 4)
    a, b = exact((2, 3), "f32", 1), exact((3, 4), "f32", 2)
    c, p = np.ones((2, 2, 4), np.float32)
    for accumulate in (False, True):
        k = make_call("f32", tile, accumulate=accumulate)
        native(k)(0, 1, address(a), 3, 1, address(b), 4, 3, address(c), 4)
        k(0, 1, address(a), 3, 1, address(b), 4, 3, address(p), 4)
        np.testing.assert_array_equal(c, p)


def test_a_symbol_per_tile() -> None:
    kernels = [make_call("f32", Tile(2, 1, 4)), make_call("f32", Tile(3, 1, 4)), make_call("f32", b_table=True)]
    assert len({k.symbol for k in kernels}) == 3


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("tile", [Tile(8, 1, 8), Tile(3, 2, 4), Tile(2, 1, 2)])
def test_micro_kernel_at_edges(name: str, tile: Tile) -> None:
    """Rows and columns that are not there stay as they were; d may be c, or no matrix, or a row for all."""
    micro = make_micro_edge(name, tile)

    @kernel
    def edge(lo: int, hi: int, a: int, b: int, k: int, c: int, d: int, ldd: int, ni: int, nj: int) -> None:
        micro(a, k, 1, b, 20, k, c, 20, d, ldd, ni, nj)

    run, depth = native(edge), 5
    a, b, d = exact((tile.mr, depth), name, 1), exact((depth + 1, 20), name, 2), exact((tile.mr + 1, 20), name, 3)
    for rows in range(1, tile.mr + 3):
        for columns in range(1, tile.nr + 3):
            ni, nj = min(rows, tile.mr), min(columns, tile.nr)
            for form in ("none", "own", "row", "matrix"):
                for function in (run, edge):
                    c = exact((tile.mr + 1, 20), name, 4)
                    term, at = {
                        "none": (np.zeros_like(c), 0),
                        "own": (c.copy(), address(c)),
                        "row": (np.broadcast_to(d[0], c.shape), address(d)),
                        "matrix": (d, address(d)),
                    }[form]
                    want = c.copy()
                    want[:ni, :nj] = a[:ni] @ b[:depth, :nj] + term[:ni, :nj]
                    ldd = 0 if form == "row" else 20
                    function(0, 1, address(a), address(b), depth, address(c), at, ldd, rows, columns)
                    np.testing.assert_array_equal(c, want)


def test_symbol_is_the_same_after_another_kernel_was_lowered() -> None:
    before = make_transposer(make_transpose(4, 8)).symbol
    make_transposer(make_transpose(8, 8)).ir()
    assert make_transposer(make_transpose(4, 8)).symbol == before


@pytest.mark.parametrize("size", [2, 4, 8])
def test_transpose_at_edges(size: int) -> None:
    n, block = transpose_block(size), make_transpose_edge(size)

    @kernel
    def transpose(lo: int, hi: int, src: int, lds: int, dst: int, ldd: int, ni: int) -> None:
        block(src, lds, dst, ldd, ni)

    for rows in range(1, n + 2):
        x = np.random.default_rng(rows).integers(0, 256, (min(rows, n), n)).astype(f"u{size}")
        want = np.zeros((n + 1, n + 3), x.dtype)
        want[:n, :n] = x[np.minimum(np.arange(n), len(x) - 1)].T
        for run in (native(transpose), transpose):
            y = np.zeros_like(want)
            run(0, 1, address(x), n, address(y), n + 3, rows)
            np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_transpose(size: int) -> None:
    for n in (4, 8, transpose_block(size)):
        transpose = make_transposer(make_transpose(size, n))
        x = np.random.default_rng(n).integers(0, 256, (n, n + 3)).astype(f"u{size}")
        y = np.zeros((n + 1, n + 5), x.dtype)
        expected = y.copy()
        expected[:n, :n] = x[:, :n].T
        native(transpose)(0, 1, address(x), n + 3, address(y), n + 5)
        np.testing.assert_array_equal(y, expected)
        y[:] = 0
        transpose(0, 1, address(x), n + 3, address(y), n + 5)
        np.testing.assert_array_equal(y, expected)


def make_transposer(block: Any) -> Kernel:
    @kernel
    def transpose(lo: int, hi: int, src: int, lds: int, dst: int, ldd: int) -> None:
        block(src, lds, dst, ldd)

    return transpose


def test_tiles_follow_the_target() -> None:
    linux = "x86_64-unknown-linux-gnu"
    assert tile_for("f32", Target("znver4", "", linux)) == Tile(8, 2, 16)
    assert tile_for("f64", Target("x86-64-v3", "", linux)) == Tile(6, 2, 4)
    assert tile_for("f32", Target("generic", "+avx2,+fma,-avx512f", linux)) == Tile(6, 2, 8)
    assert tile_for("f32", Target("znver4", "-avx512f", linux)).vl == 4
    assert tile_for("f32", Target("neoverse-n1", "", "aarch64-unknown-linux-gnu")) == Tile(6, 4, 4)
    assert tile_for("f32", Target("x86-64", "", linux)) == Tile(6, 2, 4)


@pytest.mark.parametrize(
    ("target", "register", "fma"),
    [
        (Target("x86-64-v4", "", "x86_64-unknown-linux-gnu"), "zmm", "vfmadd"),
        (Target("x86-64-v3", "", "x86_64-unknown-linux-gnu"), "ymm", "vfmadd"),
        (Target("neoverse-n1", "", "aarch64-unknown-linux-gnu"), ".4s", "fmla"),
    ],
)
def test_micro_kernel_stays_in_registers(target: Target, register: str, fma: str) -> None:
    tile = tile_for("f32", target)
    text = assembly(make_call("f32", tile), target)
    loops = text.split(fma)
    assert len(loops) > tile.mr * tile.nv
    inner = fma.join(loops[1:-1])
    assert register in inner
    spills = [line for line in inner.splitlines() if register in line and ("%rsp" in line or "[sp" in line)]
    assert not spills
