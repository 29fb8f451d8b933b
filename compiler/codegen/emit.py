"""The step as readable Python: kernel calls under the IR lines that they compute."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.codegen.native import Inline, Kernel, barrier, i64, u8
from compiler.codegen.native.dispatch import Entry, Part, share
from compiler.codegen.native.sequence import Sequence
from compiler.codegen.plan import Plan
from compiler.codegen.records import BARRIER_WORD, STATUS_WORD
from compiler.codegen.units import Statement
from compiler.ir.dump import node_text

PIECE = 150
"""Calls in one function: LLVM's time grows faster than the length of a function."""

HEADER = '''"""The step of {name!r}, as emitted.

A call `f(table + k, thread, threads)` reads a record at byte k of the table: an extent n, then the arguments of the
kernel f after lo and hi. It runs f on the thread's share lo:hi of the range 0:n. A call `f_part(table + k, block,
thread)` runs it on one block of this range; how many items that is the record tells in the end. T holds the words of
the table: T[0] is the address of the status, T[1] of the barrier.
"""
'''


@dataclass(frozen=True)
class Emitted:
    """The step of a plan: its kernel `step(table, thread, threads)`, and the text of everything that was generated."""

    step: Kernel
    source: str


def emit(plan: Plan) -> Emitted:
    """Write the step of a plan."""
    names = _entries(plan)
    namespace: dict[str, Any] = {name: entry for entry, name in names.items()}
    namespace |= {f"{name}_part": Part(entry.kernel) for entry, name in names.items()}
    namespace |= {"barrier": barrier, "i64": i64, "u8": u8, "share": share}
    parts_of = _parts(names)
    texts = [HEADER.format(name=plan.graph.name), _imported(names, parts_of)]
    texts += [_generated(part.function, name, parts_of) for part, name in parts_of.items()]
    texts += [_generated(e.kernel.function, name, parts_of) for e, name in names.items() if _source(e.kernel.function)]
    main = ["def step(table, thread, threads):", "    T = i64(table, 0)"]
    parts = 0
    for piece in _pieces(plan.statements):
        if piece[0].kind == "check":
            main += [f"    if i64(T[{STATUS_WORD}], 1)[0] != 0:", "        return"]
            continue
        name, parts = f"part{parts}", parts + 1
        lines = [f"def {name}(table, thread, threads):", "    T = i64(table, 0)", *_body(plan, piece, names)]
        texts.append("\n".join(lines) + "\n")
        namespace[name] = Sequence.from_source(name, texts[-1], namespace)
        main.append(f"    {name}(table, thread, threads)")
    texts.append("\n".join(main) + "\n")
    return Emitted(Sequence.from_source("step", texts[-1], namespace), "\n\n".join(filter(None, texts)))


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
        may_cut = depth == 0 and s.kind in ("node", "blocks")
        depth += (s.kind in ("if", "while", "blocks")) - (s.kind == "end")
        if s.kind == "check" or (may_cut and calls >= PIECE):
            pieces += [current] if current else []
            current, calls = [], 0
        if s.kind == "check":
            pieces.append([s])
        else:
            current.append(s)
            calls += s.kind in ("call", "part")
    return pieces + ([current] if current else [])


def _body(plan: Plan, piece: list[Statement], names: Mapping[Entry, str]) -> list[str]:
    by_symbol = {e.kernel.symbol: name for e, name in names.items()}
    lines: list[str] = []
    indent = "    "
    for s in piece:
        match s.kind:
            case "node":
                assert s.node is not None
                lines += node_text(s.node, plan.schedule, f"{indent}# ").split("\n")
            case "call":
                assert s.call is not None
                lines.append(f"{indent}{by_symbol[s.call.kernel.symbol]}(table + {8 * s.word}, thread, threads)")
            case "blocks":
                lines.append(f"{indent}for block in share(T[{s.word}], thread, threads):")
                indent += "    "
            case "part":
                assert s.call is not None
                name = f"{by_symbol[s.call.kernel.symbol]}_part"
                lines.append(f"{indent}{name}(table + {8 * s.word}, block, thread)")
            case "barrier":
                lines.append(f"{indent}barrier(T[{BARRIER_WORD}], threads)")
            case "if" | "while":
                lines.append(f"{indent}{s.kind} u8(T[{s.word}], 1)[0] != 0:")
                indent += "    "
            case "else":
                lines += _filler(lines, indent)
                lines.append(f"{indent[4:]}else:")
            case "end":
                lines += _filler(lines, indent)
                indent = indent[4:]
    return lines


def _filler(lines: list[str], indent: str) -> list[str]:
    """What a block needs that has no statement, perhaps a comment."""
    statement = next(line for line in reversed(lines) if not line.lstrip().startswith("#"))
    return [f"{indent}pass"] if statement.endswith(":") else []


def _source(function: Callable[..., Any]) -> str:
    """The text of a function that onnxc wrote for this graph; "" if it was written by hand."""
    filename = function.__code__.co_filename
    return "".join(linecache.getlines(filename)) if filename.startswith("<kernel ") else ""


def _generated(function: Callable[..., Any], name: str, parts: Mapping[Inline[..., Any], str]) -> str:
    """The text of such a function under the name that it is called by, below the numbers and functions it reads."""
    text = _source(function).strip("\n").replace(f"def {function.__name__}(", f"def {name}(", 1)
    read = _globals(function).items()
    shown = [f"{n} = {v}" for n, v in read if _is_number(v)]
    shown += [f"{n} = {parts[v]}" for n, v in read if isinstance(v, Inline) and v in parts]
    comment = textwrap.fill(", ".join(shown), 118, initial_indent="# ", subsequent_indent="#   ")
    return f"{comment}\n{text}\n".lstrip("\n")


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    """The globals that a function reads."""
    return {n: function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__}


def _made_for(kernel: Kernel) -> dict[str, Any]:
    """What a kernel knows from the function that made it."""
    function = kernel.function
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {n: cell.cell_contents for n, cell in cells}


def _parts(names: Mapping[Entry, str]) -> dict[Inline[..., Any], str]:
    """The functions written for this graph that kernels of onnxc call -> their names in the text."""
    taken: dict[str, int] = {}
    found: dict[Inline[..., Any], str] = {}
    for entry in names:
        for part in (*_made_for(entry.kernel).values(), *_globals(entry.kernel.function).values()):
            if isinstance(part, Inline) and part not in found and _source(part.function):
                name = part.function.__name__
                n = taken[name] = taken.get(name, 0) + 1
                found[part] = f"{name}_{n}" if n > 1 else name
    return found


def _imported(names: Mapping[Entry, str], parts: Mapping[Inline[..., Any], str]) -> str:
    """A comment with what was written by hand: the kernel, the function that makes it, and what this was made for."""
    lines = []
    for entry, name in names.items():
        kernel = entry.kernel
        if not _source(kernel.function):
            values = _made_for(kernel).items()
            shown = {n: parts[v] if isinstance(v, Inline) and v in parts else v for n, v in values}
            made = ", ".join(f"{n}={v}" for n, v in shown.items() if _is_number(v) or isinstance(v, str))
            home = f"{kernel.__module__}.{kernel.__qualname__.partition('.')[0]}"
            lines.append(f"# {name}({', '.join(kernel.parameters)})\n#     of {home}" + (f", {made}" if made else ""))
    return "\n".join(["# Kernels from onnxc:", *lines]) + "\n" if lines else ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.generic))
