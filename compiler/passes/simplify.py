"""Operations that change no bit, by the operator: each rule holds for every input, NaN and negative zero included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.graph import Node
from compiler.ir.proto import default
from compiler.ir.types import AnyArray

Rule = Callable[[Builder, Node, Sequence[str]], str | None]
"""(builder, old node, its operands there) -> the value of its output, by cheaper nodes; None: no rule applies."""

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that keep the elements in their order: the output's shape says all."""

ELEMENTWISE = frozenset((
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf",
    "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu",
    "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal",
    "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum",
    "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
))  # fmt: skip
"""Operators that broadcast all their operands, and compute each element by itself."""

# With one operand, these are that operand.
_VARIADIC = ("Concat", "Max", "Mean", "Min", "Sum")
# With nothing to do, these are their first operand if the type stays.
_NO_OPS = (*RESHAPES, "Cast", "CastLike", "Expand")
# Over no axes, these are their first operand (ReduceL1 or ReduceSumSquare are not: they still compute).
_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def constant(b: Builder, value: str) -> AnyArray | None:
    """The array of a constant of the builder (not of a computed value, though it may be known); else None."""
    return None if not value or b.producer(value) is not None else b.known(value)


def simplified(b: Builder, node: Node, inputs: Sequence[str], points: frozenset[str]) -> list[str] | None:
    """Values in place of a node's outputs, if it does nothing that a cheaper node could not do; else None.

    `points` are values not to look through (see gradient_points).
    """
    if node.op == "onnxc.RandomBits":
        return _fixed_shape(b, node, inputs)
    if node.op in RESHAPES or node.op == "Transpose":
        value = _composed(b, node, inputs, points)
    else:
        rule = _RULES.get(node.op)
        value = rule(b, node, inputs) if rule else None
        if value is None and node.op in ELEMENTWISE:
            value = _unexpanded(b, node, inputs, points)
    return None if value is None else [value]


def _identity(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    return inputs[0]


def _one_operand(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    return inputs[0] if len(inputs) == 1 else None


def _same_type(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    (result,) = b.infer(Node(node.op, tuple(inputs), node.outputs, node.attrs))
    return inputs[0] if result == b.type(inputs[0]) else None


def _no_axes(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    axes = constant(b, inputs[1]) if len(inputs) > 1 and inputs[1] else np.zeros(0)
    empty = axes is not None and axes.size == 0 and node.attr("noop_with_empty_axes", 0)
    return inputs[0] if empty or b.type(inputs[0]).rank == 0 else None


def _no_pads(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    pads = constant(b, inputs[1])
    return inputs[0] if pads is not None and not pads.any() else None


def _no_repeats(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    repeats = constant(b, inputs[1])
    return inputs[0] if repeats is not None and bool(np.all(repeats == 1)) else None


def _whole(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    """Slice of everything, forwards."""
    steps = constant(b, inputs[4]) if len(inputs) > 4 and inputs[4] else np.ones(1)
    (result,) = b.infer(Node(node.op, tuple(inputs), node.outputs, node.attrs))
    same = result == b.type(inputs[0]) and steps is not None and bool(np.all(steps == 1))
    return inputs[0] if same else None


def _gathered_run(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    """Gather of neighbours, in order, is a Slice: `qkv[0]`, or the first positions of a table."""
    x, indices = inputs[0], constant(b, inputs[1])
    shape = b.shape(x)
    axis = node.attr("axis", 0) % len(shape)
    if indices is None or not indices.size or constant(b, x) is not None:  # of a constant, it is evaluated
        return None
    run = indices.reshape(-1).astype(np.int64)
    run = np.where(run < 0, run + shape[axis], run)
    first, end = int(run[0]), int(run[-1]) + 1
    if first < 0 or end > shape[axis] or not np.array_equal(run, np.arange(first, end)):
        return None
    part = b.op("Slice", x, b.ints([first]), b.ints([end]), b.ints([axis])) if end - first < shape[axis] else x
    return _reshaped(b, part, (*shape[:axis], *indices.shape, *shape[axis + 1 :]))


def _one_part(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    return inputs[0] if len(node.outputs) == 1 else None


def _no_limits(b: Builder, node: Node, inputs: Sequence[str]) -> str | None:
    return inputs[0] if not any(inputs[1:]) else None


def _fixed_shape(b: Builder, node: Node, inputs: Sequence[str]) -> list[str] | None:
    """RandomBits like a tensor, of which it needs the shape only: independent of it."""
    if len(inputs) < 3:
        return None
    hints = [b.fresh(v) if v else "" for v in node.outputs]
    return list(b.add(node.op, inputs[:2], {**node.attrs, "shape": b.shape(inputs[2])}, hints))


_RULES: dict[str, Rule] = {
    "Identity": _identity,
    "Split": _one_part,
    "Pad": _no_pads,
    "Tile": _no_repeats,
    "Slice": _whole,
    "Gather": _gathered_run,
    "Clip": _no_limits,
    **dict.fromkeys(_VARIADIC, _one_operand),
    **dict.fromkeys(("Cast", "CastLike", "Expand"), _same_type),
    **dict.fromkeys(_REDUCTIONS, _no_axes),
}


def _unexpanded(b: Builder, node: Node, inputs: Sequence[str], points: frozenset[str]) -> str | None:
    """Operands before they were expanded: the operator broadcasts them itself, or its result is what is expanded."""
    makers = [b.producer(v) if v and v not in points else None for v in inputs]
    sources = [m.inputs[0] if m is not None and m.op == "Expand" else v for v, m in zip(inputs, makers, strict=True)]
    if sources == list(inputs):
        return None
    (result,) = b.infer(Node(node.op, tuple(inputs), node.outputs, node.attrs))
    if result is None:
        return None
    value = b.op(node.op, *sources, name=node.outputs[0], **node.attrs)
    return value if b.type(value) == result else b.op("Expand", value, b.ints(result.shape))


def _composed(b: Builder, node: Node, inputs: Sequence[str], points: frozenset[str]) -> str | None:
    """A Reshape of a Reshape or Transpose of a Transpose as one node or none."""
    x = inputs[0]
    before = None if x in points else b.producer(x)
    source = before.inputs[0] if before is not None else x
    if node.op == "Transpose":
        order = _order(b, node, x)
        if before is not None and before.op == "Transpose":
            order, x = tuple(_order(b, before, source)[i] for i in order), source
        if order == tuple(range(len(order))):
            return x
        return None if x == inputs[0] else b.op("Transpose", x, name=node.outputs[0], perm=order)
    (result,) = b.infer(Node(node.op, tuple(inputs), node.outputs, node.attrs))
    if result is None:
        return None
    if before is not None and before.op in RESHAPES:
        x = source
    return None if x == inputs[0] and result != b.type(x) else _reshaped(b, x, result.shape, node.outputs[0])


def _reshaped(b: Builder, x: str, shape: tuple[int, ...], name: str = "") -> str:
    """X in another shape of as many elements; itself if it has it."""
    if shape == b.shape(x):
        return x
    # allowzero: the shape is exact, a 0 in it means 0
    return b.op("Reshape", x, b.ints(shape), name=name, allowzero=int(0 in shape) or None)


def _order(b: Builder, node: Node, x: str) -> tuple[int, ...]:
    rank = b.type(x).rank
    perm = node.attr("perm", default("Transpose", "perm"))
    return tuple(reversed(range(rank))) if perm is None else tuple(perm)
