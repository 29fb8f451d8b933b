"""What is supported: a row for every operator of ai.onnx and ai.onnx.preview.training, read from the registries.

`onnxc operators` prints it, and docs/operators.md is written from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import onnx
from onnx.defs import OpSchema

from compiler.codegen.calls import LOWERINGS
from compiler.codegen.elementwise import ELEMENTWISE
from compiler.codegen.support import HALF, WIDE
from compiler.codegen.units import VIEWS
from compiler.frontend.upgrade import OLDEST_OPSET
from compiler.ir.bodies import has_body
from compiler.ir.builder import INTERNAL_OPS
from compiler.ir.evaluate import RANDOM_OPS
from compiler.ir.infer import STATIC_OPERANDS
from compiler.ir.proto import CANONICAL_OPSET, OPSETS, TRAINING_DOMAIN, op_name
from compiler.passes.gradients import RULES
from compiler.passes.gradients.nature import NO_FLOATS, ZERO

_CONTROL = frozenset({"If", "Loop", "Scan"})
_UPGRADED = {"Scatter": "ScatterElements", "Upsample": "Resize"}
"""Deprecated operators -> the one that they are read as."""

_NOTES = {
    "Bernoulli": "draws from onnxc's own generator",
    "Constant": "read as a constant of the IR",
    "Dropout": "the mask comes from onnxc's own generator, except in the backend for ONNX's test suite",
    "Gradient": "any order, any point; see [training-models.md](training-models.md)",
    "If": "constant or run-time condition; see [control-flow.md](control-flow.md)",
    "Loop": "see [control-flow.md](control-flow.md)",
    "Multinomial": "draws from onnxc's own generator",
    "NonMaxSuppression": "on values that are known at compile time",
    "NonZero": "on values that are known at compile time",
    "QuantizeLinear": "straight-through gradient with `straight_through`",
    "Round": "straight-through gradient with `straight_through`",
    "Scan": "see [control-flow.md](control-flow.md)",
    "Scatter": "read as ScatterElements",
    "Unique": "on values that are known at compile time",
    "Upsample": "read as Resize",
}


@dataclass(frozen=True)
class Row:
    """One operator.

    opsets: those at which its definition changed and that can be read. forward: kernel, fused (into loops with its
    neighbours), view (costs nothing), definition (runs through simpler operators), body (nested graphs), constant, or
    a reason in parentheses why there is none. gradient: rule, definition, zero, or '-' where there is nothing to
    differentiate. notes: what to know.
    """

    op: str
    domain: str
    opsets: tuple[int, ...]
    forward: str
    gradient: str
    notes: str

    @property
    def supported(self) -> bool:
        """Whether the operator runs."""
        return not self.forward.startswith("(")


def operators() -> list[Row]:
    """All rows, by domain and name."""
    return [_row(s) for s in _schemas()]


def _schemas() -> Iterator[OpSchema]:
    """The newest schema of each operator, deprecated ones included that are read as another."""
    every = onnx.defs.get_all_schemas()
    for s in sorted(every, key=lambda s: (s.domain, s.name)):
        if s.domain in OPSETS and (not s.deprecated or s.name in _UPGRADED):
            yield s


def _row(s: OpSchema) -> Row:
    op = op_name(s.domain, s.name)
    forward = _forward(s, op)
    gradient = "-" if forward.startswith("(") else _gradient(_UPGRADED.get(op, op))
    return Row(s.name, s.domain or "ai.onnx", _opsets(s), forward, gradient, "; ".join(_notes(s, op)))


def _opsets(s: OpSchema) -> tuple[int, ...]:
    versions = _history()[s.domain, s.name]
    if s.domain == TRAINING_DOMAIN:
        return tuple(versions)
    oldest = max((v for v in versions if v <= OLDEST_OPSET), default=0)  # the one in force at the oldest opset
    return tuple(v for v in versions if oldest <= v <= CANONICAL_OPSET)


@cache
def _history() -> dict[tuple[str, str], list[int]]:
    """Domain and name of every operator -> the versions of its definition, in order."""
    found: dict[tuple[str, str], set[int]] = {}
    for s in onnx.defs.get_all_schemas_with_history():
        found.setdefault((s.domain, s.name), set()).add(s.since_version)
    return {key: sorted(versions) for key, versions in found.items()}


def _forward(s: OpSchema, op: str) -> str:
    if op in _UPGRADED:
        return _forward(onnx.defs.get_schema(_UPGRADED[op], CANONICAL_OPSET, ""), _UPGRADED[op])
    if why := _category(s):
        return f"({why})"
    if s.name == "Gradient":
        return "pass"
    if op == "Constant":
        return "constant"
    if op in _CONTROL:
        return "body"
    if op in VIEWS:
        return "view"
    if op in ELEMENTWISE:
        return "fused"
    if op in LOWERINGS:
        return "kernel"
    if has_body(op):
        return "definition"
    if op in RANDOM_OPS or op == "Dropout":
        return "pass"
    return "constant" if set(range(s.min_input)) <= set(STATIC_OPERANDS.get(op, ())) else "(not supported)"


def _category(s: OpSchema) -> str:
    """Why an operator can have no place in a training step of numeric tensors; '' for the others."""
    if s.name.startswith(("Sequence", "Optional", "SplitToSequence", "ConcatFromSequence")):
        return "sequences and optionals"
    if s.name == "ImageDecoder":
        return "decodes compressed images"
    takes = {c.type_param_str: c.allowed_type_strs for c in s.type_constraints}
    kinds = [takes.get(p.type_str, [p.type_str]) for p in (*s.inputs, *s.outputs)]
    if s.name == "TfIdfVectorizer" or any(list(k) == ["tensor(string)"] for k in kinds):
        return "strings"
    return ""


def _gradient(op: str) -> str:
    if op in _CONTROL or op in RULES:
        return "rule"
    if op in NO_FLOATS:
        return "-"
    if op in ZERO:
        return "zero"
    if op.endswith(".Gradient") or has_body(op):
        return "definition"
    return "none"


def _notes(s: OpSchema, op: str) -> Iterator[str]:
    if s.name in _NOTES:
        yield _NOTES[s.name]
    if op in INTERNAL_OPS and s.domain == "":
        yield "defined by onnxc"
    static = [s.inputs[i].name for i in STATIC_OPERANDS.get(op, ()) if i < len(s.inputs)]
    if static:
        yield f"known at compile time: {', '.join(static)}"
    if op in WIDE:
        yield f"{' and '.join(sorted(HALF))} computed in f32"


def markdown(rows: list[Row]) -> str:
    """The page docs/operators.md."""
    lines = [
        "# Operators",
        "",
        "Written by `onnxc operators --markdown` from the registries of the compiler; a test compares it with them.",
        f"Models of opset {OLDEST_OPSET} to {CANONICAL_OPSET} are read, in any form an operator had in them.",
        "",
        "*Forward*: **fused** elementwise into loops, **view** of memory, hand-written **kernel**, **definition** by",
        "simpler operators, nested graph as **body**, a **pass** of the compiler that replaces it, or computed at",
        "compile time as a **constant**. *Gradient*: by a **rule**, through the **definition**, **zero** wherever it",
        "exists, or - where no floating-point operand leads to a floating-point result. All of them can be",
        "differentiated again, to any order. What takes float32 takes float16 and bfloat16 as well; where there is no",
        "kernel for them, an operator computes in float32 and rounds its results. Elements of at most 8 bits (float8,",
        "float6, float4, int4, int2) are cast, quantized and moved, by every operator that ONNX gives them.",
    ]
    for domain in dict.fromkeys(r.domain for r in rows):
        supported = [r for r in rows if r.domain == domain and r.supported]
        lines += ["", f"## {domain}", "", "| operator | opsets | forward | gradient | notes |", "|---|---|---|---|---|"]
        lines += [
            f"| {r.op} | {' '.join(map(str, r.opsets))} | {r.forward} | {r.gradient} | {r.notes} |" for r in supported
        ]
    left = [r for r in rows if not r.supported]
    lines += ["", "## Not supported", ""]
    for why in sorted({r.forward for r in left}):
        lines.append(f"* {why[1:-1]}: {', '.join(r.op for r in left if r.forward == why)}")
    return "\n".join(lines) + "\n"
