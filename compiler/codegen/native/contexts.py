"""What Numba types and lowers kernels with: contexts that look nothing up twice.

For each use of an operator, Numba tries every overload there is, arrays included, and loads what may have been
registered since. Of the time from bytecode to LLVM IR, that was a third.
"""

import copy
import functools
import types as python_types
from typing import Any

from numba import types
from numba.core import fastmathpass
from numba.core.codegen import AOTCodeLibrary, AOTCPUCodegen
from numba.core.cpu import CPUContext
from numba.core.registry import cpu_target

from compiler.codegen.native import short
from compiler.codegen.native.contract import contract
from compiler.codegen.native.primitive import Remembered

_NUMBERS: tuple[type, ...] = (types.Number, types.Boolean, types.NumberClass)
_FIXED = {"_operator", "operator", "builtins"}  # homes of functions that mean the same in every kernel


class _Library(AOTCodeLibrary):
    """Numba's module, left as it was lowered: our pipeline runs once, later, for the chosen target."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass


class _Codegen(AOTCPUCodegen):
    _library_class = _Library


class _Target(CPUContext):
    """Numba's context for this CPU, which the module does not name, and without Numba's runtime."""

    def load_additional_registries(self) -> None:
        """What was added to the registries: they are all known."""
        for registry in tuple(self._registries):
            self.install_registry(registry)

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """What emits a call: ours, if it is shorter."""
        key = fn.get_impl_key(sig.as_function()) if isinstance(fn, types.Callable) else fn
        return short.implementation(key, sig) or super().get_function(fn, sig, _firstcall)

    def pair_first(self, builder: Any, val: Any, ty: Any) -> Any:
        """Not by way of memory."""
        return short.part(builder, val, 0)

    def pair_second(self, builder: Any, val: Any, ty: Any) -> Any:
        """Not by way of memory."""
        return short.part(builder, val, 1)

    def post_lowering(self, module: Any, library: Any) -> None:
        """No runtime is linked in: it counts references."""
        if self.fastmath:
            fastmathpass.rewrite_module(module, self.fastmath)
            if "reassoc" not in self.fastmath.flags:
                contract(module)


@functools.cache
def contexts() -> tuple[Any, Any]:
    """Our typing and target contexts."""
    typing = copy.copy(cpu_target.typing_context)
    resolve, known = typing.resolve_value_type, dict[Any, Any]()

    def value_type(value: Any) -> Any:
        if not isinstance(value, (python_types.BuiltinFunctionType, type)) or value.__module__ not in _FIXED:
            return resolve(value)
        if value not in known:
            found = resolve(value)
            if type(found) is types.Function:
                found = Remembered((*short.TEMPLATES.get(value, ()), *found.templates), _NUMBERS)
            known[value] = found
        return known[value]

    typing.resolve_value_type = value_type
    base = cpu_target.target_context
    base.refresh()
    target = _Target.__new__(_Target)
    target.__dict__.update(vars(base))  # the same tables: Numba's own functions, where kernels call them, enter those
    own = _Codegen("onnxc")
    return typing, target.subtarget(
        typing_context=typing, _internal_codegen=own, cached_internal_func={}, aot_mode=True
    )
