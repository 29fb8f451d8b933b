"""State in a file: safetensors, bit exact, written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from compiler.errors import StateError
from compiler.runtime.files import replacing
from compiler.runtime.memory import Array

_FORMAT = {"format": "onnxc state"}
_TEXTS = "onnxc"
"""The one key of metadata: safetensors writes several in any order, and equal states shall give equal bytes."""

_RESERVED = "__metadata__"  # of safetensors; names that begin with it get one more character

_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def save_state(
    path: str | os.PathLike[str], state: Mapping[str, Array], about: Mapping[str, str] | None = None
) -> None:
    """Write arrays by name. A crash leaves the old file or the new one. OSError as the file system gives it.

    about: texts that `read_metadata` gives again. The same arrays and texts give the same bytes.
    """
    arrays = {f"{n}'" if n.startswith(_RESERVED) else n: np.asarray(a, order="C") for n, a in state.items()}
    with replacing(path) as part:
        try:
            save_file(arrays, part, {_TEXTS: json.dumps({**(about or {}), **_FORMAT}, sort_keys=True)})
        except SafetensorError as e:
            raise OSError(f"cannot write {os.fspath(path)!r}: {e}") from e


def load_state(path: str | os.PathLike[str], state: Mapping[str, Array], expected: str | None = None) -> None:
    """Overwrite arrays with those of a file, all or none. StateError: what is missing, extra or of another type.

    expected: their `checksum`, if it is known.
    """
    path = _existing(path)
    try:
        with safe_open(path, framework="np") as file:
            stored = {n.removesuffix("'") if n.startswith(_RESERVED) else n: n for n in file.keys()}  # noqa: SIM118
            types = {n: _type(file.get_slice(key)) for n, key in stored.items()}
            _compare(path, types, state)
            found = {n: file.get_tensor(stored[n]) for n in state}
    except (SafetensorError, OSError) as e:
        raise StateError(f"{path!r} is no state that onnxc saved (not safetensors, or cut short): {e}") from e
    if expected is not None and checksum(found) != expected:
        raise StateError(f"{path!r} is damaged: its numbers are not those that were written")
    for name, a in state.items():
        a[...] = found[name]


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that were written with a state. StateError: no such file, or one of another kind."""
    path = _existing(path)
    try:
        with safe_open(path, framework="np") as file:
            texts = json.loads((file.metadata() or {}).get(_TEXTS, "{}"))
            return {str(k): str(v) for k, v in texts.items()}
    except (SafetensorError, OSError, ValueError, AttributeError) as e:
        raise StateError(f"{path!r} is no state that onnxc saved (not safetensors, or cut short): {e}") from e


def checksum(state: Mapping[str, Array]) -> str:
    """CRC-32 of the bytes of all arrays, in the order of their names."""
    sum_ = 0
    for name in sorted(state):
        sum_ = zlib.crc32(np.ascontiguousarray(state[name]).reshape(-1).view(np.uint8).data, sum_)
    return f"{sum_:08x}"


def _existing(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError) as e:
        raise StateError(f"there is no file {name!r}") from e
    if not stat.S_ISREG(mode):
        raise StateError(f"{name!r} is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}, not a saved state")
    return name


def _type(stored: object) -> tuple[str, tuple[int, ...]]:
    dtype, shape = stored.get_dtype(), tuple(stored.get_shape())  # type: ignore[attr-defined]
    return _TYPES.get(dtype, dtype), shape


def _compare(path: str, found: Mapping[str, tuple[str, tuple[int, ...]]], state: Mapping[str, Array]) -> None:
    """StateError unless a file has these arrays and no others."""
    problems = [f"missing {name!r}" for name in state if name not in found]
    problems += [f"extra {name!r}" for name in found if name not in state]
    for name, a in state.items():
        if name in found and found[name] != (a.dtype.name, a.shape):
            dtype, shape = found[name]
            problems.append(f"{name!r} is {dtype}{list(shape)}, the model's is {a.dtype}{list(a.shape)}")
    if problems:
        raise StateError(f"{path!r} is the state of another model: {'; '.join(problems)}")
