"""A model's specializations: for each binding of its dims, the graphs through the passes to machine code."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import numpy as np
from onnx import AttributeProto, NodeProto

from compiler.codegen.build import Compiled, compile_graph
from compiler.codegen.memory import state_offsets
from compiler.codegen.native import checking, load, watched, workers
from compiler.codegen.native.pool import make_pool
from compiler.codegen.support import has_kernel
from compiler.errors import InputError, ModelError, OnnxcError, Problem, UnsupportedError, did_you_mean
from compiler.fitting import fitted
from compiler.frontend import NeedsDims, NeedsStatic, Source
from compiler.frontend.report import Report
from compiler.frontend.trained import trained_model
from compiler.ir.evaluate import RANDOM_OPS
from compiler.ir.graph import Graph
from compiler.ir.types import AnyArray, TensorType, numpy_dtype
from compiler.passes.evaluation import without_idle_inputs
from compiler.passes.lower_random import SEED, STEP, Role
from compiler.passes.pipeline import passes, run
from compiler.runtime.executable import Code
from compiler.runtime.layout import ML_DTYPES, STATE, MemoryUse, Slot
from compiler.runtime.memory import Array, Block
from compiler.runtime.threads import Pool, PoolCode
from compiler.saving import save_model
from compiler.trial import unsupported, wrong_at_every_size

KEPT = 64
"""How many graphs in machine code are kept; others are planned again when they come back, from cached kernels."""


@dataclass(frozen=True)
class Options:
    """How a model is compiled: the keyword arguments of `compiler.compile`."""

    dims: Mapping[str, int] = field(default_factory=dict)
    static: Mapping[str, AnyArray] = field(default_factory=dict)
    threads: int = 1
    measured: bool = False
    """Whether a step runs on one thread if that is faster."""
    seed: int = 0
    algorithm: int | None = None
    straight_through: bool = False
    outputs: Sequence[str] | None = None
    memory_limit: int | None = None


def state_types(source: Source, algorithm: int | None = None) -> dict[str, TensorType]:
    """All states: the variables that bindings name, and what random numbers are drawn from, if any are.

    ModelError: the model has the name of a hidden state for something else.
    """
    types = {name: source.initializers[name].type for name in source.variables_of(algorithm)}
    nodes = list(_nodes(source))
    draws = any(n.op_type in RANDOM_OPS or n.op_type == "Dropout" for n in nodes)
    taken = {*types, *(source.inputs if draws else ()), *(v for n in nodes for v in n.output if draws)}
    if problems := [
        Problem(f"{n!r} is a name that onnxc keeps for itself", "", "rename it") for n in (SEED, STEP) if n in taken
    ]:
        raise ModelError(problems)
    return types | ({SEED: TensorType("i64"), STEP: TensorType("i64")} if draws else {})


def state_slots(types: Mapping[str, TensorType]) -> list[Slot]:
    """Where they lie in the block that all graphs of the model share."""
    offsets, _ = state_offsets(types)
    return [Slot(n, t.dtype, t.shape, STATE, offsets[n]) for n, t in types.items()]


def initial_state(source: Source, seed: int, algorithm: int | None = None) -> dict[str, Array]:
    """First value of every state."""
    hidden = {SEED: np.array(seed, np.int64), STEP: np.array(0, np.int64)}
    names = state_types(source, algorithm)
    return {n: hidden[n] if n in hidden else source.initializers[n].tensor.array for n in names}


def averages_of(source: Source, algorithm: int | None = None) -> dict[str, str]:
    """Variable -> state that is its running average, if this algorithm keeps it."""
    names = state_types(source, algorithm)
    return {name: state for name, state in source.averages.items() if name in names and state in names}


def as_typed(source: Source, name: str, array: AnyArray) -> AnyArray:
    """A static array as the frontend takes it: the runtime knows the types that NumPy has not by their bits only."""
    dtype = source.inputs[name].dtype
    return array.view(numpy_dtype(dtype)) if dtype in ML_DTYPES else array


@dataclass(frozen=True)
class _Binding:
    """What makes a graph of a role: sizes, static inputs, fetched values, and which inputs with a default are fed."""

    role: str
    dims: tuple[tuple[str, int], ...] = ()
    static: tuple[_Static, ...] = ()
    fetch: tuple[str, ...] = ()
    fed: tuple[str, ...] = ()


class Specializations:
    """Code of one model, made as it is needed (a `runtime.step.Backend`)."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self.options = source, options
        self._types = state_types(source, options.algorithm)
        self.states: Sequence[Slot] = state_slots(self._types)
        self.initializes = source.initializes(options.algorithm)
        self.averages: Mapping[str, str] = averages_of(source, options.algorithm)
        code = _pool_code() if options.threads > 1 else None
        self.pool = Pool(options.threads, code, measured=options.measured)
        self._static = frozenset(options.static)
        self._inputs = {role: source.inputs_of(role, options.algorithm) for role in ("step", "evaluate", "infer")}
        self._idle = source.idle_inputs(options.algorithm)
        self._made: OrderedDict[_Binding, Code] = OrderedDict()
        self._latest: Compiled | None = None

    def warm_up(self) -> None:
        """Compile the step now if nothing has to wait for the first call's arrays, and look for what is wrong.

        CompileError, InputError: with the model or the options, as far as it can be told without sizes of open dims.
        """
        report, waits = Report(), False
        if self.options.outputs is not None:
            check_outputs(self.options.outputs, self._source.output_names(self.options.algorithm))
        try:
            self._code(self._bound("step", {}, ()))
            if self.initializes:  # it gets machine code when it runs, which may be never
                graph = self._source.graph("initialize", algorithm=self.options.algorithm)
                report.merge(unsupported({"initialize": graph}))
        except NeedsStatic as e:
            waits = True
            self._static |= frozenset(e.inputs)
        except NeedsDims:
            waits = True
        except (ModelError, UnsupportedError) as e:
            report.add(e)
        if waits or report:  # one error tells what is wrong with all graphs
            static = {n: as_typed(self._source, n, a) for n, a in self.options.static.items()}
            report.merge(wrong_at_every_size(self._source, self.options.dims, static, self.options.algorithm))
        report.raise_if_any()

    # --- what a StepFunction asks ------------------------------------------------------------------------
    def inputs(self, role: str) -> Mapping[str, str]:
        """See `runtime.step.Backend`."""
        return {name: t.dtype for name, t in self._inputs[role].items()}

    def optional(self, role: str) -> Collection[str]:
        """See `runtime.step.Backend`."""
        return {*self._source.defaults, *self.options.static, *(self._idle if role == "evaluate" else ())}

    def static(self) -> Collection[str]:
        """See `runtime.step.Backend`."""
        return self._static

    def code(self, role: str, feeds: Mapping[str, Array], fetch: tuple[str, ...]) -> Code:
        """See `runtime.step.Backend`."""
        binding = _Binding(role) if role == "initialize" else self._bound(role, feeds, fetch)
        try:
            return self._code(binding)
        except NeedsStatic as e:
            new = frozenset(e.inputs) - self._static
            if not new or not new <= set(feeds):
                raise
            self._static |= new
            return self.code(role, feeds, fetch)

    def export(self, path: str | os.PathLike[str], state: Mapping[str, Array]) -> None:
        """Write the inference model with these values."""
        save_model(trained_model(self._source, state), path)

    def initial(self) -> dict[str, Array]:
        """First value of every state."""
        return initial_state(self._source, self.options.seed, self.options.algorithm)

    @property
    def graph(self) -> Graph:
        """Final IR of the step compiled last."""
        return self._compiled.graph

    @property
    def source(self) -> str:
        """Generated Python of the step compiled last."""
        return self._compiled.source

    @property
    def memory(self) -> MemoryUse:
        """Bytes of the step compiled last."""
        return self._compiled.layout.memory

    @property
    def _compiled(self) -> Compiled:
        if self._latest is None:
            raise OnnxcError("nothing is compiled yet: give dims= to compile, or call the step once")
        return self._latest

    # --- making it ---------------------------------------------------------------------------------------
    def _bound(self, role: str, feeds: Mapping[str, Array], fetch: tuple[str, ...]) -> _Binding:
        """The binding that a call's arrays make. InputError: their shapes contradict the model or each other."""
        given = {n: a for n, a in feeds.items() if n not in self.options.static}
        self._check_static(feeds)
        # inference and evaluation may be on other sizes than those that were given for the step
        known = dict(self.options.dims) if role == "step" else {}
        for name, t in self._inputs[role].items():
            if name not in given:
                continue
            shape = given[name].shape
            fits = len(shape) == len(t.dims)
            for d, n in zip(t.dims, shape, strict=False):
                if isinstance(d, str) and known.setdefault(d, n) != n:
                    what = f"input {name!r} has shape {list(shape)}, the model takes {t}: dim {d!r} is {known[d]} here"
                    raise InputError(what)
                fits = fits and (isinstance(d, str) or d == n)
            if not fits:
                raise InputError(f"input {name!r} has shape {list(shape)}, the model takes {t}")
            if any(isinstance(d, str) and n == 0 for d, n in zip(t.dims, shape, strict=True)):
                empty = next(d for d, n in zip(t.dims, shape, strict=True) if isinstance(d, str) and n == 0)
                what = f"input {name!r} has shape {list(shape)}, the model takes {t}: dim {empty!r} must be 1 or more"
                raise InputError(f"{what}, leave empty batches out")
        sizes = {**self.options.dims, **known}
        static = {n: a for n, a in given.items() if n in self._static} | dict(self.options.static)
        fed = [n for n in given if n in self._source.defaults and n not in static]
        return _Binding(
            role,
            tuple(sorted(sizes.items())),
            tuple(_Static(n, a) for n, a in sorted(static.items())),
            fetch,
            tuple(sorted(fed)),
        )

    def _check_static(self, feeds: Mapping[str, Array]) -> None:
        for name, a in self.options.static.items():
            if name in feeds and _Static(name, feeds[name]) != _Static(name, a):
                raise InputError(f"input {name!r} was bound by static=, to another value: leave it out")

    def _code(self, binding: _Binding) -> Code:
        if binding not in self._made:
            threads = self.options.threads
            with workers.ahead():
                graph = self._graph(binding)
                if binding.role == "step":
                    graph = fitted(graph, self.options.memory_limit, threads, self._types)
                compiled = compile_graph(graph, threads, self._types)
            const = Block.of(compiled.const).bytes
            watch = watched if compiled.checked else None
            self._made[binding] = Code(compiled.layout, compiled.address, const, watch=watch)
            if binding.role == "step":
                self._latest = compiled
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(binding)
        return self._made[binding]

    def _graph(self, b: _Binding) -> Graph:
        """The graph of a binding, after all passes."""
        arrays = {s.name: as_typed(self._source, s.name, s.array) for s in b.static}
        graph = self._source.graph(b.role, dict(b.dims), arrays, self.options.algorithm, b.fed)
        computed = graph.outputs
        if b.role in ("step", "evaluate") and self.options.outputs is not None:
            graph = returning(graph, self.options.outputs)
        graph = _fetching(graph, b.fetch, computed)
        options = self.options
        graph = run(graph, passes(has_kernel, cast(Role, b.role), options.seed, options.straight_through))
        return without_idle_inputs(graph) if b.role == "evaluate" else graph


