"""What a Loop or Scan needs besides its body: counting, and moving the slices of the current iteration."""

from __future__ import annotations

from math import prod

from compiler.codegen.calls import Call, In, Moves, Out, Peek, Site, Status, Words, lowers
from compiler.codegen.kernels.strided import copy_call
from compiler.codegen.native import atomic_max, i64, kernel, u8
from compiler.ir.types import TensorType, numpy_dtype

LINE = 64  # bytes that one call of the copy moves at a time

ENDLESS = 2**62
"""In place of a trip count: no limit."""


@kernel
def begin_loop(lo: int, hi: int, counter: int, go: int, most: int, limit: int, condition: int) -> None:
    """Set counter to 0, and go to most > 0 and limit > 0 and condition. limit, condition: addresses, 0 if absent."""
    if hi > lo:
        i64(counter, 0)[0] = 0
        goes = most > 0
        if limit != 0 and i64(limit, 1)[0] <= 0:
            goes = False
        if condition != 0 and u8(condition, 2)[0] == 0:
            goes = False
        u8(go, 3)[0] = 1 if goes else 0


@kernel
def end_iteration(
    lo: int, hi: int, counter: int, go: int, most: int, limit: int, condition: int, status: int, moves: int, count: int
) -> None:
    """Count an iteration, and set go to whether there is another: none after a wrong index, it could go on forever.

    status: address, 0 if nothing is checked. moves: `count` pairs, of the address of a word and how much it grows with
    an iteration; in the end it is as before.
    """
    if hi > lo:
        n = i64(counter, 0)[0] + 1
        i64(counter, 0)[0] = n
        goes = n < most
        if limit != 0 and n >= i64(limit, 1)[0]:
            goes = False
        if condition != 0 and u8(condition, 2)[0] == 0:
            goes = False
        if status != 0 and i64(status, 4)[0] != 0:
            goes = False
        u8(go, 3)[0] = 1 if goes else 0
        m = i64(moves, 5)
        for k in range(count):
            word, step = i64(m[2 * k], 6), m[2 * k + 1]
            word[0] = word[0] + (step if goes else step - n * step)


@kernel
def copy_slice(lo: int, hi: int, src: int, dst: int, counter: int, meta: int) -> None:
    """Copy one slice out of a tensor, or into one: that of the counter. The range counts pieces of rows.

    meta: first, step: the slice is number first + step*counter; bytes from slice to slice in source and destination;
    bytes from row to row in both; bytes of a row; pieces of a row.
    """
    m = i64(meta, 3)
    at = m[0] + m[1] * i64(counter, 2)[0]
    length, pieces = m[6], m[7]
    for k in range(hi - lo):
        row, first = (lo + k) // pieces, (lo + k) % pieces * LINE
        s = u8(src + at * m[2] + row * m[4] + first, 0)
        d = u8(dst + at * m[3] + row * m[5] + first, 1)
        for i in range(min(length - first, LINE)):
            d[i] = s[i]


@kernel
def check_flag(lo: int, hi: int, wrong: int, status: int, code: int) -> None:
    """Report a flag that is set."""
    if hi > lo and u8(wrong, 0)[0] != 0:
        atomic_max(status, code)


@lowers("onnxc.Checked")
def checked(site: Site) -> list[Call]:
    """The first input, if the second is false."""
    check = Call(check_flag, 1, (site.read(1), Status(site.attr("message"))), check=True)
    return [check, copy_call(site.read(0), site.write(), site.type(0).nbytes)]


def slice_call(src: str, dst: str, counter: str, whole: TensorType, axis: int, backward: int, *, into: bool) -> Call:
    """Copy the slice of the current iteration along `axis` of a tensor of type `whole`: out of src, or into dst."""
    n = whole.shape[axis]
    rows = prod(whole.shape[:axis])
    length = prod(whole.shape[axis + 1 :]) * numpy_dtype(whole.dtype).itemsize
    outer = n * length
    pieces = -(-length // LINE)
    first, step = (n - 1, -1) if backward else (0, 1)
    strides = (0, length, length, outer) if into else (length, 0, outer, length)
    meta = Words((first, step, *strides, length, max(pieces, 1)))
    return Call(copy_slice, rows * pieces, (In(src), Out(dst), In(counter), meta))


def counting_calls(counter: str, go: str, most: int | None, limit: str, begins: str, goes_on: str) -> tuple[Call, Call]:
    """The calls before a loop and at the end of each iteration, by one thread.

    most: the number of iterations if that is known, then the names may be ''. limit: value of the trip count; begins,
    goes_on: values of the condition before the loop and after an iteration.
    """

    def given(v: str) -> In | int:
        return In(v) if v else 0

    bound = ENDLESS if most is None else most
    begin = Call(begin_loop, 1, (Out(counter), Out(go), bound, given(limit), given(begins)))
    return begin, Call(
        end_iteration, 1, (Out(counter), Out(go), bound, given(limit), given(goes_on), Peek(), Moves(go))
    )
