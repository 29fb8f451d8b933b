"""Writing files whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import zlib
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
    part = target.parent / _part(target, secrets.token_hex(8))
    with naming(path, target, part), _written(target, part) as file:
        yield file


@contextmanager
def private(part: Path) -> Iterator[Path]:
    """A folder beside a file of `replacing`, for a writer that makes files of its own: it goes, with all in it."""
    folder = part.with_name(f"{part.name}.d")
    with naming(part, folder):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_parts(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left when they were writing `path`; nobody may be writing it now."""
    target = Path(os.path.realpath(path))
    token = "[0-9a-f]" * 16
    for part in target.parent.glob(_part(target, token)):
        with suppress(OSError):
            part.unlink()
    for folder in target.parent.glob(f"{_part(target, token)}.d"):
        shutil.rmtree(folder, ignore_errors=True)


def _part(target: Path, token: str) -> str:
    """The name of a file that is to become the target. It tells of which one, and is short if that has a long name."""
    return f".onnxc-{zlib.crc32(os.fsencode(target.name)):08x}-{token}.part"


@contextmanager
def naming(path: str | os.PathLike[str], *others: Path) -> Iterator[None]:
    """An OSError that names no file, as one of a write does, or one of `others`, names `path` instead."""
    try:
        yield
    except OSError as e:
        if e.errno is None or (e.filename is not None and str(e.filename) not in map(str, others)):
            raise
        raise type(e)(e.errno, e.strerror, os.fspath(path)) from e


@contextmanager
def _written(target: Path, part: Path) -> Iterator[Path]:
    """`part` as an empty file that becomes the target."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if mode and not stat.S_ISREG(mode):
        with tempfile.TemporaryDirectory(prefix="onnxc-") as scratch:
            whole = Path(scratch, "whole")
            yield whole
            with open(whole, "rb") as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink)
        return
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
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
