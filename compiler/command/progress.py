"""What `onnxc train` shows: a progress bar on a terminal, and one line for each epoch."""

from __future__ import annotations

import math
import sys
import time
from datetime import timedelta

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from compiler.command.reporting import note
from compiler.command.signals import Signals
from compiler.training import Epoch, Run, Trainer
from compiler.training.log import as_json

_PAUSE = 0.05
"""Seconds between two updates of the bar: steps may take less than drawing it."""


def follow(trainer: Trainer, run: Run, epochs: int, signals: Signals, json: bool = False) -> int:
    """Train, and show how it goes: epochs on standard output (as JSON objects), a bar on standard error.

    Gives how many epochs ended.

    In a run with a folder, a signal ends the training with a checkpoint after the step that runs; else at once.
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.fields[samples]}{task.fields[loss]}"),
        _Rate(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        disable=json or not console.is_terminal,
        redirect_stdout=False,
        transient=True,
    ) as bar:
        shown = _Shown(trainer, bar, epochs)
        beside = sys.stdout is not None and sys.stdout.isatty() and not bar.disable

        def advance(epoch: int, done: int, loss: float | None) -> None:
            signals.check()
            signals.gently = run.folder is not None  # before the first step is compiled, there is nothing to keep
            shown.step(epoch, done, loss)

        count = 0
        for e in run.train(trainer, epochs, advance, stop=lambda: signals.number is not None, note=shown.note):
            line = as_json(e.record()) if json else epoch_line(e, epochs)
            if beside:
                console.print(line, highlight=False, markup=False)  # above the bar
            else:
                click.echo(line)
            count += 1
        signals.gently = False
    return count


class _Shown:
    """The bar: of the samples of all epochs, so that the time left is that of the training."""

    def __init__(self, trainer: Trainer, bar: Progress, epochs: int) -> None:
        self._bar, self._trainer = bar, trainer
        self._task = bar.add_task(
            "", total=epochs * trainer.samples, epoch=1, epochs=epochs, done=0, samples=trainer.samples, loss=""
        )
        self._last, self._finite = -math.inf, True

    def step(self, epoch: int, done: int, loss: float | None) -> None:
        """After a step."""
        if loss is not None and self._finite and not math.isfinite(loss):
            self._finite = False
            self.note(f"the loss is {loss} in step {self._trainer.position.step}, in epoch {epoch}")
        now = time.monotonic()
        if self._bar.disable or now - self._last < _PAUSE:
            return
        self._last = now
        shown = "" if loss is None else f"  loss {_loss(loss)}"
        completed = (epoch - 1) * self._trainer.samples + done
        self._bar.update(self._task, completed=completed, epoch=epoch, done=done, loss=shown)

    def note(self, text: str) -> None:
        """A note, above the bar if there is one."""
        if self._bar.disable:
            note(text)
        else:
            self._bar.console.print(f"note: {text}", highlight=False, markup=False)


class _Rate(ProgressColumn):
    """Samples in a second, over the last half minute."""

    def render(self, task: Task) -> Text:
        """The text of the column."""
        speed = task.speed
        return Text("" if speed is None else f"{speed:,.0f} samples/s" if speed >= 10 else f"{speed:.2g} samples/s")


def epoch_line(e: Epoch, epochs: int) -> str:
    """What an epoch gave, for people."""
    parts = [f"epoch {e.number:>{len(str(epochs))}}"]
    if e.loss is not None:
        parts.append(f"loss {_loss(e.loss)}")
    parts += [f"{name} {shown(name, v)}" for name, v in e.metrics.items() if name != "loss"]
    if "loss" in e.metrics:
        parts.append(f"validation loss {shown('loss', e.metrics['loss'])}")
    return "  ".join([*parts, _duration(e.seconds)])


def shown(metric: str, value: float) -> str:
    """A value of a metric, for people."""
    kind = metric.partition(":")[0]  # as in accuracy:OUTPUT
    return f"{value:.2%}" if kind == "accuracy" else _loss(value) if kind == "loss" else f"{value:.5g}"


def _loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.5g}"  # also what is not finite


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
