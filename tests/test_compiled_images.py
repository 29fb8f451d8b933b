"""The ops that resample images as machine code, with their gradients, against the evaluation of the same graphs."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.support import has_kernel
from compiler.ir.graph import Graph
from compiler.passes.pipeline import passes
from compiler.passes.pipeline import run as run_passes
from tests.codegen.graphs import Running
from tests.gradcheck import run, scalar, with_gradients
from tests.passes.gradients.test_images import CASES, graph_of

COMPILED = (
    "linear, 3-D",
    "crop",
    "grid linear border 0",
    "grid nearest zeros 0",
    "deformed",
    "regions avg 0 half_pixel",
    "regions max 2 half_pixel",
    "largest of regions",
    "norms 3",
    "unpooled",
    "channels",
)


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_kernels_give_what_the_graph_means(case: str) -> None:
    graph, feeds = graph_of(*CASES[case])
    xs = [v for v, a in feeds.items() if a.dtype == np.float64]
    loss = scalar(graph, ["y"], np.random.default_rng(0), square=True)
    wanted = run(with_gradients(loss, "loss", xs), feeds)

    def compiled(graph: Graph) -> Graph:
        return run_passes(graph, passes(has_kernel))

    found = Running(with_gradients(loss, "loss", xs, expand=compiled), threads=2)(feeds)
    for name, want in wanted.items():
        size = np.abs(want).max(initial=1)
        np.testing.assert_allclose(found[name], want, rtol=1e-8, atol=1e-10 * size, err_msg=name)
