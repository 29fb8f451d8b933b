"""The call that most calls are, as a function made for one executable, in which nothing is looked up or looped over."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.runtime.memory import Array

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
#         view0[...] = x0
#         run()
#         if status.value:
#             return None
#         return {'loss': copy0()}


def make_attempt(
    inputs: Sequence[tuple[str, Array]],
    outputs: Sequence[tuple[str, Array]],
    run: Callable[[], None],
    status: ctypes.c_int64 | None,
) -> Attempt:
    """A function that runs if its argument is the inputs: all, no others, as plain arrays of their types and shapes.

    inputs, outputs: names, and the arrays that `run` takes and gives. status: what is not 0 after a run that was
    refused and changed nothing; None if none is. It gives copies of the outputs by name, or None if it ran not or in
    vain; what inputs it copied the next run overwrites. A status that is left from an earlier run only makes this one
    vain, so it is never cleared here.
    """
    known: dict[str, Any] = {"ndarray": np.ndarray, "run": run, "status": status}
    lines = [f"if len(feeds) != {len(inputs)}:", "    return None", "try:", "    pass"]
    lines += [f"    x{i} = feeds[{name!r}]" for i, (name, _) in enumerate(inputs)]
    lines += ["except KeyError:", "    return None"]
    for i, (_, view) in enumerate(inputs):
        known |= {f"view{i}": view, f"shape{i}": view.shape, f"dtype{i}": view.dtype}
        other = f"(x{i}.dtype is not dtype{i} and x{i}.dtype != dtype{i})"
        lines.append(f"if type(x{i}) is not ndarray or x{i}.shape != shape{i} or {other}:")
        lines += ["    return None", f"view{i}[...] = x{i}"]
    lines += ["run()"] if status is None else ["run()", "if status.value:", "    return None"]
    known |= {f"copy{i}": view.copy for i, (_, view) in enumerate(outputs)}
    lines.append(f"return {{{', '.join(f'{name!r}: copy{i}()' for i, (name, _) in enumerate(outputs))}}}")
    head = [f"def make({', '.join(known)}):", "    def attempt(feeds):"]  # parameters are found faster than globals
    text = "\n".join([*head, *(f"        {line}" for line in lines), "    return attempt", ""])
    scope: dict[str, Any] = {}
    exec(compile(text, "<attempt>", "exec", dont_inherit=True), scope)
    made: Attempt = scope["make"](**known)
    return made


def no_attempt(feeds: dict[str, Any]) -> None:
    """Where it takes more to know whether these are the inputs."""
    return
