"""The compiled training step as a callable with its state."""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from compiler.errors import (
    InputError,
    OnnxcError,
    StateError,
    UnknownStateError,
    checked_flag,
    checked_path,
    checked_seed,
    did_you_mean,
    shown,
)
from compiler.runtime.arguments import as_array, check_names, check_shape
from compiler.runtime.checkpoint import load_state, save_state
from compiler.runtime.executable import Code, Executable
from compiler.runtime.layout import SEED, STEP, MemoryUse, Slot, state_bytes
from compiler.runtime.memory import Array, Block
from compiler.runtime.threads import Pool
from compiler.runtime.turn import Turn

EXECUTABLES = 64
"""How many executables (by shapes, fetched values, ...) are kept ready; others are made again from their code."""


KEEPS_VALUES = (
    "the model has no initialization graph, so its variables keep the values they have: assign others to step.state, "
    "or make the step again for those of the file"
)

NO_AVERAGES = (
    "the model keeps no running averages of its variables: make it with the option average of an optimizer, as "
    "average=0.999"
)

_NOTHING: tuple[str, ...] = ()


class Backend(Protocol):
    """What a StepFunction runs: the compiler's specializations, or a built artifact."""

    states: Sequence[Slot]
    """All states, laid out in one block."""

    pool: Pool
    """The threads that its code runs on."""

    initializes: bool
    """Whether there is an initialization graph."""

    averages: Mapping[str, str]
    """Variable -> state that is its running average."""

    def inputs(self, role: str) -> Mapping[str, str]:
        """Element types of all inputs of a graph ('step', 'evaluate', 'infer'). ArtifactError: it is not there."""
        ...

    def optional(self, role: str) -> Collection[str]:
        """Inputs that a call of a graph may leave out."""
        ...

    def static(self) -> Collection[str]:
        """Inputs whose values decide shapes, as far as known: another value is other code."""
        ...

    def code(self, role: str, feeds: Mapping[str, Array], fetch: tuple[str, ...]) -> Code:
        """The code of a graph for these shapes, and these values of static inputs.

        role: 'step', 'evaluate', 'infer' or 'initialize'. InputError, CompileError.
        """
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

    @property
    def memory(self) -> MemoryUse:
        """Bytes that the step takes."""
        ...


