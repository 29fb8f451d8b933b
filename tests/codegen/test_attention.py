"""onnxc.Attention and its gradient against their definitions in float64; the bits are the same for all threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler.codegen.kernels.attention as forward
from compiler.codegen.calls import Scratch
from compiler.codegen.kernels.attention_grad import COLUMNS
from compiler.codegen.plan import make_plan
from compiler.ir.builder import Builder
from compiler.ir.types import TensorType
from tests.codegen.definition import defined
from tests.codegen.graphs import Running
from tests.codegen.runner import NodeRun, make_node, run_op

Array = np.ndarray[Any, Any]
TOLERANCE = {"f4": 2e-5, "f8": 1e-12}


def operands(dtype: str, batch: tuple[int, ...], sizes: tuple[int, int, int, int]) -> list[Array]:
    """q, k, v for (T, S, d, e)."""
    queries, keys, size, width = sizes
    random = np.random.default_rng(sum(sizes))
    shapes = ((queries, size), (keys, size), (keys, width))
    return [random.standard_normal((*batch, *s)).astype(dtype) for s in shapes]


def close(got: list[Array], want: list[Array], dtype: str) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == dtype
        np.testing.assert_allclose(g, w, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * (1 + np.abs(w).max()))


def wide(arrays: list[Array | None]) -> list[Array | None]:
    return [None if a is None else a.astype("f8") for a in arrays]


def check(dtype: str, q: Array, k: Array, v: Array, bias: Array | None = None, constant: bool = False) -> list[Array]:
    """Results and gradients, with a random dy, of one attention; gives y, lse, dq, dk, dv."""
    given = [q, k, v] if bias is None else [q, k, v, bias.astype(dtype)]
    y, lse = run_op("onnxc.Attention", *given, outputs=2, constants=(3,) if constant else (), scale=0.25)
    close([y, lse], defined("onnxc.Attention", *wide(given), outputs=2, scale=0.25), dtype)
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(dtype)
    given = [dy, q, k, v, given[3] if bias is not None else None, y, lse]
    found = run_op("onnxc.AttentionGrad", *given, outputs=3, constants=(4,) if constant else (), scale=0.25)
    close(found, defined("onnxc.AttentionGrad", *wide(given), outputs=3, scale=0.25), dtype)
    return [y, lse, *found]


SHAPES = {
    "one": ((), (1, 1, 1, 1)),
    "small": ((2,), (5, 7, 3, 4)),
    "no batch": ((), (9, 4, 2, 17)),
    "blocks": ((2, 3), (70, 150, 16, 24)),
    "whole blocks": ((2,), (132, 128, 32, 32)),
    "nothing": ((0,), (3, 4, 2, 2)),
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case: str, dtype: str) -> None:
    if case == "nothing":
        run = run_op("onnxc.Attention", *operands(dtype, *SHAPES[case]), outputs=2)
        assert [a.shape for a in run] == [(0, 3, 2), (0, 3)]
    else:
        check(dtype, *operands(dtype, *SHAPES[case]))


@pytest.mark.parametrize("shape", [(2, 3, 70, 150), (70, 150), (2, 1, 1, 150), (3, 70, 1), (1,), ()])
def test_biases_broadcast(shape: tuple[int, ...]) -> None:
    bias = np.random.default_rng(2).standard_normal(shape)
    check("f4", *operands("f4", (2, 3), (70, 150, 8, 8)), bias)


@pytest.mark.parametrize("window", [(1000, 0), (40, 30), (0, 1000)])
def test_keys_that_a_constant_hides_are_left_out(window: tuple[int, int]) -> None:
    """The same bits, or nearly: what is added for them is 0. Numbers there do not matter."""
    q, k, v = operands("f4", (2,), (200, 300, 8, 16))
    ahead = np.arange(300) - np.arange(200)[:, None]
    bias = np.where((ahead >= -window[0]) & (ahead <= window[1]), 0, -np.inf)
    found = check("f4", q, k, v, bias, constant=True)
    for a, b in zip(found, check("f4", q, k, v, bias), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if window[1] == 0:
        k[:, 200:] = v[:, 200:] = np.nan  # which no query sees
        y, _ = run_op("onnxc.Attention", q, k, v, bias.astype("f4"), outputs=2, constants=(3,), scale=0.25)
        assert y.tobytes() == found[0].tobytes()


@pytest.mark.parametrize("constant", [False, True])
def test_rows_without_a_key(constant: bool) -> None:
    """NaN, as of Softmax; or zeros, with gradients that do not know of the row."""
    q, k, v = operands("f4", (2,), (70, 90, 4, 4))
    bias = np.where(np.random.default_rng(3).random((70, 90)) < 0.5, 0, -np.inf).astype("f4")
    bias[[0, 68]] = -np.inf
    known = (3,) if constant else ()
    y, lse = run_op("onnxc.Attention", q, k, v, bias, outputs=2, constants=known)
    assert (np.isnan(y).any(axis=(0, 2)) == np.isin(range(70), (0, 68))).all()
    y, lse = run_op("onnxc.Attention", q, k, v, bias, outputs=2, constants=known, zeros=1)
    close([y], defined("onnxc.Attention", *wide([q, k, v, bias]), zeros=1), "f4")
    assert not y[:, [0, 68]].any()
    assert (lse[:, [0, 68]] == np.inf).all()
    dy = np.ones_like(y)
    given = [dy, q, k, v, bias, y, lse]
    found = run_op("onnxc.AttentionGrad", *given, outputs=3, constants=(4,) if constant else ())
    close(found, defined("onnxc.AttentionGrad", *wide(given), outputs=3), "f4")
    assert not found[0][:, [0, 68]].any()


def test_large_scores() -> None:
    """Exponentials are shifted: scores in the thousands do not overflow."""
    q, k, v = operands("f4", (1,), (20, 30, 8, 8))
    y, lse = run_op("onnxc.Attention", 50 * q, 50 * k, v, outputs=2)
    want = defined("onnxc.Attention", *wide([50 * q, 50 * k, v]), outputs=2)
    assert np.abs(want[1]).max() > 5000
    np.testing.assert_allclose(y, want[0], atol=0.01)
    np.testing.assert_allclose(lse, want[1], rtol=1e-6)


def test_gradients_that_nobody_wants() -> None:
    q, k, v = operands("f4", (2,), (70, 90, 8, 8))
    y, lse = run_op("onnxc.Attention", q, k, v, outputs=2)
    given = (y, q, k, v, None, y, lse)
    every = run_op("onnxc.AttentionGrad", *given, outputs=3)
    for i in range(3):
        some = run_op("onnxc.AttentionGrad", *given, outputs=[f"d{j}" if i == j else "" for j in range(3)])
        assert some[i].tobytes() == every[i].tobytes()
    (alone,) = run_op("onnxc.Attention", q, k, v)
    assert alone.tobytes() == y.tobytes()


def test_memory_grows_with_the_length_not_with_its_square() -> None:
    """Of each thread: a row of scores for each query of a block; of the gradient, no more than blocks."""

    def scratch(op: str, n: int, outputs: int, *more: tuple[int, ...]) -> int:
        shapes = [*more[:1], *((1, n, 16),) * 3, *more[1:]]
        arrays = [np.zeros(s, np.float32) if s else None for s in shapes]
        calls = NodeRun(*make_node(op, *arrays, outputs=outputs), threads=1).calls
        return sum(a.nbytes for c in calls for a in c.args if isinstance(a, Scratch))

    small, large = (scratch("onnxc.Attention", n, 2) for n in (512, 1024))
    assert large < 2.1 * small
    assert large < 4 * 1024 * (16 + forward.ROWS + 8) + 4096
    small, large = (scratch("onnxc.AttentionGrad", n, 3, (1, n, 16), (), (1, n, 16), (1, n)) for n in (512, 1024))
    assert large - small == 4 * 512
    assert small > 4 * 2 * forward.ROWS * COLUMNS


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_operands_are_read_where_they_are(threads: int) -> None:
    """Heads side by side, keys by columns: views, no copies."""
    random = np.random.default_rng(4)
    x = random.standard_normal((2, 70, 3, 4, 8)).astype("f4")
    columns = random.standard_normal((2, 4, 8, 90)).astype("f4")
    b = Builder()
    heads = b.op("Transpose", b.input("x", TensorType("f32", x.shape)), perm=(2, 0, 3, 1, 4))
    q, dy, y = (b.op("Gather", heads, b.const(np.array(i)), axis=0) for i in range(3))
    k = b.op("Transpose", b.input("columns", TensorType("f32", columns.shape)), perm=(0, 1, 3, 2))
    first, lse = b.add("onnxc.Attention", [q, k, k], {"scale": 0.5}, 2)
    dq, dk, dv = b.add("onnxc.AttentionGrad", [dy, q, k, k, "", y, lse], {"scale": 0.5}, 3)
    for name, v in zip(("y", "dq", "dk", "dv"), (first, dq, dk, dv), strict=True):
        b.output(name, v)
    graph = b.build()
    kernels = {c.kernel.name for u in make_plan(graph).schedule.units for c in u.calls}
    assert kernels <= {"attention", "attention_grad", "copy_rows", "transpose", "gather"}, kernels
    got = Running(graph, threads)({"x": x, "columns": columns})
    parts = [x.transpose(2, 0, 3, 1, 4)[i].astype("f8") for i in range(3)]
    keys = columns.transpose(0, 1, 3, 2).astype("f8")
    first, lse = defined("onnxc.Attention", parts[0], keys, keys, outputs=2, scale=0.5)
    want = [
        first,
        *defined("onnxc.AttentionGrad", parts[1], parts[0], keys, keys, None, parts[2], lse, outputs=3, scale=0.5),
    ]
    close(list(got.values()), want, "f4")
