"""`onnxc memory`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import compiler
from compiler.command.options import (
    arrays_of,
    memory_limit_option,
    specializing,
    threads_option,
)
from compiler.command.reporting import reporting

if TYPE_CHECKING:
    from compiler.memory_report import MemoryReport


@click.command()
@specializing
@threads_option
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="What a step returns; by default all outputs.")
@memory_limit_option
@click.option("--least", "smallest", is_flag=True, help="Look for the smallest --memory-limit, too.")
@click.option("--values", type=click.IntRange(0), default=10, show_default=True, help="How many values to show.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@reporting
def memory(
    model: Path, static: Path | None, outputs: Sequence[str], values: int, as_json: bool, **options: Any
) -> None:
    """Tell how much memory a step of MODEL takes, and what is in it when it takes the most."""
    report = compiler.memory_report.memory(model, static=arrays_of(static), outputs=list(outputs) or None, **options)
    if as_json:
        click.echo(json.dumps(_fields(report, values), indent=2))
        return
    use = dataclasses.asdict(report.use) | {"total": report.use.total}
    if report.least is not None:
        use["least"] = report.least
    for name, nbytes in use.items():
        click.echo(f"{name:10} {nbytes:15,} bytes")
    if report.recomputed:
        click.echo(f"{report.recomputed} operators are computed again")
    if values:
        click.echo("largest at the peak of the arena:")
    for held in report.peak[:values]:
        what = f"{held.name} {held.type}" if held.name else "working memory of a kernel"
        click.echo(f"{held.nbytes:15,} {what}")


def _fields(report: MemoryReport, values: int) -> dict[str, Any]:
    peak = [
        {"name": held.name or None, "type": str(held.type) if held.type else None, "bytes": held.nbytes}
        for held in report.peak[:values]
    ]
    use = dataclasses.asdict(report.use) | {"total": report.use.total}
    return {**use, "least": report.least, "recomputed": report.recomputed, "peak": peak}
