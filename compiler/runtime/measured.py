"""One thread or all: what a step's first runs show to be faster."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from time import perf_counter_ns

RUNS = 3
"""Runs of each kind that are measured, after one of each that is not: it touches memory, and starts threads."""

SHORT = 30_000
"""Nanoseconds of a run on one thread below which others do not help: they would have to be woken."""

GAIN = 0.9
"""All threads are taken if they need less than this part of the time; else their cores are left to others."""


class Measured:
    """Runs a step alone and on all threads in turn, which gives the same bits, and then as was faster.

    status: not 0 after a run that was refused, which does not count. decided: called once with what runs from then on.
    """

    def __init__(
        self,
        alone: Callable[[], None],
        together: Callable[[], None],
        status: ctypes.c_int64,
        decided: Callable[[Callable[[], None]], None],
    ) -> None:
        self._kinds, self._status, self._decided = (alone, together), status, decided
        self._times: tuple[list[int], list[int]] = [], []

    def __call__(self) -> None:
        """Run once."""
        kind = int(len(self._times[0]) > len(self._times[1]))
        start = perf_counter_ns()
        self._kinds[kind]()
        time = perf_counter_ns() - start
        if not self._status.value:
            self._times[kind].append(time)
            self._decide()

    def _decide(self) -> None:
        alone, together = (times[1:] for times in self._times)
        if alone and not together and alone[0] < SHORT:
            self._decided(self._kinds[0])
        elif len(together) == RUNS:
            self._decided(self._kinds[min(together) < GAIN * min(alone)])
