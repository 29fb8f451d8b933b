"""Locks that a fork waits for, so that the child finds whole steps and open locks."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_registry = threading.RLock()  # of `_locks`, which must not change while somebody walks over it
_taken: list[threading.RLock] = []  # by the thread that forks, which holds _registry


def new_lock() -> threading.RLock:
    """A reentrant lock. A thread that forks holds all of them while it does."""
    lock = threading.RLock()
    with _registry:
        _locks.add(lock)
    return lock


def _before() -> None:
    _registry.acquire()
    for lock in list(_locks):
        lock.acquire()
        _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    _registry.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
