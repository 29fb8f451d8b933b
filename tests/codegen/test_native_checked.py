"""Checked builds find accesses outside the memory a kernel was given, and make them harmless."""

from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import (
    Guard,
    checking,
    f32,
    guarded,
    i64,
    inline,
    kernel,
    make_micro,
    make_tile,
    make_transpose,
    native,
    optimized_ir,
    tile_for,
    transpose_block,
    watched,
)
from compiler.errors import OnnxcError

MR, NV, VL = tile_for("f32")
NR, N = NV * VL, transpose_block(4)
ONE = np.float32(1)
micro, tile, block = make_micro("f32"), make_tile(MR * NR), make_transpose(4)


@inline
def element(p: Any, i: int) -> Any:
    return p[i]


@kernel
def shift(lo: int, hi: int, src: int, dst: int, by: int) -> None:
    s, d = f32(src, 0), f32(dst, 1)
    for i in range(hi - lo):
        d[i + by] = element(s, i)


@kernel
def product(lo: int, hi: int, a: int, b: int, c: int, k: int) -> None:
    t = tile()
    micro(a, 1, MR, b, NR, k, t, NR)
    acc, out = f32(t, 0), f32(c, 1)
    for i in range(MR * NR):
        out[i] = acc[i]


@kernel
def overrun_tile(lo: int, hi: int) -> None:
    f32(tile(), 0)[MR * NR] = ONE


@kernel
def turn(lo: int, hi: int, src: int, dst: int) -> None:
    block(src, N, dst, N)


def address(a: Any) -> int:
    return int(a.ctypes.data)


def test_correct_kernels_pass_and_give_the_same_bits() -> None:
    r = np.random.default_rng(0)
    a, b = r.standard_normal((7, MR), np.float32), r.standard_normal((7, NR), np.float32)
    c, checked_c = np.zeros((2, MR, NR), np.float32)
    native(product)(0, 1, address(a), address(b), address(c), 7)
    with guarded(a, b, checked_c) as guard:
        native(product)(0, 1, address(a), address(b), address(checked_c), 7)
    assert guard.violations == 0, guard.first
    assert guard.first == ""
    assert c.tobytes() == checked_c.tobytes()


def test_a_store_beyond_the_end() -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(12, np.float32)
    y[8:] = 7
    with guarded(x, y[:8]) as guard:
        native(shift)(0, 8, address(x), address(y), 2)
    assert guard.violations == 2
    assert "store of 4 bytes in onnxc_shift_" in guard.first
    assert "4 bytes beyond the end of region 1 (32 bytes)" in guard.first
    assert y.tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 7, 7, 7, 7]


def test_a_store_before_the_start() -> None:
    x, y = np.ones(8, np.float32), np.zeros(12, np.float32)
    with guarded(x, y[4:]) as guard:
        native(shift)(0, 8, address(x), address(y[4:]), -1)
    assert guard.violations == 1
    assert "4 bytes before the start of region 1" in guard.first


def test_loads_may_use_the_slack_only() -> None:
    x, y = np.ones(80, np.float32), np.zeros(80, np.float32)
    with guarded(x[:8], y) as guard:
        native(shift)(0, 8 + 32, address(x), address(y), 0)
        assert guard.violations == 0
        native(shift)(0, 8 + 33, address(x), address(y), 0)
    assert guard.violations == 1
    assert guard.first.startswith("load of 4 bytes in onnxc_shift_")
    assert y[39:42].tolist() == [1, 0, 0]


def test_micro_kernels_and_transposes_are_checked() -> None:
    a, b, c = np.ones((7, MR), np.float32), np.ones((9, NR), np.float32), np.zeros((MR, NR), np.float32)
    with guarded(a, b[:2], c) as guard:
        native(product)(0, 1, address(a), address(b), address(c), 7)
    assert f"load of {4 * VL} bytes in onnxc_product_" in guard.first
    x, y = np.ones((2, N, N), np.float32)
    with guarded(x, y[:-1]) as guard:
        native(turn)(0, 1, address(x), address(y))
    assert guard.violations == 1
    assert f"store of {4 * N} bytes in onnxc_turn_" in guard.first


def test_stack_tiles_are_checked() -> None:
    with guarded() as guard:
        native(overrun_tile)(0, 1)
    assert guard.violations == 1


def test_checks_leave_no_trace_in_ordinary_builds() -> None:
    ordinary = shift.symbol
    with checking():
        assert shift.symbol != ordinary
        assert [k.name for k in shift.closure()] == ["access", "shift"]
        assert "@onnxc_access_" in optimized_ir(shift)
    assert shift.symbol == ordinary
    assert [k.name for k in shift.closure()] == ["shift"]
    assert "@onnxc_access_" not in optimized_ir(shift)


def test_guards_take_contiguous_memory() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        Guard().allow(np.zeros((4, 4))[:, 1])


def test_without_a_table_everything_is_refused() -> None:
    @kernel
    def write(lo: int, hi: int, x: int) -> None:
        i64(x, 0)[0] = 5

    x = np.zeros(1, np.int64)
    with checking():
        native(write)(0, 1, address(x))
    assert x[0] == 0


def test_a_guard_within_a_guard() -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    with guarded(x, y) as outer:
        with guarded(x) as inner:
            native(shift)(0, 8, address(x), address(y), 0)
        native(shift)(0, 8, address(x), address(y), 0)
    assert (inner.violations, outer.violations) == (8, 0)


def test_watching_a_run() -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)

    def run() -> None:
        native(shift)(0, 8, address(x), address(y), 0)

    ranges = [(address(a), address(a) + a.nbytes) for a in (x, y)]
    watched(run, ranges)()
    assert y.tolist() == x.tolist()
    with pytest.raises(OnnxcError, match=r"8 accesses .*the first: store of 4 bytes in onnxc_shift_"):
        watched(run, ranges[:1])()
