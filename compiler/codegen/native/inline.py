"""Functions that are compiled into the kernels which use them."""

import functools
import hashlib
import inspect
import linecache
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

from numba import types
from numba.core.extending import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from compiler.codegen.native import identity, lower, modes
from compiler.codegen.native.primitive import by_name

P = ParamSpec("P")
R = TypeVar("R")


def function_from(name: str, text: str, namespace: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that `text` (Python source) defines under `name`, with `namespace` as its globals."""
    filename = f"<kernel {name} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
    scope = {**namespace, "__name__": "compiler.codegen.native.source"}
    exec(compile(text, filename, "exec", dont_inherit=True), scope)
    function = scope.get(name)
    if not inspect.isfunction(function):
        raise ValueError(f"source of kernel {name} defines no function {name}")
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)  # for tracebacks
    return function


class Inline(Generic[P, R]):
    """A helper that kernels (and other helpers) call; LLVM inlines it. Types follow from the operands."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.function: Callable[..., Any] = function
        self.__inlines__: tuple[Callable[..., Any], ...] = (function,)
        _register(self, lambda args: function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As ordinary Python."""
        result: R = self.function(*args, **kwargs)
        return result

    def __reduce__(self) -> Any:
        return by_name(self) or (Inline, (self.function,))

    def __identity__(self) -> str:
        return identity.function(self.function)


class ByDtype:
    """A helper with one implementation for float32 and one for float64, chosen by its first operand.

    Integers and booleans take the float64 one.
    """

    def __init__(self, f32: Callable[..., Any], f64: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f32)
        self.f32, self.f64 = (getattr(f, "function", f) for f in (f32, f64))
        self.__inlines__ = (self.f32, self.f64)
        _register(self, lambda args: self.f32 if args[0] == types.float32 else self.f64)

    def __call__(self, *args: Any) -> Any:
        """As ordinary Python."""
        return (self.f32 if getattr(args[0], "dtype", None) == "float32" else self.f64)(*args)

    def __reduce__(self) -> Any:
        return by_name(self) or (ByDtype, (self.f32, self.f64))

    def __identity__(self) -> str:
        return identity.function(self.f32) + identity.function(self.f64)


def inline(function: Callable[P, R]) -> Inline[P, R]:
    """Make a helper for kernels of a plain function. It is compiled with the default fastmath (contract, nsz)."""
    return Inline(function)


def _register(helper: Any, choose: Callable[[Any], Callable[..., Any]]) -> None:
    """Tell Numba how to type and lower calls of `helper`: compile the chosen function for the operand types."""
    compiled: dict[Any, Any] = {}

    def generic(self: Any, args: Any, kws: Any) -> Any:
        if kws or not args or len(args) != len(inspect.signature(choose(args)).parameters):
            return None
        plain = tuple(types.unliteral(a) for a in args)
        key = (plain, modes.checked() and modes.lowering.current)
        if key not in compiled:
            result = lower.helper(choose(plain), plain)

            def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
                cx.active_code_library.add_linking_library(result.library)
                _, value = cx.call_internal_no_propagate(b, result.fndesc, s, a)
                return value

            lower_builtin(gen, *plain)(gen)
            compiled[key] = gen, signature(result.signature.return_type, *plain)
        return compiled[key][1]

    def impl_key(self: Any, sig: Any) -> Any:
        return compiled[sig.args, modes.checked() and modes.lowering.current][0]

    members = {"key": helper, "generic": generic, "get_impl_key": impl_key}
    infer_global(helper, types.Function(type(f"Inline_{helper.__name__}", (AbstractTemplate,), members)))
