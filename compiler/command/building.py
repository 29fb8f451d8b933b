"""`onnxc lower` and `build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import compiler
from compiler.command.options import (
    arrays_of,
    check_pass,
    memory_limit_option,
    path_type,
    seed_option,
    specializing,
)
from compiler.command.outputs import check_folder, check_outputs
from compiler.command.reporting import reporting


@click.command()
@specializing
@click.option("--after", metavar="PASS", help="Stop after this pass, or `import`; by default after all.")
@click.option("--graph", type=click.Choice(["step", "infer", "initialize"]), default="step", show_default=True)
@click.option(
    "--training-graph", is_flag=True, help="The step as it is written, for viewers, its nodes grouped by name."
)
@click.option("--out", "-o", required=True, type=path_type, help="File to write.")
@reporting
def lower(
    model: Path,
    dims: dict[str, int],
    static: Path | None,
    algorithm: int | None,
    after: str | None,
    graph: str,
    training_graph: bool,
    out: Path,
    **options: Any,
) -> None:
    """Write the step of MODEL as plain ONNX, which any runtime can run: state are extra inputs and outputs.

    --training-graph writes the operators of MODEL itself, with Gradient nodes; --after expand_gradients then writes the
    backward pass in place of these.
    """
    if after not in (None, "import"):
        check_pass(after)
    if training_graph:
        if graph != "step":
            raise click.UsageError("--training-graph is the step: leave --graph out.")
        if after is None and (dims or static or any(options[n] for n in ("max_trip", "straight_through"))):
            what = "--dim, --static, --max-trip and --straight-through are for --training-graph with --after"
            raise click.UsageError(f"{what}: add `--after expand_gradients`, or leave them out.")
    check_outputs({"--out": out}, model, {"--static": static})
    options |= {"dims": dims, "static": arrays_of(static), "algorithm": algorithm}
    if training_graph:
        lowered = compiler.training_graph(model, until=after, **options)
    else:
        lowered = compiler.lower(model, after, graph=graph, **options)
    compiler.api.save_model(lowered, out)
    click.echo(f"wrote {out}")


@click.command()
@specializing
@click.argument("folder", type=path_type)
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="As many as may be used.")
@seed_option
@memory_limit_option
@click.option("--name", default="onnxc", show_default=True, help="Prefix of all names in C.")
@click.option("--cpu", default="host", show_default=True, help="host, x86-64, x86-64-v2, x86-64-v3 or x86-64-v4.")
@click.option("--cc", default="cc", show_default=True, help="C compiler that links the library.")
@reporting
def build(model: Path, folder: Path, static: Path | None, **options: Any) -> None:
    """Build MODEL ahead of time: a native library with a C header, weights and a manifest, in FOLDER."""
    check_folder(folder, model, {"--static": static})
    compiler.build(model, folder, static=arrays_of(static), **options)
    click.echo(f"wrote {folder}")
