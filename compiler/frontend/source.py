"""`read` makes a `Source` of a model, and that a `Program` for given sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from compiler.errors import (
    InputError,
    ModelError,
    Problem,
    UnsupportedError,
    VerifyError,
    checked_integer,
    did_you_mean,
    shown,
)
from compiler.frontend.averages import read_averages
from compiler.frontend.build import Binding
from compiler.frontend.files import Model, read_model
from compiler.frontend.flatten import Flat
from compiler.frontend.gradient import check_gradients
from compiler.frontend.parts import Algorithm, Initializers, Parts, read_parts
from compiler.frontend.program import ProgramBuilder
from compiler.frontend.report import Report
from compiler.frontend.structure import check_structure
from compiler.frontend.substitutes import with_substitutes
from compiler.frontend.training import check_training
from compiler.frontend.types import InputType
from compiler.frontend.weights import Tensors, Weight
from compiler.ir.graph import Graph, Program
from compiler.ir.types import AnyArray, Tensor
from compiler.ir.verify import verify

_LARGEST = 2**40


class NeedsDims(UnsupportedError):
    """Symbolic dims that nothing binds: `symbols`."""

    def __init__(self, problems: Problem | Iterable[Problem], symbols: Iterable[str] = ()):
        super().__init__(problems)
        self.symbols = tuple(symbols)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.symbols)


class NeedsStatic(UnsupportedError):
    """Nothing is wrong but that some inputs decide shapes by their values: `inputs`. Bound in `static`, it goes on."""

    def __init__(self, problems: Problem | Iterable[Problem], inputs: Iterable[str] = ()):
        super().__init__(problems)
        self.inputs = tuple(inputs)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.inputs)


@dataclass(frozen=True)
class Attempt:
    """A program as far as it could be built.

    graphs: by role, those that keep the rules of the IR; what depends on something wrong is missing in them. report:
    what is wrong. needs: what waits for the values of inputs, if anything does. by_size: whether something else is
    wrong at other sizes that were tried.
    """

    graphs: Mapping[str, Graph]
    report: Report
    needs: NeedsStatic | None
    by_size: bool = False


class Source:
    """A model that has been read and checked, as far as that goes without static shapes.

    model: the message that was given. tensors: reads what it holds in other files. inputs: type of every input of the
    inference graph and of the algorithms, but of variables; those with a default value are in `defaults` as well.
    symbols: symbolic dims of the inputs, in order. algorithm_names: what the TrainingInfoProtos are called.
    initializers: all, by the names that they have in programs. variables: those that the bindings name. max_trip: how
    often a Loop runs at most whose end is decided at run time; may be set before programs are made. averages: state
    that is the running average of a variable, by the variable.
    """

    def __init__(self, model: onnx.ModelProto, parts: Parts, tensors: Tensors, averages: Mapping[str, str]):
        self.model = model
        self.tensors = tensors
        self.max_trip: int | None = None
        self._parts = parts
        self.algorithm_names = tuple(a.name for a in parts.algorithms)
        self.variables = tuple(dict.fromkeys(s for a in parts.algorithms for s in a.states.values()))
        states = {key: state for a in reversed(parts.algorithms) for key, state in a.states.items()}
        self.averages = {name: states[key] for name, key in averages.items()}
        self.inputs: dict[str, InputType] = {}
        self.defaults: dict[str, Weight] = {}
        self.initializers: dict[str, Weight] = dict(parts.inference.weights)
        for flat, states in [(parts.inference, {}), *((a.flat, a.states) for a in parts.algorithms)]:
            for name, t in flat.inputs.items():
                if states.get(name, name) not in self.variables:
                    self.inputs.setdefault(name, t)
                    if name in flat.weights:
                        self.defaults.setdefault(name, flat.weights[name])
            for name, weight in flat.weights.items():
                self.initializers.setdefault(states.get(name, name), weight)
        self.symbols = tuple(dict.fromkeys(s for t in self.inputs.values() for s in t.symbols))

    @property
    def algorithms(self) -> int:
        """Number of TrainingInfoProtos."""
        return len(self.algorithm_names)

    @property
    def inference_outputs(self) -> tuple[str, ...]:
        """What inference returns."""
        return tuple(self._parts.inference.outputs)

    def program(
        self,
        dims: Mapping[str, int] | None = None,
        static: Mapping[str, AnyArray] | None = None,
        algorithm: int | None = None,
        fed: Collection[str] = (),
    ) -> Program:
        """The graphs for these sizes.

        dims: symbol -> size. static: inputs that become constants (their dims bind symbols, too). algorithm: the only
        one that a step runs; by default all run, in order, each seeing the updates of those before. fed: inputs with a
        default value that the caller will give at each step; the others are constants.

        The step's outputs are those of the inference graph, as the first algorithm sees it, and those of the
        algorithms, called `algorithm/output` where there would be two of a name. Variables bound by the algorithms
        that run are states; other initializers are constants. A model without training_info has only a step.

        InputError for arguments that do not fit the model. NeedsDims, NeedsStatic. Or all problems in one ModelError
        or UnsupportedError.
        """
        work, report = self._builder("step", dims or {}, static or {}, algorithm, fed)
        program = work.build()
        _verified(program.graphs(), report)
        report.raise_if_any()
        _raise_waiting(work)
        return program

    def graph(
        self,
        role: str,
        dims: Mapping[str, int] | None = None,
        static: Mapping[str, AnyArray] | None = None,
        algorithm: int | None = None,
        fed: Collection[str] = (),
    ) -> Graph:
        """One graph of a program ("step", "infer" or "initialize"); only symbols that it uses must be bound.

        "evaluate" is the step without its updates: all algorithms see the variables as they are. Arguments and errors
        as for `program`. A model without training_info infers with its step. KeyError: no initialization.
        """
        work, report = self._builder(role, dims or {}, static or {}, algorithm, fed)
        graph = work.graph(role)
        _verified({role: graph}, report)
        report.raise_if_any()
        _raise_waiting(work)
        return graph

    def attempt(
        self,
        dims: Mapping[str, int] | None = None,
        static: Mapping[str, AnyArray] | None = None,
        algorithm: int | None = None,
    ) -> Attempt:
        """What can be built for these sizes, and everything that is wrong. Arguments as for `program`.

        InputError, NeedsDims.
        """
        work, report = self._builder("step", dims or {}, static or {}, algorithm, ())
        try:
            graphs = _verified(work.build().graphs(), report)
        except ModelError as e:  # the bytes of an initializer, which only now were read
            report.add(e)
            graphs = {}
        return Attempt(graphs, report, _waiting(work))

    def inputs_of(self, role: str, algorithm: int | None = None) -> dict[str, InputType]:
        """The inputs that one of the graphs may have. InputError: no such algorithm."""
        names = [v for flat in self._flats(role, algorithm) for v in flat.inputs]
        return {v: self.inputs[v] for v in names if v in self.inputs}

    def idle_inputs(self, algorithm: int | None = None) -> frozenset[str]:
        """The inputs of a step that only its updates need, and no other for their sizes. InputError: no such algorithm.

        An optimizer's rate, say.
        """
        needed = self._parts.needed(self.chosen(algorithm))
        inputs = self.inputs_of("step", algorithm)
        sizes = {s for name, t in inputs.items() if name in needed for s in t.symbols}
        return frozenset(name for name, t in inputs.items() if name not in needed and sizes.issuperset(t.symbols))

    def variables_of(self, algorithm: int | None = None) -> tuple[str, ...]:
        """The variables that are states if this algorithm runs, or all. InputError: no such algorithm."""
        return tuple(dict.fromkeys(s for a in self.chosen(algorithm) for s in a.states.values()))

    def initializes(self, algorithm: int | None = None) -> bool:
        """Whether a program has an initialization graph. InputError: no such algorithm."""
        return any(a.initial_updates for a in self.chosen(algorithm))

    def updated_by(self, algorithm: int | None = None) -> tuple[str, ...]:
        """The variables that a step changes. InputError: no such algorithm."""
        return tuple(dict.fromkeys(a.states[key] for a in self.chosen(algorithm) for key in a.updates))

    def output_names(self, algorithm: int | None = None) -> tuple[str, ...]:
        """Names that the outputs of a step may have. InputError: no such algorithm."""
        chosen = self.chosen(algorithm)
        own = [v for a in chosen for v in (*a.outputs, *(f"{a.name}/{v}" for v in a.outputs if len(chosen) > 1))]
        return tuple(dict.fromkeys((*self._parts.inference.outputs, *own)))

    def own_outputs(self, algorithm: int | None = None) -> tuple[str, ...]:
        """What a step returns that inference does not, if only one algorithm runs. InputError: no such algorithm."""
        chosen = self.chosen(algorithm)
        if len(chosen) != 1:
            return ()
        bound = set(chosen[0].updates.values())
        return tuple(v for v in chosen[0].outputs if v not in bound and v not in self._parts.inference.outputs)

    def chosen(self, algorithm: int | None) -> list[Algorithm]:
        """This algorithm, or all. InputError: no such algorithm."""
        number = isinstance(algorithm, int | np.integer) and not isinstance(algorithm, bool)
        if algorithm is not None and not (number and algorithm in range(self.algorithms)):
            raise InputError(f"there is no algorithm {shown(algorithm)}: the model has {self.algorithms}")
        return [a for i, a in enumerate(self._parts.algorithms) if algorithm in (None, i)]

    def _flats(self, role: str, algorithm: int | None) -> list[Flat]:
        """What a graph is made of."""
        chosen = self.chosen(algorithm)
        if role == "initialize":
            return []
        return [self._parts.inference] if role == "infer" or not chosen else [a.flat for a in chosen]

    def _builder(
        self,
        role: str,
        dims: Mapping[str, int],
        static: Mapping[str, AnyArray],
        algorithm: int | None,
        fed: Collection[str],
    ) -> tuple[ProgramBuilder, Report]:
        binding = self._bind(self._flats(role, algorithm), dims, static, fed)
        report = Report()
        return ProgramBuilder(self._parts, self.chosen(algorithm), binding, report), report

    def sizes(self, dims: Mapping[str, int]) -> dict[str, int]:
        """Sizes of symbols. InputError: there is no such symbol, or that is no size."""
        if not isinstance(dims, Mapping):
            raise InputError(f"dims must be a mapping from symbols to sizes, as {{'N': 32}}, not {shown(dims)}")
        sizes: dict[str, int] = {}
        for s, n in dims.items():
            if s not in self.symbols:
                near = did_you_mean(s, self.symbols) or f": there are {', '.join(map(repr, self.symbols)) or 'none'}"
                raise InputError(f"the model has no symbolic dim {s!r}{near}")
            sizes[s] = checked_integer(f"dim {s!r}", n)
            if sizes[s] > _LARGEST:
                raise InputError(f"dim {s!r} is {shown(n)}: no tensor is as large as that")
        return sizes

    def _bind(
        self, flats: Iterable[Flat], dims: Mapping[str, int], static: Mapping[str, AnyArray], fed: Collection[str]
    ) -> Binding:
        sizes = self.sizes(dims)
        tensors = {name: self._static(name, array, sizes) for name, array in static.items()}
        for name in fed:
            if name not in self.defaults:
                raise InputError(f"{name!r} is no input with a default value")
        binding = Binding(sizes, tensors, frozenset(fed), self.max_trip)
        missing: dict[str, str] = {}
        for flat in flats:
            for name, t in flat.inputs.items():
                if name in self.inputs and binding.is_input(flat, name):
                    missing |= {s: name for s in t.symbols if s not in sizes and s not in missing}
        if missing:
            remedy = f"give dims={{{', '.join(f'{s!r}: ...' for s in missing)}}}"
            raise NeedsDims(
                [Problem(f"the size of dim {s!r} is not known", f"input {v!r}", remedy) for s, v in missing.items()],
                missing,
            )
        return binding

    def _static(self, name: str, array: AnyArray, sizes: dict[str, int]) -> Tensor:
        """A static input, checked; symbols that its dims decide are added to `sizes`."""
        t = self.inputs.get(name)
        if t is None:
            what = "a variable" if name in self.variables else "no input of the model"
            raise InputError(f"static: {name!r} is {what}")
        try:
            tensor = Tensor(np.array(array))
        except TypeError as e:
            raise InputError(f"static: {name!r}: {e}") from e
        fits = tensor.type.dtype == t.dtype and tensor.type.rank == len(t.dims)
        if fits:
            want = (
                d if isinstance(d, int) else sizes.setdefault(d, n)
                for d, n in zip(t.dims, tensor.type.shape, strict=True)
            )
            fits = tuple(want) == tensor.type.shape
        if not fits:
            raise InputError(f"static: {name!r} must be {t}, not {tensor.type}")
        return tensor


def _verified(graphs: Mapping[str, Graph], report: Report) -> dict[str, Graph]:
    """The graphs that keep the rules of the IR; what is wrong with the others is reported."""
    good = {}
    for role, g in graphs.items():
        try:
            verify(g)
        except VerifyError as e:
            report.add(e)
        else:
            good[role] = g
    return good


def _waiting(work: ProgramBuilder) -> NeedsStatic | None:
    problems = dict.fromkeys(p for r in work.readings for p in r.waiting)
    return NeedsStatic(problems, dict.fromkeys(v for r in work.readings for v in r.needs)) if problems else None


def _raise_waiting(work: ProgramBuilder) -> None:
    if (needs := _waiting(work)) is not None:
        raise needs


def read(model: Model) -> tuple[Source | None, Report]:
    """The source, if the model is well-formed: it may still use operators that are not supported."""
    proto, folder = read_model(model)
    proto = with_substitutes(proto)
    report = Report()
    tensors = Tensors(folder, report)
    check_structure(proto, tensors, report)
    bindings = check_training(proto, tensors, report)
    initializers = Initializers(proto, tensors)
    if report.stop:
        check_gradients(proto, report)
        return None, report
    parts = read_parts(proto, initializers, bindings, tensors, report)
    averages = read_averages(proto, report)
    return (None if report.stop else Source(proto, parts, tensors, averages)), report
