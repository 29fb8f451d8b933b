"""Linear algebra, transforms, running products and attention as machine code, with their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.codegen.support import has_kernel
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType, dtype_of
from compiler.passes.pipeline import passes
from compiler.passes.pipeline import run as run_passes
from tests.codegen.graphs import Running
from tests.gradcheck import run, scalar, with_gradients
from tests.passes.gradients.test_algebra import CASES

RNG = np.random.default_rng(8)

COMPILED = {
    "three operands": 1,
    "Det, singular": 2,
    "CumProd with zeros 01": 2,
    "ReduceProd, outer axes": 1,
    "STFT": 1,
    "TensorScatter": 1,
    "Attention, no key for a row": 1,
    "Attention, a cache": 1,
    "Attention, valid keys": 1,
}
"""Case of `test_algebra` -> order of the derivatives."""


@pytest.mark.parametrize("case", COMPILED)
def test_kernels_give_what_the_graph_means(case: str) -> None:
    emit, inputs = CASES[case]
    arrays: dict[str, Any] = {
        k: RNG.normal(size=a) if isinstance(a, tuple) else np.asarray(a) for k, a in inputs.items()
    }
    b = Builder()
    results = emit(b, **{k: b.input(k, TensorType(dtype_of(a), a.shape)) for k, a in arrays.items()})
    for i, v in enumerate([results] if isinstance(results, str) else results):
        b.output(f"y{i}", v)
    graph = b.build()
    xs = [k for k, a in arrays.items() if a.dtype == np.float64]
    loss = scalar(graph, list(graph.outputs), RNG, square=True)
    if COMPILED[case] > 1:
        loss = scalar(with_gradients(loss, "loss", xs), [f"d{i}" for i in range(len(xs))], RNG, square=False)

    def compiled(graph: Graph) -> Graph:
        return run_passes(graph, passes(has_kernel))

    wanted = run(with_gradients(loss, "loss", xs), arrays)
    found = Running(with_gradients(loss, "loss", xs, expand=compiled), threads=2)(arrays)
    for name, want in wanted.items():
        size = np.abs(want).max(initial=1)
        np.testing.assert_allclose(found[name], want, rtol=1e-8, atol=1e-10 * size, err_msg=name)
