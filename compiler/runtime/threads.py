"""Running a native step on several threads: persistent workers that spin for a job, then park."""

from __future__ import annotations

import _thread
import ctypes
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from compiler.runtime.memory import Block

# The control block of the native pool, see compiler/codegen/native/pool.py; the pool leaves the word BUSY to us
_FUNCTION, _TABLE, _THREADS, _BUSY, _BYTES = 16, 17, 18, 20, 256
_Words = ctypes.c_int64 * (_BYTES // 8)

PATIENCE = 100_000
"""How often a worker looks for a job before it parks: some tens of microseconds."""

Step = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
"""`step(table, thread, threads)`."""

# Without argument types: ctypes takes what its own `from_param` gives as it is.
_Free, _Holding = ctypes.CFUNCTYPE(None), ctypes.PYFUNCTYPE(None)  # others run meanwhile, or wait

_Worker = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_Run = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def alone(step: int, table: int, brief: bool) -> Callable[[], None]:
    """What calls `step(table, 0, 1)`: ctypes converts the arguments here, which takes longer than the calls.

    brief: keep the interpreter's lock meanwhile.
    """
    kind = _Holding if brief else _Free
    return partial(kind(step), *map(ctypes.c_int64.from_param, (table, 0, 1)))


@dataclass(frozen=True)
class PoolCode:
    """Addresses of the pool's two native functions."""

    worker: int
    run: int


class Pool:
    """`run(step, table)` runs a step on `threads` threads, the caller being one; one call at a time.

    The threads start at the first run; where the system gives fewer, fewer run, which changes no bits. They do not
    survive a fork: the child starts its own at its first run. They end when the pool is collected. measured: whether
    a step may run on one thread instead, if that is faster.
    """

    def __init__(self, threads: int, code: PoolCode | None, *, measured: bool = False) -> None:
        if threads > 1 and code is None:
            raise ValueError("several threads need the pool's native code")
        self.threads, self._code, self.measured = threads, code, measured
        self._pid = 0
        self._words: Any = None
        self._close: weakref.finalize[[Block, Any, int, int], Pool] | None = None

    def run(self, step: int, table: int) -> None:
        """Call `step(table, thread, threads)` on every thread and wait for all."""
        if self.threads == 1:
            Step(step)(table, 0, 1)
            return
        if self._pid != os.getpid():
            self._start()
        words = self._words
        words[_BUSY], words[_FUNCTION], words[_TABLE] = 1, step, table
        self._run(self._address)
        words[_BUSY] = 0

    def _start(self) -> None:
        assert self._code is not None
        if self._close is not None:  # of the process we were forked from: its threads are not ours
            self._close.detach()
        block = Block(_BYTES)
        # The workers' memory, until they have left it: an interrupted start or an exit in the middle of a step must
        # not free it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))
        self._address, self._words = block.address, _Words.from_address(block.address)
        self._run, enter = _Run(self._code.run), _Worker(self._code.worker)
        started = 1
        while started < self.threads:
            try:
                _thread.start_new_thread(enter, (block.address, started, PATIENCE))
            except RuntimeError:  # the system gives no more threads
                break
            started += 1
        self._words[_THREADS] = started
        self._close = weakref.finalize(self, _leave, block, self._run, started, os.getpid())
        self._pid = os.getpid()


def _leave(block: Block, run: Any, threads: int, pid: int) -> None:
    """Let the workers return, and wait until they have left the block."""
    words = _Words.from_address(block.address)
    if os.getpid() != pid or words[_BUSY]:  # busy: the process exits while another thread runs a step
        return
    words[_FUNCTION], words[_THREADS] = 0, threads
    run(block.address)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(block))