class _Static:
    """A named array that hashes by its bits."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, np.asarray(array)
        self._key = (name, self.array.dtype.str, self.array.shape, self.array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def check_outputs(outputs: Sequence[str], known: Collection[str]) -> None:
    """InputError: an output that a step does not have."""
    if unknown := [name for name in outputs if name not in known]:
        near = did_you_mean(unknown[0], known) or f": there are {', '.join(map(repr, known)) or 'none'}"
        raise InputError(f"outputs: the step has no output {unknown[0]!r}{near}")


def returning(g: Graph, outputs: Sequence[str]) -> Graph:
    """The graph with these of its outputs only. InputError: there are none of that name."""
    check_outputs(outputs, g.outputs)
    return _with_outputs(g, {name: v for name, v in g.outputs.items() if name in outputs})


def _with_outputs(g: Graph, outputs: Mapping[str, str]) -> Graph:
    return Graph(g.name, g.types, g.inputs, g.states, g.consts, g.captures, g.nodes, outputs, g.updates)


def _fetching(g: Graph, fetch: Sequence[str], computed: Mapping[str, str]) -> Graph:
    """The graph with further values as outputs, under their own names. InputError: there are none of that name.

    computed: all outputs that it could have, which may be fetched as well.
    """
    if unknown := [name for name in fetch if name not in g.types and name not in computed]:
        names = [*computed, *g.types]
        raise InputError(
            f"fetch: the graph has no value {', '.join(f'{n!r}{did_you_mean(n, names)}' for n in unknown)}; "
            "what the imported graph has can be fetched: `onnxc dump-ir --stage import` shows it"
        )
    extra = {name: computed.get(name, name) for name in fetch if name not in g.outputs}
    return _with_outputs(g, {**g.outputs, **extra}) if extra else g


def _nodes(source: Source) -> Iterator[NodeProto]:
    """All nodes of the model, of nested graphs and functions as well."""
    model = source.model
    graphs = [model.graph, *(g for info in model.training_info for g in (info.algorithm, info.initialization))]
    pending: list[NodeProto] = [n for g in graphs for n in g.node] + [n for f in model.functions for n in f.node]
    while pending:
        node = pending.pop()
        yield node
        pending += [n for a in node.attribute if a.type == AttributeProto.GRAPH for n in a.g.node]


@cache
def _pool_code() -> PoolCode:
    with checking(False):  # its memory is of no step
        pool = make_pool()
        addresses = load([pool.worker, pool.run])
        return PoolCode(addresses[pool.worker.symbol], addresses[pool.run.symbol])
