"""How many threads run a step where no number is given."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import compiler
from compiler.runtime import measured
from compiler.runtime.cores import default_threads, usable_cores
from compiler.runtime.measured import RUNS, Measured
from tests.models import tiny


def machine(folder: Path, siblings: list[str], quota: str = "") -> tuple[Path, Path]:
    for i, text in enumerate(siblings):
        place = folder / f"cpu{i}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(text, encoding="ascii")
    folder.mkdir(exist_ok=True)
    (folder / "cpu.max").write_text(quota, encoding="ascii")
    return folder, folder / "cpu.max"


@pytest.mark.parametrize(
    ("siblings", "quota", "cores"),
    [
        (["0", "1", "2", "3"], "max 100000", 4),
        (["0-1", "0-1", "2-3", "2-3"], "", 2),
        (["0", "1", "2", "3"], "250000 100000", 2),
        (["0", "1"], "50000 100000", 1),
        (["0", "1"], "nonsense", 2),
        ([], "", 4),
    ],
)
def test_cores(tmp_path: Path, siblings: list[str], quota: str, cores: int) -> None:
    with patch.object(os, "sched_getaffinity", lambda pid: set(range(len(siblings) or 4)), create=True):
        assert usable_cores(*machine(tmp_path, siblings, quota)) == cores
        with patch.object(os, "sched_getaffinity", lambda pid: {1}):
            assert usable_cores(*machine(tmp_path / "one", siblings, quota)) == 1


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXC_THREADS", "7")
    assert default_threads() == 7
    for wrong in ("0", "257", "-1", "two", "1e2", "\u0663"):
        monkeypatch.setenv("ONNXC_THREADS", wrong)
        with pytest.raises(compiler.InputError, match=r"ONNXC_THREADS must be a number of threads from 1 to 256, not"):
            compiler.compile(tiny())
        compiler.compile(tiny(), threads=1)
    monkeypatch.delenv("ONNXC_THREADS")
    assert default_threads() == usable_cores()


class Clock:
    """A clock that the runs turn forward."""

    def __init__(self) -> None:
        self.now, self.ran, self.chosen = 0, list[str](), list[Callable[[], None]]()

    def run(self, name: str, times: list[int]) -> Callable[[], None]:
        left = iter(times)

        def run() -> None:
            self.ran.append(name)
            self.now += next(left)

        return run


def decide(alone: list[int], together: list[int]) -> tuple[str, list[str]]:
    """What is chosen, and what ran before."""
    clock, status = Clock(), ctypes.c_int64(0)
    kinds = {clock.run(name, times): name for name, times in (("alone", alone), ("together", together))}
    measure = Measured(*kinds, status, clock.chosen.append)
    with patch.object(measured, "perf_counter_ns", lambda: clock.now):
        while not clock.chosen:
            measure()
    (chosen,) = clock.chosen
    return kinds[chosen], clock.ran


def test_what_is_faster_runs() -> None:
    ms = 1_000_000
    chosen, ran = decide([9 * ms, 4 * ms, 3 * ms, 5 * ms], [50 * ms, 2 * ms, 9 * ms, 9 * ms])
    assert (chosen, len(ran)) == ("together", 2 * RUNS + 2)
    assert decide([ms, 3 * ms, 3 * ms, 3 * ms], [ms, 3 * ms, 3 * ms, 3 * ms - 1])[0] == "alone", "as fast is not faster"
    assert decide([ms, 3 * ms, 3 * ms, 3 * ms], [ms, 4 * ms, 5 * ms, 6 * ms])[0] == "alone"
    assert decide([ms, 9_000], [ms])[0] == "alone", "too short for others"


def test_refused_runs_do_not_count() -> None:
    clock, status = Clock(), ctypes.c_int64(1)
    measure = Measured(clock.run("alone", [1] * 9), clock.run("together", []), status, clock.chosen.append)
    for _ in range(9):
        measure()
    assert not clock.chosen


@pytest.mark.parametrize("fast", ["alone", "together"])
def test_the_results_are_the_same(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.codegen.brief.MOST", -1)
    monkeypatch.setattr(measured, "SHORT", 0)
    monkeypatch.setattr(measured, "GAIN", 0.0 if fast == "alone" else 1e9)
    monkeypatch.setenv("ONNXC_THREADS", "2")
    free, one = compiler.compile(tiny(), dims={"N": 16}), compiler.compile(tiny(), dims={"N": 16}, threads=1)
    rng = np.random.default_rng(0)
    for _ in range(12):
        batch = {"x": rng.normal(size=(16, 4)).astype(np.float32), "label": rng.integers(0, 3, 16)}
        assert free(batch)["loss"].tobytes() == one(batch)["loss"].tobytes()
    assert {n: a.tobytes() for n, a in free.state.items()} == {n: a.tobytes() for n, a in one.state.items()}
