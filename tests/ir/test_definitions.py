"""Definitions of standard operators by simpler ones, against numpy in float64."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
import pytest

import compiler.ir.definitions  # noqa: F401  (registers them)
from compiler.ir.bodies import body_graph, expand
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr, Graph, Node
from compiler.ir.interpret import interpret
from compiler.ir.types import TensorType, dtype_of
from compiler.ir.verify import verify

RNG = np.random.default_rng(3)

Array = np.ndarray[Any, Any]


def graph_of(op: str, arrays: list[Array | None], attrs: dict[str, Attr], outputs: int = 1) -> Graph:
    names = tuple(f"x{i}" if a is not None else "" for i, a in enumerate(arrays))
    node = Node(op, names, tuple(f"y{i}" for i in range(outputs)), attrs)
    return body_graph(node, [None if a is None else TensorType(dtype_of(a), a.shape) for a in arrays])


def run(op: str, *arrays: Array | None, outputs: int = 1, **attrs: Attr) -> list[Array]:
    """The results of an operator's definition, which is verified."""
    graph = graph_of(op, list(arrays), attrs, outputs)
    verify(graph)
    with np.errstate(all="ignore"):
        values = interpret(graph, {f"in{i}": a for i, a in enumerate(arrays) if a is not None})
    return [values[v] for v in graph.outputs.values()]


def run_static(op: str, arrays: list[Array | None], outputs: int = 1, **attrs: Attr) -> list[Array]:
    """As `run`, with all operands but the first known at compile time."""
    return run_known(op, arrays, range(1, len(arrays)), outputs, **attrs)


def run_known(
    op: str, arrays: list[Array | None], known: Container[int], outputs: int = 1, **attrs: Attr
) -> list[Array]:
    """The same with the operands in `known` known at compile time, and the types compared with the inferred ones."""
    b = Builder()
    names = [
        "" if a is None else b.const(a) if i in known else b.input(f"in{i}", TensorType(dtype_of(a), a.shape))
        for i, a in enumerate(arrays)
    ]
    node = Node(op, tuple(names), tuple(f"y{i}" for i in range(outputs)), attrs)
    types = b.infer(node)
    for i, v in enumerate(expand(b, node, names)[:outputs]):
        assert b.type(v) == types[i], (b.type(v), types[i])
        b.output(f"out{i}", v)
    graph = b.build()
    verify(graph)
    values = interpret(graph, {f"in{i}": a for i, a in enumerate(arrays) if a is not None and i not in known})
    return [values[v] for v in graph.outputs.values()]


EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij->ji", [(2, 3)]),
    ("ij", [(2, 3)]),
    ("ba", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iji->ji", [(3, 2, 3)]),
    ("iii->i", [(3, 3, 3)]),
    ("iijj->ij", [(2, 2, 3, 3)]),
    ("->", [()]),
    (",->", [(), ()]),
    (",i->i", [(), (3,)]),
    ("i,i", [(3,), (3,)]),
    ("i,j", [(3,), (2,)]),
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
    ("bhqd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 3, 5)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("ij,j->i", [(2, 3), (3,)]),
    ("ij,kl->", [(2, 3), (4, 5)]),
    ("...ij,...jk->...ik", [(5, 1, 2, 3), (4, 3, 2)]),
    ("...i->...", [(2, 3, 4)]),
    ("i...->i...", [(2, 3, 4)]),
    ("...", [(2, 3)]),
    ("i...,...i", [(2, 3), (3, 2)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("a...b,b...->...a", [(2, 1, 3), (3, 4)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ab,bc,cd,da->", [(2, 3), (3, 4), (4, 5), (5, 2)]),
    ("ij,ik,il->jkl", [(2, 3), (2, 4), (2, 5)]),
    ("aA,AB->aB", [(2, 3), (3, 4)]),
    (" i j , j k -> i k ", [(2, 3), (3, 4)]),
    ("ij,jk->ik", [(2, 0), (0, 4)]),
    ("ij,jk->ik", [(0, 3), (3, 4)]),
]


@pytest.mark.parametrize("case", range(len(EQUATIONS)))
def test_einsum(case: int) -> None:
    equation, shapes = EQUATIONS[case]
    arrays: list[Array | None] = [RNG.normal(size=s) for s in shapes]
    (y,) = run("Einsum", *arrays, equation=equation)
    np.testing.assert_allclose(y, np.einsum(equation.replace(" ", ""), *arrays), atol=1e-12)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "i8"])
def test_einsum_of_integers_wraps(dtype: str) -> None:
    info = np.iinfo(dtype)
    a, b = (RNG.integers(info.min, info.max, s, dtype=dtype, endpoint=True) for s in ((3, 5), (5, 2)))
    with np.errstate(over="ignore"):
        expected = (a[:, :, None] * b[None]).sum(1, dtype=dtype)
    (y,) = run("Einsum", a, b, equation="ij,jk->ik")
    assert y.dtype == a.dtype
    np.testing.assert_array_equal(y, expected)


def test_a_chain_of_products_starts_where_the_result_is_small() -> None:
    """A vector at the end of a chain: no product of two matrices."""
    arrays: list[Array | None] = [np.zeros((50, 50)), np.zeros((50, 50)), np.zeros(50)]
    products = [n for n in graph_of("Einsum", arrays, {"equation": "ij,jk,k->i"}).nodes if n.op == "MatMul"]
    assert len(products) == 2
    graph = graph_of("Einsum", arrays, {"equation": "ij,jk,k->i"})
    assert all(graph.type(n.outputs[0]).size == 50 for n in products)


LENGTHS = [1, 2, 3, 10, 64, 65, 72, 96, 127, 257, 263, 514, 1024]  # 257 and 263: primes, too large for one product


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(("inverse", "onesided"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_dft(n: int, inverse: int, onesided: int) -> None:
    for c in (1, 2):
        if onesided and c != (2 if inverse else 1):
            continue  # there is none: the transform of something real, or something real out of it
        count = n // 2 + 1 if inverse and onesided else n
        x = RNG.normal(size=(2, count, 3, c))
        z = x[..., 0] + (1j * x[..., 1] if c == 2 else 0)
        length = None if not (inverse and onesided) and n % 2 else np.array(n)
        (y,) = run_static("DFT", [x, length, np.array(1)], inverse=inverse, onesided=onesided)
        if inverse and onesided:
            expected = np.fft.irfft(z, n, axis=1)[..., None]
        else:
            f = (np.fft.ifft if inverse else np.fft.fft)(z, axis=1)
            f = f[:, : n // 2 + 1] if onesided else f
            expected = np.stack([f.real, f.imag], -1)
        np.testing.assert_allclose(y, expected, atol=1e-9 * max(1, n) ** 0.5)


def test_dft_pads_and_cuts() -> None:
    x = RNG.normal(size=(3, 7, 1))
    for n in (4, 7, 12):
        (y,) = run_static("DFT", [x, np.array(n), np.array(-2)])
        f = np.fft.fft(x[..., 0], n, axis=1)
        np.testing.assert_allclose(y, np.stack([f.real, f.imag], -1), atol=1e-12)
    (y,) = run_static("DFT", [np.ones((2, 3, 5, 2)), None, np.array(0)])
    np.testing.assert_allclose(y[0, ..., 0], 2, atol=1e-12)


def test_no_large_matrix_is_made() -> None:
    """Of 1024 elements: constants of some thousands, not of millions of numbers."""
    graph = graph_of("DFT", [np.zeros((1, 1024, 1))], {})
    assert sum(t.type.size for t in graph.consts.values()) < 20_000
    graph = graph_of("DFT", [np.zeros((1, 1031, 1))], {})  # a prime
    assert sum(t.type.size for t in graph.consts.values()) < 150_000


def test_stft_of_a_complex_signal() -> None:
    x, window = RNG.normal(size=(2, 30, 2)), RNG.normal(size=8)
    (y,) = run_known("STFT", [x, np.array(5), window, None], (1,), onesided=0)
    z = x[..., 0] + 1j * x[..., 1]
    f = np.stack([np.fft.fft(z[:, s : s + 8] * window) for s in range(0, 23, 5)], 1)
    np.testing.assert_allclose(y, np.stack([f.real, f.imag], -1), atol=1e-12)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_in_float64(op: str) -> None:
    for size, periodic in ((1, 0), (1, 1), (8, 0), (9, 1)):
        (y,) = run_known(op, [np.array(size)], (0,), periodic=periodic, output_datatype=11)
        t = 2 * np.pi * np.arange(size) / max(size if periodic else size - 1, 1)
        expected = {
            "HannWindow": np.sin(t / 2) ** 2,
            "HammingWindow": 25 / 46 - 21 / 46 * np.cos(t),
            "BlackmanWindow": 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t),
        }[op]
        assert y.dtype == np.float64
        np.testing.assert_allclose(y, expected, atol=1e-15)


def test_linear_recurrence() -> None:
    a, b = RNG.normal(size=(2, 3, 7)), RNG.normal(size=(2, 3, 7))
    for reverse in (0, 1):
        (s,) = run("onnxc.LinearRecurrence", a, b, axis=-1, reverse=reverse)
        before = np.zeros((2, 3))
        for i in range(7)[:: -1 if reverse else 1]:
            before = a[..., i] * before + b[..., i]
            np.testing.assert_allclose(s[..., i], before, atol=1e-12)


def test_determinants_of_any_rank() -> None:
    x = RNG.normal(size=(2, 5, 5))
    x[1, 4] = x[1, 0] + x[1, 1]  # singular
    (d,) = run("Det", x)
    np.testing.assert_allclose(d, np.linalg.det(x), atol=1e-10)
    (c,) = run("onnxc.Cofactors", x)
    minors = [[np.delete(np.delete(x, i, 1), j, 2) for j in range(5)] for i in range(5)]
    expected = [[(-1) ** (i + j) * np.linalg.det(m) for j, m in enumerate(row)] for i, row in enumerate(minors)]
    np.testing.assert_allclose(c, np.transpose(expected, (2, 0, 1)), atol=1e-10)
    assert run("Det", np.zeros((3, 0, 0)))[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    past, update = RNG.normal(size=(2, 3, 5, 4)), RNG.normal(size=(2, 3, 2, 4))
    start = np.array([3, 0] if mode == "linear" else [4, 8])
    (y,) = run("TensorScatter", past, update, start, mode=mode)
    expected = past.copy()
    for n in range(2):
        for s in range(2):
            expected[n, :, (start[n] + s) % 5] = update[n, :, s]
    np.testing.assert_array_equal(y, expected)


def test_what_constants_select() -> None:
    x = np.array([[1.0, 0.0, 2.0], [1.0, 0.0, 2.0], [3.0, 3.0, 0.0]])
    condition = np.array([False, True])
    np.testing.assert_array_equal(run_known("Compress", [x, condition], (1,), axis=-1)[0], x[:, 1:2])
    np.testing.assert_array_equal(run_known("Compress", [x, condition], (1,))[0], [0])
    np.testing.assert_array_equal(run_known("NonZero", [x], (0,))[0], np.nonzero(x))
    assert run_known("NonZero", [np.array(5)], (0,))[0].shape == (0, 1)
    for axis, in_order in ((None, 1), (None, 0), (0, 1), (1, 0)):
        attrs = {"sorted": in_order, **({} if axis is None else {"axis": axis})}
        y, first, inverse, counts = run_known("Unique", [x], (0,), 4, **attrs)
        flat = x.reshape(-1) if axis is None else x
        np.testing.assert_array_equal(np.take(flat, first, axis or 0), y)
        np.testing.assert_array_equal(np.take(y, inverse, axis or 0), flat)
        np.testing.assert_array_equal(np.bincount(inverse), counts)
        assert in_order or list(first) == sorted(first)
