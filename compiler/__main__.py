"""The command `onnxc`, also as `python -m compiler`."""

from __future__ import annotations

import sys
from importlib import import_module

from compiler.errors import INSTALL


def main() -> None:
    """Run `compiler.command.entry.main`; Ctrl-C while that is still being imported is an interrupt like any other."""
    try:
        command = import_module("compiler.command.entry")
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    except ModuleNotFoundError as e:
        sys.stderr.write(f"error: the command needs the package {e.name!r}, which is not installed: {INSTALL}\n")
        sys.exit(1)
    command.main()


if __name__ == "__main__":
    main()
