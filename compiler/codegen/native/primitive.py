"""Primitives: operations that kernels use as functions, with an LLVM lowering and a plain Python meaning."""

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from llvmlite import ir
from numba import types
from numba.core.datamodel.models import OpaqueModel
from numba.core.datamodel.registry import register_default
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template

from compiler.codegen.native.identity import function

P = ParamSpec("P")
R = TypeVar("R")

Codegen = Callable[[Any, Any, Any, Any], Any]  # (target context, IRBuilder, signature, operands) -> LLVM value
Lowering = Callable[..., "tuple[Any, Codegen] | None"]  # (typing context, *argument types) -> (signature, codegen)

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()


class Remembered(types.Function):
    """A function as Numba types it, whose signature is looked up once for arguments of the same types."""

    def __init__(self, templates: Any, kinds: tuple[type, ...] = (types.Type,)) -> None:
        """kinds: Numba's classes of the types for which results are remembered."""
        super().__init__(templates)
        self._kinds, self._known = kinds, dict[Any, Any]()

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature for these types of arguments. TypingError: it takes no such."""
        if kws or not all(isinstance(a, self._kinds) for a in args):
            return super().get_call_type(context, args, kws)
        key = context, tuple(args)
        if key not in self._known:
            self._known[key] = super().get_call_type(context, args, kws)
        return self._known[key]


register_default(Remembered)(OpaqueModel)


class Primitive(Generic[P, R]):
    """A function for kernels: `lowering` types and emits it, `plain` is what it does in ordinary Python.

    Arguments of `lowering` are the typing context and one Numba type per operand; with `literal` integer
    literals keep their value in the type. It returns None for operand types it does not take.
    """

    def __init__(self, plain: Callable[P, R], lowering: Lowering, literal: bool) -> None:
        functools.update_wrapper(self, plain)
        self.plain, self.lowering, self.literal = plain, lowering, literal
        template = make_intrinsic_template(self, lowering, plain.__name__, prefer_literal=literal)
        infer(template)
        infer_global(self, Remembered(template))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As ordinary Python."""
        return self.plain(*args, **kwargs)

    def __reduce__(self) -> Any:
        return by_name(self) or (Primitive, (self.plain, self.lowering, self.literal))

    def __identity__(self) -> str:
        return function(self.lowering)

    def __repr__(self) -> str:
        return f"<primitive {self.__name__}>"  # type: ignore[attr-defined]  # set by update_wrapper


def by_name(value: Any) -> str | None:
    """The name under which another process can import `value`, or None: then it is sent by value."""
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    home = sys.modules.get(module) if module.startswith("compiler.") else None
    return name if home is not None and vars(home).get(name) is value else None


def primitive(lowering: Lowering, *, literal: bool = False) -> Callable[[Callable[P, R]], Primitive[P, R]]:
    """Decorate the plain Python meaning of an operation with its lowering."""
    return lambda plain: Primitive(plain, lowering, literal)


def void(context: Any) -> Any:
    """The LLVM value of a primitive that returns nothing."""
    return context.get_dummy_value()
