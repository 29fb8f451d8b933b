"""Output types of standard nodes, by onnx's own inference and the corrections of `compiler.ir.corrections`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference
from onnx.checker import ValidationError
from onnx.defs import OpSchema

from compiler.ir.corrections import CORRECTIONS
from compiler.ir.graph import Node
from compiler.ir.guards import crash
from compiler.ir.known import KNOWN_LIMIT
from compiler.ir.proto import OPSETS, attr_to_proto, element_type_name, schema, type_from_proto, type_to_proto
from compiler.ir.types import DTYPES, AnyArray, TensorType, dtype_from_onnx, onnx_dtype

KnownInput = Callable[[int], AnyArray | None]
"""Value of the i-th input if it is known at compile time."""

Types = tuple[TensorType | None, ...]

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

STATIC_OPERANDS: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    **{f"Reduce{kind}": (1,) for kind in _REDUCTIONS},
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
}
"""Operands that must be known at compile time, by op and position: they decide shapes, or the axis worked along."""

SELECTIONS = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
"""Ops whose shapes depend on the values of data, which may be large."""

_OPSET_IDS = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
_memo: dict[object, Types] = {}


class InferenceError(ValueError):
    """The node cannot be typed: ONNX's inference refuses it. remedy: what to do about it, if that can be told."""

    def __init__(self, what: str, remedy: str = ""):
        self.remedy = remedy
        super().__init__(what)


class NotStatic(ValueError):
    """A shape depends on values that are not known at compile time: of the inputs `operands`."""

    def __init__(self, node: Node, operands: tuple[str, ...]):
        self.node, self.operands = node, operands
        super().__init__(f"the shapes of {node.op} depend on run-time values: {', '.join(map(repr, operands))}")


def infer(node: Node, types: Sequence[TensorType | None], known: KnownInput) -> Types:
    """Type of each output of a standard node without bodies; None for an absent one.

    types: of the inputs, None for an absent one. Raises InferenceError, NotStatic.
    """
    s = schema(node.op)
    if s is None:
        raise InferenceError(f"there is no operator {node.op}")
    if node.bodies:
        raise InferenceError(f"{node.op} with a nested graph is not supported")
    static = STATIC_OPERANDS.get(node.op)
    if static is None:
        try:
            return remembered(node, types, lambda: _run(s, node, types, {}))
        except _Incomplete:
            static = tuple(range(len(types)))
    wanted = [i for i in static if i < len(types) and types[i] is not None]
    limited = node.op not in SELECTIONS
    data = {i: v for i in wanted if (v := known(i)) is not None and not (limited and v.size > KNOWN_LIMIT)}
    missing = tuple(node.inputs[i] for i in wanted if i not in data)
    if missing and node.op in STATIC_OPERANDS:
        raise NotStatic(node, missing)
    values = tuple((i, v.dtype.str, v.shape, v.tobytes()) for i, v in data.items())
    try:
        return remembered(node, types, lambda: _run(s, node, types, data), values)
    except _Incomplete:
        what = "the shape of its result depends on the values of its operands, which is not supported"
        raise InferenceError(what, "compute it outside of the model, and feed the result as an input") from None


def remembered(
    node: Node, types: Sequence[TensorType | None], compute: Callable[[], Types], extra: object = ()
) -> Types:
    """`compute()`, kept for equal nodes on operands of equal types; `extra`: what else it depends on."""
    key = (node.key, tuple(types), tuple(map(bool, node.outputs)), extra)
    found = _memo.get(key)
    if found is None:
        if len(_memo) > 100_000:  # bounds memory in a process that compiles model after model
            _memo.clear()
        found = _memo[key] = compute()
    return found


class _Incomplete(Exception):
    """onnx's inference leaves the type of an output open."""


