"""Gradients of parts of a tensor lie side by side: no zeros are added up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.passes.dce import dce
from compiler.passes.fold import fold_constants
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import check, run, with_gradients

Array = npt.NDArray[np.generic]
X = TensorType("f64", (6, 4))


def weighted_parts(spans: Sequence[tuple[int, int, int]]) -> Graph:
    """The sum of exponentials of parts of x, each with a factor of its own. spans: axis, start, end."""
    b = Builder("parts")
    x, terms = b.input("x", X), []
    for i, (axis, start, end) in enumerate(spans):
        part = b.op("Slice", x, b.ints([start]), b.ints([end]), b.ints([axis]))
        scaled = b.op("Mul", b.op("Exp", part), b.const(np.float64(i + 1)))
        terms.append(b.op("ReduceSum", scaled, keepdims=0))
    b.output("y", b.op("Sum", *terms))
    return b.build()


@pytest.mark.parametrize(
    ("spans", "adds", "concats", "pads"),
    [
        ([(0, 4, 6), (0, 2, 4), (0, 0, 2)], 0, 1, 0),
        ([(0, 4, 6), (0, 0, 2), (0, 2, 4)], 0, 1, 0),
        ([(0, 1, 3), (0, 3, 4)], 0, 1, 1),
        ([(0, 0, 2), (0, 4, 6)], 1, 0, 2),
        ([(0, 0, 3), (0, 2, 6)], 1, 0, 2),
        ([(0, 0, 3), (1, 2, 4)], 1, 0, 2),
        ([(0, 0, 3), (0, 0, 3)], 1, 0, 2),
        ([(0, 0, 6), (1, 0, 1), (1, 1, 2), (1, 2, 4)], 1, 1, 0),
    ],
    ids=["in order", "a gap is filled", "not all", "gap", "overlap", "two axes", "same part", "and the whole"],
)
def test_parts(spans: Sequence[tuple[int, int, int]], adds: int, concats: int, pads: int) -> None:
    graph = weighted_parts(spans)
    ops = Counter(n.op for n in dce(expand_gradients(with_gradients(graph, "y", ["x"]))).nodes)
    assert (ops["Add"], ops["Concat"], ops["Pad"]) == (adds, concats, pads)
    check(graph, {"x": np.random.default_rng(0).normal(size=X.shape)}, ["x"])


@pytest.mark.parametrize(
    ("indices", "axis", "ops"),
    [
        (np.array(1), 0, ["Slice", "Reshape"]),
        (np.array(-1), 1, ["Slice", "Reshape"]),
        (np.array([2]), 0, ["Slice"]),
        (np.array([-3, -2, -1], np.int32), 0, ["Slice"]),
        (np.array([[1, 2], [3, 4]]), 0, ["Slice", "Reshape"]),
        (np.arange(6), 0, []),
        (np.array([2, 1]), 0, ["Gather"]),
        (np.array([1, 3]), 0, ["Gather"]),
        (np.array([1, 1]), 0, ["Gather"]),
        (np.zeros(0, np.int64), 0, ["Gather"]),
    ],
)
def test_gather_of_neighbours_is_a_slice(indices: Array, axis: int, ops: list[str]) -> None:
    b = Builder("gather")
    x = b.input("x", X)
    b.output("y", b.op("Gather", x, b.const(indices), axis=axis))
    folded = fold_constants(b.build())
    assert [n.op for n in folded.nodes] == ops
    given = np.random.default_rng(0).normal(size=X.shape)
    np.testing.assert_array_equal(run(folded, {"x": given})["y"], np.take(given, indices, axis))


def test_gather_of_a_constant_is_a_constant() -> None:
    b = Builder("gather")
    b.output("y", b.op("Gather", b.const(np.arange(4.0)), b.ints([1, 2])))
    folded = fold_constants(b.build())
    assert not folded.nodes
    np.testing.assert_array_equal(run(folded, {})["y"], [1, 2])
