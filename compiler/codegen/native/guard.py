"""Running checked kernels: a table of the memory they may touch, and what they touched beyond it."""

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from compiler.codegen.native import checked, engine, modes
from compiler.errors import OnnxcError

_turn = threading.RLock()
_installed = 0  # address of the table that checked kernels look at


class Guard:
    """The control block of checked kernels. `violations`: how many bad accesses; `first`: the first one, in words."""

    def __init__(self) -> None:
        self._words = np.zeros(checked.BLOCK_BYTES // 8, np.int64)
        self._kept: list[Any] = []
        self.address = int(self._words.ctypes.data)

    def allow(self, *memory: "np.ndarray[Any, Any] | tuple[int, int]") -> None:
        """Let kernels touch contiguous arrays or [start, end) address ranges. ValueError: too many, or strided."""
        for m in memory:
            if isinstance(m, np.ndarray):
                if not m.flags.c_contiguous:
                    raise ValueError("only C-contiguous arrays can be allowed")
                self._kept.append(m)
                m = (int(m.ctypes.data), int(m.ctypes.data) + m.nbytes)
            n = int(self._words[checked.REGIONS // 8])
            if n == checked.MOST_REGIONS:
                raise ValueError(f"at most {n} regions can be allowed")
            at = checked.REGIONS_AT // 8 + 2 * n
            self._words[at], self._words[at + 1] = m
            self._words[checked.REGIONS // 8] = n + 1

    @property
    def violations(self) -> int:
        """The number of accesses outside the regions."""
        return int(self._words[checked.VIOLATIONS // 8])

    @property
    def first(self) -> str:
        """The first bad access: what it was, which kernel made it, and where it lies; "" if there was none."""
        if not self.violations:
            return ""
        address, kind, size, who = (int(w) for w in self._words[1:5])
        kernel = next((s for s in engine.loaded() if modes.fingerprint(s) == who), "a kernel")
        n = int(self._words[checked.REGIONS // 8])
        ends = self._words[checked.REGIONS_AT // 8 :][: 2 * n].reshape(n, 2).tolist()
        where = "no memory was allowed"
        if ends:
            i, (start, end) = min(enumerate(ends), key=lambda r: max(r[1][0] - address, address + size - r[1][1]))
            by = (
                f"{address + size - end} bytes beyond the end"
                if address + size > end
                else f"{start - address} bytes before the start"
            )
            where = (
                f"{by} of region {i} ({end - start} bytes)"
                if abs(address - start) < 1 << 32
                else "far from all regions"
            )
        return f"{'store' if kind == checked.STORE else 'load'} of {size} bytes in {kernel}: {where}"


@contextlib.contextmanager
def guarded(*memory: "np.ndarray[Any, Any] | tuple[int, int]") -> Iterator[Guard]:
    """Build checked kernels inside this block (`native`, `load`) and let them touch `memory` only. Gives the Guard.

    One at a time in a process: the table is one for all threads. Within another block this one's memory counts.
    """
    global _installed
    guard = Guard()
    guard.allow(*memory)
    with _turn, modes.checking():
        address = engine.load([checked.access])[checked.access.symbol]
        install = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(address)
        before, _installed = _installed, guard.address
        try:
            install(checked.INSTALL, _installed, 0, 0, 0)
            yield guard
        finally:
            _installed = before
            install(checked.INSTALL, _installed, 0, 0, 0)


def watched(run: Callable[[], None], memory: Sequence[tuple[int, int]]) -> Callable[[], None]:
    """`run`, of checked kernels, with these [start, end) ranges as all the memory that they may touch.

    What it gives raises an OnnxcError after a run with another access.
    """

    def watching() -> None:
        with guarded(*memory) as guard:
            run()
        if guard.violations:
            raise OnnxcError(
                f"{guard.violations} accesses outside the memory of the step, the first: {guard.first}; its results "
                "are of no use, and neither is its state"
            )

    return watching
