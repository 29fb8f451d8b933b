"""The call that most calls are, as a function made for one executable, in which nothing is looked up or looped over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from compiler.runtime.layout import ARENA, Slot
from compiler.runtime.memory import Array, Block
from compiler.runtime.turn import Turn

Attempt = Callable[[dict[str, Any]], dict[str, Array] | None]

# For step(x: f32[16,4]) -> loss:
#
#     def attempt(feeds):
#         if len(feeds) != 1:
#             return None
#         try:
#             x0 = feeds['x']
#         except KeyError:
#             return None
#         if type(x0) is not ndarray or x0.shape != shape0 or (x0.dtype is not dtype0 and x0.dtype != dtype0):
#             return None
#         with held:
#             if turn.running:
#                 return None
#             turn.running = True
#             try:
#                 view0[...] = x0  # of several small ones: pack(memory, 0, x0.tobytes(), x1.tobytes())
#                 run()
#                 if status:
#                     status[...] = 0
#                     return None
#                 return {'loss': copy0()}
#             finally:
#                 turn.running = False


SPAN = 4096
"""Bytes of memory that `Packed` writes in whole: longer ones take longer than to copy input by input."""


class Packed(NamedTuple):
    """Several inputs in one go, which takes less than an assignment of each: `pack(memory, 0, bytes of each in order)`.

    order: of the inputs, by offset. What lies between them in the arena is overwritten.
    """

    order: tuple[int, ...]
    pack: Callable[..., None]
    memory: memoryview


def packed(slots: Sequence[Slot], arena: Block) -> Packed | None:
    """How to write these inputs in one go; None: one by one is as good."""
    order = tuple(sorted(range(len(slots)), key=lambda i: slots[i].offset))
    if len(slots) < 2 or any(s.block != ARENA for s in slots):
        return None
    start, end = slots[order[0]].offset, slots[order[-1]].offset + slots[order[-1]].nbytes
    if end - start > SPAN:
        return None
    form, at = "", start
    for s in (slots[i] for i in order):
        if s.offset < at:  # two of which one is never read share memory
            return None
        form += f"{s.offset - at}x{s.nbytes}s"
        at = s.offset + s.nbytes
    return Packed(order, Struct(form).pack_into, arena.bytes[start:end].data)


def make_attempt(
    inputs: Sequence[tuple[str, Array]],
    outputs: Sequence[tuple[str, Array]],
    run: Callable[[], None],
    status: Array | None,
    turn: Turn,
    packed: Packed | None = None,
) -> Attempt:
    """A function that runs if its argument is the inputs: all, no others, as plain arrays of their types and shapes.

    inputs, outputs: names, and the arrays that `run` takes and gives. status: an integer, i64[], that is not 0 after a
    run that was refused and changed nothing; None if none is. turn: the function takes it while it runs, and does not
    run within another run. packed: how to copy the inputs, if not one by one. The function gives copies of the outputs
    by name, or None if it ran not or in vain; what inputs it copied the next run overwrites. A status that is left from
    an earlier run, one that was interrupted, only makes this one vain, so it is cleared only where it is found.
    """
    known: dict[str, Any] = {"ndarray": np.ndarray, "run": run, "status": status, "turn": turn, "held": turn.held}
    lines = [f"if len(feeds) != {len(inputs)}:", "    return None", "try:", "    pass"]
    lines += [f"    x{i} = feeds[{name!r}]" for i, (name, _) in enumerate(inputs)]
    lines += ["except KeyError:", "    return None"]
    for i, (_, view) in enumerate(inputs):
        known |= {f"view{i}": view, f"shape{i}": view.shape, f"dtype{i}": view.dtype}
        other = f"(x{i}.dtype is not dtype{i} and x{i}.dtype != dtype{i})"
        lines += [f"if type(x{i}) is not ndarray or x{i}.shape != shape{i} or {other}:", "    return None"]
    known |= {f"copy{i}": view.copy for i, (_, view) in enumerate(outputs)}
    copies = f"{{{', '.join(f'{name!r}: copy{i}()' for i, (name, _) in enumerate(outputs))}}}"
    work = [f"view{i}[...] = x{i}" for i in range(len(inputs))]
    if packed is not None:
        known |= {"pack": packed.pack, "memory": packed.memory}
        work = [f"pack(memory, 0, {', '.join(f'x{i}.tobytes()' for i in packed.order)})"]
    work += ["run()", *(() if status is None else ("if status:", "    status[...] = 0", "    return None"))]
    work.append(f"return {copies}")
    lines += ["with held:", "    if turn.running:", "        return None", "    turn.running = True", "    try:"]
    lines += [*(f"        {line}" for line in work), "    finally:", "        turn.running = False"]
    text = "\n".join(["def attempt(feeds):", *(f"    {line}" for line in lines), ""])
    exec(compile(text, "<attempt>", "exec", dont_inherit=True), known)
    made: Attempt = known.pop("attempt")  # else it would hold itself, and all this memory with it
    return made


def no_attempt(feeds: dict[str, Any]) -> None:
    """Where it takes more to know whether these are the inputs."""
    return
