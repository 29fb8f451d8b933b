"""The folder of an artifact: written beside its place, then renamed, so that it is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from compiler.codegen.library import build_library
from compiler.codegen.library_cpu import required
from compiler.codegen.native import Target
from compiler.errors import ArtifactError, BuildError
from compiler.ir.dump import dump
from compiler.ir.graph import Program
from compiler.ir.types import AnyArray
from compiler.runtime.arguments import as_array
from compiler.runtime.artifact import (
    INFERENCE,
    IR,
    MANIFEST,
    SOURCE,
    WEIGHTS,
    Manifest,
    digest,
    read_manifest,
    this_machine,
)
from compiler.runtime.checkpoint import save_state
from compiler.runtime.layout import Slot


@dataclass(frozen=True)
class Recipe:
    """What an artifact is made of.

    name: prefix of all C names. version: of onnxc. states, initial: all state in its layout, and its first values.
    inference: the model for `step.export`, serialized with the initial values; None if it is too large. options: how
    it was built, for people. averages: state that is the running average of a variable, by the variable.
    """

    program: Program
    states: Sequence[Slot]
    initial: Mapping[str, AnyArray]
    inference: bytes | None
    name: str
    version: str
    threads: int = 1
    cc: str = "cc"
    options: Mapping[str, Any] = field(default_factory=dict)
    averages: Mapping[str, str] = field(default_factory=dict)


def write_artifact(recipe: Recipe, folder: Path) -> None:
    """Write an artifact for the target that is built for; one of that name is replaced.

    BuildError: the folder is anything else; no C compiler.
    """
    check_replaceable(folder)
    folder = Path(os.path.realpath(folder))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            part = Path(scratch, "new")
            part.mkdir()
            _fill(recipe, part)
            _publish(part, folder, Path(scratch, "old"))
    except OSError as e:
        raise BuildError(f"cannot write {str(folder)!r}: {e}") from e


def check_replaceable(folder: Path) -> None:
    """BuildError unless there is nothing at `folder`, or an artifact with no other files in it."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BuildError(f"{str(folder)!r} is a file: choose another name for the artifact's folder")
    found = {p.name for p in folder.iterdir()}
    if not found:
        return
    try:
        manifest = read_manifest(folder)
    except ArtifactError as e:
        raise BuildError(f"{str(folder)!r} exists and is no artifact: choose another folder, or remove it") from e
    if foreign := sorted(found - set(manifest.files) - {MANIFEST}):
        raise BuildError(
            f"{str(folder)!r} has files beside the artifact's, as {foreign[0]!r}: move them, or choose another folder"
        )


def _publish(part: Path, folder: Path, old: Path) -> None:
    """Rename; what was there before moves to `old`."""
    try:
        if folder.exists():
            os.rename(folder, old)
        os.rename(part, folder)
    except BaseException:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        raise


def _fill(r: Recipe, folder: Path) -> None:
    target = Target.current()
    initial = {s.name: as_array(f"state {s.name!r}", r.initial[s.name], s.dtype) for s in r.states}
    save_state(folder / WEIGHTS, initial)
    built = build_library(
        r.program, r.states, folder / WEIGHTS, folder, name=r.name, title=r.program.step.name, version=r.version,
        threads=r.threads, cc=r.cc,
    )  # fmt: skip
    (folder / IR).write_text(dump(r.program), encoding="utf-8")
    (folder / SOURCE).write_text(built.source, encoding="utf-8")
    export = None
    if r.inference is not None:
        (folder / INFERENCE).write_bytes(r.inference)
        export = places(r.inference, initial)
    manifest = Manifest(
        name=r.name,
        library=built.library.name,
        machine=this_machine(),
        cpu=target.cpu,
        features=tuple(f.name for f in required(target)),
        threads=r.threads,
        states=tuple(r.states),
        graphs=built.layouts,
        export=export,
        averages=dict(r.averages),
        files={p.name: (p.stat().st_size, digest(p)) for p in sorted(folder.iterdir())},
        about={
            "model": r.program.step.name,
            "options": dict(r.options),
            "target": {"triple": target.triple, "cpu": target.cpu, "features": target.features},
            "versions": {"onnxc": r.version, **{p: version_of(p) for p in ("llvmlite", "numba", "numpy", "onnx")}},
        },
    )
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="ascii")


# --- where the initializers lie in a serialized model ----------------------------------------------------------------
# Field numbers of onnx.proto, and the wire format of https://protobuf.dev/programming-guides/encoding/
_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = 7, 5, 8, 9


def places(model: bytes, values: Mapping[str, AnyArray]) -> dict[str, tuple[int, int]]:
    """Name -> offset and size of the raw data of each initializer of the main graph that is one of `values`.

    BuildError: an initializer does not hold the value as raw data, so that another could not be written over it.
    """
    view, found = memoryview(model), {}
    for graph in _fields(view, 0, len(view), _GRAPH):
        for tensor in _fields(view, *graph, _INITIALIZER):
            name = "".join(bytes(view[a:b]).decode() for a, b in _fields(view, *tensor, _NAME))
            if name not in values or not values[name].size:
                continue
            data = [(a, b - a) for a, b in _fields(view, *tensor, _RAW_DATA)]
            if [bytes(view[a : a + n]) for a, n in data] != [values[name].tobytes()]:
                what = f"initializer {name!r} of the inference model is not stored as plain data"
                raise BuildError(f"{what}: state of less than 8 bits, which files pack, is not supported here")
            found[name] = data[0]
    return found


def _fields(view: memoryview, at: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each field of this number whose value is a string of bytes."""
    while at < end:
        key, at = _varint(view, at)
        kind = key & 7
        if kind == 0:
            _, at = _varint(view, at)
            continue
        if kind == 2:
            size, at = _varint(view, at)
            if key >> 3 == number:
                yield at, at + size
        else:
            size = {1: 8, 5: 4}[kind]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
