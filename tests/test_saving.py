"""Writing models: one file, or two where protobuf's limit does not let one do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from compiler import saving
from compiler.codegen.export import export
from compiler.ir.builder import Builder


def model() -> onnx.ModelProto:
    b = Builder("large")
    w = b.state("w", np.arange(1000, dtype=np.float32))
    b.output("y", b.op("Neg", w))
    return export(b.build())


def test_large_models_go_to_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = model()
    kept = given.SerializeToString()
    saving.save_model(given, tmp_path / "small.onnx")
    monkeypatch.setattr(saving, "INLINE_LIMIT", 1000)
    saving.save_model(given, tmp_path / "large.onnx")
    assert {p.name for p in tmp_path.iterdir()} == {"small.onnx", "large.onnx", "large.onnx.data"}
    assert given.SerializeToString() == kept
    for name in ("small", "large"):
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(None, {})[0], -np.arange(1000))
