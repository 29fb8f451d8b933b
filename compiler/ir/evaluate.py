"""The meaning of nodes on arrays, by onnx's reference implementation: for constant folding, shape values and tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from compiler.ir.graph import Node
from compiler.ir.proto import OPSETS, node_to_proto, type_to_proto
from compiler.ir.types import AnyArray, TensorType, dtype_of

RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
"""Standard ops that draw random numbers (Dropout does so in training mode only)."""


def is_random(node: Node) -> bool:
    """Whether evaluating the node twice may give two results."""
    return node.op in RANDOM_OPS or (node.op == "Dropout" and bool(node.input(2)))


@lru_cache(maxsize=4096)
def _evaluator(node: Node, types: tuple[TensorType | None, ...]) -> ReferenceEvaluator:
    """One node as a model. The node's names are i0.., o0.., so that equal nodes share an evaluator."""
    inputs = [helper.make_value_info(n, type_to_proto(t)) for n, t in zip(node.inputs, types, strict=True) if t]
    outputs = [helper.make_value_info(n, helper.make_tensor_type_proto(0, None)) for n in node.results]
    graph = helper.make_graph([node_to_proto(node)], "node", inputs, outputs)
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))


def evaluate(node: Node, inputs: Sequence[AnyArray | None]) -> tuple[AnyArray | None, ...]:
    """Results of a standard node without bodies; None where an input or output is absent.

    Whatever the reference implementation raises passes through.
    """
    numbered = Node(
        node.op,
        tuple(f"i{i}" if v else "" for i, v in enumerate(node.inputs)),
        tuple(f"o{i}" if v else "" for i, v in enumerate(node.outputs)),
        node.attrs,
    )
    types = tuple(None if a is None else TensorType(dtype_of(a), a.shape) for a in inputs)
    feeds = {n: a for n, a in zip(numbered.inputs, inputs, strict=True) if n and a is not None}
    results = iter(_evaluator(numbered, types).run(None, feeds))
    return tuple(np.asarray(next(results)) if name else None for name in numbered.outputs)
