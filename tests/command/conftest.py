"""The command in this process, and files for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.command import entry
from tests.command.running import Done
from tests.frontend.small import LINEAR, linear, make_model


@pytest.fixture
def onnxc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command in this process."""

    def run(*arguments: Any) -> Done:
        monkeypatch.setattr(sys, "argv", ["onnxc", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as e:
            entry.main()
        return Done(int(e.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of every kind, and data for the good one."""
    onnx.save(linear(), tmp_path / "linear.onnx")
    onnx.save(make_model(LINEAR), tmp_path / "plain.onnx")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)).astype(np.float32)
    t = x @ np.array([[3], [-2], [1]], np.float32)
    np.savez(tmp_path / "train.npz", x=x, t=t)
    np.savez(tmp_path / "test.npz", x=x[:11], t=t[:11])
    return tmp_path
