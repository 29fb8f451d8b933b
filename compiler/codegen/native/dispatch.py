"""Calling kernels from a step by records of int64 words, so that the step's code is the same for any shape."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from compiler.codegen.native import identity, modes
from compiler.codegen.native.kernel import Kernel

SCRATCH = "scratch"
"""Name of a kernel's last parameter if it wants memory of its own for each thread."""


def share(n: int, thread: int, threads: int) -> range:
    """The share of a thread of n items."""
    return range(n * thread // threads, n * (thread + 1) // threads)


class Entry(Kernel):
    """`entry(record, thread, threads)`: run a kernel on this thread's share of the call that a record describes.

    A record is int64 words: n, the extent of the kernel's outer axis, then its arguments after lo and hi. For a last
    parameter called `scratch` the record has two words, base and stride: the kernel gets base + thread * stride.
    Thread t works on [n*t/threads, n*(t+1)/threads); a thread whose share is empty does not call.
    """

    verb: str = "run"
    parameters: tuple[str, ...] = ("record", "thread", "threads")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.name, self.reassoc, self.function = f"{self.verb}_{kernel.name}", False, kernel.function
        self.nargs = 3
        self.scratch = kernel.parameters[-1] == SCRATCH
        self.words = kernel.nargs - 1 + self.scratch
        self._symbols = {}
        self._calls = (kernel,)

    @property
    def symbol(self) -> str:
        """The C symbol, in the current build mode."""
        mode = modes.checked()
        if mode not in self._symbols:
            digest = hashlib.sha256(f"{identity.layer()}|{self.kernel.symbol}|{self._words()}".encode()).hexdigest()[
                :16
            ]
            self._symbols[mode] = f"onnxc_{self.name}_{digest}"
        return self._symbols[mode]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (
            self.kernel,
        )  # computed anew where it arrives, so that a kernel that came out different shows

    def ir(self, *, inner: bool = False) -> str:
        """LLVM IR text, for any target. inner: for a module that declares the kernel, as a function of its own."""
        kind, how = ("internal ", " noinline") if inner else ("", "")
        count = self.kernel.nargs
        declared = f"declare void @{self.kernel.symbol}({', '.join(['i64'] * count)})"
        lines = [] if inner else [declared]
        lines += [
            f"define {kind}void @{self.symbol}({', '.join(f'i64 %{p}' for p in self.parameters)}){how} {{",
            "entry:",
            "  %p = inttoptr i64 %record to ptr",
        ]
        for i in range(self._words()):
            lines += [
                f"  %q{i} = getelementptr i64, ptr %p, i64 {i}",
                f"  %w{i} = load i64, ptr %q{i}, align 8",
            ]
        lines += [*self._range(), "  %some = icmp slt i64 %lo, %hi", "  br i1 %some, label %run, label %done", "run:"]
        args = ["%lo", "%hi", *(f"%w{i}" for i in range(1, count - 1))]
        if self.scratch:
            lines += [
                f"  %mine = mul i64 %thread, %w{self.words - 1}",
                f"  %own = add i64 %w{self.words - 2}, %mine",
            ]
            args[-1] = "%own"
        lines += [
            f"  call void @{self.kernel.symbol}({', '.join(f'i64 {a}' for a in args)})",
            "  br label %done",
            "done:",
            "  ret void",
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _words(self) -> int:
        """Words of the record that the entry reads."""
        return self.words

    def _range(self) -> list[str]:
        """LLVM IR that computes lo and hi."""
        return [
            "  %alone = icmp eq i64 %threads, 1",
            "  br i1 %alone, label %share, label %divide",  # divisions are what takes longest here
            "divide:",
            "  %t1 = add i64 %thread, 1",
            "  %nlo = mul i64 %w0, %thread",
            "  %nhi = mul i64 %w0, %t1",
            "  %from = sdiv i64 %nlo, %threads",
            "  %to = sdiv i64 %nhi, %threads",
            "  br label %share",
            "share:",
            "  %lo = phi i64 [ 0, %entry ], [ %from, %divide ]",
            "  %hi = phi i64 [ %w0, %entry ], [ %to, %divide ]",
        ]

    def _call(self, record: int, thread: int, items: Callable[[Sequence[int]], range]) -> None:
        """As ordinary Python, for debugging."""
        w = (ctypes.c_int64 * self._words()).from_address(record)
        rest, mine = list(w[1 : self.words]), items(list(w))
        if self.scratch:
            stride = rest.pop()
            rest[-1] += thread * stride
        if mine:
            self.kernel(mine.start, mine.stop, *rest)

    def __call__(self, *args: int) -> None:
        """As ordinary Python, for debugging."""
        record, thread, threads = args
        self._call(record, thread, lambda w: share(w[0], thread, threads))


class Part(Entry):
    """`part(record, block, thread)`: run a kernel on a block of the call that a record describes.

    The record has one more word in the end: how many items are a block.
    """

    verb, parameters = "part", ("record", "block", "thread")

    def _words(self) -> int:
        return self.words + 1

    def _range(self) -> list[str]:
        return [
            f"  %lo = mul i64 %block, %w{self.words}",
            f"  %next = add i64 %lo, %w{self.words}",
            "  %over = icmp sgt i64 %next, %w0",
            "  %hi = select i1 %over, i64 %w0, i64 %next",
        ]

    def __call__(self, *args: int) -> None:
        """As ordinary Python, for debugging."""
        record, block, thread = args
        self._call(record, thread, lambda w: range(block * w[self.words], min(w[0], (block + 1) * w[self.words])))
