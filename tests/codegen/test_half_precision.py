"""Half precision: every op computes in float32 and rounds its results, with a kernel for halves or without one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from compiler.codegen.support import has_kernel
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph
from compiler.ir.interpret import interpret
from compiler.ir.types import TensorType, numpy_dtype
from compiler.passes.pipeline import passes, run
from tests.codegen.graphs import Running

SHAPES = {"x": (2, 3, 6, 6), "w": (4, 3, 3, 3), "s": (3,), "f": (36, 5)}
UNIT = {"f16": 2.0**-10, "bf16": 2.0**-7}


def network(dtype: str) -> Graph:
    """Convolution, pooling, normalization, product, loss; and their gradients."""
    b = Builder("halves")
    x, w, s, f = (b.input(v, TensorType(dtype, shape)) for v, shape in SHAPES.items())
    labels = b.input("labels", TensorType("i64", (2,)))
    h = b.op("MaxPool", b.op("Relu", b.op("Conv", x, w, pads=(1, 1, 1, 1))), kernel_shape=(2, 2), strides=(2, 2))
    h = b.op("Gemm", b.op("Flatten", b.op("LayerNormalization", h, s, axis=-1)), f)
    loss = b.op("SoftmaxCrossEntropyLoss", h, labels)
    b.output("loss", loss)
    points = [x, w, s, f]
    for v, d in zip(points, b.add(GRADIENT, [loss, *points, *points], {"xs": 4, "zs": 0}, 4), strict=True):
        b.output(f"d_{v}", d)
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", UNIT)
def test_a_network_and_its_gradients(dtype: str) -> None:
    rng = np.random.default_rng(0)
    wide = {v: (rng.standard_normal(shape) * 0.3).astype(np.float32) for v, shape in SHAPES.items()}
    halves = {v: a.astype(numpy_dtype(dtype)) for v, a in wide.items()}
    labels = np.array([4, 0])
    graph = run(network(dtype), passes(has_kernel))
    assert {graph.type(v).dtype for v in graph.outputs.values()} == {dtype}
    compiled = Running(graph)(
        {**{v: a.view(np.uint16) if dtype == "bf16" else a for v, a in halves.items()}, "labels": labels}
    )
    exact = run(network("f32"), passes(lambda node, types: True))
    expected = interpret(exact, {**{v: a.astype(np.float32) for v, a in halves.items()}, "labels": labels})
    for name, v in exact.outputs.items():
        value = expected[v]
        found = compiled[name].view(ml_dtypes.bfloat16) if dtype == "bf16" else compiled[name]
        scale = float(np.abs(value).max())
        np.testing.assert_allclose(found.astype(np.float32), value, rtol=0, atol=8 * UNIT[dtype] * scale, err_msg=name)


def test_a_definition_is_not_rounded_inside() -> None:
    """One op, one rounding: where the definition works in halves, the mean of large values would be infinite."""
    b = Builder("norm")
    x = b.input("x", TensorType("f16", (1, 4)))
    b.output("y", b.op("MeanVarianceNormalization", x, axes=(1,)))
    graph = run(b.build(), passes(has_kernel))
    inner = [n for n in graph.nodes if n.op != "Cast"]
    assert inner
    assert {graph.type(v).dtype for n in inner for v in n.results} == {"f32"}
