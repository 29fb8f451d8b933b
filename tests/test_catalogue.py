"""The list of operators: docs/operators.md is what the registries say, and they say what runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
from click.testing import CliRunner

from compiler.catalogue import markdown, operators
from compiler.command.entry import command

PAGE = Path(__file__).parent.parent / "docs" / "operators.md"


def test_the_page_is_up_to_date(golden: Callable[[Path, str], None]) -> None:
    golden(PAGE, markdown(operators()))


def test_every_operator_of_onnx_has_a_row() -> None:
    rows = {(r.domain, r.op) for r in operators()}
    current = {(s.domain or "ai.onnx", s.name) for s in onnx.defs.get_all_schemas() if not s.deprecated}
    assert {key for key in current if key[0] in ("ai.onnx", "ai.onnx.preview.training")} <= rows


def test_every_numeric_operator_runs() -> None:
    left = {r.forward for r in operators() if not r.supported}
    assert left == {"(decodes compressed images)", "(sequences and optionals)", "(strings)"}


def test_every_operator_has_its_gradient() -> None:
    assert not [r.op for r in operators() if r.gradient == "none"]


def test_the_command_prints_them() -> None:
    run = CliRunner().invoke(command, ["operators", "--json"])
    assert len(json.loads(run.output)) == len(operators())
    assert CliRunner().invoke(command, ["operators", "--markdown"]).output == markdown(operators())
    lines = CliRunner().invoke(command, ["operators"]).output.splitlines()
    assert any(line.split()[:3] == ["Conv", "kernel", "rule"] for line in lines)
