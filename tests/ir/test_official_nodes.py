"""The verifier accepts the nodes of ONNX's own test suite, and infers the types of their expected outputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.backend.test.loader import load_model_tests

from compiler.errors import CompileError
from compiler.ir.builder import Builder
from compiler.ir.infer import STATIC_OPERANDS, NotStatic
from compiler.ir.proto import OPSETS, op_name, schema
from compiler.ir.reading import read_nodes
from compiler.ir.types import Tensor
from compiler.ir.verify import verify

VALUE_DEPENDENT = frozenset({"ImageDecoder", "NonMaxSuppression", "SplitToSequence"})
"""Ops whose output shapes depend on the values of their data."""


@pytest.mark.slow
def test_official_nodes() -> None:
    checked, wrong = 0, []
    for case in load_model_tests(kind="node"):
        graph = case.model.graph
        if len(graph.node) != 1 or any(a.HasField("g") for a in graph.node[0].attribute):
            continue
        (node,) = graph.node
        op = op_name(node.domain, node.op_type)
        s, versions = schema(op), {o.domain: o.version for o in case.model.opset_import}
        if s is None or node.domain not in OPSETS or versions[node.domain] < s.since_version or op in VALUE_DEPENDENT:
            continue
        (inputs, outputs), *_ = case.data_sets
        b, names = Builder(), {}
        try:
            for v, a in zip((i.name for i in graph.input), inputs, strict=True):
                static = list(node.input).index(v) in STATIC_OPERANDS.get(op, ())
                names[v] = b.const(Tensor(a), v) if static else b.input(v, Tensor(np.asarray(a)).type)
            expected = {o.name: Tensor(np.asarray(a)).type for o, a in zip(graph.output, outputs, strict=True)}
        except (TypeError, ValueError):
            continue  # strings, sequences and other types that onnxc has no tensors of
        try:
            read_nodes(b, [node], names)
            verify(b.build())
            wrong += [f"{case.name}: {b.type(names[v])}, not {t}" for v, t in expected.items() if b.type(names[v]) != t]
        except (CompileError, NotStatic) as e:
            wrong.append(f"{case.name}: {e}")
        checked += 1
    assert not wrong
    assert checked > 900
