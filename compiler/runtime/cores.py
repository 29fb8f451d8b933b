"""How many threads pay: the cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

from compiler.errors import InputError

VARIABLE = "ONNXC_THREADS"
MOST = 256

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """The number of threads where none is given: ONNXC_THREADS, or the cores. InputError: that is no such number."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return min(usable_cores(), MOST)
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= MOST:
        raise InputError(f"the variable {VARIABLE} must be a number of threads from 1 to {MOST}, not {given!r}")
    return int(given)


def usable_cores(cpus: Path = _CPUS, quota: Path = _QUOTA) -> int:
    """Physical cores that this process may run on, at most as many as its control group has time of; at least 1.

    Two threads on one core take each other's units for floating point. cpus, quota: where Linux tells of them; where
    nothing does, every CPU counts as a core.
    """
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_text(cpus / f"cpu{i}" / "topology" / "thread_siblings_list") or str(i) for i in usable}
    time, _, period = _text(quota).partition(" ")
    if time.isdigit() and period.isdigit() and int(period) > 0:
        return max(1, min(len(cores), int(time) // int(period)))
    return max(1, len(cores))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
