"""Kernels -> object files in the cache; object files -> a shared library."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.codegen.native import cache, optimize, workers
from compiler.codegen.native.kernel import Kernel
from compiler.codegen.native.target import Target
from compiler.errors import BuildError


def object_name(kernel: Kernel, target: Target) -> str:
    """The file name of a kernel's object for a target."""
    return f"{kernel.symbol}.{target.digest}.o"


def compile_objects(kernels: Iterable[Kernel], target: Target | None = None, jobs: int | None = None) -> list[Path]:
    """Object files of the kernels and all they call, callees first, from the cache or compiled now.

    target: by default what is built for; jobs: processes at a time (default: the CPUs this process may use).
    BuildError names a kernel that cannot be compiled.
    """
    target = target or Target.current()
    wanted: dict[str, Kernel] = {}
    for k in kernels:
        for q in k.closure():
            wanted.setdefault(q.symbol, q)
    found = {symbol: cache.find(object_name(k, target)) for symbol, k in wanted.items()}
    missing = [wanted[symbol] for symbol, path in found.items() if path is None]
    if missing:
        for symbol, data in workers.compile_all(missing, target, jobs).items():
            found[symbol] = cache.store(object_name(wanted[symbol], target), data)
        cache.evict(keep={object_name(k, target) for k in wanted.values()})
    return [path for path in found.values() if path is not None]


def optimized_ir(kernel: Kernel, target: Target | None = None) -> str:
    """LLVM IR of a kernel after optimization for a target: to see what became of it (vectors, calls)."""
    return str(_optimized(kernel, target)[0])


def assembly(kernel: Kernel, target: Target | None = None) -> str:
    """Assembly of a kernel for a target."""
    module, machine = _optimized(kernel, target)
    return str(machine.emit_assembly(module))


def _optimized(kernel: Kernel, target: Target | None) -> tuple[Any, Any]:
    t = target or Target.current()
    machine = optimize.machine(t.cpu, t.features, t.triple, kernel.effort)
    return optimize.optimized(kernel.ir(), machine, kernel.effort), machine


def shared_library(
    objects: Sequence[Path], exports: Mapping[str, str], path: Path | str, cc: str = "cc", options: Sequence[str] = ()
) -> Path:
    """Link object files to a shared library.

    exports: name in the library -> symbol; only these are visible. cc: the linking C compiler; options: more for it.
    BuildError: no compiler, or it refuses, with its message.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix="onnxc-link-") as scratch:
        if sys.platform == "darwin":
            flags = [f"-Wl,-alias,_{symbol},_{name}" for name, symbol in exports.items() if name != symbol]
            listing = Path(scratch, "exports")
            listing.write_text("".join(f"_{name}\n" for name in exports), encoding="utf-8")
            flags.append(f"-Wl,-exported_symbols_list,{listing}")
        else:
            flags = ["-nostartfiles", "-Wl,-z,defs", "-Wl,-z,noexecstack"]
            flags += [f"-Wl,--defsym={name}={symbol}" for name, symbol in exports.items() if name != symbol]
            listing = Path(scratch, "exports")
            listing.write_text(f"{{ global: {'; '.join(exports)}; local: *; }};\n", encoding="utf-8")
            flags.append(f"-Wl,--version-script={listing}")
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        command = [*shlex.split(cc), "-shared", "-o", str(part), *map(str, objects), *flags, *options, "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as e:
            raise BuildError(f"cannot link {path}: no C compiler {cc!r}; install one or name it with cc=") from e
        except subprocess.CalledProcessError as e:
            raise BuildError(f"cannot link {path}: {cc} says: {e.stderr.strip()}") from e
        os.replace(part, path)
    return path
