"""Built artifacts: a folder with the native library of a model, which runs without the compiler.

`docs/ahead-of-time.md` lists the files. The manifest holds the memory layout of every graph, what machine the code is
for, and the hash of every file; it is sealed by a hash of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import ArtifactError, InputError, StateError, checked_path
from compiler.runtime.checkpoint import load_state
from compiler.runtime.executable import Code
from compiler.runtime.files import replacing
from compiler.runtime.layout import Layout, MemoryUse, Slot
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction
from compiler.runtime.threads import Pool, PoolCode

MANIFEST, WEIGHTS, INFERENCE, SOURCE, IR = (
    "manifest.json", "weights.safetensors", "inference.onnx", "step.py", "step.ir",
)  # fmt: skip
"""Names of files; the library and the header are called after the model."""

FORMAT = "onnxc artifact 3"
"""First field of every manifest; the number changes with what the loader must understand."""

ROLES = {"step": 0, "infer": 1, "initialize": 2}
"""Numbers of the graphs in the C interface."""


@dataclass(frozen=True)
class Manifest:
    """What the loader must know.

    name: prefix of the C names. library: file name. machine: as `this_machine` gives it. features: instruction sets
    that the code uses. states: all, in one block. graphs: layout by role. export: where each state's value lies in
    INFERENCE (offset, bytes), or None if that file is left out. files: size and SHA-256. about: for people only.
    averages: state that is the running average of a variable, by the variable.
    """

    name: str
    library: str
    machine: str
    cpu: str
    features: tuple[str, ...]
    threads: int
    states: tuple[Slot, ...]
    graphs: Mapping[str, Layout]
    export: Mapping[str, tuple[int, int]] | None
    files: Mapping[str, tuple[int, str]]
    about: Mapping[str, Any]
    averages: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of the file; the last field seals the others."""
        fields = {
            "format": FORMAT,
            **asdict(self),
            "graphs": {k: json.loads(g.to_json()) for k, g in self.graphs.items()},
        }
        return json.dumps({**fields, "seal": _seal(fields)}, indent=1, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The inverse. ValueError: other text, or it was changed."""
        d = json.loads(text)
        if (
            not isinstance(d, dict)
            or not isinstance(d.get("format"), str)
            or not d["format"].startswith("onnxc artifact")
        ):
            raise ValueError("it is no manifest of onnxc")
        if d["format"] != FORMAT:
            raise ValueError(f"its format is {d['format']!r}, and this onnxc reads {FORMAT!r}: build it again")
        if d.pop("seal", None) != _seal(d):
            raise ValueError("it was changed after it was written")
        del d["format"]
        d["states"] = tuple(Slot(**{**s, "shape": tuple(s["shape"])}) for s in d["states"])
        d["graphs"] = {role: Layout.from_json(json.dumps(g)) for role, g in d["graphs"].items()}
        d["features"] = tuple(d["features"])
        return cls(**d)


def _seal(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def this_machine() -> str:
    """The system and the processor's architecture, as "linux x86_64"."""
    machine = platform.machine().lower()
    return f"{sys.platform} {({'amd64': 'x86_64', 'arm64': 'aarch64'}).get(machine, machine)}"


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact. ArtifactError: there is none, or it is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(f"{str(folder)!r} is no artifact: it has no {MANIFEST}; compiler.build makes one")
    try:
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, OSError) as e:
        raise ArtifactError(f"{str(path)!r} cannot be used: {e}") from e


def _check_files(folder: Path, manifest: Manifest) -> None:
    """ArtifactError: all files that are missing or not as they were built."""
    problems = []
    for name, (size, sha256) in manifest.files.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif path.stat().st_size != size or digest(path) != sha256:
            problems.append(f"{name} is damaged or was changed")
    if problems:
        raise ArtifactError(f"the artifact {str(folder)!r} is incomplete: {'; '.join(problems)}; build it again")


