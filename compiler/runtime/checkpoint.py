"""State in a file: safetensors, bit exact, written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from compiler.errors import StateError
from compiler.runtime.files import private, replacing
from compiler.runtime.memory import Array

_FORMAT = {"format": "onnxc state"}
_CHECKSUM = "crc32"
_TEXTS = "onnxc"
"""The one key of metadata: safetensors writes several in any order, and equal states shall give equal bytes."""

_RESERVED = "__metadata__"  # of safetensors; names that begin with it get one more character

_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """What a file holds. checked: whether it has a checksum (which is right). texts: those written with the state.

    types: element type and shape of each array. arrays: those of a type that a state may have.
    """

    path: str
    checked: bool
    texts: Mapping[str, str]
    types: Mapping[str, tuple[str, tuple[int, ...]]]
    arrays: Mapping[str, Array]

    def put(self, state: Mapping[str, Array]) -> None:
        """Overwrite arrays with these, all or none. StateError: what is missing, extra or of another type."""
        _compare(self.path, self.types, state)
        for name, a in state.items():
            a[...] = self.arrays[name]


def save_state(
    path: str | os.PathLike[str], state: Mapping[str, Array], about: Mapping[str, str] | None = None
) -> None:
    """Write arrays by name. A crash leaves the old file or the new one. OSError as the file system gives it.

    about: texts that `read_state` gives again, and with them a checksum of all (without, the bytes are those that a
    built library writes). The same arrays and texts give the same bytes.
    """
    plain = {n: np.asarray(a, order="C") for n, a in state.items()}
    texts = {**(about or {}), **_FORMAT}
    if about is not None:
        texts[_CHECKSUM] = checksum(texts, plain)
    arrays = {f"{n}'" if n.startswith(_RESERVED) else n: a for n, a in plain.items()}
    with replacing(path) as part, private(part) as folder:
        whole = folder / "state"
        try:
            save_file(arrays, whole, {_TEXTS: json.dumps(texts, sort_keys=True)})
        except SafetensorError as e:
            raise OSError(f"cannot write {os.fspath(path)!r}: {e}") from e
        os.replace(whole, part)


def load_state(path: str | os.PathLike[str], state: Mapping[str, Array]) -> None:
    """Overwrite arrays with those of a file, all or none. StateError: as for `read_state` and `Saved.put`."""
    read_state(path).put(state)


def read_state(path: str | os.PathLike[str]) -> Saved:
    """What a file of `save_state` holds, or any other of safetensors, which then has no checksum.

    StateError: there is no such file, or it is damaged.
    """
    path = _existing(path)
    try:
        with safe_open(path, framework="np") as file:
            texts = {str(k): str(v) for k, v in json.loads((file.metadata() or {}).get(_TEXTS, "{}")).items()}
            stored = {n.removesuffix("'") if n.startswith(_RESERVED) else n: n for n in file.keys()}  # noqa: SIM118
            types = {n: _type(file.get_slice(key)) for n, key in stored.items()}
            known = _TYPES.values()
            arrays = {n: file.get_tensor(key) for n, key in stored.items() if types[n][0] in known}
    except (SafetensorError, OSError, ValueError, AttributeError) as e:
        raise StateError(f"{path!r} is no state that onnxc saved (not safetensors, or cut short): {e}") from e
    checked = _CHECKSUM in texts
    if checked and texts[_CHECKSUM] != checksum(texts, arrays):
        raise StateError(f"{path!r} is damaged: its contents are not those that were written; use another copy of it")
    return Saved(path, checked, texts, types, arrays)


def checksum(texts: Mapping[str, str], arrays: Mapping[str, Array]) -> str:
    """CRC-32 of texts (but for the checksum) and of arrays: their names, types, shapes and bytes."""
    about = sorted((k, v) for k, v in texts.items() if k != _CHECKSUM)
    names = sorted(arrays)
    types = [(n, arrays[n].dtype.name, arrays[n].shape) for n in names]
    sum_ = zlib.crc32(json.dumps([about, types]).encode())
    for name in names:
        sum_ = zlib.crc32(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data, sum_)
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
