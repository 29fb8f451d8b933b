"""Runs that are killed: the last checkpoint loads, and the run goes on to the same bits, as if nothing had been.

Children are forks of this process, in which all is compiled already, so that a run takes a fraction of a second.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from compiler.training import Run, Trainer, read_log
from tests.test_api import bits
from tests.training.dropping import dropping

EPOCHS = 3


class Warm(NamedTuple):
    """A trainer at its beginning, whose code is compiled; one to load checkpoints with; what a whole run leaves."""

    trainer: Trainer
    reader: Trainer
    whole: tuple[Any, ...]
    seconds: float


def in_memory() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory, if there can be one: what a killed process wrote is there, and nothing waits for a disk."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


@pytest.fixture
def memory() -> Iterator[Path]:
    with in_memory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def warm() -> Warm:
    model, data = dropping()
    trainer, reader = (Trainer(model, data, data, batch=8, seed=3) for _ in range(2))
    with in_memory() as name:
        folder = Path(name)
        trainer.save(folder / "start")
        list(Run(folder / "first").train(trainer, 1))
        trainer.resume(folder / "start")
        began = time.monotonic()
        assert ended(forked(partial(train, trainer, folder / "whole"))) == 0
        return Warm(trainer, reader, left(folder / "whole"), time.monotonic() - began)


def train(trainer: Trainer, folder: Path, epochs: int = EPOCHS) -> None:
    """Begin the run, or go on with it; a checkpoint after each step."""
    run = Run(folder, every=1, resume=(folder / "checkpoint.safetensors").exists())
    list(run.train(trainer, epochs))


def left(folder: Path) -> tuple[Any, ...]:
    """What a run leaves, but for times."""
    log = [{n: v for n, v in row.items() if n != "seconds"} for row in read_log(folder / "log.csv")]
    models = [(folder / name).read_bytes() for name in ("best.onnx", "last.onnx")]
    assert sorted(os.listdir(folder)) == ["best.onnx", "checkpoint.safetensors", "last.onnx", "log.csv"]
    return bits(load_file(folder / "checkpoint.safetensors")), models, log


def found(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """The contents of a folder, but for what nothing depends on: times, and names of files that are written."""
    files = {_place(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    return tuple(sorted((n, re.sub(rb"[\d.]+\n|seconds.{25}", b"", text)) for n, text in files.items()))


def _place(path: Path) -> str:
    return re.sub(r"[0-9a-f]{16}\.part|\.tmp.{6}", "part", str(path))


def forked(work: Callable[[], Any]) -> int:
    """Do something in a fork. Its process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the child must not go on as a second pytest
        traceback.print_exc()
    finally:
        os._exit(1)


def ended(pid: int) -> int:
    """How a process ended: its exit code, or the negative number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def last_step(reader: Trainer, folder: Path) -> int | None:
    """The step of the last checkpoint, which must load; None: there is none yet."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    reader.resume(path)
    return reader.position.step


@pytest.mark.parametrize("kills", [9, pytest.param(30, marks=pytest.mark.exhaustive)])
def test_killed_at_random_moments(warm: Warm, memory: Path, kills: int) -> None:
    """By a clock: runs that begin, and runs that go on."""
    random = np.random.default_rng(0)
    steps, finished = [], 0
    folder = memory / "0"
    while len(steps) < kills:
        pid = forked(partial(train, warm.trainer, folder))
        time.sleep(random.uniform(0, warm.seconds))
        os.kill(pid, signal.SIGKILL)
        if ended(pid) == -signal.SIGKILL:
            steps.append(last_step(warm.reader, folder))
            if len(steps) % 3:
                continue  # the same run goes on, and is killed again
            assert ended(forked(partial(train, warm.trainer, folder))) == 0
        assert left(folder) == warm.whole
        finished += 1
        folder = memory / str(finished)
    assert finished >= kills // 3
    assert len(set(steps)) > kills // 7, steps  # the kills came at various places


class Killer:
    """Kills this process before or after the nth time that it asks the system to change a file."""

    CALLS = ("open", "write", "fsync", "replace", "mkdir", "rmdir")

    def __init__(self, at: int):
        self.at, self.count = at, 0
        for name in self.CALLS:
            setattr(os, name, self.around(getattr(os, name)))

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.tick()
            result = call(*args, **options)
            self.tick()
            return result

        return wrapped

    def tick(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_killed_at_each_change_of_a_file(warm: Warm, memory: Path, stride: int) -> None:
    """Before or after each, through two epochs; with stride 1 at every moment between two of them."""
    steps, seen, writing = [], set(), 0
    for at in range(1, 200, stride):
        folder = memory / str(at)

        def killed(at: int = at, folder: Path = folder) -> None:
            Killer(at)
            train(warm.trainer, folder, 2)

        code = ended(forked(killed))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        steps.append(last_step(warm.reader, folder))
        writing += any(folder.glob(".onnxc-*"))
        if (situation := found(folder)) not in seen:
            seen.add(situation)
            assert ended(forked(partial(train, warm.trainer, folder))) == 0
            assert left(folder) == warm.whole
    assert {None, 1, 2, 3, 4, 5, 6} - {*steps} <= ({6} if stride > 1 else set())  # the last change may be passed over
    assert writing > 10 // stride
