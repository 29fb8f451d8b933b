"""Running a native step on several threads: persistent workers that spin for a job, then park."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from compiler.runtime.memory import Block

# The control block of the native pool, see compiler/codegen/native/pool.py
_FUNCTION, _TABLE, _THREADS, _BYTES = 16, 17, 18, 256
PATIENCE = 100_000
"""How often a worker looks for a job before it parks: some tens of microseconds."""

_Step = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_Worker = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_Run = ctypes.CFUNCTYPE(None, ctypes.c_int64)


@dataclass(frozen=True)
class PoolCode:
    """Addresses of the pool's two native functions."""

    worker: int
    run: int


class Pool:
    """`run(step, table)` runs a step on `threads` threads, the caller being one; one call at a time.

    Workers do not survive a fork: the child starts its own at its first run. They end when the pool is collected.
    """

    def __init__(self, threads: int, code: PoolCode | None) -> None:
        if threads > 1 and code is None:
            raise ValueError("several threads need the pool's native code")
        self.threads, self._code = threads, code
        self._pid = 0
        self._close: weakref.finalize[[Block, Any, int, int], Pool] | None = None

    def run(self, step: int, table: int) -> None:
        """Call `step(table, thread, threads)` on every thread and wait for all."""
        if self.threads == 1:
            _Step(step)(table, 0, 1)
            return
        if self._pid != os.getpid():
            self._start()
        words = self._words
        words[_FUNCTION], words[_TABLE], words[_THREADS] = step, table, self.threads
        self._run(self._block.address)

    def _start(self) -> None:
        assert self._code is not None
        if self._close is not None:  # of the process we were forked from: its threads are not ours
            self._close.detach()
        self._pid = os.getpid()
        self._block = Block(_BYTES)
        self._words = self._block.bytes.view("int64")
        self._run = _Run(self._code.run)
        enter, address = _Worker(self._code.worker), self._block.address
        for t in range(1, self.threads):
            threading.Thread(target=enter, args=(address, t, PATIENCE), daemon=True, name=f"onnxc-{t}").start()
        self._close = weakref.finalize(self, _leave, self._block, self._run, self.threads, self._pid)
        self._close.atexit = True


def _leave(block: Block, run: Any, threads: int, pid: int) -> None:
    """Let the workers return, and wait until they have left the block."""
    if os.getpid() == pid:
        words = block.bytes.view("int64")
        words[_FUNCTION], words[_THREADS] = 0, threads
        run(block.address)
