"""How this process builds kernels: checked (every access tested) or not, compiled or plain Python."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

_checked = os.environ.get("ONNXC_CHECKED", "") not in ("", "0")

checker: Any = None  # the kernel that checked kernels call before an access (set by checked.py)


class Lowering:
    """What is being lowered: an object, of which a kernel's identity holds the name and not the contents."""

    def __init__(self) -> None:
        self.current = 0  # fingerprint of the kernel


lowering = Lowering()


def fingerprint(symbol: str) -> int:
    """A kernel's symbol as an int64, for reports of checked code."""
    return int(symbol[-15:], 16)


def checked() -> bool:
    """Whether kernels are built with a test of every memory access (part of a kernel's symbol)."""
    return _checked


@contextlib.contextmanager
def checking(on: bool = True) -> Iterator[None]:
    """Build checked kernels inside this block. Process wide: not for use from several threads at once."""
    global _checked
    before, _checked = _checked, on
    try:
        yield
    finally:
        _checked = before


def plain() -> bool:
    """Whether `native` gives ordinary Python functions (environment variable ONNXC_PLAIN=1), for debugging."""
    return os.environ.get("ONNXC_PLAIN", "") not in ("", "0")
