"""A program as a native shared library with a C interface: the JIT's objects, linked by the system's C compiler."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.codegen.build import plan_and_emit
from compiler.codegen.library_cpu import required
from compiler.codegen.library_tables import Contents, Graph, Stored, code, constants, exports, header
from compiler.codegen.native import Target, checking, compile_objects, shared_library
from compiler.codegen.native.pool import make_pool
from compiler.errors import BuildError, InputError, checked_string, shown
from compiler.ir.graph import Program
from compiler.ir.types import AnyArray, TensorType
from compiler.runtime.layout import Layout, Slot

CONSTANTS_LIMIT = 2**30
"""Bytes of constants in a library: code reaches 2 GB around it."""


@dataclass(frozen=True)
class Built:
    """A library that was built: its files, and what its graphs need of memory."""

    library: Path
    header: Path
    layouts: Mapping[str, Layout]
    source: str
    """Generated Python of the step."""


def library_file(name: str) -> str:
    """What the system calls a shared library."""
    return f"lib{name}.dylib" if sys.platform == "darwin" else f"lib{name}.so"


def check_name(name: str) -> None:
    """InputError: no prefix of C names, or one whose functions the C library has already."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", checked_string("name", name)):
        raise InputError(f"name must be a C identifier of letters, digits and single underscores, not {name!r}")
    process = ctypes.CDLL(None)
    taken = [f for f in exports(name) if hasattr(process, f)]
    if taken:
        raise InputError(f"name={name!r} makes the function {taken[0]}, which the C library has already: take another")


def build_library(
    program: Program,
    states: Sequence[Slot],
    weights: Path,
    folder: Path,
    *,
    name: str,
    title: str,
    version: str,
    threads: int = 1,
    cc: str = "cc",
) -> Built:
    """Write the shared library and the header of a program into a folder, for the target that is built for.

    states: all, in the layout that the graphs share. weights: a safetensors file of them, whose header the library
    repeats when it saves. BuildError: no C compiler, or it refuses. UnsupportedError: nodes without a kernel.
    """
    check_name(name)
    target = Target.current()
    cc = shlex.join(_compiler(cc))
    types = {s.name: TensorType(s.dtype, s.shape) for s in states}
    stored, order, head = _stored(weights, states)
    graphs: list[Graph] = []
    blocks: dict[str, AnyArray] = {}
    source = ""
    with checking(False):  # a library stands alone: nobody reports what checked kernels find
        kernels = [*(pool := make_pool())]
        for role, graph in program.graphs().items():
            plan, emitted = plan_and_emit(graph, threads, types)
            graphs.append(Graph(role, plan.layout, emitted.step.symbol, f"{name}_{role}_constants"))
            blocks[graphs[-1].constants] = plan.const
            kernels.append(emitted.step)
            source = source or emitted.source
        objects = compile_objects(kernels)
        symbols = (pool.worker.symbol, pool.run.symbol)
    if sum(b.nbytes for b in blocks.values()) > CONSTANTS_LIMIT:
        raise BuildError(f"the constants are larger than {CONSTANTS_LIMIT >> 20} MB: make the large ones variables")
    contents = Contents(
        name, title, version, f"{target.triple}, {target.cpu}", graphs, states, stored, head, order,
        required(target), symbols,
    )  # fmt: skip
    path = folder / f"{name}.h"
    path.write_text(header(contents), encoding="ascii")
    with tempfile.TemporaryDirectory(prefix="onnxc-library-") as scratch:
        own = _compile(contents, blocks, Path(scratch), cc)
        soname = [] if sys.platform == "darwin" else [f"-Wl,-soname,{library_file(name)}", "-Wl,-Bsymbolic"]
        names = exports(name, infers=any(g.role == "infer" for g in graphs))
        library = shared_library(
            [*own, *objects], {n: n for n in names}, folder / library_file(name), cc, options=soname
        )
    return Built(library, path, {g.role: g.layout for g in graphs}, source)


def _compiler(cc: str) -> list[str]:
    """The command of a C compiler, its program with its path. BuildError: there is none."""
    try:
        command = shlex.split(checked_string("cc", cc))
    except ValueError as e:
        raise InputError(f"cc must be a command, not {shown(cc)}: {e}") from e
    program = shutil.which(command[0]) if command else None
    if program is None:
        raise BuildError(f"there is no C compiler {cc!r}: install one (gcc or clang), or name it with cc=")
    return [os.path.abspath(program), *command[1:]]


def _stored(weights: Path, states: Sequence[Slot]) -> tuple[list[Stored], list[int], bytes]:
    """How a file holds each state, the order of their data, and all that stands before the data."""
    with open(weights, "rb") as f:
        size = f.read(8)
        text = f.read(int.from_bytes(size, "little"))
    entries = {n: e for n, e in json.loads(text).items() if "dtype" in e}
    found = []
    for s in states:  # checkpoint.py marks a name that safetensors reserves with one more character
        file_name = s.name if s.name in entries else f"{s.name}'"
        found.append(Stored(file_name, entries[file_name]["dtype"]))
    order = sorted(range(len(states)), key=lambda i: entries[found[i].name]["data_offsets"])
    return found, order, size + text


def _compile(c: Contents, blocks: Mapping[str, AnyArray], scratch: Path, cc: str) -> list[Path]:
    """Objects of the C interface and of the constants. File names are ours: they need no quoting anywhere."""
    (scratch / f"{c.name}.h").write_text(header(c), encoding="ascii")
    (scratch / "model.c").write_text(code(c), encoding="utf-8")
    files = {symbol: f"constants{i}.bin" for i, symbol in enumerate(blocks)}
    for symbol, file in files.items():
        (scratch / file).write_bytes(blocks[symbol].tobytes() or bytes(64))
    (scratch / "constants.S").write_text(constants(files), encoding="ascii")
    objects = []
    for source in ("model.c", "constants.S"):
        objects.append(scratch / f"{source}.o")
        command = [*shlex.split(cc), "-std=c99", "-O2", "-fPIC", "-c", source, "-o", f"{source}.o"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, cwd=scratch)
        except OSError as e:
            raise BuildError(f"the C compiler {cc!r} does not run: {e}") from e
        except subprocess.CalledProcessError as e:
            raise BuildError(f"{cc} cannot compile the C interface; it says: {e.stderr.strip()}") from e
    return objects
