"""Loops over ranges, //, %, min and max of int64 against Python's; variables as values and in memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from compiler.codegen.kernels.conv import make_conv
from compiler.codegen.native import Kernel, assembly, i64, inline, kernel, native
from compiler.codegen.native.target import Target

LEAST, MOST = -(2**63), 2**63 - 1
NUMBERS = [LEAST, LEAST + 1, -13, -4, -3, -1, 0, 1, 3, 4, 13, MOST - 1, MOST]
AVX2 = Target("x86-64-v3", "", "x86_64-unknown-linux-gnu")


def of_two(form: str) -> Kernel:
    """z[i] = form(x[i], y[i])."""
    text = "def of_two(lo, hi, x, y, z):\n    p, q, r = i64(x, 0), i64(y, 1), i64(z, 2)\n    for i in range(lo, hi):\n"
    return Kernel.from_source("of_two", f"{text}        r[i] = {form}\n", {"i64": i64})


def pairs(form: str) -> tuple[Any, Any, Any]:
    """All pairs of numbers, and what the compiled form makes of them."""
    x, y = (np.ascontiguousarray(a.reshape(-1)) for a in np.meshgrid(np.array(NUMBERS), np.array(NUMBERS)))
    z = np.full_like(x, 77)
    native(of_two(form))(0, x.size, x.ctypes.data, y.ctypes.data, z.ctypes.data)
    return x.tolist(), y.tolist(), z.tolist()


@pytest.mark.parametrize("operator", ["//", "%"])
def test_division_by_any_number(operator: str) -> None:
    for x, y, z in zip(*pairs(f"p[i] {operator} q[i]"), strict=True):
        defined = y != 0 and (x, y) != (LEAST, -1)
        assert z == ((x // y if operator == "//" else x % y) if defined else 0), (x, y)


@pytest.mark.parametrize("by", [1, 2, 7, -1, -3, 8, LEAST])
def test_division_by_a_number_that_is_known(by: int) -> None:
    for x, _, z in zip(*pairs(f"p[i] // {by}"), strict=True):
        assert z == (x // by if (x, by) != (LEAST, -1) else 0), x
    for x, _, z in zip(*pairs(f"p[i] % {by}"), strict=True):
        assert z == x % by, x


@pytest.mark.parametrize("function", [min, max])
def test_the_least_and_the_most(function: Any) -> None:
    for x, y, z in zip(*pairs(f"{function.__name__}(p[i], q[i])"), strict=True):
        assert z == function(x, y)
    for x, y, z in zip(*pairs(f"{function.__name__}(p[i], q[i], 3)"), strict=True):
        assert z == function(x, y, 3)


@kernel
def visited(start: int, stop: int, step: int, out: int) -> None:
    o = i64(out, 0)
    n = 0
    for i in range(start, stop, step):
        n += 1
        o[n] = i
    o[0] = n


@kernel
def visited_by_three(start: int, stop: int, out: int) -> None:
    o = i64(out, 0)
    n = 0
    for i in range(start, stop, 3):
        n += 1
        o[n] = i
    for i in range(stop, start, -3):
        n += 1
        o[n] = i
    for i in range(start, stop):
        for _ in range(i):
            n += 1
            o[n] = i
    o[0] = n


@pytest.mark.parametrize("step", [1, 2, 3, 7, -1, -2, -5, MOST, LEAST])
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (7, 0), (-3, 4), (4, -3), (5, 5), (0, -1), (0, 1)])
def test_ranges(start: int, stop: int, step: int) -> None:
    out = np.zeros(64, np.int64)
    native(visited)(start, stop, step, out.ctypes.data)
    want = list(range(start, stop, step))
    assert out[: len(want) + 1].tolist() == [len(want), *want]


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (7, 0), (-3, 4), (5, 5)])
def test_ranges_of_a_step_that_is_known(start: int, stop: int) -> None:
    out = np.zeros(64, np.int64)
    native(visited_by_three)(start, stop, out.ctypes.data)
    want = [*range(start, stop, 3), *range(stop, start, -3), *(i for i in range(start, stop) for _ in range(i))]
    assert out[: len(want) + 1].tolist() == [len(want), *want]


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (7, 0), (3, 3)])
def test_a_step_of_zero_makes_no_turn(start: int, stop: int) -> None:
    out = np.full(4, 77)
    native(visited)(start, stop, 0, out.ctypes.data)
    assert out.tolist() == [0, 77, 77, 77]


@inline
def sign(x: int) -> bool:
    return x < 0


@kernel
def ways(n: int, x: int, out: int) -> None:
    p, o = i64(x, 0), i64(out, 1)
    base = n * 10
    last = before = -1
    for i in range(n):
        value = p[i]
        if sign(value):
            twice = -2 * value
        elif value == 7:
            o[i] = base
            continue
        else:
            twice = value + last
        if value == 99:
            break
        o[i] = twice + base + before
        before, last = last, value
    o[n] = last
    o[n + 1] = before


def test_variables_along_all_ways() -> None:
    x = np.array([3, -4, 7, 5, 0, -1, 8, 99, 6])
    got, want = np.zeros(x.size + 2, np.int64), np.zeros(x.size + 2, np.int64)
    native(ways)(x.size, x.ctypes.data, got.ctypes.data)
    ways(x.size, x.ctypes.data, want.ctypes.data)
    assert want[-2:].tolist() == [8, -1]
    assert got.tolist() == want.tolist()


def test_loops_are_short() -> None:
    text = of_two("p[i] // q[i] + p[i] % 5").ir()
    assert "pickle" not in text  # no exceptions
    assert len(re.findall(r"^  [%a-z]", text, flags=re.M)) < 110
    assert text.count("alloca") <= 10


def test_loops_that_stay_rolled_begin_at_a_cache_line() -> None:
    assert ".p2align\t6" in assembly(make_conv("f32"), AVX2)
