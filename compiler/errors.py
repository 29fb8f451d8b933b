"""What onnxc raises: one `CompileError` that lists every problem of a model, and a few errors of its use."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One reason for a refusal: what is wrong, where (a node, value or file), and what to do about it."""

    what: str
    where: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.what, self.where and f"in {self.where}", self.remedy) if part)


class OnnxcError(Exception):
    """Root of all errors that onnxc raises on purpose."""


class CompileError(OnnxcError):
    """A model that cannot be compiled, with *every* reason found (`problems`), in the order of the file."""

    def __init__(self, problems: Problem | Iterable[Problem]):
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[CompileError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class ModelError(CompileError):
    """The file is no valid model: it cannot be read, or it breaks a rule of the ONNX standard."""


class UnsupportedError(CompileError):
    """The model is valid, but needs something onnxc does not do; each problem names the node and a remedy."""


class MemoryLimitError(CompileError):
    """A step that does not fit into `limit` bytes; recomputation gets it down to `needed`."""

    def __init__(self, problem: Problem, needed: int, limit: int):
        self.needed, self.limit = needed, limit
        super().__init__(problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems[0], self.needed, self.limit)


class VerifyError(CompileError):
    """A graph breaks an invariant of the IR. From a file: malformed nodes. After a pass: a defect of that pass."""


class ParseError(CompileError):
    """IR text that cannot be parsed; `where` gives the line."""


class InputError(OnnxcError, ValueError):
    """A call with wrong arrays, or values found wrong while the step ran; the state is as it was before the call."""


class RefusedError(InputError):
    """Values found wrong while the step ran: an index out of range. The state is as it was before the call.

    input, index, value: the first element that is wrong, if it is one of an input: its name, place and value. data: of
    a Trainer what the place is of, as "the data"; sample: the number of its sample there. Else '', (), None.
    """

    def __init__(
        self,
        what: str,
        input: str = "",
        index: tuple[int, ...] = (),
        value: Any = None,
        sample: int | None = None,
        data: str = "",
    ):
        self.what, self.input, self.index, self.value, self.sample, self.data = what, input, index, value, sample, data
        place = f"[{', '.join(map(str, index))}]" if index else ""
        where = f"{input!r}{place}{data and f' of {data}'} is {value}: " if input else ""
        remedy = "correct the data" if data else "correct the input and call again"
        super().__init__(f"{where}{what}; nothing was updated: {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.input, self.index, self.value, self.sample, self.data)


class StateError(OnnxcError, ValueError):
    """State that does not fit: a checkpoint of another model, an assignment of another shape or dtype."""


class DivergedError(OnnxcError):
    """Training that was to end when its loss is not finite: `loss`, in step `step` (from 1) of epoch `epoch`."""

    def __init__(self, loss: float, step: int, epoch: int, kept: str = ""):
        self.loss, self.step, self.epoch, self.kept = loss, step, epoch, kept
        super().__init__(
            f"the loss is {loss} in step {step}, in epoch {epoch}, train with a smaller learning rate or with clipped "
            f"gradients, or look at the data{kept and f'; {kept} is of before it'}"
        )

    def __reduce__(self) -> tuple[type[DivergedError], tuple[float, int, int, str]]:
        return type(self), (self.loss, self.step, self.epoch, self.kept)


class UnknownStateError(StateError, KeyError):
    """A name that no state has; a KeyError, as every mapping raises it."""

    __str__ = Exception.__str__  # a KeyError shows its argument in quotes


class NoMemoryError(OnnxcError, MemoryError):
    """Memory that this machine does not give."""


class BuildError(OnnxcError):
    """The machine lacks something that code generation needs, as a C compiler or a writable folder."""


class ArtifactError(OnnxcError):
    """A built artifact that cannot be used: its folder is damaged or no artifact, or it is for another machine."""


INSTALL = "install onnxc with all that it needs: pip install PATH_OF_THE_CLONE"
"""Where a package is missing."""

_COMPARED = 2000


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` (did you mean 'loss'?)` for a name like one that is known (of the first few thousand), else nothing."""
    if not isinstance(name, str):
        return ""
    names = list(islice((k for k in known if isinstance(k, str) and k), _COMPARED))
    lower = {k.lower(): k for k in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.7)
    return f" (did you mean {lower[close[0]]!r}?)" if close else ""


_LONGEST = 80


def shown(value: object) -> str:
    """A wrong argument for messages: in one line, and shortened."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - as ValueError: Python refuses to write integers of thousands of digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}..."


def checked_integer(what: str, value: Any, lowest: int = 1, largest: int | None = None) -> int:
    """An argument, any library's integer, as Python's. InputError: it is none, or out of range.

    largest: None only with 1 as the lowest.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < lowest or (largest is not None and number > largest):
        kind = "a positive integer" if largest is None else f"an integer from {lowest} to {largest}"
        raise InputError(f"{what} must be {kind}, not {shown(value)}")
    return number


def checked_seed(seed: Any) -> int:
    """A seed of random numbers, one that the hidden state holds. InputError."""
    return checked_integer("seed", seed, 0, 2**63 - 1)


def checked_flag(what: str, value: Any) -> bool:
    """An argument that is True or False; else an InputError, as "no" would count as true."""
    if type(value).__name__ != "bool":  # that is what NumPy's is called, too
        raise InputError(f"{what} must be True or False, not {shown(value)}")
    return bool(value)


def checked_string(what: str, value: Any) -> str:
    """An argument that is a string, as a name. InputError: it is none."""
    if not isinstance(value, str):
        raise InputError(f"{what} must be a string, not {shown(value)}")
    return value


def checked_names(what: str, value: Any) -> tuple[str, ...]:
    """Names, of outputs say. InputError: no list of strings."""
    try:
        found = None if isinstance(value, str | bytes) else tuple(value)
    except TypeError:
        found = None
    if found is None or not all(isinstance(n, str) for n in found):
        raise InputError(f"{what} must be a list of names, not {shown(value)}")
    return found


def checked_call(what: str, value: Any) -> Any:
    """An argument that is called, or None. InputError: neither."""
    if value is not None and not callable(value):
        raise InputError(f"{what} must be a function, not {shown(value)}")
    return value


def checked_path(what: str, value: Any) -> str:
    """The name of a file or folder. InputError: it is none, as one that is empty, or that no system takes."""
    try:
        name = os.fsdecode(value)
    except TypeError:
        name = ""
    if not name or "\0" in name or isinstance(value, bytes):
        raise InputError(f"{what} must be a path, not {shown(value)}")
    return name
