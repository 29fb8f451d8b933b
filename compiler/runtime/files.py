"""Writing files whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives an empty file to write in place of `path`, which it replaces at the end, unless there was an exception.

    A crash leaves the old file or the new one. Links are followed, permissions stay; what is no regular file (a device,
    a pipe) is written to. OSError names `path`.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = 0
    except OSError as e:
        raise _named(e, path) from e
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if mode and not stat.S_ISREG(mode):
        with tempfile.TemporaryDirectory(prefix="onnxc-") as scratch:
            part = Path(scratch, "part")
            yield part
            with open(part, "rb") as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink)
        return
    part = target.with_name(f".onnxc-{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as e:
        raise _named(e, path) from e
    usual = part.stat().st_mode  # what the umask makes of it; some writers put a private file in its place
    try:
        yield part
        with open(part, "rb") as f:
            os.fsync(f.fileno())
        os.chmod(part, stat.S_IMODE(mode or usual))
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def _named(e: OSError, path: str | os.PathLike[str]) -> OSError:
    """The same error about the file that was asked for."""
    return type(e)(e.errno, e.strerror, os.fspath(path))
