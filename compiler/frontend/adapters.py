"""Upgrades of single operators that onnx.version_converter (1.23) lacks or gets wrong.

Each adapter gives nodes of the canonical opset that compute what the old node did. Found by comparing every operator at
every opset with onnxruntime (tests/frontend/test_upgrade.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from compiler.ir.types import AnyArray

Fresh = Callable[[str], str]


class Facts(Protocol):
    """What an adapter may ask about the node's operands."""

    @property
    def constants(self) -> Mapping[str, TensorProto]:
        """Small constants by name."""
        ...


class Emit:
    """Collects the nodes that replace one node."""

    def __init__(self, node: NodeProto, fresh: Fresh):
        self.node, self.fresh = node, fresh
        self.attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes: list[NodeProto] = []

    def input(self, i: int) -> str:
        """Name of an input of the old node; '' if it is absent."""
        return self.node.input[i] if i < len(self.node.input) else ""

    def output(self, i: int) -> str:
        """Name of an output of the old node; '' if it is absent."""
        return self.node.output[i] if i < len(self.node.output) else ""

    def add(self, op: str, inputs: list[str], outputs: list[str] | None = None, **attrs: Any) -> str:
        """Add a node; gives the name of its first output, which is a new one by default."""
        outputs = outputs or [self.fresh(f"{self.node.name or self.node.output[0]}/{op}")]
        self.nodes.append(helper.make_node(op, inputs, outputs, self.node.name, **attrs))
        return outputs[0]

    def const(self, array: AnyArray) -> str:
        """A constant."""
        return self.add("Constant", [], value=numpy_helper.from_array(array))

    def scalar(self, value: float, like: str) -> str:
        """A scalar of the dtype of another value."""
        return self.add("CastLike", [self.const(np.array(value, np.float32)), like])


Adapter = Callable[[Emit, Facts], None]


def adapt(node: NodeProto, opset: int, facts: Facts, fresh: Fresh) -> list[NodeProto] | None:
    """The nodes for one of an older opset; None if there is no adapter for it: the converter does it right."""
    for op, last, adapter in _ADAPTERS:
        if op == node.op_type and opset <= last:
            emit = Emit(node, fresh)
            adapter(emit, facts)
            return emit.nodes or None
    return None


def _clip(e: Emit, facts: Facts) -> None:
    """Bounds were float attributes, also for double data."""
    limits = np.finfo(np.float32)
    lo, hi = e.attrs.get("min", limits.min), e.attrs.get("max", limits.max)
    x = e.input(0)
    bounds = [e.scalar(lo, x) if lo > limits.min else "", e.scalar(hi, x) if hi < limits.max else ""]
    e.add("Clip", [x, *bounds], [e.output(0)])


def _pad(e: Emit, facts: Facts) -> None:
    """Pads and the value were attributes, the value a float also for double data."""
    pads = e.const(np.array(e.attrs["pads"], np.int64))
    mode = e.attrs.get("mode", b"constant")
    value = [e.scalar(e.attrs.get("value", 0.0), e.input(0))] if mode == b"constant" else []
    e.add("Pad", [e.input(0), pads, *value], [e.output(0)], mode=mode)


def _dropout(e: Emit, facts: Facts) -> None:
    """Below opset 10 the mask had the type of the data."""
    if not e.output(1):
        return
    ratio = e.const(np.array(e.attrs.get("ratio", 0.5), np.float32))
    mask = e.fresh(f"{e.output(1)}/bool")
    e.add("Dropout", [e.input(0), ratio], [e.output(0), mask])
    e.add("CastLike", [mask, e.input(0)], [e.output(1)])


def _batch_normalization(e: Emit, facts: Facts) -> None:
    """Below opset 14 training was asked for by the outputs: Y, mean, var, and the batch's own mean and variance."""
    if e.attrs.get("spatial", 1) != 1 or not any(e.output(i) for i in range(1, 5)):
        return
    epsilon, momentum = e.attrs.get("epsilon", 1e-5), e.attrs.get("momentum", 0.9)
    inputs = list(e.node.input)
    outputs = [e.output(i) for i in range(3)]
    e.add("BatchNormalization", inputs, outputs, epsilon=epsilon, momentum=momentum, training_mode=1)
    if e.output(3) or e.output(4):  # running statistics without any memory are those of the batch
        outputs = [e.fresh(f"{e.node.name or e.output(3)}/again"), e.output(3), e.output(4)]
        e.add("BatchNormalization", inputs, outputs, epsilon=epsilon, momentum=0.0, training_mode=1)


