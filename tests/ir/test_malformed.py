"""A corpus of malformed nodes: each must be refused, with a message that says what is wrong.

Most of them pass ONNX's own inference (`accepted` in the table says which): kernels, which run on raw memory, rely on
the verifier. Operands are types, arrays (known at compile time) or None (absent).
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import VerifyError
from compiler.ir.builder import Builder
from compiler.ir.checks.base import PRECONDITIONS
from compiler.ir.checks.general import SAFE
from compiler.ir.graph import Graph, Node
from compiler.ir.infer import NotStatic
from compiler.ir.proto import schema
from compiler.ir.types import Tensor, TensorType
from compiler.ir.verify import verify
from tests.ir.malformed import CORPUS, F


def typed(text: str) -> TensorType:
    match = re.fullmatch(r"(\w+)\[([\d,]*)\]", text)
    assert match, text
    return TensorType(match[1], tuple(int(d) for d in match[2].split(",") if d))


def graph_of(op: str, operands: list[Any], attrs: dict[str, Any], outputs: int = 1) -> tuple[Graph, bool]:
    """A graph with this node, and whether onnx's inference accepts it. Types are inferred as far as that goes."""
    b = Builder("malformed")
    names = []
    for i, operand in enumerate(operands):
        if operand is None:
            names.append("")
        elif isinstance(operand, str):
            names.append(b.input(f"in{i}", typed(operand)))
        else:
            names.append(b.const(Tensor(np.asarray(operand)), f"in{i}"))
    hints = [f"out{i}" for i in range(outputs)]
    try:
        types: list[TensorType | None] = list(b.infer(Node(op, tuple(names), tuple(hints), attrs)))
        accepted = True
    except (VerifyError, NotStatic):
        types, accepted = [TensorType("f32", (1,))] * outputs, False
    for name in b.add(op, names, attrs, hints, types=types):
        b.output(name, name)
    return b.build(), accepted


CASES = [
    pytest.param(op, *case, id=f"{op.rpartition('.')[2]}-{i}")
    for op, cases in CORPUS.items()
    for i, case in enumerate(cases)
]


@pytest.mark.parametrize(("op", "operands", "attrs", "message", "outputs"), [
    pytest.param(*(p.values if len(p.values) == 5 else (*p.values, 1)), id=p.id) for p in CASES
])  # fmt: skip
def test_malformed(op: str, operands: list[Any], attrs: dict[str, Any], message: str, outputs: int) -> None:
    graph, _accepted = graph_of(op, operands, attrs, outputs)
    with pytest.raises(VerifyError) as e:
        verify(graph)
    problems = e.value.problems
    assert any(message in p.what for p in problems), [p.what for p in problems]
    assert all(p.where for p in problems)
    assert all(op in p.what or "too large" in p.what for p in problems)


def test_inference_alone_would_not_do() -> None:
    """The reason for the preconditions: onnx's inference accepts most of these nodes."""
    accepted = [p.id for p in CASES if graph_of(p.values[0], p.values[1], p.values[2], *p.values[4:])[1]]
    assert len(accepted) > 130
    assert {"Reshape-0", "Conv-0", "Conv-5", "Adam-0", "SoftmaxCrossEntropyLoss-0"} <= set(accepted)


DTYPES_DRAWN = st.sampled_from(["f32", "f32", "f32", "i64", "bool", "i32"])
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=4).map(tuple)
ARRAYS = st.one_of(
    st.lists(st.integers(-5, 5), max_size=4).map(lambda v: np.array(v, np.int64)),
    st.sampled_from(
        [np.array(1), np.array(-(2**63)), F(0.5), F(np.nan), np.array([2**62, 2**62]), np.ones((2, 2), np.int64)]
    ),
)
OPERANDS = st.one_of(st.builds(lambda d, s: str(TensorType(d, s)), DTYPES_DRAWN, SHAPES), ARRAYS, st.none())
ATTRIBUTES = {
    "INT": st.sampled_from([-1, 0, 1, 2, 1, 5, 2**63 - 1]),
    "INTS": st.lists(st.sampled_from([-1, 0, 1, 2, 3]), max_size=5).map(tuple),
    "FLOAT": st.floats(width=32),
    "STRING": st.sampled_from(
        ["", "NOTSET", "VALID", "SAME_UPPER", "mean", "none", "edge", "reflect", "ij->ji", "ii,...j->"]
    ),
    "TENSOR": st.builds(Tensor, ARRAYS),
}
OPS = sorted(op for op in {*PRECONDITIONS, *SAFE} if schema(op) is not None)


@settings(max_examples=600)
@given(st.data())
def test_no_node_gives_another_exception(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(OPS))
    s = schema(op)
    assert s is not None
    attrs = {
        name: data.draw(ATTRIBUTES[a.type.name])  # type: ignore[attr-defined]
        for name, a in s.attributes.items()
        if a.type.name in ATTRIBUTES and (a.required or data.draw(st.booleans()))  # type: ignore[attr-defined]
    }
    count = data.draw(st.integers(s.min_input, max(s.min_input, min(s.max_input, 7))))
    operands = data.draw(st.lists(OPERANDS, min_size=count, max_size=count))
    graph, _accepted = graph_of(op, operands, attrs, data.draw(st.integers(1, min(s.max_output, 3))))
    with contextlib.suppress(VerifyError):
        verify(graph)
