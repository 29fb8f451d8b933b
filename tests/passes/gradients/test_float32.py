"""The same gradients in float32, from onnxruntime: bodies of internal ops and dtypes as a stock runtime takes them."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType, dtype_of
from tests import validate
from tests.gradcheck import run, scalar, with_gradients
from tests.passes.gradients.rule_cases import CASES

REFUSED = "transposed, dilated"
"""The case whose forward node onnxruntime refuses: its output_padding is as large as the stride."""


@pytest.mark.parametrize("case", [c for c in CASES if c != REFUSED])
def test_float32(case: str) -> None:
    emit, inputs = CASES[case]
    rng = np.random.default_rng(3)
    arrays = {k: rng.normal(size=v) if isinstance(v, tuple) else np.asarray(v) for k, v in inputs.items()}
    xs = [k for k, a in arrays.items() if a.dtype == np.float64]
    exact, narrow = (gradients_in(emit, arrays, xs, dtype) for dtype in (np.float64, np.float32))
    expected = run(exact, arrays)
    found = validate.run(narrow, {k: a.astype(np.float32) if k in xs else a for k, a in arrays.items()})
    for i, x in enumerate(xs):
        want, got = expected[f"d{i}"], found[f"d{i}"]
        assert got.dtype == np.float32
        size = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5 * size, err_msg=f"gradient of {x}")


def gradients_in(emit, arrays, xs, dtype) -> Graph:
    b = Builder()
    cast = {k: a.astype(dtype) if k in xs else a for k, a in arrays.items()}
    names = {k: b.input(k, TensorType(dtype_of(a), a.shape)) for k, a in cast.items()}
    results = emit(b, **names)
    floats = [v for v in ([results] if isinstance(results, str) else results) if b.type(v).is_float]
    for i, v in enumerate(floats):
        b.output(f"out{i}", v)
    return with_gradients(
        scalar(b.build(), [f"out{i}" for i in range(len(floats))], np.random.default_rng(0), True), "loss", xs
    )
