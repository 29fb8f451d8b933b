"""Arguments of `make_training_model` by their kind: each as Python's own value, or an InputError that names it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from compiler.errors import InputError, did_you_mean, shown

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that an option may be: weights of float32 have no larger one."""

SMALLEST = float(np.finfo(np.float32).tiny)
"""The smallest number that is divided by: its reciprocal is one of float32, too."""


def checked_number(
    what: str, value: Any, kind: str = "a number", good: Callable[[float], bool] = lambda _: True
) -> float:
    """A finite number of any library. kind: how those that are `good` are called. InputError."""
    if _is_scalar(value):
        value = value[()]
    number = math.nan
    if type(value) is not bool and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:  # an integer
            number = math.inf
    if not (abs(number) <= LARGEST and good(number)):
        limit = f" (the largest is {LARGEST:.2g})" if abs(number) > LARGEST else ""
        raise InputError(f"{what} must be {kind}{limit}, not {shown(value)}")
    return number


def checked_text(what: str, value: Any, kind: str) -> str:
    """A text that is not empty. kind: how it is called. InputError."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{what} must be {kind}, not {shown(value)}")
    return value


def checked_texts(what: str, value: Any, kind: str) -> tuple[str, ...]:
    """One text or several, none of them empty. kind: how that is called. InputError."""
    texts: tuple[Any, ...] = (value,)
    if isinstance(value, Collection) and not isinstance(value, str | Mapping) and not _is_scalar(value):
        texts = tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"{what} must be {kind}, not {shown(value)}")
    return texts


def checked_list(what: str, value: Any, kind: str, size: int | None = None) -> list[Any]:
    """The elements of a sequence of any library, how many there must be. kind: how it is called. InputError."""
    several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes) and not _is_scalar(value)
    if not several or (size is not None and len(value) != size):
        raise InputError(f"{what} must be {kind}, not {shown(value)}")
    return list(value)


def _is_scalar(value: object) -> bool:
    """Whether this is an array without axes, which Python counts as a collection."""
    return isinstance(value, np.ndarray) and not value.ndim


def checked_choice(what: str, value: Any, known: Collection[str]) -> str:
    """One of some words. InputError."""
    if not isinstance(value, str) or value not in known:
        near = did_you_mean(value, known)
        raise InputError(f"{what} must be one of {', '.join(known)}, not {shown(value)}{near}")
    return value
