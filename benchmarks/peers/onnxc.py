"""onnxc: the training model, compiled."""

from __future__ import annotations

from typing import Any

import onnx

import compiler
from benchmarks.peers import Case, Made
from compiler import api

VERSION = compiler.__version__


def make_step(case: Case) -> Made:
    """The step; its details are the bytes that the memory plan has for it."""
    model = onnx.load(case.folder / "training.onnx")
    x, label = case.batch()
    step = api.compile(model, threads=case.threads, outputs=["loss"])
    batch = {"x": x, "label": label}

    def details() -> dict[str, Any]:
        use = step.memory
        parts = {"arena": use.arena, "state": use.state, "const": use.constants, "table": use.table}
        return {"plan_bytes": use.total, **{f"plan_{name}_bytes": n for name, n in parts.items()}}

    return Made(lambda: float(step(batch)["loss"]), details)
