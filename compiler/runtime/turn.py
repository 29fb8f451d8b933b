"""Whose turn it is to use the memory of a step: one call at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager

from compiler.runtime.forks import new_lock


class Turn:
    """The lock of a StepFunction, and whether a call of it is under way.

    lock: reentrant; a fork waits for it. held: the same for `with`, in two thirds of the time: it finds the lock's two
    functions as they are, which `with` otherwise binds anew each time. running: set and read under the lock only; so
    who finds it set is within that call, as a signal handler is.
    """

    __slots__ = ("held", "lock", "running")

    def __init__(self) -> None:
        self.lock, self.running = new_lock(), False
        functions = {"__enter__": staticmethod(self.lock.__enter__), "__exit__": staticmethod(self.lock.__exit__)}
        self.held: AbstractContextManager[object] = type("Held", (), functions)()
