"""Short LLVM IR for what every kernel is made of: loops over ranges, //, %, min and max of int64.

Numba's own covers exceptions and keeps each intermediate value in memory: a loop came to ninety instructions, a `min`
to a function of its own. Of most kernels that was the greater part, and LLVM spent its time on removing it. The meaning
is the same: x // 0, x % 0 and those of the smallest integer and -1 are 0. A step of 0, which cannot raise here, makes
no turn.
"""

import builtins
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, signature

from compiler.codegen.native.primitive import I64

_INT = types.int64
_LEAST = -(2**63)


def part(b: Any, value: Any, i: int) -> Any:
    """Element i of a struct: where it was put in before, that, else an instruction that takes it out."""
    made = value
    while isinstance(made, ir.InsertValue):
        if made.indices == [i]:
            return made.value
        made = made.aggregate
    return b.extract_value(value, i)


def _range(b: Any, *args: Any) -> Any:
    """Numba's range: a struct of start, stop and step."""
    start, stop, step = (I64(0), *args, I64(1)) if len(args) == 1 else (*args, I64(1))[:3]
    return cgutils.make_anonymous_struct(b, (start, stop, step))


def _start(b: Any, value: Any) -> Any:
    """Numba's iterator of a range: a struct of the next number's place, stop, step, and of the place of the count."""
    start, stop, step = (part(b, value, i) for i in range(3))
    place, count = cgutils.alloca_once(b, I64), cgutils.alloca_once(b, I64)
    b.store(start, place)
    b.store(_turns(b, b.sub(stop, start), step), count)
    return cgutils.make_anonymous_struct(b, (place, stop, step, count))


def _turns(b: Any, far: Any, step: Any) -> Any:
    """How many steps lie before what is `far` away."""
    away = b.xor(b.icmp_signed(">", far, I64(0)), b.icmp_signed(">", step, I64(0)))

    def count() -> Any:
        return b.add(b.sdiv(far, step), b.zext(b.icmp_signed("!=", b.srem(far, step), I64(0)), I64))

    return _unless(b, b.or_(away, b.icmp_signed("==", step, I64(0))), count)


def _unless(b: Any, bad: Any, make: Callable[[], Any]) -> Any:
    """0 where `bad`, else what is made.

    By a branch, which is foretold: a division need not wait for the test, and LLVM does not unroll loops whose number
    of turns it cannot put into one expression; they are the short ones.
    """
    before = b.block
    with b.if_then(b.not_(bad), likely=True):
        value, here = make(), b.block
    result = b.phi(I64)
    result.add_incoming(I64(0), before)
    result.add_incoming(value, here)
    return result


def _next(b: Any, iterator: Any) -> Any:
    """The pair of the next number and whether there is one."""
    place, step, count = (part(b, iterator, i) for i in (0, 2, 3))
    left, value = b.load(count), b.load(place)
    more = b.icmp_signed(">", left, I64(0))
    with b.if_then(more):
        b.store(b.sub(left, I64(1), flags=["nsw"]), count)
        b.store(b.add(value, step), place)
    return cgutils.make_anonymous_struct(b, (value, more))


def _divided(remainder: bool) -> Callable[[Any, Any, Any], Any]:
    def exact(b: Any, x: Any, y: Any) -> Any:
        rest = b.srem(x, y)
        below = b.and_(b.icmp_signed("!=", rest, I64(0)), b.icmp_signed("<", b.xor(rest, y), I64(0)))
        if remainder:
            return b.select(below, b.add(rest, y), rest)
        return b.sub(b.sdiv(x, y), b.zext(below, I64))

    def emit(b: Any, x: Any, y: Any) -> Any:
        if isinstance(y, ir.Constant) and y.constant not in (0, -1):
            return exact(b, x, y)
        overflow = b.and_(b.icmp_signed("==", x, I64(_LEAST)), b.icmp_signed("==", y, I64(-1)))
        return _unless(b, b.or_(b.icmp_signed("==", y, I64(0)), overflow), lambda: exact(b, x, y))

    return emit


def _chosen(order: str) -> Callable[[Any, Any, Any], Any]:
    return lambda b, x, y: b.select(b.icmp_signed(order, y, x), y, x)


_STATE, _ITERATOR = types.range_state64_type, types.range_iter64_type
_OWN: dict[Any, Callable[..., Any]] = {
    **{(range, (_INT,) * n): _range for n in (1, 2, 3)},
    ("getiter", (_STATE,)): _start,
    ("iternext", (_ITERATOR,)): _next,
    **dict.fromkeys([(f, (_INT, _INT)) for f in (operator.floordiv, operator.ifloordiv)], _divided(False)),
    **dict.fromkeys([(f, (_INT, _INT)) for f in (operator.mod, operator.imod)], _divided(True)),
    (min, (_INT, _INT)): _chosen("<"),
    (max, (_INT, _INT)): _chosen(">"),
}


def implementation(function: Any, sig: Any) -> Callable[..., Any] | None:
    """What emits a call of a function, as Numba calls it: (IRBuilder, operands, ...). None: Numba's own does."""
    emit = _OWN.get((function, sig.args))
    return None if emit is None else lambda b, args, *_: emit(b, *args)


def _extreme(function: Callable[..., Any]) -> type[AbstractTemplate]:
    def generic(self: Any, args: Any, kws: Any) -> Any:
        plain = tuple(types.unliteral(a) for a in args)
        return signature(_INT, *plain) if plain == (_INT, _INT) and not kws else None

    return type(function.__name__, (AbstractTemplate,), {"key": function, "generic": generic})


TEMPLATES: dict[Any, tuple[type[AbstractTemplate], ...]] = {f: (_extreme(f),) for f in (builtins.min, builtins.max)}
"""How functions are typed before Numba's own ways are tried."""
