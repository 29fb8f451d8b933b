"""The sides of a case in turns: each is a process of its own, and one works at a time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import caches, cores, environment
from benchmarks.peers import PEERS, Case

ROOT = Path(__file__).parent.parent

LOSSES = 4
"""How many losses are compared, that of the first step included."""

FIRST_TOLERANCE, LATER_TOLERANCE = 1e-4, 2e-3
"""Relative: of the first loss, and of the later ones: Adam makes whole steps of gradients that are nearly 0."""


class WorkerError(Exception):
    """A side that failed, with what it said."""


class Side:
    """A running worker. Use as a context: it ends with it."""

    def __init__(self, name: str, python: str, case: Case, cache: Path | None, pinned_to: int | None = None) -> None:
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed in __exit__
        search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = environment(case.threads) | {"PYTHONPATH": search} | ({} if cache is None else caches(cache))
        command = [python, "-m", "benchmarks.worker", name, str(case.folder)]
        command += [str(case.threads), str(pinned_to or case.threads)]
        self._process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._log.close()

    def ask(self, *words: object) -> dict[str, Any]:
        """The answer to a line. WorkerError: it failed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            print(*words, file=stdin, flush=True)
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        reply: dict[str, Any] = json.loads(line) if line else {"error": f"the process ended: {self._last_words()}"}
        if "error" in reply:
            raise WorkerError(reply["error"])
        result: dict[str, Any] = reply["ok"]
        return result

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        return " | ".join(self._log.read().splitlines()[-3:]) or f"exit code {self._process.returncode}"


@dataclass
class Result:
    """What a side did in a case: times of the rounds in seconds, and facts by name.

    error: why it failed; other_work: it ran, but its losses are not those of the first side.
    """

    side: str
    version: str = ""
    losses: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    other_work: bool = False

    @property
    def median(self) -> float:
        """Of the rounds' medians, seconds."""
        return statistics.median(self.medians)


def cold_start(side: str, python: str, case: Case, cache: Path) -> dict[str, Any]:
    """Facts of a start with an empty cache, which is then full; compiling may use all cores. WorkerError."""
    with Side(side, python, case, cache, len(cores())) as worker:
        start = worker.ask("setup")
    kernels = sum(1 for _ in (cache / "onnxc").rglob("*.o"))
    facts = {"cold_seconds": start["first_seconds"], "cold_make_seconds": start["make_seconds"]}
    return facts | ({"kernels": kernels} if side == "onnxc" else {})


def race(
    pythons: Mapping[str, str],
    case: Case,
    rounds: int,
    seconds: float,
    *,
    cache: Path | None = None,
    cold: bool = False,
) -> list[Result]:
    """Results of the sides in `pythons` (side -> interpreter); one that fails leaves the race, the others go on.

    cache: where the frameworks keep what they compile; by default where they always do. cold: it is empty, and a start
    with it is measured before the one that counts as warm.
    """
    results = {name: Result(name) for name in pythons}
    running: dict[str, Side] = {}
    try:
        for name, python in pythons.items():
            place = None if cache is None else cache / name
            try:
                if cold and place is not None:
                    results[name].facts |= cold_start(name, python, case, place)
                running[name] = Side(name, python, case, place)
                _start(running[name], results[name], cold)
            except WorkerError as e:
                results[name].error = str(e)
                _end(running, name)
        compare(results)
        for number in range(rounds):
            for name in _turned(list(running), number):
                try:
                    results[name].medians.append(running[name].ask("round", seconds)["median"])
                except WorkerError as e:
                    results[name].error = str(e)
                    _end(running, name)
        for name, side in running.items():
            try:
                results[name].facts |= side.ask("details")
            except WorkerError as e:
                results[name].error = str(e)
    finally:
        for name in list(running):
            _end(running, name)
    return list(results.values())


def _start(side: Side, result: Result, cold: bool) -> None:
    start = side.ask("setup")
    result.version = start["version"]
    result.facts["import_seconds"] = start["import_seconds"]
    if cold:  # else the caches may have been empty
        result.facts |= {"warm_seconds": start["first_seconds"], "warm_make_seconds": start["make_seconds"]}
    result.losses = [start["loss"], *side.ask("losses", LOSSES - 1)["losses"]]


def _end(running: dict[str, Side], name: str) -> None:
    if side := running.pop(name, None):
        side.__exit__()


def _turned(names: Sequence[str], by: int) -> list[str]:
    """The names in turn, another one first in each round."""
    at = by % max(1, len(names))
    return [*names[at:], *names[:at]]


def compare(results: Mapping[str, Result]) -> None:
    """Error of each side whose losses are not those of the first side that has any."""
    first = next((r for r in results.values() if r.losses), None)
    for result in results.values():
        if first is None or not result.losses:
            continue
        tolerances = [FIRST_TOLERANCE, *[LATER_TOLERANCE] * (LOSSES - 1)]
        pairs = zip(first.losses, result.losses, tolerances, strict=True)
        if not all(abs(ours - theirs) <= tolerance * abs(ours) for ours, theirs, tolerance in pairs):
            result.other_work = True
            result.error = f"other work: its losses are {result.losses}, those of {first.side} {first.losses}"


def lookup(sides: Sequence[str], given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Interpreters of the sides that can run here, and why the others cannot.

    given: family -> interpreter; by default the variable ONNXC_BENCH_PYTHON_<FAMILY>, or the one that runs this.
    """
    found: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name in sides:
        peer = PEERS[name]
        python = given.get(peer.family) or os.environ.get(f"ONNXC_BENCH_PYTHON_{peer.family.upper()}") or sys.executable
        check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({peer.package!r}) is None)"
        search = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
        try:
            done = subprocess.run([python, "-c", check], env={**os.environ, **search}, capture_output=True, check=False)
        except OSError as e:
            absent[name] = f"{python}: {e.strerror}"
            continue
        if done.returncode:
            absent[name] = f"{python} has no package {peer.package!r}: {peer.remedy}"
        else:
            found[name] = python
    return found, absent
