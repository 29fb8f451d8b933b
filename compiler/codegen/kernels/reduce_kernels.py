"""Kernels of reductions, made from a template for what an op does with an element, with two parts, and at the end.

How elements are grouped follows from the shape alone, never from threads: along a dense axis stretches of at most
STRETCH elements are summed in vector lanes, across rows groups of GROUP rows; these sums add up in order, in double for
floats. So float32 sums are good to about one unit in the last place of the sum of magnitudes, whatever their length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from compiler.codegen.kernels.common import fmax, fmin, kind_of
from compiler.codegen.native import ITEMSIZE, Inline, Kernel, dtype, i64, make_tile, per_target, pointer
from compiler.codegen.native.math import exp, log
from compiler.codegen.native.selection import frozen

STRETCH = 1024
"""Elements summed in the lanes of one dtype before they go to the total."""

GROUP = 32
"""Rows whose columns are summed in the dtype before they go to the totals."""

WIDTH = 64
"""Columns that one unit of work takes."""


class Rule(NamedTuple):
    """What a reduction does: Python expressions over x (an element), a and b (two parts), t (the total), n (count).

    s is the shift of ReduceLogSumExp, one for each result. start: the total of nothing.
    """

    start: str
    each: str
    join: str
    finish: str


_ADD = "a + b"
_MAX = {"float": "fmax(a, b)", "signed": "max(a, b)", "unsigned": "max(a, b)"}
_MIN = {"float": "fmin(a, b)", "signed": "min(a, b)", "unsigned": "min(a, b)"}
_MEAN = {
    "float": "t / n",
    "signed": "0 if n == 0 else -(-t // n) if t < 0 else t // n",  # toward zero, as a cast of the quotient
    "unsigned": "ZERO if n == 0 else t // u64_of(n)",
}


def rule(op: str, kind: str) -> Rule:
    """The rule of a reduction (the op's name without Reduce) on floats, signed or unsigned integers."""
    match op:
        case "Sum":
            return Rule("ZERO", "x", _ADD, "t")
        case "Mean":
            return Rule("ZERO", "x", _ADD, _MEAN[kind])
        case "Prod":
            return Rule("ONE", "x", "a * b", "t")
        case "Max":
            return Rule("LEAST", "x", _MAX[kind], "t")
        case "Min":
            return Rule("MOST", "x", _MIN[kind], "t")
        case "SumSquare":
            return Rule("ZERO", "x * x", _ADD, "t")
        case "L1":
            return Rule("ZERO", "x" if kind == "unsigned" else "abs(x)", _ADD, "t")
        case "L2":
            root = {"float": "sqrt(t)", "signed": "np.sqrt(np.float64(t))", "unsigned": "np.sqrt(np.float64(t))"}[kind]
            return Rule("ZERO", "x * x", _ADD, root)
        case "LogSum":
            return Rule("ZERO", "x", _ADD, "log(t)")
        case "LogSumExp":
            return Rule("ZERO", "exp(x - s)", _ADD, "log(t) + s")
    raise KeyError(op)


_ROWS = '''
def reduce_rows(lo, hi, src, shift, dst, meta):
    """Units k, c: result k, its part c of the rows; a row is a dense stretch of elements."""
    m = i64(meta, 3)
    n, pieces, chunk, rows, length, kept = m[0], m[1], m[2], m[3], m[4], m[5]
    reduced = m[6]
    {room}
    for u in range(hi - lo):
        k, c = (lo + u) // pieces, (lo + u) % pieces
        {shift}
        base, rest = {src}, k
        for a in range(kept):
            base += SIZE * (rest % m[7 + 2 * a]) * m[8 + 2 * a]
            rest = rest // m[7 + 2 * a]
        w = 7 + 2 * kept
        stretches, step = m[w], SIZE * m[w + 1]
        t = START
        r, stop = c * chunk, min((c + 1) * chunk, rows)
        while r < stop:
            first = r % stretches
            at, rest = base + first * step, r // stretches
            for q in range(1, reduced):
                at += SIZE * (rest % m[w + 2 * q]) * m[w + 1 + 2 * q]
                rest = rest // m[w + 2 * q]
            run = min(stretches - first, stop - r)
            for j in range(run):
                count = min(STRETCH, length - (first + j) * STRETCH)
                x_at = ptr({at}, 0)
                a = INNER
                for i in range(count):
                    x = x_at[i]
                    b = {each}
                    a = {join}
                a, b = t, WIDE(a)
                t = {join}
            r += run
        ptr_out(dst, 2)[lo + u] = {finish}
'''

_COLUMNS = '''
def reduce_columns(lo, hi, src, shift, dst, meta):
    """Units k, c, block: results k of a block of neighbouring columns, part c of the rows."""
    m = i64(meta, 3)
    n, pieces, chunk, rows, columns, kept = m[0], m[1], m[2], m[3], m[4], m[5]
    reduced = m[6]
    blocks = (columns + WIDTH - 1) // WIDTH
    memory, totals = tile(), wide_tile()
    part, total = ptr_in(memory, 4), ptr_wide(totals, 5)
    for u in range(hi - lo):
        column = (lo + u) % blocks * WIDTH
        k, c = (lo + u) // blocks // pieces, (lo + u) // blocks % pieces
        width = min(WIDTH, columns - column)
        base, rest = src + SIZE * column, k
        for a in range(kept):
            base += SIZE * (rest % m[7 + 2 * a]) * m[8 + 2 * a]
            rest = rest // m[7 + 2 * a]
        w = 7 + 2 * kept
        extent, step = m[w], SIZE * m[w + 1]
        for j in range(width):
            total[j] = START
        {shifts}
        r, stop = c * chunk, min((c + 1) * chunk, rows)
        while r < stop:
            first = r % extent
            at, rest = base + first * step, r // extent
            for q in range(1, reduced):
                at += SIZE * (rest % m[w + 2 * q]) * m[w + 1 + 2 * q]
                rest = rest // m[w + 2 * q]
            run = min(min(extent - first, stop - r), GROUP)
            for j in range(width):
                part[j] = INNER
            for i in range(run // 4):
                p0 = at + 4 * i * step
                x0, x1 = ptr(p0, 0), ptr(p0 + step, 0)
                x2, x3 = ptr(p0 + 2 * step, 0), ptr(p0 + 3 * step, 0)
                for j in range(width):
                    {shift}
                    x = x0[j]
                    a = {each}
                    x = x1[j]
                    b = {each}
                    left = {join}
                    x = x2[j]
                    a = {each}
                    x = x3[j]
                    b = {each}
                    b = {join}
                    a = left
                    b = {join}
                    a = part[j]
                    part[j] = {join}
            for i in range(run // 4 * 4, run):
                x0 = ptr(at + i * step, 0)
                for j in range(width):
                    {shift}
                    x = x0[j]
                    b = {each}
                    a = part[j]
                    part[j] = {join}
            for j in range(width):
                a, b = total[j], WIDE(part[j])
                total[j] = {join}
            r += run
        y = ptr_out(dst + OUT * ((k * pieces + c) * columns + column), 2)
        for j in range(width):
            {shift}
            t = total[j]
            y[j] = {finish}
'''


_FOUND = {"room": "", "src": "src", "at": "at + j * step"}
_COMPUTED = {"room": "room = room_tile()", "src": "0", "at": "load(src, room, at + j * step, count)"}
"""Where dense rows come from: from memory, by addresses; or from a function, by numbers of elements."""

_SHIFT = "s = {0} if -MOST < {0} < MOST else ZERO"  # -inf - -inf would be NaN


@per_target
def make_reduce(
    op: str, src: str, dst: str, columns: bool, stage: str = "whole", load: Inline[..., int] | None = None
) -> Kernel:
    """The kernel of a reduction (op as for `rule`) from dtype src to dst, along dense rows or across them.

    Arguments: src, shift, dst, meta: count n of the elements of a result, pieces and rows of a piece (`chunk`), rows,
    elements in all stretches of a row or columns, number of kept and of reduced axes; extent and stride of each,
    innermost first (the kept axes without the columns; the first reduced axis of dense rows counts stretches).
    stage: "whole", or "first" to make parts of results and "last" to make results of parts.
    load: of dense rows that it computes itself: `load(src, room, at, count)` gives the address of the elements from
    number `at` on, which may be `room`. The loop that sums is the same, so that LLVM forms the same lanes.
    """
    kind = kind_of(src)
    r = rule(op, kind)
    inner = {"float": "f64" if src == "f64" else "f32", "signed": "i64", "unsigned": "u64"}[kind]
    # Products and sums go to double; an extremum is exact in its own dtype.
    wide = "f64" if kind == "float" and op not in ("Max", "Min") else inner
    constants = _constants(src, inner)
    shifted = op == "LogSumExp"
    in_place = columns and op in ("Max", "Min")  # the totals of columns lie in memory
    text = (_COLUMNS if columns else _ROWS).format(
        **(_COMPUTED if load else _FOUND),
        each="x" if stage == "last" else r.each,
        join=f"frozen({r.join})" if in_place else r.join,
        finish="t" if stage == "first" else r.finish,
        shift=_SHIFT.format("shift_at[j]" if columns else "ptr_shift(shift, 1)[k]") if shifted else "",
        shifts="shift_at = ptr_shift(shift + SHIFT * (k * columns + column), 1)" if shifted else "",
    )
    text = "".join(line for line in text.splitlines(keepends=True) if line.strip())
    namespace: dict[str, Any] = {
        **constants,
        "START": getattr(np, dtype(wide).numpy)(constants[r.start]),
        "INNER": constants[r.start],
        "WIDE": dtype(wide).value,
        "SIZE": 1 if load else ITEMSIZE[src],
        "OUT": ITEMSIZE[dst],
        "SHIFT": ITEMSIZE[inner],
        "STRETCH": STRETCH,
        "GROUP": GROUP,
        "WIDTH": WIDTH,
        "ptr": pointer("u8" if src == "bool" else src),
        "ptr_in": pointer(inner),
        "ptr_wide": pointer(wide),
        "ptr_out": pointer("u8" if dst == "bool" else dst),
        "ptr_shift": pointer(inner),
        "tile": make_tile(WIDTH, inner),
        "wide_tile": make_tile(WIDTH, wide),
        "room_tile": make_tile(STRETCH, src),
        "load": load,
        "u64_of": dtype("u64").value,
        "i64": i64,
        "np": np,
        "sqrt": np.sqrt,
        "fmax": fmax,
        "fmin": fmin,
        "frozen": frozen,
        "exp": exp,
        "log": log,
    }
    return Kernel.from_source("reduce_columns" if columns else "reduce_rows", text, namespace, reassoc=True)


def _constants(src: str, inner: str) -> dict[str, Any]:
    """Zero, one and the ends of the range of src, as values of the dtype that sums of it have."""
    of = getattr(np, dtype(inner).numpy)
    if kind_of(src) == "float":
        least, most = -np.inf, np.inf
    elif src == "bool":
        least, most = 0, 1
    else:
        info = np.iinfo(dtype(src).numpy)
        least, most = int(info.min), int(info.max)
    return {"ZERO": of(0), "ONE": of(1), "LEAST": of(least), "MOST": of(most)}
