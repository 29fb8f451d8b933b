"""A run in a folder: checkpoints, the best and the last model, a log; and when training ends before its last epoch."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from compiler.errors import (
    DivergedError,
    InputError,
    StateError,
    checked_call,
    checked_flag,
    checked_integer,
    checked_path,
    did_you_mean,
    shown,
)
from compiler.runtime.files import remove_parts
from compiler.training.log import Log, Row, Written, check_log, mark, read_log
from compiler.training.metrics import LOSS
from compiler.training.position import NO_ROW, Position
from compiler.training.trainer import Epoch, Progress, Trainer, column

CHECKPOINT, BEST, LAST, LOG = "checkpoint.safetensors", "best.onnx", "last.onnx", "log.csv"
"""Files of a run; with another name for the log, the last one is not."""


class Run:
    """Trains, and keeps what comes of it.

    folder: made if it is not there; without one, nothing but the log is written. It gets `checkpoint.safetensors` (at
    the end of each epoch, and each `every` steps), `last.onnx` and `best.onnx` (inference models as of the last epoch,
    and of the best one by `monitor`) and the log. Each is written whole or not at all, so that a process that is killed
    at any moment leaves a run that can go on. resume: go on from the checkpoint, with the same bits in all files (but
    the times in the log) as without a break.

    log: a file that ends with .csv or .jsonl, by default log.csv in the folder. monitor: the column of the log that
    decides which model is best: by default the first metric, or without validation the loss. The smallest value is the
    best one, the largest of accuracy, and with monitor_max; of equal ones that of the smaller validation loss, if it is
    measured. early_stop: end after so many epochs of this run in a row that were not the best. stop_on_nan: end with a
    DivergedError if the loss is not finite; the checkpoint is then one of before that step.

    After `train`: ended is why it did: "epochs", "early stop" or "request". rows: those of the log, also where
    there is no file of it. InputError: the folder holds a run and `resume` is not given, or it has none to resume, or
    another process has it, or files of something else would be replaced. A folder that was made goes with the run if it
    stayed empty.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        every: int | None = None,
        log: str | os.PathLike[str] | None = None,
        monitor: str | None = None,
        monitor_max: bool = False,
        early_stop: int | None = None,
        stop_on_nan: bool = False,
    ) -> None:
        self.folder = None if folder is None else Path(checked_path("folder", folder))
        self.ended: str | None = None
        self.rows: list[Row] = []
        self._begun = False
        self._resume, self._monitor_max = checked_flag("resume", resume), checked_flag("monitor_max", monitor_max)
        self._stop_on_nan = checked_flag("stop_on_nan", stop_on_nan)
        self._every = None if every is None else checked_integer("every", every)
        self._early_stop = None if early_stop is None else checked_integer("early_stop", early_stop)
        if monitor is not None and not isinstance(monitor, str):
            raise InputError(f"monitor must be the name of a metric, or 'loss', not {shown(monitor)}")
        self._monitor = monitor
        if self.folder is None and (resume or every):
            raise InputError("checkpoints need a folder: give one to write them to, and to resume from")
        self._unlock: weakref.finalize[..., Any] | None = None
        self.log = (
            Path(checked_path("log", log)) if log is not None else None if self.folder is None else self.folder / LOG
        )
        if self.log is not None:
            check_log(self.log)
        if self.folder is not None:
            self._check(self.folder)
            self._take(self.folder)

    @property
    def checkpoint(self) -> Path | None:
        """Where the checkpoint is, or will be."""
        return None if self.folder is None else self.folder / CHECKPOINT

    @property
    def best(self) -> Path | None:
        """Where the model of the best epoch is, or will be."""
        return None if self.folder is None else self.folder / BEST

    def _check(self, folder: Path) -> None:
        """InputError: the folder is not for this run, by what is in it."""
        try:
            there_is = folder.exists()
        except OSError as e:
            raise InputError(f"folder: {str(folder)!r} cannot be one: {e.strerror}") from e
        if there_is and not folder.is_dir():
            raise InputError(f"{str(folder)!r} is a file: a run needs a folder")
        found = [path for name in (CHECKPOINT, BEST, LAST) if (path := folder / name).exists()]
        if odd := [path for path in found if not path.is_file()]:
            raise InputError(f"{str(odd[0])!r} is no file, so a run cannot write it: use another folder")
        there = folder / CHECKPOINT in found
        if self._resume and not there:
            raise InputError(f"there is no checkpoint in {str(folder)!r} to resume from: start without resume=True")
        if there and not self._resume:
            raise InputError(
                f"{str(folder)!r} holds a run already: go on with it by resume=True, or use another folder"
            )
        if found and not there and self.log is not None and not self.log.exists():  # a run begins with its log
            raise InputError(
                f"{str(found[0])!r} would be replaced, and there is neither checkpoint nor log of a run that it is of: "
                "use another folder"
            )

    def _take(self, folder: Path) -> None:
        """Make the folder, if there is none, and lock it. InputError: that cannot be."""
        made = list(itertools.takewhile(lambda p: not p.exists(), (folder, *folder.parents)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise InputError(f"the folder {str(folder)!r} cannot be made: {e.strerror}") from e
        if not os.access(folder, os.W_OK):
            raise InputError(f"the folder {str(folder)!r} cannot be written")
        weakref.finalize(self, _remove_empty, made)
        self._lock(folder)
        ours = [folder / name for name in (CHECKPOINT, BEST, LAST, f"{BEST}.data", f"{LAST}.data")]
        for path in (
            *ours,
            *([self.log] if self.log is not None and self.log.resolve().parent == folder.resolve() else ()),
        ):
            remove_parts(path)  # of a process that was killed

    def _lock(self, folder: Path) -> None:
        """Make a folder ours until training or the process ends, or the run is forgotten. InputError: it is taken."""
        try:
            self._unlock = weakref.finalize(self, os.close, _opened(folder))
        except BlockingIOError as e:
            raise InputError(
                f"another run is at work in {str(folder)!r}: wait for its end, or use another folder"
            ) from e

    def train(
        self,
        trainer: Trainer,
        epochs: int,
        progress: Progress | None = None,
        *,
        stop: Callable[[], Any] | None = None,
        note: Callable[[str], Any] | None = None,
    ) -> Iterator[Epoch]:
        """Train until `epochs` epochs are done in all, and yield after each, when its files are written.

        progress: called after each step. stop: asked after each step; once it is true, a checkpoint is written and
        training ends. note: called with texts about files that the run had, and that are not there any more. Errors as
        for `Trainer.run` and `Trainer.resume`; StateError: the run has another monitor; DivergedError; OSError.
        """
        _check_trainer(trainer)
        epochs = checked_integer("epochs", epochs)
        for name, call in (("progress", progress), ("stop", stop), ("note", note)):
            checked_call(name, call)
        return self._locked(trainer, epochs, progress, stop, note)

    def _locked(self, trainer: Trainer, *arguments: Any) -> Iterator[Epoch]:
        if self.folder is not None and self._unlock is not None and not self._unlock.alive:
            self._lock(self.folder)  # it was given back after the last time
        try:
            yield from self._train(trainer, *arguments)
        finally:
            if self._unlock is not None:
                self._unlock()

    def check(self, trainer: Trainer, epochs: int | None = None) -> bool:
        """An error now, rather than when training begins: as an argument `compiling` of a trainer, before it compiles.

        Gives whether there is anything to train, of so many epochs in all. InputError: what decides which epoch is best
        is not measured. StateError: the checkpoint is of no use.
        """
        self._monitored(_check_trainer(trainer))
        if not self._resume or self.checkpoint is None:
            return True
        at = trainer.check(self.checkpoint)
        return epochs is None or (at.epoch < epochs and not self._waited(at))

    def _train(
        self,
        trainer: Trainer,
        epochs: int,
        progress: Progress | None,
        stop: Callable[[], Any] | None,
        note: Callable[[str], Any] | None,
    ) -> Iterator[Epoch]:
        monitor, larger = self._monitored(trainer)
        if self._resume:
            assert self.checkpoint is not None
            trainer.resume(self.checkpoint)
            then = trainer.position
            if None not in (then.monitor, monitor) and (then.monitor, then.larger) != (monitor, larger):
                raise StateError(
                    f"{str(self.folder)!r} is a run whose best epoch is that of the {_extreme(then.larger)} "
                    f"{then.monitor!r}, now it were that of the {_extreme(larger)} {monitor!r}"
                )
        at = trainer.position
        at.monitor, at.larger = monitor, larger
        if not self._resume and not self._begun:  # of this run are the epochs from here on
            at.first, at.best, at.best_loss, at.best_epoch = at.epoch, None, None, 0
        self._begun = True
        log = None
        if self.log is not None:
            log = Log(self.log, list(Epoch(0, 0, 0, None, dict.fromkeys(trainer.metrics, 0.0)).record()))
            steps = -(-trainer.samples // trainer.batch)
            log.begin(Written(at.rows, at.epoch, steps) if self._resume or at.rows else None)
            self.rows = read_log(self.log)
        if note is not None:
            for text in self._lost(trainer):
                note(text)
        asked = False

        def after(epoch: int, done: int, loss: float | None) -> None:
            nonlocal asked
            asked = stop is not None and bool(stop())
            if asked or (self._every and at.step % self._every == 0 and done < trainer.samples):
                self._save(trainer)
            if progress is not None:
                progress(epoch, done, loss)

        def waited() -> bool:
            if at.epoch < epochs and self._waited(at):
                self.ended = "early stop"
            return self.ended == "early stop"

        self.ended = "epochs"
        if waited():
            return
        try:
            for epoch in trainer.run(epochs, after, stop=lambda: asked, stop_on_nan=self._stop_on_nan):
                self._keep(trainer, epoch, log)
                yield epoch
                if waited():
                    break
                if asked := stop is not None and bool(stop()):
                    break
        except DivergedError as e:
            kept = self.checkpoint is not None and self.checkpoint.exists()
            raise DivergedError(e.loss, e.step, e.epoch, str(self.checkpoint) if kept else "") from None
        if asked:
            self.ended = "request"

    def _lost(self, trainer: Trainer) -> Iterator[str]:
        """What the run does not have any more of the epochs before its checkpoint."""
        at = trainer.position
        lost = at.epoch - len(self.rows)
        if self.log is not None and lost:
            yield (
                f"{str(self.log)!r} has no rows of {lost} of the {at.epoch} epochs before: they were removed, or "
                "are in a log of another name"
            )
        if self.best is not None and at.best_epoch and not self.best.exists():
            yield f"{str(self.best)!r}, of epoch {at.best_epoch}, was removed: only a better epoch writes it again"

    def _keep(self, trainer: Trainer, epoch: Epoch, log: Log | None) -> None:
        """Write what an epoch gave. The checkpoint comes last: without it, all is done again, with the same bits."""
        at, row = trainer.position, epoch.record()
        value, loss = _finite(row, at.monitor), _finite(row, column(LOSS))
        best = value is not None and (at.best is None or (value > at.best if at.larger else value < at.best))
        if value is not None and value == at.best:
            best = loss is not None and (at.best_loss is None or loss < at.best_loss)
        if best:
            at.best, at.best_loss, at.best_epoch = value, loss, epoch.number
        if self.folder is not None:
            for name in (LAST, BEST) if best else (LAST,):
                trainer.step.export(self.folder / name)
        if log is not None:
            log.append(row)
        at.rows += [NO_ROW] * (epoch.number - 1 - len(at.rows)) + [mark(row)]
        self.rows.append(row)
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        if self.checkpoint is not None:
            trainer.save(self.checkpoint)

    def _waited(self, at: Position) -> bool:
        """Whether training has gone on long enough without a better model; epochs without a run do not count."""
        waits = sum(row != NO_ROW for row in at.rows[max(at.first, at.best_epoch) :])
        return self._early_stop is not None and waits >= self._early_stop

    def _monitored(self, trainer: Trainer) -> tuple[str | None, bool]:
        """The column that decides, and whether its largest value is the best one. InputError: there is no such one.

        None: nothing is measured, and nothing has to decide.
        """
        larger = {column(m): trainer.larger_is_better(m) for m in trainer.metrics}
        larger |= {} if trainer.loss == "" else {"loss": False}
        if not larger and self._monitor is None and self._early_stop is None:
            return None, False
        if not larger:
            raise InputError(
                "nothing tells which epoch is the best: the model has no loss, no output of its algorithm that is one "
                "number of floating point; give validation= for metrics, or leave the best epoch out of it"
            )
        monitor = self._monitor or next(iter(larger))
        if monitor not in larger:
            known = ", ".join(map(repr, larger))
            near = did_you_mean(monitor, larger)
            raise InputError(f"monitor: nothing is measured that is called {monitor!r}{near}: there are {known}")
        return monitor, larger[monitor] or self._monitor_max


def _check_trainer(trainer: Any) -> Trainer:
    if not isinstance(trainer, Trainer):
        raise InputError(f"trainer must be a Trainer, not {shown(trainer)}")
    return trainer


def _finite(row: Row, name: str | None) -> float | None:
    """The number of a column, if it has one that is finite."""
    value = None if name is None else row.get(name)
    return value if value is not None and math.isfinite(value) else None


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, the innermost first, as long as there is nothing in them and no other run has made it its own."""
    with suppress(OSError):
        for folder in folders:
            handle = _opened(folder)
            try:
                folder.rmdir()
            finally:
                os.close(handle)


def _opened(folder: Path) -> int:
    """A folder, open, and locked where the file system has locks. BlockingIOError: a run has it. OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        pass  # a file system without locks
    return handle


def _extreme(larger: bool) -> str:
    return "largest" if larger else "smallest"
