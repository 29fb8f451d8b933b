"""Ctrl-C and SIGTERM while a model trains: at once, or gently, with the end of the step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_DEFAULT: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Stopped(KeyboardInterrupt):
    """Raised where a signal ends the command at once. code: its exit code then."""

    def __init__(self, number: int) -> None:
        super().__init__("terminated" if number == signal.SIGTERM else "interrupted")
        self.code = 128 + number


class Signals:
    """The first signal that came, if any. gently: it only sets `number`; the next one still raises."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.gently = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        first, self.number = self.number is None, self.number or number
        if not (first and self.gently):
            raise Stopped(number)

    def check(self) -> None:
        """Raise what Python may have dropped: it does so if the handler runs in a finalizer."""
        if self.number is not None and not self.gently:
            raise Stopped(self.number)


@contextmanager
def caught() -> Iterator[Signals]:
    """Catch both signals, unless they are ignored, or somebody else's."""
    signals = Signals()
    ours = [n for n, default in _DEFAULT.items() if signal.getsignal(n) is default]
    for number in ours:
        signal.signal(number, signals)
    try:
        yield signals
    finally:
        for number in ours:
            signal.signal(number, _DEFAULT[number])
