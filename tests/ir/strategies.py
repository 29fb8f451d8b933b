"""Random graphs for hypothesis: names of any kind, all kinds of attributes and constants, nested graphs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph, Origin
from compiler.ir.types import DTYPES, Tensor, TensorType, numpy_dtype

ODD_NAMES = [
    'x"); import os #',
    "a/b:0",
    "onnx::MatMul_12",
    "_",
    "by",
    "graph",
    "input",
    "inf",
    "größe",
    "\u2028",
    "{",
    "1",
]
names = st.one_of(st.sampled_from(["x", "y", "w.next", *ODD_NAMES]), st.text(min_size=1, max_size=6))
public_names = st.one_of(st.just(""), names)
rules = st.one_of(st.sampled_from(["", "gradient of Conv", "a  b", " a", "by by"]), names)
origins = st.builds(Origin, st.one_of(st.just(""), names), rules)


@st.composite
def tensors(draw: st.DrawFn, dtype: str | None = None) -> Tensor:
    """Any bits at all, of any type and up to 24 elements (16 of them go into the text)."""
    dtype = dtype or draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0, 3), (2, 3, 4), (17,)]))
    kind = numpy_dtype(dtype)
    count = int(np.prod(shape))
    if dtype == "bool":
        array = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    else:
        size = count * kind.itemsize
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), kind)
    return Tensor(array.reshape(shape))


floats = st.floats(width=32)
attributes = st.fixed_dictionaries(
    {},
    optional={
        "alpha": floats,
        "axis": st.integers(-(2**63), 2**63 - 1),
        "mode": st.text(max_size=5),
        "axes": st.lists(st.integers(-9, 9), max_size=3).map(tuple),
        "scales": st.lists(floats, min_size=1, max_size=3).map(tuple),
        "words": st.lists(st.text(max_size=3), max_size=2).map(tuple),
        "value": tensors(),
        'odd "name"': st.integers(0, 1),
    },
)


def _nodes(draw: st.DrawFn, b: Builder, values: list[str], depth: int) -> None:
    """Append nodes that may mean nothing: the text does not care. Types are drawn, not inferred."""
    for _ in range(draw(st.integers(0, 4))):
        inputs = draw(st.lists(st.sampled_from([*values, ""]), max_size=3))
        attrs = dict(draw(attributes))
        captures: list[str] = []
        if depth and draw(st.booleans()):
            captures = draw(st.lists(st.sampled_from(values), max_size=2))
            attrs["body"] = draw(graphs(depth - 1, [b.type(v) for v in captures]))
        outputs = draw(st.lists(st.one_of(names, st.just("")), min_size=1, max_size=3))
        outputs[0] = outputs[0] or "z"
        types = [draw(types_) if v else None for v in outputs]
        op = draw(st.one_of(st.sampled_from(["Relu", "onnxc.X", "ai.onnx.preview.training.Adam"]), names))
        values += [v for v in b.add(op, inputs, attrs, outputs, captures, draw(origins), types) if v]


types_ = st.builds(
    TensorType, st.sampled_from(DTYPES), st.lists(st.sampled_from([0, 1, 7, 10**9]), max_size=3).map(tuple)
)


@st.composite
def graphs(draw: st.DrawFn, depth: int = 1, captures: list[TensorType] | None = None) -> Graph:
    """A graph with well-formed names; not one that the verifier would accept."""
    b = Builder(draw(public_names))
    values = [b.capture(draw(names), t) for t in captures or ()]
    values += [b.input(draw(names), draw(types_)) for _ in range(draw(st.integers(1, 2)))]
    states = [
        b.state(draw(names), draw(tensors())) for _ in range(0 if captures is not None else draw(st.integers(0, 2)))
    ]
    values += states
    values += [b.const(draw(tensors()), draw(names)) for _ in range(draw(st.integers(0, 3)))]
    _nodes(draw, b, values, depth)
    for public in draw(st.lists(public_names, unique=True, max_size=3)):
        b.output(public, draw(st.sampled_from(values)))
    for state in states:
        if draw(st.booleans()):
            b.update(state, draw(st.sampled_from(values)))
    return b.build()
