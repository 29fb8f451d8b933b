"""What a kernel's code depends on, as text: two kernels with the same text compile to the same object.

A function is described by its bytecode, which is what Numba compiles (a source file may have changed since it
was imported), and by every value its names reach. The native layer itself counts as one version: its files.
"""

import builtins
import dataclasses
import dis
import functools
import hashlib
import sys
import types as python_types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import ir
from numba import types

PACKAGE = __name__.rpartition(".")[0]
LIBRARIES = frozenset({"numba", "numpy", "llvmlite"}) | sys.stdlib_module_names  # known by their versions
_PARTS = (
    "primitive",
    "identity",
    "modes",
    "dtypes",
    "memory",
    "checked",
    "inline",
    "kernel",
    "contexts",
    "contract",
    "passes",
    "short",
    "lower",
    "optimize",
    "dispatch",
    "sequence",
)
# Read at import: the text of the code that runs, should a file change later.
_TEXT = "".join(p.read_text(encoding="utf-8") for n in _PARTS if (p := Path(__file__).with_name(f"{n}.py")).exists())


@functools.cache
def layer() -> str:
    """Digest of the native layer's own text and of the versions under it."""
    text = f"{_TEXT}|{sys.version_info[:2]}|{numba.__version__}|{llvmlite.__version__}|{np.__version__}"
    return hashlib.sha256(text.encode()).hexdigest()


def describe(value: Any, what: str, seen: frozenset[int] = frozenset()) -> str:
    """The text of one value. TypeError, naming `what`, for a value whose effect on code is not known."""
    own = getattr(value, "__identity__", None)
    if own is not None and not isinstance(value, type):
        return str(own())
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, np.generic):
        return f"{value.dtype.str}:{value.tobytes().hex()}"
    if isinstance(value, (tuple, list)):
        return f"[{','.join(describe(v, what, seen) for v in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{describe(k, what, seen)}={describe(v, what, seen)}" for k, v in value.items()) + "}"
    if isinstance(value, (types.Type, ir.Type, np.dtype)):
        return f"{type(value).__name__}:{value}"
    if isinstance(value, np.ufunc):
        return f"ufunc:{value.__name__}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (getattr(value, f.name) for f in dataclasses.fields(value))
        return f"{type(value).__qualname__}({','.join(describe(v, what, seen) for v in fields)})"
    if isinstance(value, python_types.ModuleType):
        return f"module:{value.__name__}"
    home = getattr(value, "__module__", None) or ""
    if isinstance(value, python_types.FunctionType) and home.split(".")[0] not in LIBRARIES:
        return function(value, seen)
    if home.split(".")[0] in LIBRARIES or home.startswith(f"{PACKAGE}."):
        return f"{home}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    raise TypeError(
        f"{what} is a {type(value).__name__}: a kernel sees numbers, strings, tuples, kernels, primitives and "
        "@inline functions only"
    )


@functools.cache
def code(c: python_types.CodeType) -> str:
    """Bytecode, constants and names."""
    constants = [code(k) if isinstance(k, python_types.CodeType) else f"{type(k).__name__}:{k!r}" for k in c.co_consts]
    return f"{c.co_code.hex()}{constants}{c.co_names}{c.co_varnames}{c.co_freevars}{c.co_cellvars}{c.co_argcount}"


_LOAD_GLOBAL, _LOAD_NAME, _EXTENDED = (dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "EXTENDED_ARG"))


@functools.cache
def global_names(c: python_types.CodeType) -> tuple[str, ...]:
    """The globals that a code object reads: not all of co_names, where attributes are as well (`np.exp`: no exp).

    Reads the instructions itself, pairs of an opcode and a byte of its operand: `dis` takes ten times as long, a
    tenth of a warm start.
    """
    loaded, high = set[int](), 0
    for op, low in zip(c.co_code[::2], c.co_code[1::2], strict=True):
        operand = high | low
        high = operand << 8 if op == _EXTENDED else 0
        if op == _LOAD_GLOBAL:  # its lowest bit is about the stack
            loaded.add(operand >> 1)
        elif op == _LOAD_NAME:
            loaded.add(operand)
    return tuple(name for i, name in enumerate(c.co_names) if i in loaded)


def reached(f: Callable[..., Any]) -> Mapping[str, Any]:
    """The outside values that a function's names reach (globals and enclosing variables; builtins left out)."""
    plain: Any = f
    outer, enclosing = plain.__globals__, dict[str, Any]()
    for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True):
        try:
            enclosing[name] = cell.cell_contents
        except ValueError as e:
            raise TypeError(f"{plain.__qualname__} uses {name!r} before it has a value") from e
    found: dict[str, Any] = {}
    codes = [plain.__code__]
    while codes:
        c = codes.pop()
        codes += [k for k in c.co_consts if isinstance(k, python_types.CodeType)]
        for name in (*global_names(c), *c.co_freevars):
            scope = enclosing if name in enclosing else outer
            if name in scope and not (hasattr(builtins, name) and scope[name] is getattr(builtins, name)):
                found[name] = scope[name]
    for module in [m for m in found.values() if isinstance(m, python_types.ModuleType)]:
        if module.__name__.split(".")[0] not in LIBRARIES:  # module.NAME: what a module of the user's own holds
            found.update(
                {f"{module.__name__}.{n}": vars(module)[n] for n in plain.__code__.co_names if n in vars(module)}
            )
    return found


def function(f: Callable[..., Any], seen: frozenset[int] = frozenset()) -> str:
    """A function's code and, recursively, all it reaches."""
    if id(f) in seen:
        return "recursion"
    plain: Any = f
    parts = [code(plain.__code__), repr(plain.__defaults__)]
    for name, value in sorted(reached(f).items()):
        parts.append(f"{name}={describe(value, f'{name!r} in {plain.__qualname__}', seen | {id(f)})}")
    return "\n".join(parts)
