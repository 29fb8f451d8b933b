"""What the machine can do at most: `python -m benchmarks.limits THREADS` prints it as JSON.

Two loops in LLVM IR, compiled for this CPU: multiply-adds on vectors in registers, enough of them in flight to hide
their latency; and McCalpin's triad a = b + s*c on arrays larger than the caches. One thread runs on each core.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import llvmlite.binding as llvm
import numpy as np

from benchmarks.machine import pin

CHAINS = 12
"""Independent multiply-adds: at least latency x units of the cores there are (4 x 2), within 16 registers."""

TRIAD = 8 << 20
"""Elements of each of a thread's three arrays: 32 MB each, so that 96 MB go by."""

TRIES = 7


@dataclass(frozen=True)
class Limits:
    """For all threads together: float32 multiply-adds as 10^9 operations a second (two each), 10^9 bytes a second.

    The triad counts 12 bytes an element: two read, one written; that a cache line is read before it is written is not.
    """

    threads: int
    gflops: float
    gbytes: float


def _lanes() -> int:
    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


def _source(lanes: int) -> str:
    vector = f"<{lanes} x float>"
    suffix = f"v{lanes}f32"
    phis = [f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in range(CHAINS)]
    body = [
        f"  %b{i} = call {vector} @llvm.fma.{suffix}({vector} %a{i}, {vector} %x, {vector} %y)" for i in range(CHAINS)
    ]
    sums = [f"  %s0 = fadd {vector} %b0, %b1"]
    sums += [f"  %s{i} = fadd {vector} %s{i - 1}, %b{i + 1}" for i in range(1, CHAINS - 1)]
    three = f"<{', '.join(['float 3.0'] * lanes)}>"
    lines = "\n".join
    return f"""
declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})

define void @fma(i64 %n, ptr %operands) {{
entry:
  %x = load {vector}, ptr %operands, align 4
  %second = getelementptr float, ptr %operands, i64 {lanes}
  %y = load {vector}, ptr %second, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{lines(phis)}
{lines(body)}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{lines(sums)}
  store {vector} %s{CHAINS - 2}, ptr %operands, align 4
  ret void
}}

define void @triad(i64 %n, ptr noalias %a, ptr noalias %b, ptr noalias %c) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr float, ptr %b, i64 %i
  %pc = getelementptr float, ptr %c, i64 %i
  %vb = load {vector}, ptr %pb, align 4
  %vc = load {vector}, ptr %pc, align 4
  %scaled = fmul {vector} %vc, {three}
  %sum = fadd {vector} %vb, %scaled
  store {vector} %sum, ptr %pa, align 4
  %next = add i64 %i, {lanes}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


class _Code:
    """The two loops in machine code."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.lanes = _lanes()
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_source(self.lanes)), machine)
        engine.finalize_object()
        self._engine = engine  # owns the code
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self.fma = ctypes.CFUNCTYPE(None, word, pointer)(engine.get_function_address("fma"))
        triad = engine.get_function_address("triad")
        self.triad = ctypes.CFUNCTYPE(None, word, pointer, pointer, pointer)(triad)


def _best_seconds(threads: int, make: Callable[[], Callable[[], object]]) -> float:
    """Shortest time in which all threads run their function once, of several; ctypes lets them run side by side."""
    together = threading.Barrier(threads)
    times: list[list[tuple[float, float]]] = [[] for _ in range(threads)]

    def work(thread: int) -> None:
        run = make()
        run()
        for _ in range(TRIES):
            together.wait()
            begin = time.perf_counter()
            run()
            times[thread].append((begin, time.perf_counter()))

    workers = [threading.Thread(target=work, args=[thread], daemon=True) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    spans: list[float] = [max(e for _, e in turn) - min(b for b, _ in turn) for turn in zip(*times, strict=True)]
    return min(spans)


def measure(threads: int) -> Limits:
    """Measures both; takes about a second. The process should be pinned to so many cores."""
    code = _Code()
    count = 2_000_000

    def multiply() -> Callable[[], object]:
        operands = np.full(2 * code.lanes, 0.5, np.float32)
        return lambda: code.fma(count, operands.ctypes.data)

    def stream() -> Callable[[], object]:
        arrays = [np.ones(TRIAD, np.float32) for _ in range(3)]
        return lambda: code.triad(TRIAD, *(a.ctypes.data for a in arrays))

    flops: float = 2.0 * count * CHAINS * code.lanes * threads
    gflops = flops / _best_seconds(threads, multiply) / 1e9
    return Limits(threads, gflops, 12.0 * TRIAD * threads / _best_seconds(threads, stream) / 1e9)


if __name__ == "__main__":
    pin(int(sys.argv[1]))
    print(json.dumps(asdict(measure(int(sys.argv[1])))))
