"""Arrays that a model trains on: read from files without loading what is large, and taken a batch at a time."""

from __future__ import annotations

import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import InputError, RefusedError, checked_path, did_you_mean
from compiler.frontend.types import InputType
from compiler.runtime.arguments import held
from compiler.runtime.arrays import as_plain
from compiler.runtime.layout import BITS, ML_DTYPES, NUMPY
from compiler.runtime.memory import Array
from compiler.training.samples import said, samples_of

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


_UNREADABLE = (
    ValueError, EOFError, LookupError, OSError, TypeError, AttributeError, NotImplementedError, OverflowError,
    MemoryError, RecursionError, SyntaxError, tokenize.TokenError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What NumPy's reader raises for bytes that are no array: a header is text, which Python's own parser reads."""


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
        start = member.header_offset + 30 + sum(struct.unpack_from("<HH", local, 26))
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
@dataclass(frozen=True)
class _Column:
    """One array, the type that its rows get (None: they have it), and the axis of its samples (None: it has none)."""

    array: Array
    dtype: str | None
    axis: int | None

    def rows(self, rows: Array | slice) -> Array:
        found = self.array if self.axis is None else self._own(rows, self.axis)
        if self.dtype is None:
            return found
        if self.dtype in ML_DTYPES:
            converted = held(found, self.dtype)
            assert converted is not None  # all its values were looked at
            return converted
        return found.astype(NUMPY[self.dtype])

    @property
    def size(self) -> int:
        """How many samples it has."""
        return 1 if self.axis is None else self.array.shape[self.axis]

    def _own(self, rows: Array | slice, axis: int) -> Array:
        """The rows in the array's own type."""
        flags = self.array.flags
        if isinstance(rows, slice) or not (flags.c_contiguous and flags.aligned):
            return self.array[(slice(None),) * axis + (rows,)]
        return self.array.take(rows, axis)  # several times as fast; of other layouts it would copy all first


class Dataset:
    """Named arrays with samples along an axis, all as many. Others belong to every sample as they are.

    Nothing is copied. Where an array has another type than the model, rows are converted as they are taken; whether the
    type holds all its values exactly is found out at once, in one pass over an array whose type does not tell.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        inputs: Mapping[str, InputType],
        optional: Collection[str],
        what: str,
        axes: Mapping[str, int] | None = None,
    ) -> None:
        """Take those arrays that are inputs. optional: inputs that may be missing. InputError, which says `what`.

        axes: of each input that has samples their axis, by default as `samples_of` has it.
        """
        if not isinstance(arrays, Mapping):
            raise InputError(
                f"{what} must be a mapping from names of inputs to arrays, not {type(arrays).__name__}: the model "
                f"takes {', '.join(map(repr, inputs)) or 'no inputs'}"
            )
        plain = {n: as_plain(f"array {n!r} of {what}", arrays[n]) for n in inputs if n in arrays}
        if missing := [n for n in inputs if n not in plain and n not in optional]:
            raise InputError(_lacks(what, missing, [n for n in arrays if n not in inputs], list(arrays)))
        self.what, self.inputs = what, inputs
        axes = samples_of(inputs).axes(inputs) if axes is None else axes
        self.axes = {n: axes[n] for n in plain if n in axes}
        """The arrays that have samples, each with their axis."""
        self._columns = {n: _column(a, inputs[n], f"array {n!r} of {what}", self.axes.get(n)) for n, a in plain.items()}
        sizes = {n: c.size for n, c in self._columns.items() if c.axis is not None}
        where = f"; samples lie along {said(self.axes)}" if any(self.axes.values()) else ""
        if not sizes or min(sizes.values()) == 0:
            raise InputError(f"no samples in {what}: arrays need an axis of samples, there are {sizes}{where}")
        if len(set(sizes.values())) > 1:
            raise InputError(
                f"{what} has arrays of different numbers of samples: {sizes}{where}; bind what is the same for all "
                "samples by static=, or name another dim that counts samples by batch_dim="
            )
        self._size = next(iter(sizes.values()))

    def sizes(self, known: Mapping[str, int]) -> dict[str, int]:
        """Sizes of symbols, but for those of samples: the known ones, and what the arrays have.

        InputError: they contradict each other, or the model.
        """
        found = dict(known)
        of = dict.fromkeys(known, "that is given")
        for name, c in self._columns.items():
            t = self.inputs[name]
            for axis, (d, n) in enumerate(zip(t.dims, c.array.shape, strict=True)):
                if axis == c.axis:
                    continue
                want = found.setdefault(d, n) if isinstance(d, str) else d
                if want == n:
                    of.setdefault(d, f"of array {name!r}") if isinstance(d, str) else None
                    continue
                why = f", and {d!r} is {want}, {of[d]}" if isinstance(d, str) else ""
                why += f"; its axis {c.axis} counts samples" if c.axis else ""
                raise InputError(
                    f"array {name!r} of {self.what} has shape {list(c.array.shape)}, with {n} at axis {axis}: the "
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
        for start in range(0, 1 if column.axis is None else self._size, samples):
            yield start, column.rows(slice(start, start + samples))

    def refused(self, e: RefusedError, rows: Array | slice) -> RefusedError:
        """The error of a step that had these samples, with the place of its element here."""
        if e.input not in self._columns:
            return RefusedError(e.what, e.input, e.index, e.value, data=self.what)
        index, sample, axis = e.index, None, self.axes.get(e.input)
        if axis is not None:
            sample = int(np.arange(self._size)[rows][index[axis]])
            index = (*index[:axis], sample, *index[axis + 1 :])
        return RefusedError(e.what, e.input, index, e.value, sample, self.what)

    def fingerprint(self) -> str:
        """A hash of names, types, shapes and up to 256 samples, spread over all: tells one data set from another."""
        digest = blake2b(digest_size=16)
        some = np.unique(np.linspace(0, self._size - 1, min(self._size, _SAMPLED)).astype(np.int64))
        for name, a in sorted(self.rows(some).items()):
            shape = tuple(self._size if i == self.axes.get(name) else n for i, n in enumerate(a.shape))
            digest.update(repr((name, a.dtype.name, shape)).encode())
            digest.update(a.tobytes())
        return digest.hexdigest()


def _lacks(what: str, missing: list[str], unused: list[str], there: list[str]) -> str:
    names = ", ".join(f"{n!r}{did_you_mean(n, unused)}" for n in missing)
    return f"{what} has no array {names}: it has {', '.join(map(repr, there)) or 'none'}"


def _column(array: Array, t: InputType, what: str, axis: int | None) -> _Column:
    """An array for an input. InputError: it does not fit."""
    wanted = np.dtype(NUMPY[t.dtype])
    name = ML_DTYPES.get(t.dtype, wanted.name)
    fits = len(t.dims) == array.ndim
    if axis is None and (
        not fits or any(d != n for d, n in zip(t.dims, array.shape, strict=True) if isinstance(d, int))
    ):
        raise InputError(
            f"{what} has shape {list(array.shape)}: the model takes {t}, the same for all samples, as its first axis "
            "is not theirs; give one array of that shape, here or by static=, or, if they are, the size of the model's "
            "other batches by dims="
        )
    if not fits:
        where = f", whose axis {axis} counts samples" if axis else ""
        raise InputError(f"{what} has shape {list(array.shape)}: the model takes {t}{where}")
    if array.dtype == wanted and t.dtype not in BITS and t.dtype not in ML_DTYPES:
        return _Column(array, None, axis)
    if t.dtype in ML_DTYPES:  # rounded, if need be: files have no such type
        if any(held(chunk, t.dtype) is None for chunk in _chunks(array, axis or 0)):
            raise InputError(f"{what} is {array.dtype}: the model takes {name}, which cannot hold its values")
        return _Column(array, t.dtype, axis)
    exact = array.dtype.kind == "f" or array.dtype.itemsize < 8 or wanted.kind != "f"  # NumPy says i64 is safe as f64
    if exact and np.can_cast(array.dtype, wanted, "safe"):
        return _Column(array, t.dtype, axis)
    if array.dtype.kind not in {"i": "biu", "u": "biu", "f": "biuf"}.get(wanted.kind, ""):
        remedy = f"; give whole numbers as that: .astype({name!r})"
        whole = remedy if array.dtype.kind == "f" and wanted.kind in "iu" else ""
        raise InputError(f"{what} is {array.dtype}: the model takes {name}, which cannot hold its values{whole}")
    for chunk in _chunks(array, axis or 0):
        lost = _lost(chunk, wanted)
        if lost.any():
            example = chunk[lost][0]
            as_what = "which cannot hold" if wanted.kind in "iu" else "which would round"
            raise InputError(
                f"{what} is {array.dtype}: the model takes {name}, {as_what} {example!s}; if that is meant, give it "
                f"as {name}: .astype({name!r})"
            )
    return _Column(array, t.dtype, axis)


def _chunks(array: Array, axis: int) -> Iterator[Array]:
    """The array in pieces along an axis."""
    if array.ndim == 0:
        yield array
        return
    size = array.shape[axis]
    rows = max(1, _CHUNK * size // max(1, array.nbytes))
    for start in range(0, size, rows):
        yield array[(slice(None),) * axis + (slice(start, start + rows),)]


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
