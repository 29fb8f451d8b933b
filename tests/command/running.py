"""Running the command, and what is said of a refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Done(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


def process(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "compiler", *map(str, arguments)],
        **{"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120, **options},
    )


def refused(done: Done, *parts: str, code: int = 1) -> None:
    """The exit code, and an error that has these parts, on lines of their own; notes may come with it."""
    assert done.code == code, done
    lines = [line for line in done.err.splitlines() if line != "compiling..." and not line.startswith("note: ")]
    assert lines, done
    assert "Traceback" not in done.err
    assert "a defect of onnxc" not in done.err
    assert all(line.startswith("error: ") and line.isprintable() for line in lines), done.err
    for part in parts:
        assert part in done.err
