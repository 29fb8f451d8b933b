"""What a loop does once instead of in each iteration: packing operands that do not change in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from compiler.codegen.calls import Call, In, Out, Temp
from compiler.codegen.units import Schedule, Unit, reads, writes
from compiler.ir.types import TensorType


def prepare(units: list[Unit], fixed: Collection[str], s: Schedule) -> tuple[list[Unit], list[str]]:
    """Take such calls out of a body's units: units for before the loop, and the values that they write.

    fixed: values that are the same in all iterations. What a call wrote into temporary memory becomes a value, which
    lives as long as the loop does.
    """
    before: list[Unit] = []
    values: list[str] = []
    for u in units:
        for call in [c for c in u.calls if u.join is None and _only_packs(c, fixed, s)]:
            names = {}
            for a in call.args:
                if isinstance(a, Temp):
                    names[a.key] = f"{u.nodes[0].results[0]}/{a.key}"
                    s.types[names[a.key]] = TensorType("u8", (a.nbytes,))
            u.calls = [_with_values(c, names) for c in u.calls if c is not call]
            u.reads = list(dict.fromkeys([*u.reads, *names.values()]))
            packing = _with_values(call, names)
            before.append(Unit(u.nodes, reads(packing), writes(packing), calls=[packing]))
            values += names.values()
    return before, values


def _only_packs(call: Call, fixed: Collection[str], s: Schedule) -> bool:
    read = reads(call)
    temps = [a for a in call.args if isinstance(a, Temp)]
    return (
        bool(read and temps)
        and not writes(call)
        and not call.check
        and all(a.writes for a in temps)
        and all(s.root(v) in fixed for v in read)
    )


def _with_values(call: Call, names: dict[str, str]) -> Call:
    """The call with values in place of temporary memory."""
    args = tuple(
        (Out if a.writes else In)(names[a.key]) if isinstance(a, Temp) and a.key in names else a for a in call.args
    )
    return replace(call, args=args)
