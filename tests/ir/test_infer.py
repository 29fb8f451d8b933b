"""Types: corrections of onnx's inference, operands that must be static, window geometry, known values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import defs

from compiler.errors import CompileError, VerifyError
from compiler.ir.bodies import has_body
from compiler.ir.builder import Builder
from compiler.ir.checks import covers
from compiler.ir.evaluate import evaluate
from compiler.ir.graph import Node
from compiler.ir.infer import STATIC_OPERANDS, NotStatic
from compiler.ir.proto import CANONICAL_OPSET, schema
from compiler.ir.types import Tensor, TensorType
from compiler.ir.verify import verify
from compiler.ir.windows import transposed_windows, windows

F = np.float32


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("GroupNormalization", [np.ones((2, 4, 3), F), np.ones(4, F), np.ones(4, F)], {"num_groups": 2}),
        ("MeanVarianceNormalization", [np.ones((2, 3, 4, 4), F)], {}),
        ("STFT", [np.ones((1, 128, 1), F), np.int64(8), None, np.int64(16)], {}),
        ("STFT", [np.ones((1, 128, 1), F), np.int64(8), np.ones(16, F)], {}),
        ("STFT", [np.ones((1, 128, 1), F), np.int64(8), None, np.int64(16)], {"onesided": 0}),
        (
            "MaxUnpool",
            [np.ones((1, 1, 2, 2), F), np.array([[[[5, 7], [13, 15]]]]), np.array([1, 1, 5, 5])],
            {"kernel_shape": (2, 2), "strides": (2, 2)},
        ),
        ("OneHot", [np.array([1, 2]), F(4), np.array([0, 1], F)], {"axis": 0}),
        ("Range", [np.int16(1), np.int16(10), np.int16(4)], {}),
        ("Range", [F(1), F(0), F(-0.25)], {}),
        ("Range", [np.int64(5), np.int64(5), np.int64(1)], {}),
        ("Range", [np.int64(5), np.int64(1), np.int64(1)], {}),
        ("Reshape", [np.ones((0, 3), F), np.array([-1, 0])], {}),
        ("Slice", [np.ones(10, F), np.array([9]), np.array([-(2**63)]), np.array([0]), np.array([-(2**63)])], {}),
    ],
)
def test_inferred_types_are_those_of_the_reference(
    op: str, operands: list[np.ndarray | None], attrs: dict[str, object]
) -> None:
    b = Builder()
    names = []
    for i, a in enumerate(operands):
        static = i in STATIC_OPERANDS.get(op, ())
        name = "" if a is None else b.const(Tensor(a), f"i{i}") if static else b.input(f"i{i}", Tensor(a).type)
        names.append(name)
    (y,) = b.add(op, names, attrs, ["y"])
    b.output("y", y)
    verify(b.build())
    (expected,) = evaluate(Node(op, tuple(names), ("y",), attrs), operands)
    assert expected is not None
    assert b.type(y) == Tensor(expected).type


def test_output_shape_below_the_input() -> None:
    b = Builder()
    x, w = b.input("x", TensorType("f32", (1, 1, 3, 3))), b.input("w", TensorType("f32", (1, 2, 3, 3)))
    assert b.shape(b.op("ConvTranspose", x, w, output_shape=(2, 2))) == (1, 2, 2, 2)


def test_static_operands() -> None:
    b = Builder()
    x, axes = b.input("x", TensorType("f32", (2, 3))), b.input("axes", TensorType("i64", (1,)))
    with pytest.raises(NotStatic) as e:
        b.op("ReduceSum", x, axes)
    assert e.value.operands == ("axes",)
    with pytest.raises(NotStatic):
        b.op("CumSum", x, b.input("axis", TensorType("i64")))
    with pytest.raises(NotStatic) as e:
        b.op("NonZero", x)
    assert e.value.operands == ("x",)
    assert str(b.type(b.op("NonZero", b.const(np.array([[0, 3], [5, 0]]))))) == "i64[2,2]"
    with pytest.raises(VerifyError, match="not supported"):
        b.op("Cast", x, to=8)
    with pytest.raises(VerifyError, match="INTS"):
        b.op("Transpose", x, perm=1)


def test_known_values() -> None:
    b = Builder()
    x = b.input("x", TensorType("f32", (2, 3, 4)))
    last = b.op("Gather", b.op("Shape", x), b.const(np.array([-1])))
    shape = b.op("Concat", b.ints([-1]), b.op("Mul", last, b.ints([2])), axis=0)
    assert b.known(shape).tolist() == [-1, 8]  # type: ignore[union-attr]
    assert b.shape(b.op("Reshape", x, shape)) == (3, 8)
    assert b.known(b.op("Size", x)) == 24
    assert b.known(x) is None
    assert b.known(b.op("Mul", b.op("Neg", b.const(F(1))), x)) is None
    big = b.const(np.ones(2000, F))
    assert b.known(big) is not None
    assert b.known(b.op("ReduceSum", big)) is None  # too much to compute for a shape
    assert b.known(b.op("RandomUniform", shape=(2,))) is None
    b.known(b.op("Div", b.ints([1]), b.ints([0])))  # whatever it is: no exception


@given(
    size=st.integers(1, 12), kernel=st.integers(1, 4), stride=st.integers(1, 4), dilation=st.integers(1, 3),
    before=st.integers(0, 4), after=st.integers(0, 4), ceil=st.booleans(),
    auto=st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
)  # fmt: skip
def test_windows(
    size: int, kernel: int, stride: int, dilation: int, before: int, after: int, ceil: bool, auto: str
) -> None:
    """What is accepted has the extent that onnx infers, and every window of it has an element inside the input."""
    attrs = {"kernel_shape": (kernel,), "strides": (stride,), "dilations": (dilation,), "auto_pad": auto}
    if auto == "NOTSET":
        attrs["pads"] = (before, after)
    b = Builder()
    x = b.input("x", TensorType("f32", (1, 1, size)))
    (y,) = b.add("MaxPool", [x], {**attrs, "ceil_mode": int(ceil)}, ["y"])
    (w,) = windows(Node("MaxPool", (x,), (y,), {**attrs, "ceil_mode": int(ceil)}), (size,), (kernel,))
    tapped = [
        any(0 <= w.start(o) + k * dilation < size for k in range(kernel)) for o in range(max(w.out, 0))
    ]  # fmt: skip
    try:
        verify(b.build())
    except VerifyError as e:
        message = str(e)
        assert "exceeds" in message or "ambiguous" in message or not all(tapped)
    else:
        assert b.shape(y) == (1, 1, w.out)
        assert all(tapped)
        assert w.touches_input()


@given(
    size=st.integers(1, 6), kernel=st.integers(1, 4), stride=st.integers(1, 3), dilation=st.integers(1, 2),
    before=st.integers(0, 2), after=st.integers(0, 2), extra=st.integers(0, 2),
)  # fmt: skip
def test_transposed_windows(
    size: int, kernel: int, stride: int, dilation: int, before: int, after: int, extra: int
) -> None:
    attrs = {"strides": (stride,), "dilations": (dilation,), "pads": (before, after), "output_padding": (extra,)}
    b = Builder()
    x, weights = b.input("x", TensorType("f32", (1, 1, size))), b.input("w", TensorType("f32", (1, 1, kernel)))
    try:
        (y,) = b.add("ConvTranspose", [x, weights], attrs, ["y"])
        verify(b.build())
    except CompileError:
        return
    (w,) = transposed_windows(Node("ConvTranspose", (x, weights), (y,), attrs), (size,), (kernel,))
    assert b.shape(y) == (1, 1, w.out)
    reach = (size - 1) * stride + w.extent
    assert w.before + w.out + w.after == reach + extra


LISTED = """
Add Sub Mul Div Neg Abs Exp Log Sqrt Reciprocal Pow Max Min Sum Mean Clip Where Equal Less Greater LessOrEqual
GreaterOrEqual And Or Not Identity Cast Relu LeakyRelu Sigmoid Tanh Softplus Erf Gelu Softmax LogSoftmax Gemm MatMul
Conv MaxPool AveragePool GlobalAveragePool BatchNormalization LayerNormalization Dropout ReduceSum ReduceMean ReduceMax
ReduceMin ReduceSumSquare ReduceL2 CumSum Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather Expand
Tile Pad Shape Size ConstantOfShape Range OneHot ArgMax SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss RandomNormal
RandomUniform RandomNormalLike RandomUniformLike ConvTranspose ScatterElements ScatterND GatherElements GatherND Trilu
Mod ai.onnx.preview.training.Adam ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Momentum
ai.onnx.preview.training.Gradient
"""


def test_every_operator_that_definitions_use_is_covered() -> None:
    """No operator reaches a kernel without somebody having thought about its preconditions."""
    wanted = set(LISTED.split())
    for s in defs.get_all_schemas():
        if s.domain == "" and (newest := schema(s.name)) is not None and has_body(s.name):
            pending = list(newest.function_body.node) if newest.has_function else []
            wanted |= {n.op_type for n in pending if not any(a.type in (5, 10) for a in n.attribute)}
    assert CANONICAL_OPSET == 28
    assert {op for op in wanted if op != "Constant" and not covers(op)} == set()
    unknown = {op for op in wanted if schema(op) is None}
    assert not unknown


def test_every_operator_that_has_a_kernel_is_covered() -> None:
    from compiler.codegen.calls import LOWERINGS
    from compiler.codegen.support import VIEWS

    ops = {op for op in (*LOWERINGS, *VIEWS) if not op.startswith("onnxc.")}  # those: by their definitions
    assert {op for op in ops if not covers(op)} == set()
