"""The step as readable Python: kernel calls under the IR lines that they compute."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import dataclass

from compiler.codegen.native import Kernel, barrier, i64, u8
from compiler.codegen.native.dispatch import Entry
from compiler.codegen.native.sequence import Sequence
from compiler.codegen.plan import BARRIER_WORD, STATUS_WORD, Plan, Statement
from compiler.ir.dump import node_text

PIECE = 150
"""Calls in one function: LLVM's time grows faster than the length of a function."""


@dataclass(frozen=True)
class Emitted:
    """The step of a plan: its kernel `step(table, thread, threads)`, and the text of everything that was generated."""

    step: Kernel
    source: str


def emit(plan: Plan) -> Emitted:
    """Write the step of a plan."""
    names = _entries(plan)
    namespace = {name: entry for entry, name in names.items()} | {"barrier": barrier, "i64": i64, "u8": u8}
    texts: list[str] = [_kernel_text(k) for k in dict.fromkeys(e.kernel for e in names) if _generated(k)]
    main = ["def step(table, thread, threads):", "    T = i64(table, 0)"]
    for i, piece in enumerate(_pieces(plan.statements)):
        if piece[0].kind == "check":
            main += [f"    if i64(T[{STATUS_WORD}], 1)[0] != 0:", "        return"]
            continue
        name = f"part{i}"
        text = (
            "\n".join([f"def {name}(table, thread, threads):", "    T = i64(table, 0)", *_body(plan, piece, names)])
            + "\n"
        )
        namespace[name] = Sequence.from_source(name, text, namespace)
        texts.append(text)
        main.append(f"    {name}(table, thread, threads)")
    text = "\n".join(main) + "\n"
    texts.append(text)
    header = f'"""The step of {plan.graph.name!r}, as emitted. T is the table: records of the calls, see Layout."""\n'
    return Emitted(Sequence.from_source("step", text, namespace), "\n\n".join([header, *texts]))


def _entries(plan: Plan) -> dict[Entry, str]:
    """Every kernel's entry -> its name in the text."""
    by_symbol: dict[str, Entry] = {}
    taken: dict[str, int] = {}
    names: dict[Entry, str] = {}
    for s in plan.statements:
        if s.call is not None and s.call.kernel.symbol not in by_symbol:
            entry = by_symbol[s.call.kernel.symbol] = Entry(s.call.kernel)
            taken[entry.kernel.name] = taken.get(entry.kernel.name, 0) + 1
            n = taken[entry.kernel.name]
            names[entry] = f"{entry.kernel.name}_{n}" if n > 1 else entry.kernel.name
    return names


def _pieces(statements: list[Statement]) -> list[list[Statement]]:
    """Cut where a check lies, and between top-level statements where a piece gets long."""
    pieces: list[list[Statement]] = []
    current: list[Statement] = []
    calls = depth = 0
    for s in statements:
        depth += (s.kind == "if") - (s.kind == "end")
        if s.kind == "check" or (s.kind == "node" and calls >= PIECE and depth == 0):
            pieces += [current] if current else []
            current, calls = [], 0
        if s.kind == "check":
            pieces.append([s])
        else:
            current.append(s)
            calls += s.kind == "call"
    return pieces + ([current] if current else [])


def _body(plan: Plan, piece: list[Statement], names: Mapping[Entry, str]) -> list[str]:
    by_symbol = {e.kernel.symbol: name for e, name in names.items()}
    lines: list[str] = []
    indent = "    "
    for s in piece:
        match s.kind:
            case "node":
                assert s.node is not None
                lines.append(f"{indent}# {node_text(s.node, plan.schedule)}")
            case "call":
                assert s.call is not None
                lines.append(f"{indent}{by_symbol[s.call.kernel.symbol]}(table + {8 * s.word}, thread, threads)")
            case "barrier":
                lines.append(f"{indent}barrier(T[{BARRIER_WORD}], threads)")
            case "if":
                lines.append(f"{indent}if u8(T[{s.word}], 1)[0] != 0:")
                indent += "    "
                lines.append(f"{indent}pass")
            case "else":
                lines.append(f"{indent[4:]}else:")
                lines.append(f"{indent}pass")
            case "end":
                indent = indent[4:]
    return lines


def _generated(kernel: Kernel) -> bool:
    """Whether the kernel was written by onnxc for this graph (and not by hand in `kernels/`)."""
    return kernel.function.__code__.co_filename.startswith("<kernel ")


def _kernel_text(kernel: Kernel) -> str:
    return "".join(linecache.getlines(kernel.function.__code__.co_filename))
