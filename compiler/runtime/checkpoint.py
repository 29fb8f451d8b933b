"""State in a file: safetensors, bit exact, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from compiler.errors import StateError
from compiler.runtime.memory import Array

_FORMAT = {"format": "onnxc state"}
_RESERVED = "__metadata__"  # of safetensors


def save_state(path: str | os.PathLike[str], state: Mapping[str, Array]) -> None:
    """Write arrays by name. A crash leaves the old file or the new one. OSError as the file system gives it."""
    path = Path(path)
    arrays = {f"{name}'" if name.startswith(_RESERVED) else name: np.asarray(a, order="C") for name, a in state.items()}
    handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        save_file(arrays, part, _FORMAT)
        with open(part, "rb") as f:
            os.fsync(f.fileno())
        os.chmod(part, 0o666 & ~_umask())
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load_state(path: str | os.PathLike[str], state: Mapping[str, Array]) -> None:
    """Overwrite arrays with those of a file, all or none. StateError: what is missing, extra or of another type."""
    path = Path(path)
    if not path.is_file():
        raise StateError(f"there is no file {str(path)!r}")
    try:
        found = load_file(path)
    except (SafetensorError, ValueError, KeyError, OSError) as e:
        raise StateError(f"{str(path)!r} is no state that onnxc saved (not safetensors, or cut short): {e}") from e
    found = {name.removesuffix("'") if name.startswith(_RESERVED) else name: a for name, a in found.items()}
    problems = [f"missing {name!r}" for name in state if name not in found]
    problems += [f"extra {name!r}" for name in found if name not in state]
    for name, a in state.items():
        b = found.get(name)
        if b is not None and (a.dtype != b.dtype or a.shape != b.shape):
            problems.append(f"{name!r} is {b.dtype}{list(b.shape)}, the model's is {a.dtype}{list(a.shape)}")
    if problems:
        raise StateError(f"{str(path)!r} is the state of another model: {'; '.join(problems)}")
    for name, a in state.items():
        a[...] = found[name]
