"""Arrays that a model trains on: read from files without loading what is large, and taken a batch at a time."""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np

from compiler.errors import InputError, checked_path, did_you_mean
from compiler.frontend.types import InputType
from compiler.runtime.arguments import held
from compiler.runtime.arrays import as_plain
from compiler.runtime.layout import BITS, ML_DTYPES, NUMPY
from compiler.runtime.memory import Array

MAPPED = 1 << 20
"""Bytes from which an array of an .npz file is mapped; smaller ones are read, which checks their checksum."""

_CHUNK = 1 << 24  # bytes that are looked at together where values decide whether a type holds them

_SAMPLED = 256  # samples that a fingerprint is made of

_MAKE_ONE = "make one with numpy.savez(path, name=array, ...), with the names of the model's inputs"


# --- files -----------------------------------------------------------------------------------------------------------
class Arrays(Mapping[str, Array]):
    """Arrays of a file or folder by name, each read when it is first asked for: what nobody needs may be damaged."""

    def __init__(self, readers: Mapping[str, Callable[[], Array]]):
        self._readers = readers
        self._read: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        """InputError: it is no array of numbers, or damaged."""
        if name not in self._read:
            self._read[name] = self._readers[name]()
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers


def read_arrays(path: str | os.PathLike[str]) -> Arrays:
    """The arrays of an .npz file, or of a folder of .npy files, each named as its file without the suffix.

    Files of a folder, and arrays of at least `MAPPED` bytes that are stored without compression (as `numpy.savez`
    does), are mapped: only what is used of them is read. InputError for anything else, and for what is damaged, as
    soon as an array of it is asked for.
    """
    name = path = checked_path("path", path)
    if os.path.isdir(path):
        return _folder(Path(path))
    try:
        _check_regular(path)
        with open(path, "rb") as file:
            head = file.read(6)
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):  # a first member, or the end of an empty archive
            return _npz(path)
    except FileNotFoundError as e:
        raise InputError(f"there is no file {name!r}") from e
    except _UNREADABLE as e:
        raise _no_archive(name, e) from e
    if head == np.lib.format.MAGIC_PREFIX:
        raise InputError(
            f"{name!r} holds one array without a name: {_MAKE_ONE}, or give a folder of .npy files, each with the name "
            "of an input"
        )
    why = "it is a file of another kind" if head else "it is empty"
    raise InputError(f"{name!r} is no .npz file of numeric arrays: {why}; {_MAKE_ONE}")


_UNREADABLE = (ValueError, EOFError, KeyError, OSError, TypeError, NotImplementedError, zipfile.BadZipFile, zlib.error)


def _no_archive(name: str, e: Exception, member: str = "") -> InputError:
    at = f"array {member!r}: " if member else ""
    return InputError(f"{name!r} is no .npz file of numeric arrays: {at}{_why(e)}; {_MAKE_ONE}")


