"""SPMD: every thread runs the same step on its slices; barriers where a slice reads what another wrote.

Everything here works on int64 words in memory that the caller provides.
"""

import ctypes
from typing import Any

from numba import types

from compiler.codegen.native.kernel import kernel
from compiler.codegen.native.primitive import I64, Lowering, primitive, void

_INT = types.int64
sched_yield = types.ExternalFunction("sched_yield", types.int32())
SPINS = 2000  # looks at a barrier's word before giving the core away (a taken core would cost a time slice)
BARRIER_BYTES = 128


def _word(b: Any, address: Any) -> Any:
    return b.inttoptr(address, I64.as_pointer())


def _rmw(operation: str, order: str) -> Lowering:
    def lowering(tc: Any, address: Any, value: Any) -> Any:
        return _INT(_INT, _INT), lambda cx, b, s, a: b.atomic_rmw(operation, _word(b, a[0]), a[1], order)

    return lowering


def _load(tc: Any, address: Any) -> Any:
    return _INT(_INT), lambda cx, b, s, a: b.load_atomic(_word(b, a[0]), "acquire", 8)


def _store(tc: Any, address: Any, value: Any) -> Any:
    def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
        b.store_atomic(a[1], _word(b, a[0]), "release", 8)
        return void(cx)

    return types.void(_INT, _INT), gen


def _share(tc: Any, n: Any, thread: Any, threads: Any) -> Any:
    return _INT(_INT, _INT, _INT), lambda cx, b, s, a: b.sdiv(b.mul(a[0], a[1]), a[2])


def _plain(address: int) -> Any:
    return ctypes.c_int64.from_address(address)


@primitive(_rmw("add", "seq_cst"))
def atomic_add(address: int, value: int) -> int:
    """Add to the int64 at `address`; gives what was there before. Sequentially consistent."""
    word = _plain(address)
    before: int = word.value
    word.value = before + value
    return before


@primitive(_rmw("max", "seq_cst"))
def atomic_max(address: int, value: int) -> int:
    """Replace the int64 at `address` by the larger of it and `value`; gives what was there before."""
    word = _plain(address)
    before: int = word.value
    word.value = max(before, value)
    return before


@primitive(_load)
def atomic_load(address: int) -> int:
    """The int64 at `address`, and all that its writer stored before (acquire)."""
    value: int = _plain(address).value
    return value


@primitive(_store)
def atomic_store(address: int, value: int) -> None:
    """Write the int64 at `address` after all stores before it (release)."""
    _plain(address).value = value


@primitive(_share)
def share(n: int, thread: int, threads: int) -> int:
    """Where this thread's slice of n begins; the next thread's beginning is its end. threads > 0."""
    return n * thread // threads


@kernel
def barrier(block: int, threads: int) -> None:
    """No thread leaves before all have come, and all see what others stored before it.

    block: BARRIER_BYTES zeroed bytes, 64-byte aligned: arrivals at +0, generation at +64 (own cache lines).
    """
    if threads > 1:
        generation = atomic_load(block + 64)
        if atomic_add(block, 1) == threads - 1:
            atomic_store(block, 0)
            atomic_store(block + 64, generation + 1)
        else:
            spins = 0
            while atomic_load(block + 64) == generation:
                spins += 1
                if spins > SPINS:
                    sched_yield()
