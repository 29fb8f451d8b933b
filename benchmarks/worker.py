"""The process that runs one side: `python -m benchmarks.worker SIDE FOLDER THREADS CORES`, told what to do by lines.

    setup          import the framework, make the step and run it once
    losses N       N further steps
    round SECONDS  untimed steps for a fifth of the time, then timed ones for all of it, at least three
    details        memory, and what else the side knows of itself

The answer to each is one line of JSON, {"ok": {...}} or {"error": "..."}; an error ends the process, and so does the
end of the input. Needs numpy and the framework only.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from benchmarks.machine import peak_rss, pin, reset_peak_rss, rss
from benchmarks.peers import PEERS, Case, Made


class Worker:
    """A side of a case, and its answers."""

    def __init__(self, side: str, case: Case) -> None:
        self._side, self._case = PEERS[side], case
        self._made = Made(lambda: 0.0)
        self._base = 0
        self._starting = 0

    def setup(self) -> dict[str, Any]:
        """Seconds to import the framework, and then until the first step is done; its loss."""
        start = time.perf_counter()
        module = importlib.import_module(f"benchmarks.peers.{self._side.module}")
        imported = time.perf_counter()
        self._base = rss()
        self._made = module.make_step(self._case, **self._side.options)
        made = time.perf_counter()
        loss = self._made.step()
        first = time.perf_counter()
        self._starting = peak_rss()
        reset_peak_rss()
        return {
            "version": module.VERSION,
            "import_seconds": imported - start,
            "make_seconds": made - imported,
            "first_seconds": first - imported,
            "loss": loss,
        }

    def losses(self, count: str) -> dict[str, Any]:
        """Losses of further steps."""
        return {"losses": [self._made.step() for _ in range(int(count))]}

    def round(self, seconds: str) -> dict[str, Any]:
        """Median and minimum of the times of steps, in seconds, and how many there were."""
        step, length = self._made.step, float(seconds)
        _run_for(step, length / 5, 1)  # threads wake, caches fill
        times = _run_for(step, length, 3)
        return {"median": statistics.median(times), "minimum": min(times), "steps": len(times)}

    def details(self) -> dict[str, Any]:
        """Bytes above those before the step was made: at most while it was made, and at most since the first step."""
        memory = {
            "start_rss_bytes": max(0, self._starting - self._base),
            "run_rss_bytes": max(0, peak_rss() - self._base),
        }
        return {**memory, **self._made.details()}


def _run_for(step: Callable[[], float], seconds: float, least: int) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < least:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def answer(worker: Worker, line: str) -> Mapping[str, Any]:
    """What a line makes the worker say."""
    word, *arguments = line.split()
    actions: dict[str, Callable[..., dict[str, Any]]] = {
        "setup": worker.setup,
        "losses": worker.losses,
        "round": worker.round,
        "details": worker.details,
    }
    try:
        return {"ok": actions[word](*arguments)}
    except Exception as e:  # noqa: BLE001 - whatever a framework raises goes into the report
        traceback.print_exc()
        return {"error": f"{type(e).__name__}: {e}"}


def main(arguments: list[str]) -> None:
    """Answers lines until they end."""
    side, folder, threads, cores = arguments
    pin(int(cores))
    replies = _own_output()
    worker = Worker(side, Case(Path(folder), int(threads)))
    for line in sys.stdin:
        reply = answer(worker, line)
        print(json.dumps(reply), file=replies, flush=True)
        if "error" in reply:
            break


def _own_output() -> TextIO:
    """The output for answers; whatever a framework prints goes to the errors from now on."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


if __name__ == "__main__":
    main(sys.argv[1:])
