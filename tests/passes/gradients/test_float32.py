"""The same gradients in float32, from onnxruntime: bodies of internal ops and dtypes as a stock runtime takes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.ir.bodies import expand
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.proto import CANONICAL_OPSET, INTERNAL_DOMAIN, node_to_proto, type_to_proto
from compiler.ir.types import TensorType, dtype_of
from tests.gradcheck import run, scalar, with_gradients
from tests.passes.gradients.test_rules import CASES

ort = pytest.importorskip("onnxruntime")

SKIPPED = {
    "Celu far out": "no kernel at opset 28",
    "RMS": "computes in float64 by its stash_type",
    "Cast there and back": "casts to float64",
    "ReduceLogSumExp far out": "the forward node overflows: onnxruntime expands it",
    "transposed, dilated": "the forward node is refused: output_padding of the stride",
}
"""Cases that onnxruntime does not take, by no fault of the gradient."""


def inlined(graph: Graph) -> Graph:
    """The graph with standard ops only."""
    b = Builder(graph.name)
    names = b.sources_of(graph)
    for node in graph.nodes:
        if node.domain == INTERNAL_DOMAIN:
            names.update(zip(node.outputs, expand(b, node, [names.get(v, v) for v in node.inputs]), strict=False))
        else:
            b.copy(node, names, graph)
    b.bind(graph, names)
    graph = b.build()
    return inlined(graph) if any(n.domain == INTERNAL_DOMAIN for n in graph.nodes) else graph


def to_model(graph: Graph) -> onnx.ModelProto:
    graph = inlined(graph)
    nodes = [node_to_proto(n) for n in graph.nodes]
    for node in nodes:
        node.name = ""  # of derived nodes, not unique
    nodes += [helper.make_node("Identity", [v], [f"out:{public}"]) for public, v in graph.outputs.items()]
    inputs = [helper.make_value_info(v, type_to_proto(graph.type(v))) for v in graph.inputs]
    outputs = [helper.make_value_info(f"out:{p}", type_to_proto(graph.type(v))) for p, v in graph.outputs.items()]
    constants = [numpy_helper.from_array(t.array, v) for v, t in graph.consts.items()]
    proto = helper.make_graph(nodes, graph.name, inputs, outputs, constants)
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", CANONICAL_OPSET)], ir_version=11)


def ort_run(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(to_model(graph).SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    results = session.run(None, {k: v for k, v in feeds.items() if k in wanted})
    return dict(zip(graph.outputs, results, strict=True))


@pytest.mark.parametrize("case", [c for c in CASES if c not in SKIPPED])
def test_float32(case: str) -> None:
    emit, inputs = CASES[case]
    rng = np.random.default_rng(3)
    arrays = {k: rng.normal(size=v) if isinstance(v, tuple) else np.asarray(v) for k, v in inputs.items()}
    xs = [k for k, a in arrays.items() if a.dtype == np.float64]
    exact, narrow = (gradients_in(emit, arrays, xs, dtype) for dtype in (np.float64, np.float32))
    expected = run(exact, arrays)
    found = ort_run(narrow, {k: a.astype(np.float32) if k in xs else a for k, a in arrays.items()})
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
