"""Kernels of a worker pool: workers spin for a job, then park; one native call runs a job on all threads.

`compiler.runtime` drives it with ctypes, by the addresses of the two kernels (in process or from a built library).
The protocol, over a control block of BLOCK_BYTES zeroed bytes, 64-byte aligned, all words int64:

    +0    JOB       number of jobs so far; what workers wait on
    +64   PARKED    workers asleep in the operating system
    +128  FUNCTION  address of the job, void f(int64 table, int64 thread, int64 threads); 0: workers return
    +136  TABLE     its first argument
    +144  THREADS   threads of the pool, counting the caller (thread 0)
    +192  DONE      workers that have finished the job

Thread t of 1 .. threads-1 enters `worker(block, t, patience)` and stays there (without the GIL); patience is how
often it looks for a job before it parks (about 0.3 ns to 1 ns each). The owner writes FUNCTION, TABLE and THREADS, then
calls `run(block)`, which runs thread 0's part itself and returns when all have finished: their stores are visible.
With FUNCTION 0 it returns when all workers have left the block; then it may be freed. One caller at a time.
Threads do not survive a fork: the child makes a new block and a new pool.
"""

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from compiler.codegen.native.kernel import Kernel, kernel
from compiler.codegen.native.memory import i64, make_tile
from compiler.codegen.native.primitive import I64, primitive, void
from compiler.codegen.native.target import Target
from compiler.codegen.native.threads import SPINS, atomic_add, atomic_load, atomic_store, sched_yield

JOB, PARKED, FUNCTION, TABLE, THREADS, DONE = 0, 64, 128, 136, 144, 192
BLOCK_BYTES = 256
PATIENCE = 100_000

_WAIT, _WAKE, _ALL = 128, 129, 1 << 30  # FUTEX_WAIT and FUTEX_WAKE on memory of this process
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "powerpc64le": 221, "loongarch64": 98}  # system call numbers
_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_nanosleep = types.ExternalFunction("nanosleep", types.int32(types.int64, types.int64))
_pause_tile = make_tile(2, "i64")


def _call_lowering(tc: Any, function: Any, table: Any, thread: Any, threads: Any) -> Any:
    def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
        b.call(b.inttoptr(a[0], kind.as_pointer()), a[1:])
        return void(cx)

    return types.void(*[types.int64] * 4), gen


@primitive(_call_lowering)
def _call(function: int, table: int, thread: int, threads: int) -> None:
    """Call native code by address."""
    raise NotImplementedError("the pool runs compiled code only")


class Pool(NamedTuple):
    """The two kernels of a pool, see the module's text: worker(block, thread, patience), run(block)."""

    worker: Kernel
    run: Kernel


def make_pool(target: Target | None = None) -> Pool:
    """The pool's kernels for a target (default: what is built for). Linux parks with futex; elsewhere workers nap."""
    arch, _, rest = (target or Target.current()).triple.partition("-")
    futex = _FUTEX.get(arch, 0) if "linux" in rest else 0

    @kernel
    def pool_worker(block: int, thread: int, patience: int) -> None:
        seen, working = 0, True
        while working:
            spins = 0
            while atomic_load(block + JOB) == seen:
                spins += 1
                if spins > patience:
                    if futex != 0:
                        atomic_add(block + PARKED, 1)
                        _syscall(futex, block + JOB, _WAIT, seen, 0, 0, 0)  # returns at once if a job came meanwhile
                        atomic_add(block + PARKED, -1)
                    else:
                        time_at = _pause_tile()
                        time = i64(time_at, 0)
                        time[0] = 0
                        time[1] = 50_000
                        _nanosleep(time_at, 0)
            seen = atomic_load(block + JOB)
            function = atomic_load(block + FUNCTION)
            if function != 0:
                _call(function, atomic_load(block + TABLE), thread, atomic_load(block + THREADS))
            else:
                working = False
            atomic_add(block + DONE, 1)

    @kernel
    def pool_run(block: int) -> None:
        function, threads = atomic_load(block + FUNCTION), atomic_load(block + THREADS)
        if threads > 1:
            atomic_store(block + DONE, 0)
            atomic_add(block + JOB, 1)
            if futex != 0 and atomic_add(block + PARKED, 0) > 0:  # an add: it must not be read before JOB is written
                _syscall(futex, block + JOB, _WAKE, _ALL, 0, 0, 0)
        if function != 0:
            _call(function, atomic_load(block + TABLE), 0, threads)
        spins = 0
        while atomic_load(block + DONE) < threads - 1:
            spins += 1
            if spins > SPINS:
                sched_yield()

    return Pool(pool_worker, pool_run)
