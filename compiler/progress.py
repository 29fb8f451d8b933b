"""What `onnxc train` shows: a progress bar on a terminal, and one line for each epoch."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from compiler.training import Epoch, Trainer


def follow(trainer: Trainer, epochs: int, as_json: bool = False) -> None:
    """Train, and show how it goes: epochs on standard output (as JSON objects), a bar on standard error."""
    console = Console(stderr=True)
    columns = (TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"), BarColumn(), MofNCompleteColumn())
    with (
        _ctrl_c() as pressed,
        Progress(
            *columns,
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
            disable=as_json or not console.is_terminal,
            redirect_stdout=False,
            transient=True,
        ) as bar,
    ):
        task = bar.add_task("", total=trainer.samples, epoch=1, epochs=epochs, loss="")

        def advance(epoch: int, done: int, loss: float | None) -> None:
            if pressed:
                raise KeyboardInterrupt
            if not bar.disable:
                bar.update(task, completed=done, epoch=epoch, loss="" if loss is None else f"{loss:.4f}")

        for e in trainer.run(epochs, advance):
            line = json.dumps(_fields(e, trainer.metric_name)) if as_json else _line(e, epochs, trainer.metric_name)
            if console.is_terminal and sys.stdout is not None and sys.stdout.isatty() and not as_json:
                bar.console.print(line, highlight=False, markup=False)  # above the bar
            else:
                click.echo(line)


@contextmanager
def _ctrl_c() -> Iterator[list[bool]]:
    """Gives a list that is empty until Ctrl-C: Python drops the exception if it comes in a finalizer."""
    pressed: list[bool] = []

    def handler(number: int, frame: FrameType | None) -> None:
        pressed.append(True)
        raise KeyboardInterrupt

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, or somebody else's
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        yield pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _fields(e: Epoch, metric: str) -> dict[str, float | None]:
    """JSON has no NaN and no infinity: null."""
    numbers = {"loss": e.loss, metric: e.metric}
    return {"epoch": e.number} | {n: v if v is not None and math.isfinite(v) else None for n, v in numbers.items()}


def _line(e: Epoch, epochs: int, metric: str) -> str:
    loss = "" if e.loss is None else f"  loss {e.loss:.4f}"
    value = "" if e.metric is None else f"  {metric} {f'{e.metric:.2%}' if metric == 'accuracy' else f'{e.metric:.5g}'}"
    return f"epoch {e.number:>{len(str(epochs))}}{loss}{value}"
