"""Kernels: functions over int64 arguments that compile to one plain C symbol each."""

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, overload

from numba import types
from numba.core.typing.typeof import typeof_impl

from compiler.codegen.native import identity, lower, modes
from compiler.codegen.native.inline import function_from
from compiler.codegen.native.primitive import by_name


class Kernel:
    """A function over int64 arguments (addresses, sizes, ranges) that returns nothing.

    The first two arguments are a half-open range [lo, hi) of its outer axis, by convention. Kernels call each
    other by symbol, never inlined: each compiles once, in any process, for any target, and its bits do not depend
    on its caller. The symbol is `onnxc_<name>_<hash>`; the hash covers all that shapes the code: bytecode, every
    global and enclosing value it reaches (callees by their symbols), primitives, versions, build mode.
    """

    effort = 3
    """LLVM's level of optimization, 0 to 3."""

    def __init__(self, function: Callable[..., None], *, reassoc: bool = False) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", function.__name__):
            raise ValueError(f"kernel name {function.__name__!r} is no C identifier: rename it")
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        if kinds - {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            raise ValueError(f"kernel {function.__name__}: parameters must be plain positional ones")
        self.function, self.name, self.reassoc = function, function.__name__, reassoc
        self.parameters = tuple(inspect.signature(function).parameters)
        self.nargs = len(self.parameters)
        self.__doc__, self.__name__, self.__qualname__ = function.__doc__, function.__name__, function.__qualname__
        self.__module__ = function.__module__
        self._symbols: dict[bool, str] = {}
        self._calls: tuple[Kernel, ...] | None = None

    @classmethod
    def from_source(cls, name: str, text: str, namespace: Mapping[str, Any], *, reassoc: bool = False) -> "Kernel":
        """The kernel that `text` (Python source) defines under `name`, with `namespace` as its globals."""
        return cls(function_from(name, text, namespace), reassoc=reassoc)

    @property
    def calls(self) -> "tuple[Kernel, ...]":
        """The kernels this one calls directly, through inlined functions too; in order of name."""
        if self._calls is None:
            self._calls = _callees(self.function)
        if modes.checked() and modes.checker not in (None, self):
            return (*self._calls, modes.checker)
        return self._calls

    @property
    def symbol(self) -> str:
        """The C symbol, in the current build mode."""
        mode = modes.checked()
        if mode not in self._symbols:
            text = f"{identity.layer()}|{identity.function(self.function)}|{self.nargs}|{self.reassoc}|{mode}"
            self._symbols[mode] = f"onnxc_{self.name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return self._symbols[mode]

    @property
    def defines(self) -> tuple[str, ...]:
        """The symbols that this kernel's object defines for others."""
        return (self.symbol,)

    def ir(self) -> str:
        """LLVM IR text, before optimization and for any target. BuildError: it cannot be compiled."""
        text: str = lower.lower(self)
        return text

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is not Kernel:
            return super().__reduce_ex__(protocol)
        return by_name(self) or (_rebuilt, (self.function, self.reassoc))

    def __identity__(self) -> str:
        return self.symbol

    def closure(self) -> "list[Kernel]":
        """This kernel and all it calls, callees first, each symbol once."""
        seen: dict[str, Kernel] = {}
        for k in self.calls:
            seen.update((q.symbol, q) for q in k.closure())
        seen[self.symbol] = self
        return list(seen.values())

    def __call__(self, *args: int) -> None:
        """Run as ordinary Python (slow, over real memory): for debugging. Compiled code comes from `native`."""
        self.function(*args)

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(self.parameters)})>"


def _rebuilt(function: Callable[..., None], reassoc: bool) -> Kernel:
    return Kernel(function, reassoc=reassoc)


def _callees(f: Callable[..., Any]) -> tuple[Kernel, ...]:
    found: dict[int, Kernel] = {}
    todo = [f]
    while todo:
        for _, value in sorted(identity.reached(todo.pop()).items()):
            if isinstance(value, Kernel):
                found[id(value)] = value
            todo += getattr(value, "__inlines__", ())
    return tuple(found.values())


@typeof_impl.register(Kernel)
def _typeof(value: Kernel, context: Any) -> Any:
    return types.ExternalFunction(value.symbol, types.void(*[types.int64] * value.nargs))


@overload
def kernel(function: Callable[..., None], /) -> Kernel: ...
@overload
def kernel(*, reassoc: bool = False) -> Callable[[Callable[..., None]], Kernel]: ...
def kernel(
    function: Callable[..., None] | None = None, /, *, reassoc: bool = False
) -> Kernel | Callable[[Callable[..., None]], Kernel]:
    """Make a kernel of a function: `@kernel` or `@kernel(reassoc=True)`.

    Floating point follows the source except that a*b+c may fuse and the sign of zero may be lost (LLVM's contract
    and nsz). With reassoc, sums may be reordered into vector lanes: the grouping then depends on the loop's trip
    count, so only use it where that is fixed by shape and not by the split of the work.
    """
    if function is None:
        return lambda f: Kernel(f, reassoc=reassoc)
    return Kernel(function, reassoc=reassoc)
