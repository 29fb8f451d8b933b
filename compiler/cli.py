"""The command `onnxc`: the only module that prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import compiler
from compiler.errors import CompileError, InputError, OnnxcError, Problem

REFUSED, USAGE = 1, 2
"""Exit codes: the model, data or machine will not do; the command was called wrongly."""


def main() -> NoReturn:
    """Entry point of the command. Exit code 0: done; 1: refused; 2: wrong usage."""
    try:
        command(standalone_mode=False)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.Abort:
        _error("interrupted")
        sys.exit(130)
    except click.ClickException as e:
        e.show()
        sys.exit(USAGE)
    sys.exit(0)


def _error(text: str) -> None:
    click.echo(f"error: {text}", err=True)


def _reporting(f: Callable[..., None]) -> Callable[..., None]:
    """Turn onnxc's errors into messages and exit code 1."""

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            f(*args, **kwargs)
        except CompileError as e:
            for problem in e.problems:
                _error(str(problem))
            raise click.exceptions.Exit(REFUSED) from e
        except (OnnxcError, OSError, MemoryError) as e:
            _error(str(e) or type(e).__name__)
            raise click.exceptions.Exit(REFUSED) from e
        except BrokenPipeError:
            with suppress(OSError):
                sys.stdout.close()
            raise click.exceptions.Exit(REFUSED) from None

    return wrapped


