"""Loops, branches and recurrent layers with their gradients as machine code, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen.support import has_kernel
from compiler.ir.graph import Graph
from compiler.passes.pipeline import passes
from compiler.passes.pipeline import run as run_passes
from tests.codegen.graphs import Running
from tests.gradcheck import Array, run, scalar, with_gradients
from tests.passes.gradients import test_control_flow as control
from tests.passes.gradients.test_recurrent import form, graph_of, operands


def agree(graph: Graph, feeds: dict[str, Array], rtol: float = 1e-9) -> None:
    """The outputs and the gradients of a graph, interpreted and compiled."""
    xs = [x for x, a in feeds.items() if a.dtype.kind == "f"]
    loss = scalar(graph, list(graph.outputs), np.random.default_rng(0), square=True)
    expected = run(with_gradients(loss, "loss", xs), feeds)
    compiled = with_gradients(loss, "loss", xs, expand=lambda g: run_passes(g, passes(has_kernel)))
    found = Running(compiled)({v: feeds[v] for v in compiled.inputs})
    for name, value in expected.items():
        size = np.abs(value).max(initial=1)
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=rtol * size, err_msg=name)


@pytest.mark.parametrize("name", ["RNN, clip", "GRU, linear before reset", "LSTM, peepholes, both ways, lengths"])
def test_recurrent_layers(name: str) -> None:
    agree(*form(name))


def test_lstm_in_single_precision() -> None:
    agree(*graph_of("LSTM", {}, operands("LSTM", absent="p", sizes=(9, 4, 5, 8), dtype=np.float32)), rtol=2e-5)


@pytest.mark.parametrize("start", [300.0, 0.0])
def test_loop_that_ends_at_run_time(start: float) -> None:
    feeds = {"s": np.array([start, start + 0.5]), "w": np.array([1.1, 1.2])}
    agree(control.graph_of(control.ending_at_run_time, feeds), feeds)


def test_nested_loops_and_branches() -> None:
    feeds = {"s": control.random(2, 3), "x": control.random(4, 2, 3, seed=1), "w": control.random(3, 3, seed=2)}
    agree(control.graph_of(control.nested, feeds), feeds)
