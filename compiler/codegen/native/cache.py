"""A directory of compiled objects, named by content. Safe for several processes; a read-only one is only read."""

import atexit
import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

MAGIC = b"onnxc-object-1:"  # then the SHA-256 of all before it; linkers ignore what follows an object's sections
DEFAULT_LIMIT = 512 << 20  # bytes


def directory() -> Path:
    """ONNXC_CACHE, or `onnxc` in the platform's cache directory of this user."""
    if chosen := os.environ.get("ONNXC_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "onnxc"


@functools.cache
def _scratch() -> Path:
    """Where objects go when the cache cannot be written: a directory of this process."""
    path = Path(tempfile.mkdtemp(prefix="onnxc-"))
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a child that was forked
        shutil.rmtree(path, ignore_errors=True)


def sealed(data: bytes) -> bytes:
    """Object code with its checksum behind it."""
    return data + MAGIC + hashlib.sha256(data).digest()


def intact(data: bytes) -> bool:
    """Whether file contents are a whole object as it was written."""
    body, mark, digest = data[: -32 - len(MAGIC)], data[-32 - len(MAGIC) : -32], data[-32:]
    return mark == MAGIC and hashlib.sha256(body).digest() == digest


def find(name: str) -> Path | None:
    """The file of an intact object of that name, or None. A damaged file counts as absent."""
    for base in (directory(), *([_scratch()] if _scratch.cache_info().currsize else [])):
        path = base / name
        with contextlib.suppress(OSError):
            if intact(path.read_bytes()):
                if time.time() - path.stat().st_mtime > 3600:
                    with contextlib.suppress(OSError):
                        os.utime(path)  # used: evict others first
                return path
    return None


def holds(count: int) -> bool:
    """Whether there are at least so many objects in the directory."""
    try:
        return len(list(itertools.islice(directory().glob("*.o"), count))) == count
    except OSError:
        return False


def store(name: str, data: bytes) -> Path:
    """Write an object whole or not at all. Two writers of one name write the same bytes: the order does not matter."""
    try:
        return _publish(directory() / name, sealed(data))
    except OSError:  # read-only, full, no home: this process keeps its own
        return _publish(_scratch() / name, sealed(data))


def _publish(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    return path


def limit() -> int:
    """Bytes that the cache may hold: ONNXC_CACHE_SIZE (in MB), or 512 MB."""
    value = os.environ.get("ONNXC_CACHE_SIZE", "")
    return int(float(value) * (1 << 20)) if value else DEFAULT_LIMIT


def evict(keep: Collection[str] = ()) -> None:
    """Over the limit, remove the objects that were not used for longest, down to 3/4 of it; `keep` stay."""
    base, files, total = directory(), [], 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            with contextlib.suppress(OSError):
                stat = entry.stat()
                if entry.name.endswith(".part") and time.time() - stat.st_mtime > 3600:
                    os.unlink(entry.path)  # its writer died
                elif entry.name.endswith(".o"):
                    files.append((stat.st_mtime, stat.st_size, entry.name))
                    total += stat.st_size
    if total <= limit():
        return
    for _, size, name in sorted(files):
        if total <= limit() * 3 // 4:
            return
        if name not in keep:
            with contextlib.suppress(OSError):
                os.unlink(base / name)
                total -= size
