"""The compiled training step as a callable with its state."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np

from compiler.errors import InputError, StateError
from compiler.runtime.checkpoint import load_state, save_state
from compiler.runtime.executable import Executable, check_names, checked
from compiler.runtime.layout import Slot
from compiler.runtime.memory import Array, Block

SEED = "onnxc.seed"
"""The state that random numbers start from, in models that draw any."""


class Backend(Protocol):
    """What a StepFunction runs: the compiler's specializations, or a built artifact."""

    states: Sequence[Slot]
    """All states, laid out in one block."""

    static: frozenset[str]
    """Inputs whose values decide shapes, as far as known: another value is another executable."""

    initializes: bool
    """Whether there is an initialization graph."""

    def executable(
        self, role: str, feeds: Mapping[str, Any], fetch: tuple[str, ...], state: Block
    ) -> Executable:
        """The code of a graph ('step', 'infer', 'initialize') for arrays of these shapes, and static inputs of these
        values. InputError, CompileError."""
        ...

    def export(self, path: str | os.PathLike[str], state: Mapping[str, Array]) -> None:
        """Write the inference model with these values as its initializers."""
        ...

    @property
    def graph(self) -> Any:
        """Final IR of the step."""
        ...

    @property
    def source(self) -> str:
        """Generated Python of the step."""
        ...


class _Lock:
    """A reentrant lock that a forked child finds open, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = threading.RLock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


def _shape(name: str, value: Any) -> tuple[int, ...]:
    try:
        return tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
    except ValueError as e:
        raise InputError(f"input {name!r}: {e}") from e


class State(MutableMapping[str, Array]):
    """Arrays by name: live views, which the step reads and overwrites. Assignment copies in, and checks."""

    def __init__(self, views: Mapping[str, Array], lock: _Lock):
        self._views, self._lock = dict(views), lock

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._views:
            raise StateError(f"there is no state {name!r}: there are {', '.join(map(repr, self._views)) or 'none'}")
        view, array = self._views[name], np.asarray(value)
        if array.dtype != view.dtype or array.shape != view.shape:
            raise StateError(
                f"state {name!r} is {view.dtype}{list(view.shape)}, not {array.dtype}{list(array.shape)}: convert it first"
            )
        with self._lock:
            view[...] = array

    def __delitem__(self, name: str) -> None:
        raise StateError(f"state {name!r} belongs to the model: it cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


class StepFunction:
    """One training step: `outputs = step(x=images, label=labels)`. It owns the state and all memory.

    One call at a time: calls from several threads wait for each other; other StepFunctions run beside it. A failed
    call leaves the state as it was. After a fork the child has a copy that works on its own.
    """

    def __init__(self, backend: Backend, initial: Mapping[str, Array]):
        self._backend = backend
        self._lock = _Lock()
        last = max((s.offset + s.nbytes for s in backend.states), default=0)
        self._block = Block(last + 256, "the state")
        views = {s.name: self._block.view(s) for s in backend.states}
        for name, view in views.items():
            view[...] = initial[name]
        self.state = State(views, self._lock)
        """All state by name: live arrays, of which an assignment checks shape and dtype."""
        self._executables: dict[tuple[Any, ...], Executable] = {}

    def __call__(
        self, feeds: Mapping[str, Any] | None = None, /, *, fetch: Sequence[str] = (), **named: Any
    ) -> dict[str, Array]:
        """Run one step and update the state.

        Arrays by input name, as keywords or in a mapping; they are copied in. fetch: names of further values of the
        graph to return. Gives output name -> array, which is the caller's. InputError: wrong arrays, or an index out
        of range; the state is then as it was. An input that is called `fetch` goes into the mapping.
        """
        return self._run("step", feeds, named, fetch)

    def infer(
        self, feeds: Mapping[str, Any] | None = None, /, *, fetch: Sequence[str] = (), **named: Any
    ) -> dict[str, Array]:
        """Run the inference graph on the current state, and update nothing. Arguments and result as for the step."""
        return self._run("infer", feeds, named, fetch)

    def initialize(self, seed: int = 0) -> None:
        """Run the model's initialization, if it has one. seed: of the random numbers, there and in later steps."""
        if not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < 2**63:
            raise InputError(f"seed must be an integer from 0 to 2**63 - 1, not {seed!r}")
        with self._lock:
            if SEED in self.state:
                self.state[SEED][...] = int(seed)
            if self._backend.initializes:
                self._run("initialize", {}, {}, ())

    def _run(
        self, role: str, feeds: Mapping[str, Any] | None, named: Mapping[str, Any], fetch: Sequence[str]
    ) -> dict[str, Array]:
        if isinstance(fetch, str):
            raise InputError(f"fetch is a list of names: fetch=[{fetch!r}]")
        given = {**(feeds or {}), **named}
        with self._lock:
            key = self._key(role, given, fetch)
            found = self._executables.get(key)
            if found is None:
                found = self._backend.executable(role, given, tuple(fetch), self._block)
                key = self._key(role, given, fetch)  # only now it may be known that an input is static
            slots = found.layout.inputs
            check_names(given, slots, self._backend.static)
            arrays = {s.name: checked(s, given[s.name]) for s in slots}
            self._executables[key] = found
            return found.run(arrays)

    def _key(self, role: str, given: Mapping[str, Any], fetch: Sequence[str]) -> tuple[Any, ...]:
        """What decides which executable runs: shapes, and values of static inputs."""
        static = self._backend.static
        parts = [(n, _shape(n, v), np.asarray(v).tobytes() if n in static else b"") for n, v in given.items()]
        return (role, tuple(fetch), *parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all state to a safetensors file, bit exact, whole or not at all."""
        with self._lock:
            save_state(path, self.state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read state that `save` wrote. StateError: a foreign file; says what is missing, extra or different."""
        with self._lock:
            load_state(path, self.state)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the inference model with the current state as its initializers."""
        with self._lock:
            self._backend.export(path, self.state)

    @property
    def graph(self) -> Any:
        """The final IR (compiler.ir.Graph) of the step."""
        return self._backend.graph

    @property
    def source(self) -> str:
        """The generated Python of the step."""
        return self._backend.source
