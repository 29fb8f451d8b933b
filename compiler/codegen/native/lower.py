"""Kernel -> LLVM IR. Numba types and lowers, and stops before optimizing; the IR names no CPU.

Numba's function is `i32 f(retptr, excinfo, args...)`. It cannot raise here, so a trampoline with the plain C
signature drops both pointers, and the rest becomes internal to the module.
"""

import dis
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding as ll
from numba import types
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu_options import FastMathOptions
from numba.core.errors import NumbaError

from compiler.codegen.native import contexts, modes, passes
from compiler.errors import BuildError

FASTMATH = {"contract"}  # see contract.py; never arcp, nsz (bits), afn, nnan, ninf (masks use -inf, NaN must show)
REASSOC = {"contract", "nsz", "reassoc"}
# What a kernel may call besides kernels: libm, memory functions of libc, what the thread pool needs.
_LIBM = {
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "copysign",
        "cos",
        "cosh",
        "erf",
        "erfc",
    ),
    *(
        "exp",
        "exp2",
        "expm1",
        "fabs",
        "floor",
        "fma",
        "fmax",
        "fmin",
        "fmod",
        "hypot",
        "ldexp",
        "lgamma",
        "log",
        "log10",
    ),
    *("log1p", "log2", "nearbyint", "pow", "remainder", "rint", "round", "roundeven", "sin", "sincos", "sinh", "sqrt"),
    *("tan", "tanh", "tgamma", "trunc"),
}
_LIBC = {"memcpy", "memmove", "memset", "sched_yield", "nanosleep", "syscall"}
ALLOWED = _LIBM | {f"{name}f" for name in _LIBM} | _LIBC


def _compile(function: Callable[..., Any], args: tuple[Any, ...], result: Any, fastmath: set[str]) -> Any:
    if any(op.opname == "RAISE_VARARGS" for op in dis.get_instructions(function)):
        raise BuildError(f"{function.__qualname__} raises: compiled code cannot, report through memory")
    flags = Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt, flags.error_model, flags.fastmath = False, "numpy", FastMathOptions(fastmath)
    return compile_extra(*contexts.contexts(), function, args, result, flags, {}, pipeline_class=passes.Compiler)


def helper(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Numba's compile result for an inlined helper with operands of these Numba types."""
    return _compile(function, args, None, FASTMATH)


def _trampoline(symbol: str, nargs: int, name: str) -> str:
    """IR of `void symbol(i64...)`, which calls Numba's function."""
    parameters = ", ".join(f"i64 %a{i}" for i in range(nargs))
    return (
        f'declare i32 @"{name}"(ptr, ptr{", i64" * nargs})\n'
        f"define void @{symbol}({parameters}) {{\n  %r = alloca ptr\n  %e = alloca ptr\n"
        f'  %s = call i32 @"{name}"(ptr %r, ptr %e{", " if nargs else ""}{parameters})\n  ret void\n}}\n'
    )


@global_compiler_lock
def lower(kernel: Any) -> str:
    """LLVM IR text that defines `kernel.symbol` and declares what it calls. BuildError: it cannot be compiled."""
    modes.lowering.current = modes.fingerprint(kernel.symbol)
    try:
        result = _compile(
            kernel.function,
            (types.int64,) * kernel.nargs,
            types.void,
            REASSOC if kernel.reassoc else FASTMATH,
        )
    except NumbaError as e:
        raise BuildError(f"kernel {kernel.name} does not compile: {e}") from e
    library = result.library
    library._ensure_finalized()
    module, name = library._final_module, result.fndesc.llvm_func_name
    module.link_in(ll.parse_assembly(_trampoline(kernel.symbol, kernel.nargs, name)))
    callees = {symbol for k in kernel.calls for symbol in k.defines}
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name != kernel.symbol:
            value.linkage = "internal"  # so that dead code elimination removes it
    for f in module.functions:
        if f.is_declaration and f.name not in ALLOWED and f.name not in callees and not f.name.startswith("llvm."):
            raise BuildError(f"kernel {kernel.name} needs {f.name}, which no compiled library has: write it otherwise")
    return re.sub(r"^(target (triple|datalayout)|source_filename|; ModuleID) .*\n", "", str(module), flags=re.M)
