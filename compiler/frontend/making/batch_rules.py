"""What each operator does to the axis of samples: a rule sets the axis of its outputs, or says that it is `Mixed`."""

from __future__ import annotations

from onnx import NodeProto

from compiler.frontend.making.batch_shapes import SHAPE_RULES, axes_of
from compiler.frontend.making.batch_tracker import Mixed, Rule, Tracker, only_first, same
from compiler.frontend.making.facts import attribute, int_attribute


def _leading(t: Tracker, node: NodeProto) -> None:
    """Samples are on axis 0, as these operators have it."""
    if only_first(t, node) != 0:
        raise Mixed("samples are not on its axis 0")
    t.set(node, 0)


def _elementwise(t: Tracker, node: NodeProto) -> None:
    if not any(v in t.axis for v in node.input):
        return
    rank = max(t.rank(v) for v in node.input if v)
    found = {t.axis[v] + rank - t.rank(v) for v in node.input if v in t.axis}
    if len(found) > 1:
        raise Mixed("its operands have samples on different axes")
    (axis,) = found
    for v in node.input:
        own = axis - rank + t.rank(v) if v else -1
        if v and v not in t.axis and own >= 0 and t.dims(v)[own] != 1:
            raise Mixed(f"{v!r} has the size {t.dims(v)[own]} along the axis of samples")
    t.set(node, axis)


def _gemm(t: Tracker, node: NodeProto) -> None:
    a, b = node.input[:2]
    if b in t.axis or t.axis.get(a) != int_attribute(node, "transA", 0):
        raise Mixed("samples are in the axis that it sums over, or in its second operand")
    if len(node.input) > 2 and node.input[2]:
        c = node.input[2]
        if t.rank(c) == 2 and (t.axis.get(c, 0) != 0 or (c not in t.axis and t.dims(c)[0] != 1)):
            raise Mixed("its third operand has another axis of samples")
    t.set(node, 0)


def _matmul(t: Tracker, node: NodeProto) -> None:
    ranks = [t.rank(v) for v in node.input]
    rank = max(ranks)
    axes = [t.axis[v] + rank - r if v in t.axis else None for v, r in zip(node.input, ranks, strict=True)]
    left, right = axes
    if left == rank - 1 or right == rank - 2 or min(ranks) < 2 or (left is not None and right not in (None, left)):
        raise Mixed("samples are in the axis that it sums over")
    axis = left if left is not None else right
    assert axis is not None
    other = node.input[1 if left is not None else 0]
    own = axis - rank + t.rank(other)
    if other not in t.axis and axis < rank - 2 and own >= 0 and t.dims(other)[own] != 1:
        raise Mixed(f"{other!r} has a size of its own along the axis of samples")
    if left is not None and left == right and axis >= rank - 2:
        raise Mixed("both operands have samples among their rows and columns")
    t.set(node, axis)


def _transpose(t: Tracker, node: NodeProto) -> None:
    rank = t.rank(node.input[0])
    given = next((list(a.ints) for a in node.attribute if a.name == "perm"), list(range(rank))[::-1])
    t.set(node, list(given).index(only_first(t, node)))


def _along(default: int) -> Rule:
    """Operators over one axis, which must not be that of the samples."""

    def rule(t: Tracker, node: NodeProto) -> None:
        axis, rank = only_first(t, node), t.rank(node.input[0])
        over = int_attribute(node, "axis", default) % rank
        if over == axis:
            raise Mixed("it is over the axis of samples")
        t.set(node, axis)

    return rule


def _softmax(t: Tracker, node: NodeProto) -> None:
    axis, rank = only_first(t, node), t.rank(node.input[0])
    new = t.facts.opset >= 13
    over = int_attribute(node, "axis", -1 if new else 1) % rank
    if axis == over or (not new and axis > over):
        raise Mixed("it is over the axis of samples")
    t.set(node, axis)


def _normalize(t: Tracker, node: NodeProto) -> None:
    axis, rank = only_first(t, node), t.rank(node.input[0])
    if axis >= int_attribute(node, "axis", -1) % rank:
        raise Mixed("it is over the axis of samples")
    t.set(node, axis)


