"""The lowest opset at which a node means what it means at the canonical one: more runtimes have kernels for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from onnx import defs, helper

from compiler.ir.graph import Node
from compiler.ir.proto import CANONICAL_OPSET, OPSETS
from compiler.ir.types import TensorType, onnx_dtype

_Condition = Callable[[Node, Sequence[TensorType | None]], bool]


def _always(node: Node, types: Sequence[TensorType | None]) -> bool:
    return True


def _without(attribute: str) -> _Condition:
    return lambda node, types: attribute not in node.attrs


def _exact_type(node: Node, types: Sequence[TensorType | None]) -> bool:
    return all(t is None or t.dtype not in ("f16", "bf16") for t in types)


def _floor_mode(node: Node, types: Sequence[TensorType | None]) -> bool:
    return not node.attr("ceil_mode", 0)


_REWORDED: dict[tuple[str, int], _Condition] = {
    ("AveragePool", 22): _floor_mode,  # says which windows count with ceil_mode
    ("BitShift", 28): _always,  # adds signed types
    ("Cast", 19): _without("saturate"),  # for float8
    ("Cast", 24): _without("round_mode"),  # for float8e8m0
    ("CastLike", 19): _without("saturate"),
    ("CastLike", 24): _without("round_mode"),
    ("MaxPool", 22): _floor_mode,
    ("Mod", 28): _always,  # adds floating-point types for fmod=0
    ("Range", 27): _exact_type,  # adds 16-bit types, with stash_type
    ("ReduceMax", 20): _always,  # adds bool
    ("ReduceMin", 20): _always,
    ("SpaceToDepth", 28): _without("mode"),  # adds mode
    **{(op, 14): _always for op in ("Add", "Sub", "Mul", "Div")},  # adds 8- and 16-bit integers
}
"""Versions whose text or attributes changed, with the condition under which a node means the same before and after."""


def lowest_opset(node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType | None]) -> int:
    """The first version of its domain at which a standard node is valid and has its meaning. Types: None if absent."""
    schemas = _history(node.domain, node.op_type)
    lowest = schemas[-1]
    for earlier, later in zip(reversed(schemas[:-1]), reversed(schemas), strict=False):
        condition = _REWORDED.get((node.op, later.since_version))
        same = condition(node, (*inputs, *outputs)) if condition else _unchanged(earlier, later)
        if not (same and _fits(earlier, node, inputs, outputs)):
            break
        lowest = earlier
    return lowest.since_version


@cache
def _history(domain: str, op_type: str) -> tuple[defs.OpSchema, ...]:
    """All versions of an operator up to the canonical one, in order."""
    versions = (defs.get_schema(op_type, v, domain) for v in _versions().get((domain, op_type), ()))
    return tuple(s for s in versions if s.since_version <= OPSETS.get(domain, CANONICAL_OPSET))


@cache
def _versions() -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for s in defs.get_all_schemas_with_history():
        found.setdefault((s.domain, s.name), []).append(s.since_version)
    return {key: sorted(versions) for key, versions in found.items()}


def _unchanged(earlier: defs.OpSchema, later: defs.OpSchema) -> bool:
    """Whether two versions differ in nothing but types: the same text, operands and attributes."""
    return _signature(earlier) == _signature(later)


def _signature(s: defs.OpSchema) -> object:
    operands = [[(p.name, p.option) for p in side] for side in (s.inputs, s.outputs)]
    attributes = {k: (a.type, a.required, a.default_value.SerializeToString()) for k, a in s.attributes.items()}
    return "".join((s.doc or "").split()), operands, attributes


def _fits(
    s: defs.OpSchema, node: Node, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType | None]
) -> bool:
    """Whether a version has the node's attributes and allows its types."""
    if not node.attrs.keys() <= s.attributes.keys():
        return False
    for params, types in ((s.inputs, inputs), (s.outputs, outputs)):
        for i, t in enumerate(types):
            param = params[min(i, len(params) - 1)] if params else None
            if t is not None and (param is None or _type_string(t.dtype) not in param.types):
                return False
    return True


@cache
def _type_string(dtype: str) -> str:
    """'f32' -> 'tensor(float)'."""
    return f"tensor({helper.tensor_dtype_to_string(onnx_dtype(dtype)).removeprefix('TensorProto.').lower()})"