def _check_regular(path: str | os.PathLike[str]) -> None:
    """ValueError: a pipe, which would wait for a writer, or a device, which may have no end. OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is no regular file, but a pipe or a device")


def _why(e: Exception) -> str:
    """Of a file that numpy refused."""
    text = str(e) or "it is damaged"
    if "Object arrays" in text or "Python objects" in text:
        return "it holds Python objects, which are not loaded"
    return "it is a file of another kind, or cut off" if "magic string" in text else text


def _folder(folder: Path) -> Arrays:
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise InputError(f"there are no .npy files in the folder {str(folder)!r}: each input of the model needs one")
    return Arrays({file.stem: partial(_file, file) for file in files})


def _file(file: Path) -> Array:
    try:
        _check_regular(file)
        return np.asarray(np.lib.format.open_memmap(file, mode="r"))
    except _UNREADABLE as e:
        raise InputError(
            f"{str(file)!r} is no .npy file of a numeric array: {_why(e)}; write it with numpy.save"
        ) from e


def _npz(path: str | os.PathLike[str]) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        if not archive.files:
            raise InputError(f"there are no arrays in {os.fspath(path)!r}: {_MAKE_ONE}")
        members = {m.filename.removesuffix(".npy"): m for m in archive.zip.infolist()}
        return Arrays({name: partial(_member, path, name, members[name]) for name in archive.files})


def _member(path: str | os.PathLike[str], name: str, member: zipfile.ZipInfo) -> Array:
    plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1  # 1: it is encrypted
    try:
        mapped = _mapped(path, member) if plain and member.file_size >= MAPPED else None
        if mapped is not None:
            return mapped
        with np.load(path, allow_pickle=False) as archive:
            found = archive[name]
    except _UNREADABLE as e:
        raise _no_archive(os.fspath(path), e, name) from e
    if not isinstance(found, np.ndarray):  # numpy gives the bytes of what is no array
        raise _no_archive(os.fspath(path), ValueError("it is a file of another kind"), name)
    return found


def _mapped(path: str | os.PathLike[str], member: zipfile.ZipInfo) -> Array | None:
    """An array that lies in an archive as it is in memory; None for one that numpy has to read (or refuse)."""
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        local = file.read(30)  # the extra field may be another one than the directory's: its length is here only
        if len(local) < 30 or not local.startswith(b"PK\x03\x04"):
            raise zipfile.BadZipFile("it is damaged")
        start = member.header_offset + 30 + sum(unpack_from("<HH", local, 26))
        file.seek(start)
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            return None
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if (
            dtype.hasobject
            or file.tell() - start + dtype.itemsize * int(np.prod(shape, dtype=object)) > member.file_size
        ):
            return None
        return np.asarray(np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C"))


# --- batches ---------------------------------------------------------------------------------------------------------
def sampled(inputs: Mapping[str, InputType], bound: Mapping[str, int] | None = None) -> frozenset[str]:
    """The inputs with samples along their first axis: those whose first dim is a symbol of samples.

    That is one which is a first dim only, unless all symbols at first are at other places as well; and which has no
    size in `bound`, unless all have. Then the number of samples is fixed, and inputs with that number at first have
    samples, too. A model without symbols there has samples in all inputs that have axes.
    """
    bound = bound or {}
    first = {name: t.dims[0] for name, t in inputs.items() if t.dims}
    symbols = {d for d in first.values() if isinstance(d, str)}
    alone = symbols - {d for t in inputs.values() for d in t.dims[1:]} or symbols
    of_samples: set[int | str] = {d for d in alone if d not in bound}
    if not of_samples:
        of_samples = {*alone, *(bound[s] for s in alone)} if alone else set(first.values())
    return frozenset(name for name, d in first.items() if d in of_samples)


@dataclass(frozen=True)
class _Column:
    """One array, the type that its rows get (None: they have it), and whether it has samples, or is for all of them."""

    array: Array
    dtype: str | None
    sampled: bool

    def rows(self, rows: Array | slice) -> Array:
        found = self._own(rows) if self.sampled else self.array
        if self.dtype is None:
            return found
        if self.dtype in ML_DTYPES:
            converted = held(found, self.dtype)
            assert converted is not None  # all its values were looked at
            return converted
        return found.astype(NUMPY[self.dtype])

    def _own(self, rows: Array | slice) -> Array:
        """The rows in the array's own type."""
        flags = self.array.flags
        if isinstance(rows, slice) or not (flags.c_contiguous and flags.aligned):
            return self.array[rows]
        return self.array.take(rows, axis=0)  # several times as fast; of other layouts it would copy all first


class Dataset:
    """Named arrays with samples along their first axis, all as many. Others belong to every sample as they are.

    Nothing is copied. Where an array has another type than the model, rows are converted as they are taken; whether the
    type holds all its values exactly is found out at once, in one pass over an array whose type does not tell.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        inputs: Mapping[str, InputType],
        optional: Collection[str],
        what: str,
        samples: Collection[str] | None = None,
    ) -> None:
        """Take those arrays that are inputs. optional: inputs that may be missing. InputError, which says `what`.

        samples: inputs that have samples, by default the `sampled` ones.
        """
        if not isinstance(arrays, Mapping):
            raise InputError(
                f"{what} must be a mapping from names of inputs to arrays, not {type(arrays).__name__}: the model "
                f"takes {', '.join(map(repr, inputs)) or 'no inputs'}"
            )
        plain = {n: as_plain(f"array {n!r} of {what}", arrays[n]) for n in inputs if n in arrays}
        if missing := [n for n in inputs if n not in plain and n not in optional]:
            raise InputError(_lacks(what, missing, [n for n in arrays if n not in inputs], list(arrays)))
        self._what, self._inputs = what, inputs
        self.samples = (sampled(inputs) if samples is None else frozenset(samples)) & plain.keys()
        """The arrays that have samples."""
        self._columns = {
            n: _column(a, inputs[n], f"array {n!r} of {what}", n in self.samples) for n, a in plain.items()
        }
        sizes = {n: len(c.array) for n, c in self._columns.items() if c.sampled}
        if not sizes or min(sizes.values()) == 0:
            raise InputError(f"no samples in {what}: arrays need a first axis of samples, there are {sizes}")
        if len(set(sizes.values())) > 1:
            raise InputError(
                f"{what} has arrays of different numbers of samples: {sizes}; bind what is the same for all samples "
                "by static="
            )
        self._size = next(iter(sizes.values()))

    def sizes(self, known: Mapping[str, int]) -> dict[str, int]:
        """Sizes of symbols, but for those of samples: the known ones, and what the arrays have.

        InputError: they contradict each other, or the model.
        """
        found = dict(known)
        of = dict.fromkeys(known, "that is given")
        for name, c in self._columns.items():
            t, skipped = self._inputs[name], int(c.sampled)
            for axis, (d, n) in enumerate(zip(t.dims[skipped:], c.array.shape[skipped:], strict=True), skipped):
                want = found.setdefault(d, n) if isinstance(d, str) else d
                if want == n:
                    of.setdefault(d, f"of array {name!r}") if isinstance(d, str) else None
                    continue
                why = f", and {d!r} is {want}, {of[d]}" if isinstance(d, str) else ""
                raise InputError(
                    f"array {name!r} of {self._what} has shape {list(c.array.shape)}, with {n} at axis {axis}: the "
                    f"model takes {t}{why}"
                )
        return found

    def __len__(self) -> int:
        return self._size

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that there are arrays of."""
        return tuple(self._columns)

    def rows(self, rows: Array | slice) -> dict[str, Array]:
        """Some of the samples, in the model's types: by their indices (a copy), or a slice of them."""
        return {n: c.rows(rows) for n, c in self._columns.items()}

    def parts(self, name: str, samples: int) -> Iterator[tuple[int, Array]]:
        """One array, so many samples at a time, each part with the number of its first; whole, if it has none."""
        column = self._columns[name]
        for start in range(0, self._size if column.sampled else 1, samples):
            yield start, column.rows(slice(start, start + samples))

    def fingerprint(self) -> str:
        """A hash of names, types, shapes and up to 256 samples, spread over all: tells one data set from another."""
        digest = blake2b(digest_size=16)
        some = np.unique(np.linspace(0, self._size - 1, min(self._size, _SAMPLED)).astype(np.int64))
        for name, a in sorted(self.rows(some).items()):
            shape = (self._size, *a.shape[1:]) if name in self.samples else a.shape
            digest.update(repr((name, a.dtype.name, shape)).encode())
            digest.update(a.tobytes())
        return digest.hexdigest()


