"""`onnxc memory`, and `--memory-limit`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from compiler import memory_report
from tests.command.running import Done, refused
from tests.test_memory import network


def test_the_report(onnxc: Callable[..., Done], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(network(), path)
    use = memory_report.memory(path, outputs=["loss"]).use
    shown = onnxc("memory", path, "--output", "loss", "--least", "--values", "3")
    assert (shown.code, shown.err) == (0, "")
    assert f"total      {use.total:15,} bytes\n" in shown.out
    limit = use.total * 8 // 10
    done = onnxc("memory", path, "--output", "loss", "--json", "--memory-limit", f"{limit / 1000:.3f} kB")
    found = json.loads(done.out)
    assert found["total"] <= limit
    assert found["recomputed"] > 0
    assert found["peak"][0]["bytes"] >= found["peak"][-1]["bytes"] > 0
    refused(onnxc("memory", path, "--output", "lost"), "--output: the step has no output 'lost' (did you mean 'loss'?)")
    refused(onnxc("memory", path, "--memory-limit", "1KiB"), "the limit is 1024: ", "give a higher limit")


@pytest.mark.parametrize("size", ["much", "0", "-5MB", "1.5XB", "5 MBit"])
def test_sizes_that_are_none(onnxc: Callable[..., Done], size: str) -> None:
    refused(onnxc("memory", "m", "--memory-limit", size), f"{size!r} is no number of bytes, as 200MB", code=2)