def _reduce(t: Tracker, node: NodeProto) -> None:
    axis, rank = only_first(t, node), t.rank(node.input[0])
    single = attribute(node, "axis")
    axes = (
        [int_attribute(node, "axis", 0)] if single is not None or node.op_type.startswith("Arg") else axes_of(t, node)
    )
    if not axes and not int_attribute(node, "noop_with_empty_axes", 0):
        raise Mixed("it reduces all axes, also that of the samples")
    gone = {a % rank for a in axes or []}
    if axis in gone:
        raise Mixed("it reduces the axis of samples")
    t.set(node, axis if int_attribute(node, "keepdims", 1) else axis - sum(a < axis for a in gone))


def _pad(t: Tracker, node: NodeProto) -> None:
    axis, rank = only_first(t, node), t.rank(node.input[0])
    pads = next((list(a.ints) for a in node.attribute if a.name == "pads"), None)
    if pads is None:
        known = t.known(node.input[1])
        if known is None or len(node.input) > 3:
            raise Mixed("its pads are computed")
        pads = [int(v) for v in known.reshape(-1)]
    if pads[axis] or pads[axis + rank]:
        raise Mixed("it pads the axis of samples")
    t.set(node, axis)


def _recurrent(t: Tracker, node: NodeProto) -> None:
    layout = int_attribute(node, "layout", 0)
    if t.axis.get(node.input[0]) != 1 - layout or any(v in t.axis for v in node.input[1:4]):
        raise Mixed("samples are not on its axis of the batch")
    for position in range(4, min(len(node.input), 7)):
        v = node.input[position]
        if not v or v in t.axis:
            continue
        value = t.facts.constant(v)
        if value is None or position == 4 or value.any():
            raise Mixed(f"its operand {v!r} is for one sample")
        t.drop(position)  # a state of zeros is what it starts with anyway
    names = list(node.output) + [""] * 3
    for v, axis in zip(names, (0 if layout else 2, 1 - layout, 1 - layout), strict=False):
        if v:
            t.axis[v] = axis


def _resize(t: Tracker, node: NodeProto) -> None:
    if only_first(t, node) != 0 or attribute(node, "axes") is not None:
        raise Mixed("samples are not on its axis 0")
    scales = t.known(node.input[2 if node.op_type == "Resize" and len(node.input) > 2 else 1])
    if scales is None or scales.size == 0 or scales.reshape(-1)[0] != 1 or (len(node.input) > 3 and node.input[3]):
        raise Mixed("its sizes are given, also that of the batch")
    t.set(node, 0)


_UNARY = (
    "Relu Sigmoid Tanh Exp Log Neg Abs Sqrt Erf Gelu LeakyRelu Elu Selu Celu Softplus Softsign HardSigmoid HardSwish "
)
_UNARY += (
    "Mish Swish ThresholdedRelu Reciprocal Floor Ceil Round Sign Not Sin Cos Clip Dropout Shrink IsNaN IsInf Atan "
)
_BINARY = (
    "Add Sub Mul Div Pow Max Min Mean Sum PRelu Where Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor Mod"
)
_LEADING = "Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool BatchNormalization LpPool LRN "
_LEADING += "InstanceNormalization GroupNormalization DepthToSpace SpaceToDepth"
_REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare"

RULES: dict[str, Rule] = {
    **SHAPE_RULES,
    **dict.fromkeys(_UNARY.split(), same),
    **dict.fromkeys(_BINARY.split(), _elementwise),
    **dict.fromkeys(_LEADING.split(), _leading),
    **{f"Reduce{r}": _reduce for r in _REDUCTIONS.split()},
    **dict.fromkeys(["ArgMax", "ArgMin"], _reduce),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], _softmax),
    **dict.fromkeys(["LayerNormalization", "RMSNormalization"], _normalize),
    **dict.fromkeys(["LSTM", "GRU", "RNN"], _recurrent),
    **dict.fromkeys(["Resize", "Upsample"], _resize),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Transpose": _transpose,
    "Split": _along(0),
    "LpNormalization": _along(-1),
    "Pad": _pad,
}
