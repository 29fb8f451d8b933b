"""Compiled objects in this process: LLVM's own linker loads them, without a C toolchain."""

import ctypes
import itertools
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llvmlite.binding as ll

from compiler.codegen.native import build, cache, modes
from compiler.codegen.native.kernel import Kernel
from compiler.codegen.native.target import Target
from compiler.errors import BuildError

_SYMBOL = re.compile(rb"onnxc_[A-Za-z0-9_]+_[0-9a-f]{16}")
_lock = threading.Lock()
_addresses: dict[str, int] = {}  # every kernel symbol loaded into this process, once
_count = itertools.count()
_trackers: list[Any] = []  # dropping one would unload its code
_jit: Any = None


def load(items: Iterable[Kernel | Path]) -> dict[str, int]:
    """Addresses by symbol of kernels (compiled if need be) or object files, and of all they call.

    What is loaded already stays and is not loaded again. Object files must come with their callees. BuildError: a
    file is damaged, or a symbol is missing.
    """
    items = list(items)
    with _lock:
        kernels = [k for k in items if isinstance(k, Kernel)]
        closure = {q.symbol: q for k in kernels for q in k.closure()}
        fresh = [q for symbol, q in closure.items() if symbol not in _addresses]
        paths = [p for p in items if not isinstance(p, Kernel)]
        wanted = list(closure) + [_symbol(p) for p in paths]
        objects: dict[str, bytes] = {}
        for p in build.compile_objects(fresh) + paths:
            if _symbol(p) not in _addresses:
                objects[_symbol(p)] = _read(p, closure)
        if objects:
            _link(objects)
        return {symbol: _addresses[symbol] for symbol in wanted}


def loaded() -> list[str]:
    """The symbols loaded into this process so far."""
    return list(_addresses)


def _symbol(path: Path) -> str:
    return path.name.split(".")[0]


def _read(path: Path, closure: dict[str, Kernel]) -> bytes:
    if path.name.split(".")[1] != Target.host().digest:
        raise BuildError(f"object file {path} is for another machine: compile it for this one")
    for _ in range(3):
        try:
            data = path.read_bytes()
        except OSError:
            data = b""
        if cache.intact(data):
            return data
        if _symbol(path) not in closure:
            break
        path = build.compile_objects([closure[_symbol(path)]])[-1]  # another process evicted it
    raise BuildError(f"object file {path} is missing or damaged: compile it again")


def _link(objects: dict[str, bytes]) -> None:
    global _jit
    if _jit is None:
        ll.initialize_native_target()
        ll.initialize_native_asmprinter()
        # RuntimeDyld, the default, may put an object's code and constants further apart than code reaches, and then
        # aborts the process. That happens where gigabytes of other libraries came in between.
        _jit = ll.create_lljit_compiler(use_jit_link=True)
    library = ll.JITLibraryBuilder().add_current_process()
    for symbol, data in objects.items():
        library.add_object_img(data)
        library.export_symbol(symbol)
    named = {m.decode() for data in objects.values() for m in _SYMBOL.findall(data)}
    for symbol in named - set(objects):
        if symbol in _addresses:
            library.import_symbol(symbol, _addresses[symbol])
    try:
        tracker = library.link(_jit, f"onnxc_{next(_count)}")
    except RuntimeError as e:
        raise BuildError(f"cannot load compiled objects: {e}") from e
    _trackers.append(tracker)
    _addresses.update((symbol, tracker[symbol]) for symbol in objects)


def native(kernel: Kernel) -> Callable[..., None]:
    """A kernel as a function of Python ints; plain Python under ONNXC_PLAIN=1. It lets go of the GIL."""
    if modes.plain():
        return kernel
    address = load([kernel])[kernel.symbol]
    function: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * kernel.nargs)(address)
    return function
