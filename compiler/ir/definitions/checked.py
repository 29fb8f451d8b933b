"""Checked: a value, and a condition that must not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.bodies import internal
from compiler.ir.builder import Builder
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError


@internal("Checked")
def checked(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
    """(x, wrong bool[]) -> x. The step refuses, with the attribute `message`, where `wrong` is true; exports do not."""
    if len(inputs) != 2 or not all(inputs) or str(b.type(inputs[1])) != "bool[]":
        raise InferenceError("Checked takes a value and a bool[]")
    if not isinstance(attrs.get("message"), str):
        raise InferenceError("Checked needs a message")
    return [b.op("Identity", inputs[0])]
