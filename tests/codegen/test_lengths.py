"""Lengths and positions that a call gives: those which the standard does not allow are refused, whatever a kernel
would make of them (an index from the end, say), and no state changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.codegen.support import has_kernel
from compiler.errors import InputError
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.passes.pipeline import passes
from compiler.passes.pipeline import run as run_passes
from tests.codegen.graphs import Running

GRID = np.arange(4).reshape(1, 1, 2, 2)
ROTARY = ((1, 3, 4), (5, 2), (5, 2))

# op, shapes of its operands ('' for none) with None for the numbers, attributes, numbers that fit, the largest
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], Any, int]] = {
    "RNN": ("RNN", ((4, 2, 3), (1, 5, 3), (1, 5, 5), "", None), {}, np.array([4, 0], np.int32), 4),
    "ReverseSequence": ("ReverseSequence", ((4, 2), None), {}, np.array([4, 0]), 4),
    "MaxUnpool": ("MaxUnpool", ((1, 1, 2, 2), None), {"kernel_shape": (2, 2), "strides": (2, 2)}, GRID, 15),
    "RotaryEmbedding": ("RotaryEmbedding", (*ROTARY, None), {"num_heads": 1}, np.array([[0, 4, 2]]), 4),
    "TensorScatter": ("TensorScatter", ((1, 5, 2), (1, 2, 2), None), {"axis": 1}, np.array([3]), 3),
    "Attention": ("Attention", (*[(2, 1, 3, 4)] * 3, "", "", "", None), {}, np.array([3, 0]), 3),
}


def graph_of(op: str, operands: tuple[Any, ...], attrs: dict[str, Any], numbers: Any) -> Graph:
    """y = op(..), and a state that becomes y."""
    b = Builder()
    given = b.input("numbers", TensorType(str(numbers.dtype).replace("int", "i"), numbers.shape))
    draw = np.random.default_rng(0).standard_normal
    names = [given if s is None else s and b.const(draw(s, np.float32)) for s in operands]
    y = b.op(op, *names, **attrs)
    w = b.state("w", np.zeros(b.shape(y), np.float32))
    b.update(w, y)
    b.output("y", b.op("Identity", y))
    return b.build()


@pytest.mark.parametrize("name", CASES)
def test_numbers_that_do_not_fit(name: str) -> None:
    op, operands, attrs, numbers, largest = CASES[name]
    run = Running(run_passes(graph_of(op, operands, attrs, numbers), passes(has_kernel)))
    run({"numbers": numbers})
    before = run.state["w"].copy()
    assert before.any()
    for wrong in (-1, largest + 1, -(2**31), 2**31 - 1):
        given = numbers.copy()
        given.reshape(-1)[0] = wrong
        with pytest.raises(InputError, match="out of range"):
            run({"numbers": given})
        assert np.array_equal(run.state["w"], before)
