"""The command `onnxc`: all that prints. A subcommand imports what it needs when it runs, so that help comes at once.

`entry` starts it, `options` and `reporting` are what the subcommands share, the others are the subcommands.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.command import progress as progress


def __getattr__(name: str) -> Any:
    if name == "progress":  # it needs NumPy and rich
        return importlib.import_module("compiler.command.progress")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
