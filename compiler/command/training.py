"""`onnxc train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import compiler
from compiler import command
from compiler.command.options import (
    algorithm_option,
    arrays_of,
    dim_option,
    max_trip_option,
    memory_limit_option,
    model_argument,
    path_type,
    seed_option,
    static_option,
    straight_through_option,
    threads_option,
)
from compiler.command.outputs import check_outputs
from compiler.command.reporting import error, note, reporting, shell
from compiler.command.signals import Signals, Stopped, caught

if TYPE_CHECKING:
    from compiler.training import Run, Trainer


def _named(*suffixes: str) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """Checks that the name of a file ends with one of these, by which its format is chosen."""

    def check(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and path.suffix.lower() not in suffixes:
            raise click.BadParameter(f"{str(path)!r} must end with {' or '.join(suffixes)}.", context, parameter)
        return path

    return check


@click.command()
@model_argument
@click.option("--data", required=True, type=path_type, help="Arrays by input name: .npz, or a folder of .npy files.")
@click.option("--eval", "evaluation", type=path_type, help="Validation data, as --data; measured after each epoch.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME",
    help="What to measure: accuracy, mae, mse, loss, or a scalar output of the model.",
)  # fmt: skip
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, help="In all, also with --resume.")
@click.option("--batch", type=click.IntRange(1), help="Samples of a step; by default the model's fixed size, or 32.")
@click.option("--batch-dim", metavar="N", help="The dim that counts samples; by default the one of most inputs.")
@click.option("--no-shuffle", is_flag=True, help="Take the samples in their order, in every epoch.")
@click.option("--out", type=path_type, help="Where to write the trained inference model.")
@click.option("--averaged", is_flag=True, help="Write the running averages of the weights to --out.")
@click.option("--run", "folder", type=path_type, help="Folder for checkpoint, best and last model, log.")
@click.option("--checkpoint-every", "every", type=click.IntRange(1), metavar="N", help="Steps; always after an epoch.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint of --run.")
@click.option("--log", type=path_type, callback=_named(".csv", ".jsonl"), help=".csv or .jsonl: a row for each epoch.")
@click.option("--plot", type=path_type, callback=_named(".png", ".svg"), help=".png or .svg: picture of the losses.")
@click.option("--early-stop", type=click.IntRange(1), metavar="N", help="End after N epochs without a better one.")
@click.option(
    "--monitor", metavar="METRIC",
    help="What decides which epoch is better, by default the first metric, or the loss.",
)  # fmt: skip
@click.option("--monitor-max", is_flag=True, help="The larger --monitor is, the better; so it is for accuracy.")
@click.option("--stop-on-nan", is_flag=True, help="End with an error if the loss is not finite.")
@threads_option
@seed_option
@click.option("--initialize", is_flag=True, help="Run the model's initialization first.")
@dim_option
@static_option
@max_trip_option
@algorithm_option
@straight_through_option
@memory_limit_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per epoch.")
@reporting
def train(
    model: Path,
    data: Path,
    evaluation: Path | None,
    metrics: Sequence[str],
    static: Path | None,
    epochs: int,
    no_shuffle: bool,
    out: Path | None,
    averaged: bool,
    folder: Path | None,
    every: int | None,
    resume: bool,
    log: Path | None,
    plot: Path | None,
    early_stop: int | None,
    monitor: str | None,
    monitor_max: bool,
    stop_on_nan: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Train MODEL on the arrays of a file, and write the trained model.

    One dim of the model counts samples, on whichever axis of an array; they are shuffled anew for each epoch. The loss
    is the step's output of that name, or its first scalar. A run (--run) that is interrupted goes on with --resume,
    with the same bits.
    """
    for option, given, other, need in (
        ("--checkpoint-every", every, folder, "--run DIR, the folder of the checkpoint"),
        ("--resume", resume, folder, "--run DIR, the folder of the checkpoint"),
        ("--metric", metrics, evaluation, "--eval DATA, which it is measured on"),
        ("--monitor", monitor, folder or early_stop, "--run DIR, which keeps the best model, or --early-stop N"),
        ("--monitor-max", monitor_max, monitor, "--monitor METRIC"),
        ("--averaged", averaged, out, "--out FILE, where they are written to"),
    ):
        if given and not other:
            raise click.UsageError(f"{option} needs {need}.")
    read = {"--data": data, "--eval": evaluation, "--static": static}
    check_outputs({"--out": out, "--log": log, "--plot": plot}, model, read, folder)
    work = compiler.training
    if plot is not None:
        work.check_plot(plot)
    with caught() as signals:
        run = work.Run(
            folder,
            resume=resume,
            every=every,
            log=log,
            monitor=monitor,
            monitor_max=monitor_max,
            early_stop=early_stop,
            stop_on_nan=stop_on_nan,
        )

        def fits(trainer: Trainer) -> bool:
            goes_on = run.check(trainer, epochs)
            if averaged:
                trainer.step.averaged()  # an error now if there are none, rather than after the training
            if goes_on and not as_json:
                click.echo("compiling...", err=True)
            return goes_on

        trainer = work.Trainer(
            model,
            work.read_arrays(data),
            arrays_of(evaluation),
            metrics=list(metrics) or None,
            static=arrays_of(static),
            shuffle=not no_shuffle,
            compiling=fits,
            **options,
        )
        if trainer.unused:
            note(f"the model has no use for {', '.join(map(repr, trainer.unused))} of the data")
        for text in trainer.notes:
            note(shell(text))
        if out is None and folder is None:
            note("the trained weights are written nowhere: give --out FILE, or --run DIR")
        try:
            done = command.progress.follow(trainer, run, epochs, signals, as_json)
        finally:
            if plot is not None and run.rows:
                work.draw_curve(run.rows, plot)
                click.echo(f"wrote {plot}", err=as_json)
        if run.ended == "request":
            return _interrupted(trainer, run, signals)
        if text := _ending(trainer, run, done):
            note(text)
        if run.best is not None and done:
            epoch = trainer.position.best_epoch
            best = f", {run.best.name} is of epoch {epoch}" if epoch and run.best.exists() else ""
            click.echo(f"wrote {folder}{best}", err=as_json)
        if out is not None:
            trainer.step.export(out, averaged=averaged)
            click.echo(f"wrote {out}", err=as_json)
        return 0


def _interrupted(trainer: Trainer, run: Run, signals: Signals) -> int:
    """Say where training was interrupted, and how it goes on."""
    again = [*sys.argv[1:], *(["--resume"] if "--resume" not in sys.argv else [])]
    stopped = Stopped(signals.number or 0)
    at = trainer.position
    where = f"in epoch {at.epoch + 1}" if at.samples else f"at the end of epoch {at.epoch}"
    error(
        f"{stopped} after step {at.step}, {where}: {run.checkpoint} is written, go on with: onnxc {shlex.join(again)}"
    )
    return stopped.code


def _ending(trainer: Trainer, run: Run, done: int) -> str:
    """Why training ended where it did, if not because all its epochs are done now."""
    at = trainer.position
    if run.ended == "early stop":
        never = "was never finite" if at.monitor != "loss" or trainer.loss else "is not there: the model has none"
        was = f"was best in epoch {at.best_epoch}" if at.best_epoch else never
        return f"stopped after epoch {at.epoch}: {at.monitor} {was}"
    return "" if done else f"the run is done, it has {at.epoch} epochs: go on with a larger --epochs"
