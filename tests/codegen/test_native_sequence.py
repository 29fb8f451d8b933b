"""Sequences of kernel calls: what they compile to, against the same text as Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numba import cloudpickle

from compiler.codegen.native import Kernel, i64, kernel, load, native, u8
from compiler.codegen.native.dispatch import Entry, Part, share
from compiler.codegen.native.sequence import Sequence
from compiler.errors import BuildError


@kernel
def add(at: int, amount: int) -> None:
    i64(at, 0)[0] += amount


TEXT = """
def run(table, amount):
    T = i64(table, 0)
    add(T[0], amount)
    if u8(T[1], 1)[0] != 0:
        add(T[0] + 8, 1 + amount)
        if i64(T[2], 1)[1] != 0:
            return
        add(T[0] + 8, 100)
    else:
        pass
    add(T[0], 1000)
"""
NAMES = {"add": add, "i64": i64, "u8": u8, "unused": object()}


def test_as_python() -> None:
    sequence = Sequence.from_source("run", TEXT, NAMES)
    for first, second in itertools.product([0, 1, 128], [0, 1, -1]):
        results = []
        for run in (native(sequence), sequence):
            sums, condition, more = np.zeros(2, np.int64), np.array([first], np.uint8), np.array([7, second])
            table = np.array([a.ctypes.data for a in (sums, condition, more)])
            run(table.ctypes.data, 5)
            results.append(sums.tolist())
        assert results[0] == results[1]


def test_sent_to_another_process() -> None:
    sequence = Sequence.from_source("run", TEXT, NAMES)
    again = cloudpickle.loads(cloudpickle.dumps(sequence))
    assert (type(again), again.symbol, again.ir()) == (Sequence, sequence.symbol, sequence.ir())
    assert again.closure()[0].symbol == add.symbol


@kernel
def note(lo: int, hi: int, to: int, scratch: int) -> None:
    """Adds 1 to the items, and puts the thread's own memory down."""
    at = i64(to, 0)
    for i in range(lo, hi):
        at[i] += 1
    at[100] = scratch


def test_blocks_of_calls() -> None:
    """A thread takes its share of the blocks; each call goes over as many items as its record says."""
    text = """
def blocks(table, thread, threads):
    T = i64(table, 0)
    for block in share(T[0], thread, threads):
        note_part(table + 8, block, thread)
        note_part(table + 56, block, thread)
    note(table + 56, thread, threads)
"""
    sequence = Sequence.from_source(
        "blocks", text, {"i64": i64, "share": share, "note": Entry(note), "note_part": Part(note)}
    )
    for run, threads in itertools.product((native(sequence), sequence), (1, 2, 3)):
        first, second = np.zeros(101, np.int64), np.zeros(101, np.int64)
        table = np.array([5, 10, first.ctypes.data, 4000, 100, 2, 0, 23, second.ctypes.data, 4000, 100, 5], np.int64)
        for thread in range(threads):
            run(table.ctypes.data, thread, threads)
            assert first[100] == second[100] == 4000 + 100 * thread
        assert first[:100].tolist() == [1] * 10 + [0] * 90
        assert second[:100].tolist() == [2] * 23 + [0] * 77


@pytest.mark.parametrize(
    "line",
    [
        "add(table, amount, 1)",
        "print(table)",
        "add(table * 2, amount)",
        "add(table, f)",
        "x = table",
        "for i in range(3): pass",
        "i64(table, 0)[0] = 1",
        "if amount > 1: pass",
    ],
)
def test_anything_else_is_refused(line: str) -> None:
    sequence = Sequence.from_source("run", f"def run(table, amount):\n    {line}\n", NAMES)
    with pytest.raises(BuildError, match="more than a sequence"):
        sequence.ir()


def test_a_kernel_of_thousands_of_calls() -> None:
    """Each takes microseconds to compile: as many milliseconds would be noticed here."""
    count = 3000
    text = "def many(at):\n" + "".join(f"    add(at + {8 * (i % 3)}, {i})\n" for i in range(count))
    sequence: Kernel = Sequence.from_source("many", text, NAMES)
    sums = np.zeros(3, np.int64)
    assert load([sequence])
    native(sequence)(sums.ctypes.data)
    assert sums.sum() == count * (count - 1) // 2
