"""Kernel -> LLVM IR. Numba types and lowers, and stops before optimizing; the IR names no CPU.

Numba's function is `i32 f(retptr, excinfo, args...)`. It cannot raise here, so a trampoline with the plain C
signature drops both pointers, and the rest becomes internal to the module.
"""

import copy
import dis
import functools
import re
from collections.abc import Callable
from typing import Any

import llvmlite.binding as ll
from numba import types
from numba.core.codegen import AOTCodeLibrary, AOTCPUCodegen
from numba.core.compiler import CompilerBase, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.cpu_options import FastMathOptions
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)

from compiler.codegen.native import modes
from compiler.errors import BuildError

FASTMATH = {"contract", "nsz"}  # never arcp (bits), afn, nnan, ninf (masks use -inf, NaN must show)
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


class _Library(AOTCodeLibrary):
    """Numba's module, left as it was lowered: our pipeline runs once, later, for the chosen target."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass


class _Codegen(AOTCPUCodegen):
    _library_class = _Library


class _Compiler(CompilerBase):
    """The passes of Numba that kernels need: without those for objects, closures and arrays, 2/3 of the time."""

    PASSES = (
        TranslateByteCode,
        FixupArgs,
        IRProcessing,
        RewriteSemanticConstants,
        DeadBranchPrune,
        ReconstructSSA,
        NopythonTypeInference,
        PreLowerStripPhis,
        IRLegalization,
        NativeLowering,
        NoPythonBackend,
    )

    def define_pipelines(self) -> list[Any]:
        passes = PassManager("onnxc")
        for p in self.PASSES:
            passes.add_pass(p, p.__name__)
        passes.finalize()
        return [passes]


@functools.cache
def _contexts() -> tuple[Any, Any]:
    """Our typing and target contexts: Numba's for this CPU, which the module does not name."""
    typing, target = copy.copy(cpu_target.typing_context), cpu_target.target_context
    target.refresh()
    resolve, known = typing.resolve_function_type, dict[Any, Any]()

    def remembering(function: Any, args: Any, kws: Any) -> Any:
        """Numba tries every overload of an operator, arrays included, at each use: remember those on numbers."""
        if kws or not isinstance(function, types.Function) or not all(isinstance(a, _NUMBERS) for a in args):
            return resolve(function, args, kws)
        if getattr(function.typing_key, "__module__", None) not in _FIXED:
            return resolve(function, args, kws)
        key = function, args
        if key not in known:
            known[key] = resolve(function, args, kws)
        return known[key]

    typing.resolve_function_type = remembering
    return typing, target.subtarget(typing_context=typing, _internal_codegen=_Codegen("onnxc"), aot_mode=True)


_NUMBERS = (types.Number, types.Boolean, types.NumberClass)
_FIXED = {"_operator", "operator", "builtins"}  # homes of functions that mean the same in every kernel


def _compile(function: Callable[..., Any], args: tuple[Any, ...], result: Any, fastmath: set[str]) -> Any:
    if any(op.opname == "RAISE_VARARGS" for op in dis.get_instructions(function)):
        raise BuildError(f"{function.__qualname__} raises: compiled code cannot, report through memory")
    flags = Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt, flags.error_model, flags.fastmath = False, "numpy", FastMathOptions(fastmath)
    return compile_extra(*_contexts(), function, args, result, flags, {}, pipeline_class=_Compiler)


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
    modes.current = modes.fingerprint(kernel.symbol)
    try:
        result = _compile(
            kernel.function,
            (types.int64,) * kernel.nargs,
            types.void,
            FASTMATH | ({"reassoc"} if kernel.reassoc else set()),
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
