"""Gemm and MatMul against NumPy in float64, and the parts they are made of."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.codegen.calls import LOWERINGS, Call, In, Out, Site
from compiler.codegen.kernels import gemm
from compiler.codegen.kernels.gemm import Product
from compiler.codegen.kernels.gemm_tile import tall_tiles
from compiler.codegen.native import tile_for
from compiler.errors import UnsupportedError
from compiler.ir.graph import Node
from compiler.ir.types import Tensor, TensorType
from tests.codegen.runner import NodeRun, make_node, run_node, run_op

Array = NDArray[np.generic]
FLOATS = ("float32", "float64")
TOLERANCE = {"float32": 2e-6, "float64": 4e-15}
MR, NR = tile_for("f32").mr, tile_for("f32").nr


def values(dtype: str, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def close(got: Array, want: Array, k: int) -> None:
    """Within the rounding of sums of k terms of size about 1."""
    assert got.shape == want.shape
    bound = TOLERANCE[str(got.dtype)] * (k + 4)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=bound)


def check_gemm(dtype: str, m: int, n: int, k: int, c: tuple[int, ...] | None = None, **attrs: float) -> Array:
    a = values(dtype, *((k, m) if attrs.get("transA") else (m, k)))
    b = values(dtype, *((n, k) if attrs.get("transB") else (k, n)), seed=1)
    bias = None if c is None else values(dtype, *c, seed=2)
    (y,) = run_op("Gemm", a, b, bias, **attrs)
    wide = [v.astype(np.float64) for v in (a.T if attrs.get("transA") else a, b.T if attrs.get("transB") else b)]
    want = attrs.get("alpha", 1.0) * (wide[0] @ wide[1])
    if bias is not None:
        want = want + attrs.get("beta", 1.0) * bias.astype(np.float64)
    close(y, want, k)
    return y


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("c", [None, (), (1,), (1, 1), "n", "1n", "m1", "mn"])
@pytest.mark.parametrize(("m", "n"), [(MR + 1, NR + 1), (1, 1), (1, NR), (MR, 1)])
def test_gemm_forms(dtype: str, trans_a: int, trans_b: int, c: object, m: int, n: int) -> None:
    shapes = {"n": (n,), "1n": (1, n), "m1": (m, 1), "mn": (m, n)}
    shape = shapes[c] if isinstance(c, str) else c
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0)):
        check_gemm(dtype, m, n, 5, shape, transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)


EXTENTS = st.integers(0, 2 * NR + 1)


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from(FLOATS),
    m=st.integers(0, 2 * MR + 1),
    n=EXTENTS,
    k=EXTENTS,
    trans_a=st.integers(0, 1),
    trans_b=st.integers(0, 1),
    bias=st.booleans(),
)
def test_gemm_edges(dtype: str, m: int, n: int, k: int, trans_a: int, trans_b: int, bias: bool) -> None:
    """The kernel for small products and those for all others give the same bits, but for scalar products."""
    c = (n,) if bias else None
    small = check_gemm(dtype, m, n, k, c, transA=trans_a, transB=trans_b)
    with patch.object(gemm, "SMALL", -1), patch.object(gemm, "is_dots", lambda shape: False):
        other = check_gemm(dtype, m, n, k, c, transA=trans_a, transB=trans_b)
    assert small.tobytes() == other.tobytes()


def test_which_products_are_small() -> None:
    def kernels(p: Product, c: In | int = 0, **how: bool) -> list[str]:
        return [call.kernel.name for call in p.calls("f32", In("a"), In("b"), c, Out("y"), **how)]

    plain, turned = Product(4, 8, 64, (64, 1), (8, 1), (8, 1)), Product(4, 8, 64, (64, 1), (1, 64))
    assert kernels(plain) == kernels(plain, In("c")) == kernels(turned) == ["small_gemm"]
    assert kernels(replace(plain, alpha=2.0)) == kernels(replace(plain, beta=2.0), In("c")) == ["gemm"]
    assert kernels(replace(plain, c=(1, 0)), In("c")) == ["gemm"]
    assert kernels(replace(plain, b=(16, 2))) == ["gemm"]
    assert kernels(replace(plain, m=1, n=1, k=385)) == ["gemm"]  # two blocks of terms
    assert kernels(replace(plain, m=65)) == ["gemm"]
    assert kernels(turned, fixed_b=True) == ["small_gemm"]
    assert kernels(replace(turned, n=32), fixed_b=True) == ["pack_panels", "gemm"]  # packed once for all iterations


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 1200), (200, 40, 385), (64, 300, 70), (700, 3, 9), (130, 130, 800)])
def test_gemm_of_several_blocks(dtype: str, trans_a: int, trans_b: int, m: int, n: int, k: int) -> None:
    check_gemm(dtype, m, n, k, (m, 1), transA=trans_a, transB=trans_b, alpha=0.25, beta=3.0)


def test_gemm_leaves_out_c_for_beta_zero() -> None:
    a, b, c = values("float32", 3, 4), values("float32", 4, 5), np.full((3, 5), np.nan, np.float32)
    (y,) = run_op("Gemm", a, b, c, beta=0.0)
    close(y, a.astype(np.float64) @ b, 4)


def test_gemm_shows_nan_and_inf() -> None:
    a, b = values("float32", 7, 4), values("float32", 4, 17)
    a[2, 1], b[3, 16] = np.nan, np.inf
    (y,) = run_op("Gemm", a, b)
    with np.errstate(invalid="ignore"):
        want = a @ b
    assert (np.isnan(y) == np.isnan(want)).all()
    assert (np.isinf(y) == np.isinf(want)).all()


MATMULS = [
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 17)),
    ((1, 3, 4), (2, 2, 4, 5)),
    ((5, 2, 7, 20), (5, 1, 20, 18)),
    ((2, 0, 4), (2, 4, 5)),
    ((0, 3, 4), (0, 4, 5)),
    ((0, 3, 4), (4, 5)),
    ((2, 3, 0), (2, 0, 5)),
    ((0,), (0,)),
]


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize(("left", "right"), MATMULS)
def test_matmul_is_that_of_numpy(dtype: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = 3 * np.random.default_rng(0).standard_normal(left), 3 * np.random.default_rng(1).standard_normal(right)
    a, b = a.astype(dtype), b.astype(dtype)
    (y,) = run_op("MatMul", a, b)
    if dtype in FLOATS:
        close(y, np.matmul(a.astype(np.float64), b.astype(np.float64)), 10 * left[-1])
    else:
        np.testing.assert_array_equal(y, np.matmul(a, b))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_integer_gemm(dtype: str) -> None:
    r = np.random.default_rng(0)
    a, b, c = (r.integers(0, 1000, s).astype(dtype) for s in ((4, 3), (5, 4), (5,)))
    (y,) = run_op("Gemm", a, b, c, transA=1, transB=1, alpha=2.0, beta=3.0)
    np.testing.assert_array_equal(y, 2 * (a.T @ b.T) + 3 * c)
    with pytest.raises(UnsupportedError, match="alpha"):
        run_op("Gemm", a, b, c, transA=1, transB=1, alpha=0.5)


def test_integers_wrap() -> None:
    big = np.full((2, 2), 2**31 - 1, np.int32)
    (y,) = run_op("MatMul", big, big)
    np.testing.assert_array_equal(y, np.full((2, 2), 2, np.int32))


@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize(("m", "n", "k"), [(MR + 1, NR + 1, 5), (1, 3, 400), (40, 90, 200), (4, 0, 3), (3, 5, 0)])
def test_gemm_touches_only_its_operands(trans_a: int, trans_b: int, m: int, n: int, k: int) -> None:
    dtype = "float32"
    a, b = values(dtype, *((k, m) if trans_a else (m, k))), values(dtype, *((n, k) if trans_b else (k, n)))
    for c in ((n,), (m, 1), (m, n)):
        node, types, inputs, _ = make_node("Gemm", a, b, values(dtype, *c), transA=trans_a, transB=trans_b)
        run = NodeRun(node, types, inputs, threads=1)
        run.reset()
        run.run_checked()


def test_short_tiles_leave_few_rows_over() -> None:
    for rows in range(60):
        tall = tall_tiles(rows, 6, 4)
        short = max(0, -(-(rows - 6 * tall) // 4))
        assert rows <= 6 * tall + 4 * short <= rows + (1 if rows >= 4 else 4)
    assert [tall_tiles(rows, 6, 4) for rows in (6, 32, 64, 512)] == [1, 4, 10, 84]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("trans_a", [0, 1])
def test_any_number_of_rows(trans_a: int, dtype: str) -> None:
    """Whole and short tiles, in place and packed (columns of a that are far apart), whole and cut panels."""
    rng = np.random.default_rng(0)
    for m in (1, 2, 3, 4, 7, 8, 9, 10, 11, 13, 31, 32, 33, 62, 64):
        a = rng.normal(size=(300, m) if trans_a else (m, 300)).astype(dtype)
        b = rng.normal(size=(300, 39)).astype(dtype)
        (y,) = run_op("Gemm", a, b, transA=trans_a)
        want = (a.T if trans_a else a).astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("attrs", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}], ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(MR + 1, NR + 1, 5), (1, 1, 1), (2 * MR, 2 * NR, 900), (3, 2, 0)])
def test_product_added_to_a_sum(dtype: str, attrs: dict[str, float], m: int, n: int, k: int) -> None:
    """The bits are those of Gemm with or without C."""
    a = values(dtype, *((k, m) if attrs.get("transA") else (m, k)))
    b = values(dtype, *((n, k) if attrs.get("transB") else (k, n)), seed=1)
    c = values(dtype, m, n, seed=2)
    for anew in (False, True):
        (y,) = run_op("onnxc.AddProduct", a, b, c, np.array(anew), **attrs)
        (want,) = run_op("Gemm", a, b, None if anew else c, **attrs)
        np.testing.assert_array_equal(y, want)


def run_product(p: Product, a: Array, b: Array, c: Array | None) -> tuple[list[str], Array]:
    """Kernels and result of a product of flat arrays: the same for all splits of the range, with checked accesses."""
    inputs = {name: v for name, v in {"a": a, "b": b, "c": c}.items() if v is not None}
    types = {name: Tensor(v).type for name, v in inputs.items()}
    types["y"] = TensorType(types["a"].dtype, (len(p.offsets), p.m, p.n))
    kernels: list[str] = []

    def lowering(site: Site) -> list[Call]:
        calls = p.calls(types["a"].dtype, In("a"), In("b"), In("c") if c is not None else 0, Out("y"))
        kernels[:] = [call.kernel.name for call in calls]
        return calls

    node = Node("Product", tuple(inputs), ("y",))
    with patch.dict(LOWERINGS, {"Product": lowering}):
        (y,) = run_node(node, types, inputs, threads=(1, 2, 3, 4, 7, 12))
        run = NodeRun(node, types, inputs, threads=1)
    run.reset()
    run.run_checked()
    return kernels, y


def matrix(v: Array, rows: int, columns: int, strides: tuple[int, int], at: int) -> Array:
    """The matrix at an offset of a flat array, in float64."""
    size = v.itemsize
    return np.lib.stride_tricks.as_strided(v[at:], (rows, columns), (size * strides[0], size * strides[1])).astype("f8")


def as_usual() -> ExitStack:
    """Products are computed by `make_gemm`, in the usual tile."""
    stack = ExitStack()
    for name in ("is_dots", "is_few", "is_turned_few"):
        stack.enter_context(patch.object(gemm, name, lambda *args: False))
    stack.enter_context(patch.object(gemm, "fitting", lambda dtype, n: (tile_for(dtype), n)))
    stack.enter_context(patch.object(gemm, "SMALL", -1))
    return stack


FEW = [
    *(("dot_gemm", 37, n, k, "rows", b) for n in (1, 2, 3, 4) for k in (80, 131) for b in ("rows", "columns")),
    *(("dot_gemm", m, 37, 131, a, "columns") for m in (1, 2, 3, 4) for a in ("rows", "columns")),
    *(("dot_gemm", 17, n, 12301, "rows", b) for n, b in ((1, "columns"), (2, "rows"))),  # several blocks
    *(("few_gemm", 101, n, k, "columns", "rows") for n in (1, 2, 3, 5, 10, 20) for k in (21, 801)),
    *(("few_gemm", 101, n, 40, "columns", "columns") for n in (1, 4, 7)),
    *(("few_gemm", m, 101, k, a, "rows") for m in (1, 2, 3, 4) for k in (9, 801) for a in ("rows", "columns")),
    *(("gemm", 21, n, k, "rows", b) for n in (5, 10, 15) for k in (0, 30, 801) for b in ("rows", "columns")),
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kernel", "m", "n", "k", "a", "b"), FEW)
def test_few_rows_or_columns(dtype: str, kernel: str, m: int, n: int, k: int, a: str, b: str) -> None:
    """Three matrices, that of b being the same for two; all forms of c. But for dots, the bits are the usual ones."""
    p = Product(m, n, k, (k + 3, 1) if a == "rows" else (1, m + 3), (n + 5, 1) if b == "rows" else (1, k + 5))
    step_a, step_b = (m + 3) * (k + 3), (n + 5) * (k + 5)
    left, right, term = values(dtype, 3 * step_a), values(dtype, 2 * step_b, seed=1), values(dtype, 3 * m * n, seed=2)
    offsets = ((0, step_b, 0), (step_a, 0, m * n), (2 * step_a, step_b, 2 * m * n))
    forms = [
        (None, 1.0, 1.0),
        (None, 0.5, 1.0),
        ((n, 1), 1.0, 1.0),
        ((0, 1), 0.5, -2.0),
        ((1, 0), 1.0, 3.0),
        ((0, 0), 2.0, 1.0),
    ]
    for c, alpha, beta in forms:
        q = replace(p, c=c or (0, 0), alpha=alpha, beta=beta, offsets=offsets)
        with patch.object(gemm, "SMALL", -1):
            kernels, y = run_product(q, left, right, None if c is None else term)
        assert kernels == [kernel]
        for z, (at_a, at_b, at_c) in enumerate(offsets):
            want = alpha * matrix(left, m, k, q.a, at_a) @ matrix(right, k, n, q.b, at_b)
            close(y[z], want + (beta * matrix(term, m, n, c, at_c) if c else 0), k)
        if kernel != "dot_gemm":
            with as_usual():
                _, usual = run_product(q, left, right, None if c is None else term)
            assert y.tobytes() == usual.tobytes()


def test_long_scalar_products_are_exact() -> None:
    """Their error is that of sums in many parts: less than a tenth of that of one chain."""
    a, b = np.full((3, 1 << 15), 0.1, np.float32), np.full((1 << 15, 1), 0.1, np.float32)
    (y,) = run_op("MatMul", a, b)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(y - want).max() < 2e-6 * want.max()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("attrs", "m", "n", "k"), [({}, 40, 2, 90), ({"transB": 1}, 3, 40, 90), ({"transA": 1}, 90, 5, 70)]
)
def test_sums_of_few_columns(dtype: str, attrs: dict[str, float], m: int, n: int, k: int) -> None:
    a = values(dtype, *((k, m) if attrs.get("transA") else (m, k)))
    b, c = values(dtype, *((n, k) if attrs.get("transB") else (k, n)), seed=1), values(dtype, m, n, seed=2)
    for anew in (False, True):
        (y,) = run_op("onnxc.AddProduct", a, b, c, np.array(anew), **attrs)
        with patch.object(gemm, "SMALL", -1):
            (want,) = run_op("Gemm", a, b, None if anew else c, **attrs)
        np.testing.assert_array_equal(y, want)


def test_nan_and_inf_of_few_columns() -> None:
    """Terms behind the end of a row are no terms: NaNs there do not show, those of the row do."""
    a, b = values("float32", 20, 101), values("float32", 101, 1)
    a[3, 100], a[4, 0], a[5, 50] = np.nan, np.inf, -np.inf
    (y,) = run_op("MatMul", a, b)
    with np.errstate(invalid="ignore"):
        want = a @ b
    assert (np.isnan(y) == np.isnan(want)).all()
    assert (np.isinf(y) == np.isinf(want)).all()


def test_which_products_have_few_rows_or_columns() -> None:
    def kernels(p: Product, **how: bool) -> list[str]:
        return [call.kernel.name for call in p.calls("f32", In("a"), In("b"), 0, Out("y"), **how)]

    forward = Product(4096, 1, 1024, (1024, 1), (1, 1))
    assert kernels(forward) == ["dot_gemm"]
    assert kernels(replace(forward, k=31)) == ["gemm"]  # short sums
    assert kernels(replace(forward, n=5, b=(5, 1))) == ["pack_panels", "gemm"]
    columns = Product(1024, 10, 4096, (1, 1024), (10, 1))
    assert kernels(columns) == ["few_gemm"]
    assert kernels(replace(columns, n=64, b=(64, 1))) == ["pack_columns", "pack_panels", "gemm"]
    assert kernels(replace(columns, k=4)) == ["gemm"]  # storing takes the time
    rows = Product(1, 1024, 1024, (1024, 1), (1024, 1))
    assert kernels(rows) == kernels(rows, fixed_b=True) == ["few_gemm"]
    assert kernels(replace(rows, b=(1, 1024))) == ["dot_gemm"]
    assert kernels(replace(rows, m=8)) == ["gemm"]
    large = Product(8, 4096, 4096, (4096, 1), (4096, 1))
    assert kernels(large) == ["few_gemm"]
    assert kernels(large, fixed_b=True) == ["pack_panels", "gemm"]