def _lacks(what: str, missing: list[str], unused: list[str], there: list[str]) -> str:
    names = ", ".join(f"{n!r}{did_you_mean(n, unused)}" for n in missing)
    return f"{what} has no array {names}: it has {', '.join(map(repr, there)) or 'none'}"


def _column(array: Array, t: InputType, what: str, sampled: bool) -> _Column:
    """An array for an input. InputError: it does not fit."""
    wanted = np.dtype(NUMPY[t.dtype])
    name = ML_DTYPES.get(t.dtype, wanted.name)
    fits = len(t.dims) == array.ndim
    if not sampled and (
        not fits or any(d != n for d, n in zip(t.dims, array.shape, strict=True) if isinstance(d, int))
    ):
        raise InputError(
            f"{what} has shape {list(array.shape)}: the model takes {t}, the same for all samples, as its first axis "
            "is not theirs; give one array of that shape, here or by static=, or, if they are, the size of the model's "
            "other batches by dims="
        )
    if not fits:
        raise InputError(f"{what} has shape {list(array.shape)}: the model takes {t}")
    if array.dtype == wanted and t.dtype not in BITS and t.dtype not in ML_DTYPES:
        return _Column(array, None, sampled)
    if t.dtype in ML_DTYPES:  # rounded, if need be: files have no such type
        if any(held(chunk, t.dtype) is None for chunk in _chunks(array)):
            raise InputError(f"{what} is {array.dtype}: the model takes {name}, which cannot hold its values")
        return _Column(array, t.dtype, sampled)
    exact = array.dtype.kind == "f" or array.dtype.itemsize < 8 or wanted.kind != "f"  # NumPy says i64 is safe as f64
    if exact and np.can_cast(array.dtype, wanted, "safe"):
        return _Column(array, t.dtype, sampled)
    if array.dtype.kind not in {"i": "biu", "u": "biu", "f": "biuf"}.get(wanted.kind, ""):
        remedy = f"; give whole numbers as that: .astype({name!r})"
        whole = remedy if array.dtype.kind == "f" and wanted.kind in "iu" else ""
        raise InputError(f"{what} is {array.dtype}: the model takes {name}, which cannot hold its values{whole}")
    for chunk in _chunks(array):
        lost = _lost(chunk, wanted)
        if lost.any():
            example = chunk[lost][0]
            as_what = "which cannot hold" if wanted.kind in "iu" else "which would round"
            raise InputError(
                f"{what} is {array.dtype}: the model takes {name}, {as_what} {example!s}; if that is meant, give it "
                f"as {name}: .astype({name!r})"
            )
    return _Column(array, t.dtype, sampled)


def _chunks(array: Array) -> Iterator[Array]:
    """The array in pieces along its first axis."""
    if array.ndim == 0:
        yield array
        return
    rows = max(1, _CHUNK // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _lost(array: Array, wanted: np.dtype[Any]) -> Array:
    """Which numbers another type does not hold exactly. Of integers as floats: those beyond its digits."""
    if wanted.kind in "iu":
        info = np.iinfo(wanted)
        return np.asarray((array < info.min) | (array > info.max))
    if array.dtype.kind in "iu":
        most = 2 ** (np.finfo(wanted).nmant + 1)
        return np.asarray((array > most) | (array < -most))
    with np.errstate(over="ignore"):
        back = array.astype(wanted).astype(array.dtype)
    return np.asarray((back != array) & ~(np.isnan(back) & np.isnan(array)))