def _sizes(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for v in values:
        name, found, size = v.rpartition("=")
        if not found or not name or not size.isdigit() or int(size) < 1:
            raise click.BadParameter(f"{v!r} is not NAME=SIZE, as in N=64", context, parameter)
        sizes[name] = int(size)
    return sizes


model_argument = click.argument("model", type=click.Path(path_type=Path))
dim_option = click.option("--dim", "dims", multiple=True, callback=_sizes, metavar="N=64", help="Size of a symbolic dim.")
algorithm_option = click.option("--algorithm", type=click.IntRange(0), help="Index of the one TrainingInfoProto to run.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(compiler.__version__, prog_name="onnxc")
def command() -> None:
    """ONNX training model in, one compiled training step out."""


@command.command()
@model_argument
@dim_option
@click.option("--json", "as_json", is_flag=True, help="Print the problems as a JSON list.")
@_reporting
def check(model: Path, dims: dict[str, int], as_json: bool) -> None:
    """Tell everything that keeps MODEL from being compiled.

    Symbolic dims that --dim leaves open are taken as 2.
    """
    problems: Sequence[Problem] = compiler.check(model, dims=dims)
    if as_json:
        click.echo(json.dumps([{"what": p.what, "where": p.where, "remedy": p.remedy} for p in problems], indent=2))
    else:
        for p in problems:
            _error(str(p))
        if not problems:
            click.echo("ok: the model compiles")
    if problems:
        raise click.exceptions.Exit(REFUSED)


@command.command("dump-ir")
@model_argument
@dim_option
@algorithm_option
@click.option("--after", metavar="PASS", help="Stop after this pass; `--after help` lists them.")
@click.option("--stage", type=click.Choice(["import", "final", "source"]), help="IR as imported, final IR, or code.")
@click.option("--graph", type=click.Choice(["step", "infer", "initialize", "all"]), default="step", show_default=True)
@_reporting
def dump_ir(
    model: Path, dims: dict[str, int], algorithm: int | None, after: str | None, stage: str | None, graph: str
) -> None:
    """Print the IR of MODEL at a stage of its way (by default the final one), or the generated code.

    The text parses again: `compiler.ir.text.parse`.
    """
    from compiler.api import emitted, program
    from compiler.ir.text import dump
    from compiler.passes.pipeline import PASS_NAMES

    if after == "help":
        click.echo("\n".join(PASS_NAMES))
        return
    if after is not None and stage is not None:
        raise click.UsageError("--after and --stage exclude each other")
    if after is not None and after not in PASS_NAMES:
        raise click.UsageError(f"there is no pass {after!r}: there are {', '.join(PASS_NAMES)}")
    p = program(model, dims=dims, algorithm=algorithm, until=after or ("import" if stage == "import" else None))
    graphs = p.graphs()
    if graph not in (*graphs, "all"):
        raise InputError(f"the model has no graph {graph!r}: it has {', '.join(graphs)}")
    chosen = graphs if graph == "all" else {graph: graphs[graph]}
    for g in chosen.values():
        click.echo(emitted(g) if stage == "source" else dump(g), nl=False)


@command.command()
@model_argument
@dim_option
@algorithm_option
@click.option("--after", metavar="PASS", help="Stop after this pass, or `import`; by default after all.")
@click.option("--graph", type=click.Choice(["step", "infer", "initialize"]), default="step", show_default=True)
@click.option("--out", "-o", required=True, type=click.Path(path_type=Path), help="File to write.")
@_reporting
def lower(
    model: Path, dims: dict[str, int], algorithm: int | None, after: str | None, graph: str, out: Path
) -> None:
    """Write the step of MODEL as plain ONNX, which any runtime can run: state are extra inputs and outputs."""
    from compiler.codegen.export import save

    save(compiler.lower(model, after, dims=dims, algorithm=algorithm, graph=graph), out)
    click.echo(f"wrote {out}")


@command.command()
@model_argument
@click.argument("folder", type=click.Path(path_type=Path))
@dim_option
@algorithm_option
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of random numbers.")
@click.option("--name", default="onnxc", show_default=True, help="Prefix of all names in C.")
@click.option("--cpu", default="host", show_default=True, help="host, x86-64, x86-64-v2, x86-64-v3 or x86-64-v4.")
@click.option("--cc", default="cc", show_default=True, help="C compiler that links the library.")
@_reporting
def build(
    model: Path, folder: Path, dims: dict[str, int], algorithm: int | None, threads: int, seed: int, name: str, cpu: str,
    cc: str,
) -> None:  # fmt: skip
    """Build MODEL ahead of time: a native library with a C header, weights and a manifest, in FOLDER."""
    compiler.build(
        model, folder, dims=dims, algorithm=algorithm, threads=threads, seed=seed, name=name, cpu=cpu, cc=cc
    )
    click.echo(f"wrote {folder}")


def _arrays(path: Path) -> dict[str, Any]:
    """The arrays of an npz file. InputError for any other."""
    try:
        with np.load(path, allow_pickle=False) as found:
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise InputError(f"{str(path)!r} holds one array: make an .npz with the model's inputs by name")
            return dict(found)
    except FileNotFoundError as e:
        raise InputError(f"there is no file {str(path)!r}") from e
    except (ValueError, EOFError, KeyError, OSError) as e:
        raise InputError(f"{str(path)!r} is no .npz file of arrays: {e}") from e


@command.command()
@model_argument
@click.option("--data", required=True, type=click.Path(path_type=Path), help=".npz: arrays by input name.")
@click.option("--eval", "evaluation", type=click.Path(path_type=Path), help=".npz to measure the metric on.")
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the trained inference model.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of shuffling and random numbers.")
@click.option("--initialize", is_flag=True, help="Run the model's initialization first.")
@dim_option
@algorithm_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per epoch.")
@_reporting
def train(
    model: Path,
    data: Path,
    evaluation: Path | None,
    epochs: int,
    batch: int,
    out: Path | None,
    threads: int,
    seed: int,
    initialize: bool,
    dims: dict[str, int],
    algorithm: int | None,
    as_json: bool,
) -> None:
    """Train MODEL on the arrays of a file, and write the trained model.

    The first axis of every array counts samples; they are shuffled anew for each epoch. The loss is the step's output
    of that name, or its first scalar; the metric is accuracy for integer labels, else the mean absolute error.
    """
    from compiler.trainer import Trainer

    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"--out: there is no folder {str(out.parent)!r}")
    trainer = Trainer(model, _arrays(data), _arrays(evaluation) if evaluation else None, batch, dims, threads, seed, algorithm)
    if initialize:
        trainer.step.initialize(seed)
    console = Console(stderr=True)
    columns = (TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TextColumn("loss {task.fields[loss]}"), TimeRemainingColumn(), console=console, disable=as_json
    ) as bar:
        task = bar.add_task("", total=len(trainer.data), epoch=1, epochs=epochs, loss="")

        def advance(epoch: int, done: int, loss: float | None) -> None:
            bar.update(task, completed=done, epoch=epoch, loss="" if loss is None else f"{loss:.4f}")

        for e in trainer.run(epochs, advance):
            if as_json:
                click.echo(json.dumps({"epoch": e.number, "loss": e.loss, trainer.metric_name: e.metric}))
                continue
            loss = "" if e.loss is None else f"  loss {e.loss:.4f}"
            metric = "" if e.metric is None else f"  {trainer.metric_name} {_shown(e.metric, trainer.metric_name)}"
            bar.console.print(f"epoch {e.number:>{len(str(epochs))}}{loss}{metric}", highlight=False)
    if out is not None:
        trainer.step.export(out)
        click.echo(f"wrote {out}", err=as_json)


def _shown(value: float, metric: str) -> str:
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.5g}"
