"""`onnxc check`, `dump-ir` and `operators`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import compiler
from compiler.command.options import (
    arrays_of,
    check_pass,
    dim_option,
    max_trip_option,
    model_argument,
    specializing,
    static_option,
)
from compiler.command.reporting import REFUSED, error, give_static, note, reporting, shell
from compiler.errors import Problem


@click.command()
@model_argument
@dim_option
@static_option
@max_trip_option
@click.option("--json", "as_json", is_flag=True, help="Print the problems as a JSON list.")
@reporting
def check(model: Path, dims: dict[str, int], static: Path | None, max_trip: int | None, as_json: bool) -> int:
    """Tell everything that keeps MODEL from being compiled.

    Symbolic dims that --dim leaves open are tried as 2, 32 and 224.
    """
    found = compiler.api.examine(model, dims=dims, static=arrays_of(static), max_trip=max_trip)
    problems = [*found.problems, *(_unchecked(p, found.inputs) for p in found.unchecked)]
    if as_json:
        shown = [{"what": shell(p.what), "where": p.where, "remedy": shell(p.remedy)} for p in problems]
        click.echo(json.dumps(shown, indent=2))
    else:
        for p in problems:
            error(shell(str(p)))
        if not problems:
            click.echo("ok: the model compiles")
    for text in found.notes:
        note(shell(text))
    return REFUSED if problems else 0


def _unchecked(p: Problem, inputs: Sequence[str]) -> Problem:
    """Why the model could not be checked to its end, and what to do about it on the command line."""
    return Problem(f"not checked to the end: {p.what}", p.where, give_static(inputs, p))


@click.command("dump-ir")
@specializing
@click.option("--after", metavar="PASS", help="Stop after this pass; `--after help` lists them.")
@click.option("--stage", type=click.Choice(["import", "final", "source"]), help="IR as imported, final IR, or code.")
@click.option("--graph", type=click.Choice(["step", "infer", "initialize", "all"]), default="step", show_default=True)
@reporting
def dump_ir(
    model: Path,
    dims: dict[str, int],
    static: Path | None,
    algorithm: int | None,
    after: str | None,
    stage: str | None,
    graph: str,
    **options: Any,
) -> None:
    """Print the IR of MODEL at a stage of its way (by default the final one), or the generated code.

    The text parses again (`compiler.ir.text.parse`), given the tensors that it names by `sha256:` (docs/ir.md).
    """
    if after is not None:
        if after == "help":
            click.echo("\n".join(compiler.api.PASS_NAMES))
            return
        if stage is not None:
            raise click.UsageError("--after and --stage exclude each other.")
        check_pass(after)
    until = after or ("import" if stage == "import" else None)
    program = compiler.api.program(
        model, dims=dims, static=arrays_of(static), algorithm=algorithm, until=until, **options
    )
    chosen = program.graphs().values() if graph == "all" else [compiler.api.graph_of(program, graph)]
    for g in chosen:
        click.echo(compiler.api.emitted(g) if stage == "source" else compiler.api.dump(g), nl=False)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--markdown", is_flag=True, help="Print the page docs/operators.md.")
@reporting
def operators(as_json: bool, markdown: bool) -> None:
    """List the operators: the opsets that are read, how each one runs, and how it is differentiated."""
    rows = compiler.catalogue.operators()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(r) for r in rows], indent=2))
    elif markdown:
        click.echo(compiler.catalogue.markdown(rows), nl=False)
    else:
        for r in rows:
            click.echo(f"{r.op:26} {r.forward:12} {r.gradient:12} {r.notes}".rstrip())
