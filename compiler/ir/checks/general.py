"""Rules that are alike for many operators, as tables: flags, spellings, axes, ranks of operands."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.checks.base import NodeFacts
from compiler.ir.infer import SELECTIONS, STATIC_OPERANDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FLAGS = _words(
    "align_corners allowzero antialias center_point_box ceil_mode count_include_pad exclude_outside exclusive fmod "
    "interleaved inverse is_causal keepdims largest layout linear_before_reset noop_with_empty_axes onesided periodic "
    "reverse saturate select_last_index sorted storage_order training_mode transA transB upper"
)
"""Attributes that are 0 or 1 wherever they occur."""

_AUTO_PAD = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"),
    *("align_corners", "asymmetric", "tf_crop_and_resize"),
)
_REDUCTION = ("none", "sum", "mean")

SPELLINGS: dict[tuple[str, str], tuple[str | int, ...]] = {
    ("Attention", "qk_matmul_output_mode"): (0, 1, 2, 3),
    ("Attention", "softmax_precision"): (1, 10, 11, 16),
    ("AveragePool", "auto_pad"): _AUTO_PAD,
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("CausalConvWithState", "activation"): ("none", "silu", "swish"),
    ("Conv", "auto_pad"): _AUTO_PAD,
    ("ConvTranspose", "auto_pad"): _AUTO_PAD,
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("linear", "nearest", "cubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("GroupNormalization", "stash_type"): (1, 10, 11, 16),
    ("LayerNormalization", "stash_type"): (1,),
    ("LinearAttention", "update_rule"): ("linear", "gated", "delta", "gated_delta"),
    ("LpNormalization", "p"): (1, 2),
    ("LpPool", "auto_pad"): _AUTO_PAD,
    ("MaxPool", "auto_pad"): _AUTO_PAD,
    ("NegativeLogLikelihoodLoss", "reduction"): _REDUCTION,
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("QuantizeLinear", "precision"): (0, 1, 10, 11, 16),
    ("RMSNormalization", "stash_type"): (1,),
    ("Range", "stash_type"): (1, 11),
    ("Resize", "coordinate_transformation_mode"): _COORDINATES,
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("ScatterElements", "reduction"): ("none", "add", "mul", "max", "min"),
    ("ScatterND", "reduction"): ("none", "add", "mul", "max", "min"),
    ("SoftmaxCrossEntropyLoss", "reduction"): _REDUCTION,
    ("SpaceToDepth", "mode"): ("DCR", "CRD"),
    ("TensorScatter", "mode"): ("linear", "circular"),
    ("ai.onnx.preview.training.Momentum", "mode"): ("standard", "nesterov"),
}
"""(op, attribute) -> what it may be."""

AXIS_OF = _words(
    "ArgMax ArgMin Compress Concat Gather GatherElements Hardmax LayerNormalization LogSoftmax LpNormalization "
    "RMSNormalization ScatterElements Softmax Split TopK Unique"
)
"""Ops whose attribute `axis` counts the axes of the first operand."""

VECTORS: dict[str, tuple[int, ...]] = {
    op: operands
    for op, operands in STATIC_OPERANDS.items()
    if op not in ("CumSum", "CumProd", "OneHot", "Range", "DFT", "STFT", "MelWeightMatrix", *SELECTIONS - {"Compress"})
    and not op.endswith("Window")
}
"""Operands that are lists: axes, sizes, .. They must have rank 1."""

LONE_AXIS = frozenset({"Unsqueeze"})
"""Ops whose list may also be a scalar: onnx's own definitions write it so."""

SCALARS: dict[str, tuple[int, ...]] = {
    "Clip": (1, 2),
    "Dropout": (1, 2),
    "Trilu": (1,),
}
"""Operands that must have rank 0."""

SINGLES: dict[str, tuple[int, ...]] = {
    "CumSum": (1,),
    "CumProd": (1,),
    "OneHot": (1,),
    "DFT": (1, 2),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "STFT": (1, 3),
}
"""Operands of one element, of rank 0 or 1."""

SAFE = _words(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh Bernoulli BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast "
    "CastLike Ceil Celu Clip Compress Cos Cosh Div DynamicQuantizeLinear Elu Equal Erf Exp Floor Gelu Greater "
    "GreaterOrEqual HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax "
    "LpNormalization Max Mean Min Mish Mod Mul Neg NonMaxSuppression NonZero Not Or Pow RandomNormal RandomNormalLike "
    "RandomUniform RandomUniformLike Reciprocal Relu Round Selu Shape Shrink Sigmoid Sign Sin Sinh Size Softmax "
    "Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Trilu Unique Where Xor"
)
"""Ops for which types, broadcasting (which onnx's inference checks) and these tables are all there is to check."""


def tables(f: NodeFacts) -> Iterator[str]:
    """What a node violates of the tables."""
    op, attrs = f.node.op, f.node.attrs
    for name, value in attrs.items():
        if name in FLAGS and value not in (0, 1):
            yield f"attribute {name!r} is {value}, not 0 or 1"
        allowed = SPELLINGS.get((op, name))
        if allowed is not None and value not in allowed:
            yield f"attribute {name!r} is {value!r}, not one of {', '.join(map(str, allowed))}"
    if op in AXIS_OF and f.ins:
        axis, rank = f.attr("axis"), len(f.shape(0))
        if axis is not None and not -rank <= axis < rank:
            yield f"axis {axis} is out of the range of rank {rank}"
    yield from _ranks(f)


def _ranks(f: NodeFacts) -> Iterator[str]:
    op = f.node.op
    for i in VECTORS.get(op, ()):
        if f.has(i) and len(f.shape(i)) != 1 and not (op in LONE_AXIS and not f.shape(i)):
            yield f"operand {i} must be a list (rank 1), but has the type {f.type(i)}"
    for i in SCALARS.get(op, ()):
        if f.has(i) and f.shape(i):
            yield f"operand {i} must be a scalar (rank 0), but has the type {f.type(i)}"
    for i in SINGLES.get(op, ()):
        if f.has(i) and (f.type(i).size != 1 or len(f.shape(i)) > 1):
            yield f"operand {i} must have one element, but has the type {f.type(i)}"
