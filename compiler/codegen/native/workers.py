"""Compiling kernels in several processes at a time.

A worker is a fresh interpreter (no fork: threads of this process would leave locks behind; no multiprocessing: it
would run the user's __main__ again). It gets kernels by value over a pipe and returns object code. Whatever a worker
cannot do (no interpreter, a kernel that cannot be sent, a crash) is compiled in this process instead.
"""

import collections
import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from numba import cloudpickle

from compiler.codegen.native import cache, modes, optimize
from compiler.codegen.native.kernel import Kernel
from compiler.codegen.native.target import Target

KERNELS_PER_WORKER = 8  # a worker takes as long to start as to compile about five kernels
_START = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from compiler.codegen.native import workers"
AHEAD = 3  # at most so many are started before it is known what there is to compile
_PATIENCE = 60.0  # seconds for a worker's last kernel


_uncollected = 0  # blocks that want no collection now
_was_enabled = False
_lock = threading.Lock()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No cyclic garbage collection inside such blocks, also of several threads, then as it was before the first.

    Numba's intermediate forms live until their kernel is done, and there are many: looking for garbage in them again
    and again took a sixth of the time.
    """
    global _uncollected, _was_enabled
    with _lock:
        if not _uncollected:
            _was_enabled = gc.isenabled()
            gc.disable()
        _uncollected += 1
    try:
        yield
    finally:
        with _lock:
            _uncollected -= 1
            if not _uncollected and _was_enabled:
                gc.enable()


def _after_fork() -> None:
    """In the child, where the threads that compile are not: their collection, workers and lock are nobody's."""
    global _uncollected, _lock
    _lock = threading.Lock()
    _waiting.clear()
    if _uncollected and _was_enabled:
        gc.enable()
    _uncollected = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@uncollected()
def compile_all(kernels: Iterable[Kernel], target: Target, jobs: int | None = None) -> dict[str, bytes]:
    """Object code by symbol. jobs: processes at a time, this one included (default: the CPUs it may use, at most 8)."""
    # The longest first: the last one to be finished is then a short one, and no process waits long for another.
    todo = collections.deque(sorted(kernels, key=lambda k: len(k.function.__code__.co_code), reverse=True))
    everything, done = list(todo), dict[str, bytes]()
    others = (jobs or _cpus()) - 1
    workers = _taken(others, target)
    count = min(others, len(todo) // KERNELS_PER_WORKER) - len(workers)
    workers += [w for _ in range(count) if (w := _Worker.start(target)) is not None]
    threads = [threading.Thread(target=w.feed, args=(todo, done), daemon=True) for w in workers]
    try:
        for t in threads:
            t.start()
        while todo:
            try:
                k = todo.popleft()
            except IndexError:
                break
            done[k.symbol] = compile_one(k, target)
        for w, t in zip(workers, threads, strict=True):
            if w.ready:
                t.join(_PATIENCE)
    finally:
        for w in workers:
            w.stop()
    for k in everything:
        if k.symbol not in done:
            done[k.symbol] = compile_one(k, target)
    return done


_waiting: list["_Worker"] = []  # started ahead, for whoever compiles next


@contextlib.contextmanager
def ahead() -> Iterator[None]:
    """Around compiling and what comes before it: where the cache is as good as empty, workers start already here.

    They start while the passes run, which takes as long. Those that nobody needed are stopped in the end.
    """
    count = 0 if cache.holds(KERNELS_PER_WORKER) else min(_cpus() - 1, AHEAD)
    started = [w for _ in range(count) if (w := _Worker.start(Target.host())) is not None]
    with _lock:
        _waiting.extend(started)
    try:
        yield
    finally:
        with _lock:
            left = [w for w in started if w in _waiting]
            _waiting[:] = [w for w in _waiting if w not in left]
        for w in left:
            w.stop()


def _taken(most: int, target: Target) -> "list[_Worker]":
    """Workers that wait, and compile for this target in this mode."""
    with _lock:
        found = [w for w in _waiting if w.order == (target, modes.checked())][: max(0, most)]
        _waiting[:] = [w for w in _waiting if w not in found]
    return found


def compile_one(kernel: Kernel, target: Target) -> bytes:
    """Object code of one kernel. BuildError: it cannot be compiled."""
    return optimize.compile_ir(kernel.ir(), target.cpu, target.features, target.triple, kernel.effort)


def _cpus() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 8)


class _Worker:
    """The process that does the work, seen from this side."""

    def __init__(self, process: "subprocess.Popen[bytes]", order: tuple[Target, bool]) -> None:
        """order: the target, and whether accesses are checked."""
        self.process, self.order, self.ready = process, order, False

    @classmethod
    def start(cls, target: Target) -> "_Worker | None":
        if not sys.executable:
            return None
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", f"{_START}; workers.serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which then stops the worker
            )
            worker = cls(process, (target, modes.checked()))
            worker._send([os.path.abspath(p) for p in sys.path])
            worker._send(worker.order)
        except OSError:
            return None
        return worker

    def _send(self, message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(cloudpickle.dumps(message))
        self.process.stdin.flush()

    def feed(self, todo: "collections.deque[Kernel]", done: dict[str, bytes]) -> None:
        """Give the worker kernels until none is left, or it fails."""
        assert self.process.stdout is not None
        try:
            self.ready = pickle.load(self.process.stdout) == "ready"
            while todo:
                k = todo.popleft()
                self._send((k.symbol, cloudpickle.dumps(k)))
                symbol, data = pickle.load(self.process.stdout)
                if data is not None:
                    done[symbol] = data
        except (OSError, EOFError, IndexError, ValueError, TypeError, AttributeError, pickle.PickleError):
            return  # what is missing is compiled by this process

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unsent bytes to a process that is gone
                    continue


def serve() -> None:
    """The worker's side: compile kernels from standard input until it ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what imported code may print must not get into the replies
    target, checked = pickle.load(source)
    with modes.checking(checked), uncollected():
        pickle.dump("ready", sink)
        sink.flush()
        while True:
            try:
                symbol, text = pickle.load(source)
            except EOFError:
                return
            data = None
            try:
                kernel = pickle.loads(text)
                if kernel.symbol == symbol:
                    data = compile_one(kernel, target)
            except Exception:  # noqa: BLE001  # whatever it is, the parent compiles it and reports
                data = None
            pickle.dump((symbol, data), sink)
            sink.flush()
