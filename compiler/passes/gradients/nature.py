"""Ops whose derivative is zero wherever it exists, or that have none by nature: gradients stop there, silently."""

from __future__ import annotations

PIECEWISE_CONSTANT = frozenset(
    {
        "Bernoulli",
        "Ceil",
        "DynamicQuantizeLinear",
        "EyeLike",
        "Floor",
        "Hardmax",
        "MelWeightMatrix",
        "QuantizeLinear",
        "RandomNormalLike",
        "RandomUniformLike",
        "Round",
        "Sign",
    }
)

NO_FLOATS = frozenset(
    {
        *("And", "Or", "Not", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN"),
        *("ArgMax", "ArgMin", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
        *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "ImageDecoder", "Multinomial"),
        *("NonMaxSuppression", "NonZero", "Shape", "Size"),
        *("BlackmanWindow", "HammingWindow", "HannWindow", "Constant", "ConstantOfShape"),
        *("RandomNormal", "RandomUniform", "onnxc.RandomBits", "onnxc.RegionArgMax"),
    }
)
"""Ops that give integers, booleans or bits, or that read no floating-point values."""

INERT_INPUTS: dict[str, tuple[int, ...]] = {"CastLike": (1,), "Dropout": (1, 2), "OneHot": (0, 1)}
"""Floating-point inputs of which only the type matters, or that are no subject of differentiation; by op."""

ZERO = PIECEWISE_CONSTANT | NO_FLOATS
"""Ops at which gradients stop."""
