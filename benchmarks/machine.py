"""The machine: its cores, and the memory of this process. Linux; elsewhere what cannot be known is left out."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


def cores() -> list[int]:
    """Numbers of the CPUs this process may use, one for each physical core, then the others."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    usable = sorted(os.sched_getaffinity(0))
    first: list[int] = []
    seen: set[str] = set()
    for cpu in usable:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = path.read_text(encoding="ascii") if path.exists() else str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            first.append(cpu)
    return first + [cpu for cpu in usable if cpu not in first]


def pin(threads: int) -> None:
    """Keeps this process on the first so many cores, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores()[:threads])


def environment(threads: int) -> dict[str, str]:
    """The environment of a worker: so many threads in every library, and nothing that misleads OpenBLAS."""
    unwanted = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "XLA_FLAGS"}
    result = {name: value for name, value in os.environ.items() if name not in unwanted}
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    result |= dict.fromkeys(names, str(threads))
    result["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    result["JAX_PLATFORMS"] = "cpu"
    return result


def caches(folder: Path) -> dict[str, str]:
    """Variables that put what each framework keeps of its compiling into a folder."""
    return {
        "ONNXC_CACHE": str(folder / "onnxc"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def rss() -> int:
    """Resident bytes of this process; 0 if not known."""
    return _status("VmRSS")


def peak_rss() -> int:
    """Most resident bytes since the start, or since `reset_peak_rss`; 0 if not known."""
    return _status("VmHWM")


def reset_peak_rss() -> None:
    """Lets `peak_rss` begin anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(key: str) -> int:
    path = Path("/proc/self/status")
    if not path.exists():
        return 0
    lines = dict(line.split(":", 1) for line in path.read_text(encoding="ascii").splitlines())
    return int(lines[key].split()[0]) * 1024


def processor() -> str:
    """Name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