def _run(s: OpSchema, node: Node, types: Sequence[TensorType | None], data: dict[int, AnyArray]) -> Types:
    if node.op == "Range":  # onnx's own definitions give it lists of one element, as everybody takes them
        types = [TensorType(t.dtype) if t is not None and t.size == 1 else t for t in types]
        data = {i: v.reshape(()) if v.size == 1 else v for i, v in data.items()}
    names = [f"i{i}" if v else "" for i, v in enumerate(node.inputs)]
    outs = [f"o{i}" if v else "" for i, v in enumerate(node.outputs)]
    proto = NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outs)
    input_types: dict[str, TypeProto] = {n: type_to_proto(t) for n, t in zip(names, types, strict=True) if n and t}
    input_data: dict[str, TensorProto] = {names[i]: numpy_helper.from_array(v) for i, v in data.items()}
    try:
        proto.attribute.extend(attr_to_proto(node.op, k, v) for k, v in node.attrs.items())
    except (TypeError, ValueError) as e:
        raise InferenceError(str(e)) from e
    if what := crash(proto, s):
        raise InferenceError(what)
    try:
        result = shape_inference.infer_node_outputs(s, proto, input_types, input_data, opset_imports=_OPSET_IDS)
    except (shape_inference.InferenceError, ValidationError, ValueError, TypeError, RuntimeError, LookupError) as e:
        raise InferenceError("; ".join(dtype_problems(node.op, types)) or _short(str(e))) from e
    for p in result.values():
        if p.HasField("tensor_type") and dtype_from_onnx(elem := p.tensor_type.elem_type) is None and elem != 0:
            raise InferenceError(f"tensors of element type {element_type_name(elem)} are not supported")
    inferred = tuple(type_from_proto(result[n]) if n in result else None for n in outs)
    if node.op in CORRECTIONS:
        try:
            corrected = CORRECTIONS[node.op](node, types, data)
        except ValueError as e:
            raise InferenceError(str(e)) from e
        given = corrected if isinstance(corrected, tuple) else (corrected,)
        inferred = tuple(t or i if n else None for t, i, n in zip_longest(given[: len(outs)], inferred, outs))
    if any(t is None and n for t, n in zip(inferred, outs, strict=True)):
        raise _Incomplete
    return inferred


def dtype_problems(op: str, types: Sequence[TensorType | None]) -> list[str]:
    """What the schema of a standard op says against the dtypes of its operands; None for an absent or unknown one.

    Each must be one of those that its formal parameter takes, and parameters of one type variable must have one dtype.
    """
    s = schema(op)
    if s is None or not s.inputs:
        return []
    variables = {c.type_param_str for c in s.type_constraints}
    first: dict[str, tuple[str, TensorType]] = {}
    found = []
    for i, t in enumerate(types):
        formal = s.inputs[min(i, len(s.inputs) - 1)]
        if t is None:
            continue
        variadic = formal.option == OpSchema.FormalParameterOption.Variadic
        name = f"operand {i}" if variadic else formal.name
        if _type_string(t.dtype) not in formal.types:
            takes = [d for d in DTYPES if _type_string(d) in formal.types]
            few = (
                f"where {' or '.join(takes)} is expected" if 0 < len(takes) < 5 else "which the operator does not take"
            )
            found.append(f"{name} is {t.dtype}, {few}")
        elif formal.type_str in variables and (formal.is_homogeneous or not variadic):
            other, like = first.setdefault(formal.type_str, (name, t))
            if like.dtype != t.dtype:
                found.append(f"{name} is {t.dtype}, but {other} is {like.dtype}: they must be of one dtype")
    return found


def _type_string(dtype: str) -> str:
    """What schemas call a tensor of this dtype."""
    return f"tensor({TensorProto.DataType.Name(onnx_dtype(dtype)).lower()})"


def _short(message: str) -> str:
    """The message of onnx without its prefixes in brackets and its line breaks."""
    text = message.strip().splitlines()[0] if message.strip() else "inference failed"
    while text.startswith(("[", "(op_type")):
        _head, found, rest = text.partition("]" if text.startswith("[") else "):")
        if not found:
            break
        text = rest.strip(" :")
    return text.rstrip(".")
