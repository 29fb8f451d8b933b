"""What a command writes, against what it reads: told before anything is compiled, rather than after hours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import compiler
from compiler.errors import InputError


def check_outputs(
    outputs: Mapping[str, Path | None], model: Path, arrays: Mapping[str, Path | None], run: Path | None = None
) -> None:
    """InputError: files, by option, that cannot be written, or that are one of the files that are read, or each other.

    arrays: data that is read, by option. run: the folder of a run, made if it is not there; its files are written, too.
    """
    written = [(option, path) for option, path in outputs.items() if path is not None]
    for option, path in written:
        _check_writable(option, path, run)
    if run is not None:
        names = compiler.training.run
        logs = [names.LOG] if outputs.get("--log") is None else []
        written += [("--run", run / name) for name in (names.CHECKPOINT, names.BEST, names.LAST, *logs)]
        written += [] if run.exists() else [("--run", run)]
    # weights too large for the file of a model are written beside it, whatever the options call it
    beside = [(option, data) for option, path in written if (data := path.with_name(f"{path.name}.data")).exists()]
    taken = _read(model, arrays) if beside or any(path.exists() for _, path in written) else {}
    for option, path in [*written, *beside]:
        real = os.path.realpath(path)
        if (other := taken.setdefault(real, option)) != option:
            raise InputError(f"{option}: {str(path)!r} is a file of {other}, too: give another name")


def check_folder(folder: Path, model: Path, arrays: Mapping[str, Path | None]) -> None:
    """InputError: a folder that is written anew, with all its files, has one that is read."""
    if not folder.is_dir():
        return
    real = Path(os.path.realpath(folder))
    for path, option in _read(model, arrays).items():
        if real in Path(path).parents:
            raise InputError(f"FOLDER: {str(folder)!r} has {path!r} in it, a file of {option}: give another folder")


def _check_writable(option: str, path: Path, made: Path | None) -> None:
    folder = Path(os.path.realpath(path)).parent
    if path.is_dir():
        raise InputError(f"{option}: {str(path)!r} is a folder: give the name of a file")
    if made is not None and not made.exists() and folder == Path(os.path.realpath(made)):
        return
    if not folder.is_dir():
        raise InputError(f"{option}: there is no folder {str(folder)!r}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option}: the folder {str(folder)!r} cannot be written")


def _read(model: Path, arrays: Mapping[str, Path | None]) -> dict[str, str]:
    """The files that are read, with links followed -> by which option. ModelError."""
    given = {option: path for option, path in arrays.items() if path is not None}
    return {
        **{os.path.realpath(file): option for option, path in given.items() for file in _files(path)},
        **{os.path.realpath(path): "MODEL" for path in _files_of(model)},
    }


def _files(data: Path) -> Iterator[Path]:
    """The file of data, or the files of its folder."""
    if data.is_dir():
        yield from data.glob("*.npy")
    else:
        yield data


def _files_of(model: Path) -> list[Path]:
    """The files of a model. What is no regular file can be read once only, and is left for that."""
    return compiler.api.files_of(model) if model.is_file() else [model]
