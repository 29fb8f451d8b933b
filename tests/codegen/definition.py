"""A lowering against the definition of its op, run by onnx.reference."""

from typing import Any

import numpy as np

import compiler.ir.definitions  # noqa: F401
from compiler.ir.builder import Builder
from compiler.ir.interpret import interpret
from tests.codegen.runner import make_node, run_node


def defined(op: str, *inputs: Any, outputs: Any = 1, **attrs: Any) -> list[Any]:
    """What the op's definition gives (standard ops: what onnx.reference gives)."""
    node, types, _, _ = make_node(op, *inputs, outputs=outputs, **attrs)
    b = Builder()
    names = [b.input(f"x{i}", types[v]) if v else "" for i, v in enumerate(node.inputs)]
    results = b.add(op, names, attrs, outputs)
    for i, v in enumerate(results):
        if v:
            b.output(f"y{i}", v)
    values = interpret(b.build(), {f"x{i}": a for i, a in enumerate(inputs) if a is not None})
    return [values[v] if v else None for v in results]


def check_definition(op: str, *inputs: Any, outputs: Any = 1, rtol: float | None = None, **attrs: Any) -> list[Any]:
    """The outputs of the lowering, after comparing them with the definition's."""
    node, types, feeds, known = make_node(op, *inputs, outputs=outputs, **attrs)
    got = run_node(node, types, feeds, known)
    for g, w in zip(got, defined(op, *inputs, outputs=outputs, **attrs), strict=True):
        if w is not None:
            assert g.dtype == w.dtype
            assert g.shape == w.shape
            tolerance = rtol or {4: 1e-6, 8: 1e-12}.get(w.dtype.itemsize, 0)
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * np.abs(w[np.isfinite(w)]).max(initial=0))
    return got
