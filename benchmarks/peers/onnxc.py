"""onnxc: the training model, compiled."""

from __future__ import annotations

from typing import Any

import onnx

import compiler
from benchmarks.peers import Case, Made
from compiler import api
from compiler.codegen.plan import make_plan

VERSION = compiler.__version__


def make_step(case: Case) -> Made:
    """The step; its details are the bytes that the memory plan has for it."""
    model = onnx.load(case.folder / "training.onnx")
    x, label = case.batch()
    step = api.compile(model, threads=case.threads, outputs=["loss"])

    def details() -> dict[str, Any]:
        layout = make_plan(step.graph, case.threads).layout
        parts = {"arena": layout.arena_bytes, "state": layout.state_bytes, "const": layout.const_bytes}
        return {"plan_bytes": sum(parts.values()), **{f"plan_{name}_bytes": n for name, n in parts.items()}}

    return Made(lambda: float(step(x=x, label=label)["loss"]), details)