class _Library:
    """The functions of an artifact's library that the loader needs."""

    def __init__(self, path: Path, name: str) -> None:
        self._library = _open(path)
        self._name = name

    def _call(self, function: str, result: Any, *args: int) -> Any:
        f = self._library[f"{self._name}_{function}"]  # an own function object: types set here stay here
        f.restype, f.argtypes = result, [ctypes.c_int] * len(args)
        return f(*args)

    def unsupported(self) -> str | None:
        """An instruction set that the code uses and this CPU lacks."""
        missing: bytes | None = self._call("unsupported", ctypes.c_char_p)
        return None if missing is None else missing.decode()

    def entry(self, role: str) -> int:
        """Address of a graph's code."""
        address: int = self._call("entry", ctypes.c_void_p, ROLES[role])
        return address

    def constants(self, role: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """A graph's constants, where they lie in the library."""
        address: int = self._call("constants", ctypes.c_void_p, ROLES[role])
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def pool(self) -> PoolCode:
        """The code of the worker threads."""
        return PoolCode(*(self._call("pool", ctypes.c_void_p, i) for i in (0, 1)))


def _open(path: Path) -> ctypes.CDLL:
    """Load a library under a name that was never used.

    Under an old name the dynamic linker gives what it has loaded before, even if the file is another one by now.
    """
    with tempfile.TemporaryDirectory(prefix="onnxc-load-") as scratch:
        link = Path(scratch, path.name)
        os.symlink(path.resolve(), link)
        try:
            return ctypes.CDLL(str(link))
        except OSError as e:
            raise ArtifactError(f"this system cannot load {str(path)!r}: {e}; build the artifact here") from e


class Artifact:
    """The graphs of a built library (a `runtime.step.Backend`)."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        m = self.manifest
        if m.machine != this_machine():
            raise ArtifactError(f"the artifact {str(folder)!r} is for {m.machine}, this machine is {this_machine()}")
        threads = m.threads if threads is None else threads
        if not isinstance(threads, int) or not 1 <= threads <= m.threads:
            raise InputError(
                f"threads must be from 1 to {m.threads}, for which the artifact was built, not {threads!r}"
            )
        _check_files(folder, m)
        self._library = _Library(folder / m.library, m.name)
        if missing := self._library.unsupported():
            raise ArtifactError(
                f"the artifact {str(folder)!r} is for a CPU with {missing} ({m.cpu}), which this one lacks: "
                "build it here, or for an older one: cpu=..."
            )
        self.pool = Pool(threads, self._library.pool() if threads > 1 else None)
        self.states: Sequence[Slot] = m.states
        self.initializes = "initialize" in m.graphs
        self.averages = m.averages

    def _graph(self, role: str) -> str:
        if role == "evaluate":
            raise ArtifactError(
                f"the artifact {str(self.folder)!r} has no evaluation, only {', '.join(self.manifest.graphs)}: save "
                "the state, load it into compiler.compile(model) and evaluate there"
            )
        return role if role in self.manifest.graphs else "step"  # a model that only infers: its step is its inference

    def inputs(self, role: str) -> Mapping[str, str]:
        """See `runtime.step.Backend`, as for all that follows."""
        return {s.name: s.dtype for s in self.manifest.graphs[self._graph(role)].inputs}

    def optional(self, role: str) -> Collection[str]:
        """None: inputs with a default value are constants."""
        return ()

    def static(self) -> Collection[str]:
        """None: they are constants, too."""
        return frozenset()

    def code(self, role: str, feeds: Mapping[str, Array], fetch: tuple[str, ...]) -> Code:
        """The graph's code. InputError: fetch of what is no output."""
        role = self._graph(role)
        layout = self.manifest.graphs[role]
        outputs = [s.name for s in layout.outputs]
        if unknown := [name for name in fetch if name not in outputs]:
            raise InputError(
                f"fetch: the artifact computes only its outputs {', '.join(map(repr, outputs))}, not "
                f"{', '.join(map(repr, unknown))}; compiler.compile can fetch any value"
            )
        const = self._library.constants(role, layout.const_bytes)
        return Code(layout, self._library.entry(role), const, self._library)

    def initial(self) -> dict[str, Array]:
        """The state as it was built."""
        arrays = {s.name: np.zeros(s.shape, s.numpy) for s in self.states}
        try:
            load_state(self.folder / WEIGHTS, arrays)
        except StateError as e:
            raise ArtifactError(f"the weights do not fit: {e}; build the artifact again") from e
        return arrays

    def export(self, path: str | os.PathLike[str], state: Mapping[str, Array]) -> None:
        """Write the inference model with these values: the one in the folder, its initializers overwritten in place."""
        places = self.manifest.export
        if places is None:
            raise ArtifactError(
                "this model is too large for one ONNX file, so the artifact has none: save the state, load it into "
                "compiler.compile(model) and export there"
            )
        data = bytearray((self.folder / INFERENCE).read_bytes())
        for name, (offset, nbytes) in places.items():
            data[offset : offset + nbytes] = state[name].tobytes()
        with replacing(path) as part:
            part.write_bytes(data)

    @property
    def graph(self) -> str:
        """Final IR of the step, as text."""
        return (self.folder / IR).read_text(encoding="utf-8")

    @property
    def memory(self) -> MemoryUse:
        """Bytes that the step takes."""
        return self.manifest.graphs["step"].memory

    @property
    def source(self) -> str:
        """Generated Python of the step."""
        return (self.folder / SOURCE).read_text(encoding="utf-8")


def load(folder: str | os.PathLike[str], *, threads: int | None = None) -> StepFunction:
    """The step function of an artifact that `compiler.build` wrote; needs neither the compiler nor a model.

    threads: up to the number that it was built for, which is the default. What the step computes has the same bits as
    in the process that built it. ArtifactError: the folder is no artifact or is damaged, or is for another machine.
    """
    artifact = Artifact(Path(checked_path("folder", folder)), threads)
    return StepFunction(artifact, artifact.initial())
