"""Sequences of kernel calls: what they compile to, against the same text as Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numba import cloudpickle

from compiler.codegen.native import Kernel, i64, kernel, load, native, u8
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