class State(MutableMapping[str, Array]):
    """Arrays by name: live views, which the step reads and overwrites. Assignment copies in, and checks.

    A bf16 state is a uint16 array of its bits. A copy (or pickle) of all is a dict of arrays. A name that there is not
    raises UnknownStateError, a KeyError.
    """

    def __init__(self, slots: Iterable[Slot], block: Block, lock: threading.RLock):
        self._slots, self._block, self._lock = {s.name: s for s in slots}, block, lock

    def __getitem__(self, name: str) -> Array:
        return self._block.view(self._slot(name))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._slots  # (what has no hash is no name, either)

    def _slot(self, name: str) -> Slot:
        if name not in self:
            near = did_you_mean(name, self._slots) or f": there are {', '.join(map(repr, self._slots)) or 'none'}"
            raise UnknownStateError(f"there is no state {shown(name)}{near}")
        return self._slots[name]

    def __setitem__(self, name: str, value: Any) -> None:
        slot = self._slot(name)
        try:
            array = as_array(f"state {name!r}", value, slot.dtype)
            check_shape(f"state {name!r}", array, slot.shape)
        except InputError as e:
            raise StateError(str(e)) from e
        with self._lock:
            self._block.view(slot)[...] = array

    def __delitem__(self, name: str) -> None:
        raise StateError(f"state {name!r} belongs to the model: it cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"<State {', '.join(f'{s.name!r}: {s.dtype}{list(s.shape)}' for s in self._slots.values())}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ({name: a.copy() for name, a in self.items()},)


class StepFunction:
    """One training step: `outputs = step(x=images, label=labels)`. It owns the state and all memory.

    One call at a time: calls from several threads wait for each other; other StepFunctions run beside it. A failed
    call leaves the state as it was. A fork waits for the step to end; then the child has a copy that works on its own.
    """

    def __init__(self, backend: Backend, initial: Mapping[str, Array]):
        self._backend = backend
        self._turn = Turn()
        self._block = Block(state_bytes(backend.states), "the state")
        for s in backend.states:
            self._block.view(s)[...] = as_array(f"state {s.name!r}", initial[s.name], s.dtype)
        self.state = State(backend.states, self._block, self._turn.lock)
        """All state by name: live arrays, of which an assignment checks shape and dtype."""
        self._arena = Block(0)
        self._executables: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._recent: dict[str, Executable] = {}

    def __call__(
        self, feeds: Mapping[str, Any] | None = None, /, *, fetch: Sequence[str] = (), **named: Any
    ) -> dict[str, Array]:
        """Run one step and update the state.

        Arrays by input name, as keywords or in a mapping; they are copied in. fetch: names of further values of the
        graph to return. Gives output name -> array, which is the caller's (of bf16 its bits, as uint16). InputError:
        wrong arrays, or an index out of range; the state is then as it was. An input that is called `fetch` goes into
        the mapping.
        """
        found = self._recent.get("step")
        if found is not None and fetch is _NOTHING:  # as nearly always: what `_run` does, without its calls
            given = named if feeds is None else feeds
            if type(given) is dict and (given is named or not named):
                attempt = found.attempt  # called in one expression, it would first be looked for as a method
                outputs = attempt(given)
                return self._anew("step", given, ()) if outputs is None else outputs
        return self._run("step", feeds, named, fetch)

    def infer(
        self, feeds: Mapping[str, Any] | None = None, /, *, fetch: Sequence[str] = (), **named: Any
    ) -> dict[str, Array]:
        """Run the inference graph on the current state, and update nothing. Arguments and result as for the step.

        Sizes of symbolic dims are those of these arrays, whatever those of the step are.
        """
        return self._run("infer", feeds, named, fetch)

    def evaluate(
        self, feeds: Mapping[str, Any] | None = None, /, *, fetch: Sequence[str] = (), **named: Any
    ) -> dict[str, Array]:
        """The outputs of a step on the current state, as they are where nothing is learned; nothing is updated.

        BatchNormalization takes its running statistics, Dropout gives its operand, other random numbers are drawn as in
        inference, and no stream advances; of several algorithms, none sees an update of another. So the loss is that of
        validation. Arguments and result as for the step, but sizes of symbolic dims are those of these arrays, and
        inputs that only updates need (a learning rate) may be left out. ArtifactError: a built artifact has none.
        """
        return self._run("evaluate", feeds, named, fetch)

    def initialize(self, seed: int | None = None) -> None:
        """Run the model's initialization, if it has one, and begin the stream of random numbers anew.

        seed: of the random numbers, there and in later steps; by default the one they have. By the standard, a model
        without initialization keeps its variables: a warning says so, unless this is to give a seed for later steps.
        """
        if seed is not None:
            seed = checked_seed(seed)
        with self._turn.lock:
            old = {name: self.state[name].copy() for name in (SEED, STEP) if name in self.state}
            try:
                if SEED in old:
                    self.state[STEP][...] = 0
                    self.state[SEED][...] = old[SEED] if seed is None else seed
                if self._backend.initializes:
                    self._now(self._executable("initialize", {}, ()), {})
                elif seed is None or not old:  # with a seed, the random numbers of later steps may be what is wanted
                    warnings.warn(KEEPS_VALUES, stacklevel=2)
            except BaseException:
                for name, value in old.items():
                    self.state[name][...] = value
                raise

    def _run(
        self, role: str, feeds: Mapping[str, Any] | None, named: Mapping[str, Any], fetch: Sequence[str]
    ) -> dict[str, Array]:
        given = named if feeds is None else _joined(feeds, named)
        found = self._recent.get(role)
        if found is not None and fetch is _NOTHING and type(given) is dict:
            outputs = found.attempt(given)  # what ran last, if these are its inputs again
            if outputs is not None:
                return outputs
        return self._anew(role, given, _names(fetch))

    def _anew(self, role: str, given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Array]:
        arrays = self._arrays(role, given)  # without the lock: converting may run code of the caller's
        with self._turn.lock:
            return self._now(self._executable(role, arrays, names), arrays)

    def _now(self, found: Executable, arrays: Mapping[str, Array]) -> dict[str, Array]:
        if self._turn.running:  # the lock is ours already: we are in a signal handler, say
            raise OnnxcError("a step cannot be called from within its own call")
        self._turn.running = True
        try:
            return found.run(arrays)
        finally:
            self._turn.running = False

    def _arrays(self, role: str, given: Mapping[str, Any]) -> dict[str, Array]:
        types = self._backend.inputs(role)
        hints = dict.fromkeys(self.state, "a state: assign it to step.state")
        if role == "infer":
            hints |= dict.fromkeys(self._backend.inputs("step"), "only the step takes it")
        check_names(given, types, self._backend.optional(role), hints)
        return {n: as_array(f"input {n!r}", v, types[n]) for n, v in given.items()}

    def _executable(self, role: str, arrays: Mapping[str, Array], fetch: tuple[str, ...]) -> Executable:
        """The executable for these arrays; what was used last is kept."""
        key = self._key(role, arrays, fetch)
        found = self._executables.get(key)
        if found is None:
            code = self._backend.code(role, arrays, fetch)
            key = self._key(role, arrays, fetch)  # only now it may be known that an input is static
            found = self._executables.get(key) or self._made(code)
            _check_fed(found, arrays)
            for s in found.layout.inputs:
                check_shape(f"input {s.name!r}", arrays[s.name], s.shape)
            self._executables[key] = found
            if len(self._executables) > EXECUTABLES:
                self._executables.popitem(last=False)
        self._executables.move_to_end(key)
        static = self._backend.static()
        if not fetch and not any(n in static for n in arrays):
            self._recent[role] = found
        return found

    def _made(self, code: Code) -> Executable:
        """Code with memory: one arena for all, as only one runs at a time."""
        if code.layout.arena_bytes > self._arena.bytes.nbytes:
            self._executables.clear()
            self._recent.clear()
            self._arena = Block(0)  # free the old one first
            self._arena = Block(code.layout.arena_bytes, "the step's arena")
        return Executable(
            code.layout, code.address, code.const, self._block, self._backend.pool, code.keep, self._arena, self._turn,
            code.watch,
        )  # fmt: skip

    def _key(self, role: str, arrays: Mapping[str, Array], fetch: tuple[str, ...]) -> tuple[Any, ...]:
        """What decides which executable runs: shapes, and values of static inputs."""
        static = self._backend.static()
        parts = [(n, a.shape, (a.dtype.str, a.tobytes()) if n in static else ()) for n, a in sorted(arrays.items())]
        return (role, fetch, *parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all state to a safetensors file, bit exact, whole or not at all."""
        with self._turn.lock:
            save_state(checked_path("path", path), self.state)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read state that `save` wrote. StateError: a foreign file; says what is missing, extra or different."""
        with self._turn.lock:
            load_state(checked_path("path", path), self.state)

    def averaged(self) -> dict[str, Array]:
        """The running averages by the name of the variable that they are of: live arrays, as those of `state`.

        StateError: the model keeps none.
        """
        if not self._backend.averages:
            raise StateError(NO_AVERAGES)
        return {name: self.state[state] for name, state in self._backend.averages.items()}

    def export(self, path: str | os.PathLike[str], *, averaged: bool = False) -> None:
        """Write the inference model with the current state as its initializers.

        averaged: variables of which there is a running average have its values; the others, as running statistics of
        BatchNormalization, are as they are. StateError: the model keeps no averages.
        """
        path, averages = checked_path("path", path), self.averaged() if checked_flag("averaged", averaged) else {}
        with self._turn.lock:
            self._backend.export(path, {**self.state, **averages})

    @property
    def graph(self) -> Any:
        """The final IR (compiler.ir.Graph) of the step."""
        return self._backend.graph

    @property
    def source(self) -> str:
        """The generated Python of the step."""
        return self._backend.source

    @property
    def memory(self) -> MemoryUse:
        """Bytes that are allocated for a step, of the one compiled last: state, constants, arena, table, and total."""
        return self._backend.memory

    def __repr__(self) -> str:
        inputs = ", ".join(map(repr, self._backend.inputs("step")))
        return f"<StepFunction of {inputs or 'no inputs'}, {len(self.state)} states>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a StepFunction cannot be copied or pickled: compile the model again, and take the state along with save "
            "and load"
        )


def _check_fed(found: Executable, arrays: Mapping[str, Array]) -> None:
    """InputError: a value that is fetched needs an input that else may be left out."""
    if missing := [s.name for s in found.layout.inputs if s.name not in arrays]:
        raise InputError(f"missing input {', '.join(map(repr, missing))}: what is fetched needs it")


def _joined(feeds: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(feeds, Mapping):
        raise InputError(f"inputs are keywords or a mapping from names to arrays, not {type(feeds).__name__}")
    return {**feeds, **named} if named else feeds


def _names(fetch: Iterable[Any] | None) -> tuple[str, ...]:
    if isinstance(fetch, str):
        raise InputError(f"fetch is a list of names: fetch=[{fetch!r}]")
    if isinstance(fetch, np.ndarray) or not isinstance(fetch, Iterable | None):
        what = f"fetch is a list of names, not {type(fetch).__name__}"
        raise InputError(f"{what}; an input of that name goes into a mapping: {{'fetch': ...}}")
    names = tuple(fetch or ())
    if bad := [n for n in names if not isinstance(n, str)]:
        raise InputError(f"fetch is a list of names, and {shown(bad[0])} is none")
    return tuple(dict.fromkeys(names))