def _hardmax(e: Emit, facts: Facts) -> None:
    """Below opset 13 all axes from `axis` on counted as one."""
    flat = e.add("Flatten", [e.input(0)], axis=e.attrs.get("axis", 1))
    e.add("Reshape", [e.add("Hardmax", [flat], axis=1), e.add("Shape", [e.input(0)])], [e.output(0)])


def _resize(e: Emit, facts: Facts) -> None:
    """Upsample, and Resize of opset 10: coordinates were just divided by the scale.

    The nearest pixel was the one below where an axis grows, the one above where it shrinks (as in onnxruntime).
    """
    x, out = e.input(0), e.output(0)
    mode = e.attrs.get("mode", b"nearest").decode()
    scales = None
    if "scales" in e.attrs:
        scales = np.array(e.attrs["scales"], np.float32)
    elif e.input(1) in facts.constants:
        scales = numpy_helper.to_array(facts.constants[e.input(1)])
    fixed = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode != "nearest" or scales is None or (scales >= 1).all():
        given = e.const(scales) if scales is not None else e.input(1)
        e.add("Resize", [x, "", given], [out], nearest_mode="floor", **fixed)
        return
    grown = e.add("Resize", [x, "", e.const(np.maximum(scales, 1))], nearest_mode="floor", **fixed)
    e.add("Resize", [grown, "", e.const(np.minimum(scales, 1))], [out], nearest_mode="ceil", **fixed)


_SHIFTED_ROUNDING = {b"floor": "round_prefer_ceil", b"round_prefer_floor": "ceil"}
"""Rounding of a coordinate -> how the one that is 0.5 less is rounded to the same."""


def _resize_11(e: Emit, facts: Facts) -> None:
    """Opsets 11 and 12 had tf_half_pixel_for_nn, which lies 0.5 behind half_pixel."""
    how = _SHIFTED_ROUNDING.get(e.attrs.get("nearest_mode", b"round_prefer_floor"))
    if e.attrs.get("coordinate_transformation_mode") != b"tf_half_pixel_for_nn" or how is None:
        return
    if e.attrs.get("mode", b"nearest") == b"nearest":
        inputs = [e.input(0), "", *(e.input(i) for i in (2, 3))]
        e.add("Resize", inputs, [e.output(0)], coordinate_transformation_mode="half_pixel", nearest_mode=how)


def _group_normalization(e: Emit, facts: Facts) -> None:
    """Before opset 21, scale and bias were for each group, not for each channel."""
    groups = e.attrs["num_groups"]
    channels = e.add("Shape", [e.input(0)], start=1, end=2)
    each = e.add("Div", [channels, e.const(np.array([groups], np.int64))])
    wide = e.add("Concat", [e.const(np.array([groups], np.int64)), each], axis=0)
    column = e.const(np.array([groups, 1], np.int64))
    flat = [
        e.add("Reshape", [e.add("Expand", [e.add("Reshape", [e.input(i), column]), wide]), channels]) for i in (1, 2)
    ]
    epsilon = e.attrs.get("epsilon", 1e-5)
    e.add("GroupNormalization", [e.input(0), *flat], [e.output(0)], num_groups=groups, epsilon=epsilon)


# operator, the last opset that has the old form, adapter
_ADAPTERS: list[tuple[str, int, Adapter]] = [
    ("Clip", 10, _clip),
    ("Pad", 10, _pad),
    ("Dropout", 9, _dropout),
    ("BatchNormalization", 13, _batch_normalization),
    ("Hardmax", 12, _hardmax),
    ("Upsample", 9, _resize),
    ("Resize", 10, _resize),
    ("Resize", 12, _resize_11),
    ("GroupNormalization", 20, _group_normalization),
]
