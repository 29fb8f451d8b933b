"""Checked: a value, and a condition that must not hold. Within: positions or lengths, and their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.bodies import expand_function, internal
from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.graph import Attr, Node
from compiler.ir.infer import InferenceError


@internal("Checked")
def checked(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """(x, wrong bool[]) -> x. The step refuses, with the attribute `message`, where `wrong` is true; exports do not."""
    if len(inputs) != 2 or not all(inputs) or str(b.type(inputs[1])) != "bool[]":
        raise InferenceError("Checked takes a value and a bool[]")
    if not isinstance(attrs.get("message"), str):
        raise InferenceError("Checked needs a message")
    return [b.op("Identity", inputs[0])]


@internal("Within")
def within(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """Integers that are to be from 0 to `high`: the step refuses others, which are `what`; exports do not."""
    if len(inputs) != 1 or not all(inputs) or b.type(inputs[0]).dtype not in ("i32", "i64"):
        raise InferenceError("Within takes i32 or i64")
    if not isinstance(attrs.get("high"), int) or not isinstance(attrs.get("what"), str):
        raise InferenceError("Within needs high and what")
    return [b.op("Identity", inputs[0])]


def confined(b: Builder, v: str, high: int, what: str) -> str:
    """Lengths or positions, i32 or i64, which the standard wants from 0 to `high`; '' stays.

    Definitions that would take another number for one that fits (an index from the end, say) say it by this. Values
    known at compile time are left to the preconditions.
    """
    if not v or b.known(v) is not None:
        return v
    return b.op("onnxc.Within", v, name=what.replace(" ", "_"), high=high, what=what)


def rotary_embedding(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """RotaryEmbedding(x, cos, sin, positions?): ONNX's own definition, for positions that are checked."""
    x, cos, sin, positions = (*inputs, "")[:4]
    positions = confined(b, positions, b.shape(cos)[0] - 1, "position_ids")
    given = (x, cos, sin, positions) if positions else (x, cos, sin)
    return expand_function(b, Node("RotaryEmbedding", given, ("y",), dict(attrs)), given)


INTERNAL_OPS["RotaryEmbedding"] = rotary_embedding
