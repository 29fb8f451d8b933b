"""Slices, barriers and the worker pool."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import Target, barrier, i64, kernel, load, make_pool, native, optimized_ir, pool, share


@kernel
def step(table: int, thread: int, threads: int) -> None:
    """Each round: write my slice, wait, add up what all wrote. table: barrier, values, n, sums, rounds."""
    t = i64(table, 0)
    n, rounds = t[2], t[4]
    values, sums = i64(t[1], 1), i64(t[3], 2)
    for r in range(rounds):
        for i in range(share(n, thread, threads), share(n, thread + 1, threads)):
            values[i] = values[i] + i
        barrier(t[0], threads)
        total = 0
        for i in range(n):
            total += values[i]
        sums[thread * rounds + r] = total
        barrier(t[0], threads)


def aligned(n: int) -> Any:
    memory = np.zeros(n + 8, np.int64)
    skip = -memory.ctypes.data % 64 // 8
    return memory[skip : skip + n]


@contextmanager
def running(threads: int, patience: int) -> Iterator[Any]:
    kernels = make_pool()
    worker, run = native(kernels.worker), native(kernels.run)
    block = aligned(pool.BLOCK_BYTES // 8)
    address = int(block.ctypes.data)
    workers = [threading.Thread(target=worker, args=(address, t, patience)) for t in range(1, threads)]
    for w in workers:
        w.start()
    block[pool.THREADS // 8] = threads

    def job(function: int, table: int) -> None:
        block[pool.FUNCTION // 8], block[pool.TABLE // 8] = function, table
        run(address)

    try:
        yield job
    finally:
        job(0, 0)
        for w in workers:
            w.join(10)
        assert not any(w.is_alive() for w in workers)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("patience", [0, 1000])
def test_pool_runs_steps_on_all_threads(threads: int, patience: int) -> None:
    n, rounds = 17, 3
    address = load([step])[step.symbol]
    bar, values, sums, table = aligned(16), aligned(n), aligned(threads * rounds), aligned(5)
    table[:] = bar.ctypes.data, values.ctypes.data, n, sums.ctypes.data, rounds
    with running(threads, patience) as job:
        for repeat in range(20):
            if repeat % 7 == 6:
                time.sleep(0.002)  # let the workers park
            job(address, table.ctypes.data)
            expected = [(repeat * rounds + r + 1) * n * (n - 1) // 2 for r in range(rounds)]
            assert sums.reshape(threads, rounds).tolist() == [expected] * threads


def test_slices_cover_everything_once() -> None:
    for n in (0, 1, 5, 64, 1000):
        for threads in (1, 2, 3, 7):
            ends = [share(n, t, threads) for t in range(threads + 1)]
            assert ends[0] == 0
            assert ends[-1] == n
            assert ends == sorted(ends)


def test_pool_for_other_targets() -> None:
    arm = Target("generic", "", "aarch64-unknown-linux-gnu")
    worker, run = make_pool(arm)
    assert "i64 98, " in optimized_ir(worker, arm)
    mac = Target("apple-m1", "", "arm64-apple-darwin23.0.0")
    worker, run = make_pool(mac)
    assert "@syscall" not in optimized_ir(worker, mac) + optimized_ir(run, mac)
    assert "@nanosleep" in optimized_ir(worker, mac)
