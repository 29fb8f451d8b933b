"""Every rule on the inputs of onnx's own node tests, first and second order."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.catalogue import operators
from tests.covering import in_few_words
from tests.gradcheck import Mismatch, check_off_kinks
from tests.passes.gradients.cases import Case, cases_of

OPS: dict[str, int] = {
    **dict.fromkeys(("Abs", "Identity", "Erf", "HardSwish", "Mish", "Relu", "Swish"), 1),
    **dict.fromkeys(("Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Softplus", "Softsign"), 2),
    **dict.fromkeys(("Sin", "Cos", "Tan", "Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh"), 1),
    **dict.fromkeys(("LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Elu", "Selu"), 3),
    **dict.fromkeys(("Shrink", "Celu", "Add", "Expand", "Tile", "Squeeze", "PRelu", "ReverseSequence"), 2),
    **dict.fromkeys(("Sub", "Mul", "Div", "Sum", "Mean", "GatherElements", "TopK", "Pad", "DepthToSpace"), 2),
    "Gelu": 4,
    "Mod": 6,
    "Where": 1,
    "Clip": 9,
    "Max": 6,
    "Min": 6,
    "Pow": 8,
    "MatMul": 7,
    "Gemm": 11,
    "Conv": 6,
    "ConvTranspose": 11,
    "MaxPool": 18,
    "AveragePool": 20,
    "GlobalAveragePool": 2,
    "GlobalMaxPool": 2,
    "BatchNormalization": 4,
    "LayerNormalization": 19,
    "MeanVarianceNormalization": 1,
    "Dropout": 4,
    "ReduceSum": 10,
    "ReduceMean": 8,
    "ReduceProd": 8,
    "ReduceL1": 8,
    "ReduceL2": 8,
    "ReduceMax": 6,
    "ReduceMin": 6,
    "ReduceSumSquare": 8,
    "ReduceLogSum": 4,
    "ReduceLogSumExp": 8,
    "Softmax": 7,
    "LogSoftmax": 7,
    "CumSum": 7,
    "Reshape": 10,
    "Flatten": 9,
    "Unsqueeze": 7,
    "Transpose": 7,
    "Concat": 12,
    "Split": 9,
    "Slice": 8,
    "Gather": 4,
    "GatherND": 1,
    "ScatterElements": 7,
    "ScatterND": 7,
    "OneHot": 4,
    "SpaceToDepth": 4,
    "NegativeLogLikelihoodLoss": 18,
    "SoftmaxCrossEntropyLoss": 34,
    "CenterCropPad": 6,
    "Resize": 39,
    "GridSample": 18,
    "AffineGrid": 4,
    "DeformConv": 4,
    "RoiAlign": 3,
    "Col2Im": 5,
    "MaxUnpool": 2,
    "LpPool": 8,
    "LRN": 2,
    "InstanceNormalization": 2,
    "GroupNormalization": 2,
    "LpNormalization": 6,
    "RMSNormalization": 19,
    "SwiGLU": 3,
    "Einsum": 6,
    "Det": 2,
    "DFT": 5,
    "STFT": 2,
    "CumProd": 7,
    "TensorScatter": 3,
    "Compress": 4,
    "RotaryEmbedding": 8,
    "CausalConvWithState": 13,
    "LinearAttention": 14,
    "Attention": 85,
    **dict.fromkeys(("RNN", "GRU", "LSTM"), 6),
}
"""op -> how many cases there are at least."""

OTHERWISE = {
    "GlobalLpPool": "there are no official cases",
    "Cast": "the official cases round to fewer bits",
    "CastLike": "the official cases round to fewer bits",
    "Trilu": "the official cases are of integers",
    "Range": "its operands decide a shape: test_algebra",
    "Unique": "its operand decides a shape: test_algebra",
    "DequantizeLinear": "there is no scale in float64: test_algebra",
    "MaxRoiPool": "there are no official cases: test_images",
    **dict.fromkeys(("If", "Loop", "Scan"), "the official bodies are in float32 or of sequences: test_control_flow"),
}
"""Ops with a rule that are checked by cases of our own only."""

JITTER = 0.03
"""Moves the inputs off kinks and ties, and fewer of them off the domain."""

OUTPUTS = {"BatchNormalization": 1}
"""op -> how many outputs are differentiated; the running statistics are constants by the standard."""

SKIPPED = {
    "inf, nan": ("mod_float_edge_cases", "empty_set", "bias_3d_mask_causal", "bias_4d_mask_causal"),
    "not lowered to a mask": ("training_dropout",),
    "float32 inside": ("softmax_precision",),
}


@pytest.mark.parametrize("op", OPS)
def test_official_cases(op: str) -> None:
    """Each form of the operator that a word in the name of a case tells."""
    assert check_cases(op, few=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", OPS)
def test_all_official_cases(op: str) -> None:
    assert check_cases(op, few=False) >= OPS[op]


def check_cases(op: str, *, few: bool) -> int:
    """Check all cases, or few in which each form of the operator is, by the words of their names; how many."""
    skipped = [part for parts in SKIPPED.values() for part in parts]
    cases = [c for c in cases_of(op, JITTER) if not any(part in c.name for part in skipped) and checked_outputs(c)]
    wanted = in_few_words([c.name for c in cases]) if few else {c.name for c in cases}
    done, failures = 0, []
    for case in cases:
        if case.name not in wanted:
            continue
        try:
            check_off_kinks(case.graph, case.feeds, case.xs, checked_outputs(case)[: OUTPUTS.get(op)])
        except Mismatch as e:
            failures.append(f"{case.name}: {e}")
        done += 1
    assert not failures, "\n".join(failures)
    return done


def checked_outputs(case: Case) -> list[str]:
    """Those with a gradient, in float64."""
    return [v for v in case.graph.outputs if case.graph.type(case.graph.outputs[v]).dtype == "f64"]


def test_every_differentiable_operator_is_checked() -> None:
    """The 133 of opset 28, with If, Loop and Scan; Scatter and Upsample are read as others."""
    differentiable = {r.op for r in operators() if r.domain == "ai.onnx" and r.gradient in ("rule", "definition")}
    assert len(differentiable) == 133 + 3 + 2
    assert differentiable - {"Scatter", "Upsample"} <= {*OPS, *OTHERWISE}


def test_the_jitter_is_small() -> None:
    case = next(iter(cases_of("Relu", JITTER)))
    clean = next(iter(cases_of("Relu", 0.0)))
    (x,) = case.xs
    assert 0 < np.abs(case.feeds[x] - clean.feeds[x]).max() <= JITTER
