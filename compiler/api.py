"""The public functions: compile, lower, check, build."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from compiler import __version__
from compiler.codegen.build import plan_and_emit
from compiler.codegen.export import bindings, export
from compiler.codegen.library import check_name
from compiler.codegen.library_artifact import Recipe, check_replaceable, write_artifact
from compiler.codegen.library_cpu import target
from compiler.codegen.native import building
from compiler.codegen.support import has_kernel
from compiler.errors import (
    InputError,
    ModelError,
    Problem,
    checked_flag,
    checked_integer,
    checked_names,
    checked_path,
    checked_seed,
    checked_string,
    did_you_mean,
)
from compiler.fitting import checked_limit, fitted
from compiler.frontend import Source, accepted, best_attempt, read
from compiler.frontend.files import files_of as files_of
from compiler.frontend.node_groups import group_by_origin
from compiler.frontend.report import Report
from compiler.frontend.trained import trained_model
from compiler.frontend.training_graph import as_training_model, written_out
from compiler.ir.dump import dump as dump
from compiler.ir.graph import Graph, Program
from compiler.ir.types import AnyArray
from compiler.passes.pipeline import PASS_NAMES as PASS_NAMES
from compiler.passes.pipeline import run_program
from compiler.runtime.arguments import as_array
from compiler.runtime.cores import MOST, default_threads
from compiler.runtime.step import StepFunction
from compiler.saving import INLINE_LIMIT
from compiler.saving import save_model as save_model
from compiler.specialize import (
    Options,
    Specializations,
    as_typed,
    averages_of,
    initial_state,
    returning,
    state_slots,
    state_types,
)
from compiler.trial import blockers, untrained

Model = onnx.ModelProto | bytes | str | os.PathLike[str]

MOST_TRIPS = 1_000_000
"""The largest max_trip: what a gradient keeps of each iteration must fit into memory."""


def compile(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    threads: int | None = None,
    seed: int = 0,
    algorithm: int | None = None,
    max_trip: int | None = None,
    straight_through: bool = False,
    outputs: Sequence[str] | None = None,
    memory_limit: int | None = None,
) -> StepFunction:
    """Compile a training model to a step function.

    model: a path, the bytes of a file, or a ModelProto. dims: sizes of symbolic dims; those left open are bound by the
    arrays of each call (another size is compiled when it first comes). static: values of inputs that decide shapes;
    others that do are bound by each call. threads: 1 to 256; the results have the same bits for any number. By default
    one for each core, or one alone if the first calls show that this is as fast. seed: of random numbers. algorithm:
    index of the one TrainingInfoProto that the step runs; by default all, in order. max_trip: how often a Loop runs at
    most whose end is decided at run time, which its gradient and its stacked outputs need to know
    (docs/control-flow.md). straight_through: gradients look through Round, and through QuantizeLinear where
    DequantizeLinear follows (docs/quantization.md). outputs: what a step returns, by default all outputs of inference
    and algorithms; what only the others need is not computed. memory_limit: bytes that a step may take; values are then
    computed again, rather than kept, until it fits (docs/memory.md), and MemoryLimitError tells how much is missing if
    that cannot be reached. The results have the same bits.

    A model without training_info compiles as well: a call runs its graph. CompileError lists everything in the model
    that cannot be compiled, initialization included; with open dims, what is so at every size, and a call tells the
    rest. InputError: arguments that do not fit the model.
    """
    seed, through = checked_seed(seed), checked_flag("straight_through", straight_through)
    source, arrays = loaded(_own(model), dims, static, max_trip)
    wanted = None if outputs is None else checked_names("outputs", outputs)
    given = (
        checked_threads(threads),
        threads is None,
        seed,
        algorithm,
        through,
        wanted,
        checked_limit(memory_limit),
    )
    options = Options(dict(dims or {}), arrays, *given)
    work = Specializations(source, options)
    work.warm_up()
    return StepFunction(work, work.initial())


def checked_threads(threads: Any) -> int:
    """The number of threads, by default `default_threads`. InputError: none from 1 to 256."""
    return default_threads() if threads is None else checked_integer("threads", threads, 1, MOST)


def _own(model: Model) -> Model:
    """A model that the caller cannot change later, when another size is compiled."""
    if not isinstance(model, onnx.ModelProto):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def loaded(
    model: Model, dims: Mapping[str, int] | None, static: Mapping[str, Any] | None, max_trip: int | None
) -> tuple[Source, dict[str, AnyArray]]:
    """A model without problems, and static inputs as arrays. CompileError, InputError."""
    source, report = _read(model, dims, max_trip)
    arrays = {} if source is None else _static(source, static)
    typed = {} if source is None else {n: as_typed(source, n, a) for n, a in arrays.items()}
    source = accepted(source, report, dims, typed)
    return source, arrays


def _read(model: Model, dims: Mapping[str, int] | None, max_trip: int | None) -> tuple[Source | None, Report]:
    """A model with its bound of loops, and what is wrong with it. InputError: also sizes of dims that it has not."""
    most = None if max_trip is None else checked_integer("max_trip", max_trip, 1, MOST_TRIPS)
    source, report = read(model)
    if source is not None:
        source.max_trip = most
        source.sizes({} if dims is None else dims)
    return source, report


def _static(source: Source, static: Mapping[str, Any] | None) -> dict[str, AnyArray]:
    """Values of static inputs as arrays of the inputs' types. InputError."""
    if static is not None and not isinstance(static, Mapping):
        raise InputError(f"static must be a mapping from names of inputs to arrays, not {type(static).__name__}")
    if unknown := [n for n in static or {} if n not in source.inputs]:
        near = did_you_mean(unknown[0], source.inputs) or f"; the inputs are {', '.join(map(repr, source.inputs))}"
        raise InputError(f"static: {unknown[0]!r} is no input{near}")
    return {n: as_array(f"static: input {n!r}", a, source.inputs[n].dtype) for n, a in (static or {}).items()}


def program(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    algorithm: int | None = None,
    until: str | None = None,
    max_trip: int | None = None,
    straight_through: bool = False,
) -> Program:
    """The IR of a model's graphs: as imported (until="import"), after the pass `until`, or after all passes."""
    if until is not None and checked_string("until", until) not in ("import", *PASS_NAMES):
        near = did_you_mean(until, PASS_NAMES) or f": there are import, {', '.join(PASS_NAMES)}"
        raise InputError(f"there is no pass {until!r}{near}")
    checked_flag("straight_through", straight_through)
    source, arrays = loaded(model, dims, static, max_trip)
    imported = source.program(dims or {}, {n: as_typed(source, n, a) for n, a in arrays.items()}, algorithm)
    if until == "import":
        return imported
    return run_program(imported, has_kernel, until=until, straight_through=straight_through)


def lower(
    model: Model,
    until: str | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    algorithm: int | None = None,
    graph: str = "step",
    max_trip: int | None = None,
    straight_through: bool = False,
) -> onnx.ModelProto:
    """The step as plain ONNX that any runtime can run: state are extra inputs and outputs.

    until: "import", or the name of the pass after which to stop; by default all passes. graph: "step", "infer" or
    "initialize". Ops of onnxc are model-local functions with standard bodies. `metadata_props` say which output is
    the next value of which state input.
    """
    graphs = program(
        model,
        dims=dims,
        static=static,
        algorithm=algorithm,
        until=until,
        max_trip=max_trip,
        straight_through=straight_through,
    )
    return export(graph_of(graphs, graph))


def training_graph(
    model: Model,
    algorithm: int | None = None,
    *,
    until: str | None = None,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    max_trip: int | None = None,
    straight_through: bool = False,
) -> onnx.ModelProto:
    """The training graph of a model as one plain graph, for viewers and checkers: what its training_info means.

    algorithm: index of the one TrainingInfoProto; by default all, in order. The names of nodes begin with the part of
    the step: `forward/`, `loss/`, `gradient/`, `optimizer/`, also `inference/` for what only outputs of the inference
    graph need. Variables are initializers; `metadata_props` say which output is the next value of which, as in what
    `lower` writes.

    By default operators, opset, functions, symbolic dims and Gradient nodes are those of the model. until: the name of
    a pass, "expand_gradients" for the backward pass in operators that any runtime has: `gradient/<forward node>/<op>`.
    dims, static, max_trip and straight_through are for that, and as for `lower`.

    CompileError, InputError.
    """
    bound: dict[str, Any] = {"dims": dims, "static": static, "max_trip": max_trip}
    bound["straight_through"] = straight_through
    if until is None and (given := [name for name, value in bound.items() if not _is_default(value)]):
        raise InputError(f"{given[0]} is of no use without a pass: give until='expand_gradients' or another as well")
    whole = written_out(accepted(*read(model)), algorithm)
    if until is None:
        return whole
    step = program(as_training_model(whole), until=until, **bound).step
    lowered = export(returning(step, tuple(bindings(whole)[0].values())))
    group_by_origin(lowered)
    return lowered


def _is_default(value: Any) -> bool:
    """Whether an argument says nothing: it is None or False, or a mapping of nothing."""
    return value is None or value is False or (isinstance(value, Mapping) and not value)


def graph_of(program: Program, role: str) -> Graph:
    """A graph of a program. InputError: it has none of that role."""
    graphs = program.graphs()
    if checked_string("graph", role) not in graphs:
        raise InputError(f"the model has no graph {role!r}: it has {', '.join(graphs)}")
    return graphs[role]


def emitted(graph: Graph) -> str:
    """The generated Python of a graph that has been through the passes. UnsupportedError."""
    return plan_and_emit(graph)[1].source


@dataclass(frozen=True)
class Examined:
    """What is known of a model without compiling it.

    problems: what keeps it from being compiled. unchecked: nodes whose shapes, and all that follows, could not be
    looked at, as they are decided by the values of `inputs`. notes: what is allowed, but may not be meant.
    """

    problems: tuple[Problem, ...]
    unchecked: tuple[Problem, ...] = ()
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def examine(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    max_trip: int | None = None,
) -> Examined:
    """What `check` tells, sorted. Arguments and errors as there."""
    try:
        source, report = _read(model, dims, max_trip)
    except ModelError as e:
        return Examined(e.problems)
    if source is None:
        return Examined(report.problems)
    arrays = {n: as_typed(source, n, a) for n, a in _static(source, static).items()}
    attempt = best_attempt(source, dims, arrays)
    report.merge(attempt.report)
    report.merge(blockers(attempt.graphs))
    needs = attempt.needs
    notes = []
    if not report and not source.updated_by():
        notes.append(UPDATES_NOTHING if source.algorithms else NO_TRAINING)
    if not report and needs is None and "step" in attempt.graphs:
        notes.extend(untrained(attempt.graphs["step"]))
    if attempt.report and attempt.by_size and (tried := [s for s in source.symbols if s not in (dims or {})]):
        notes.append(f"{', '.join(map(repr, tried))} had no size and was tried as 2, 32 and 224: others may fit")
    return Examined(report.problems, needs.problems if needs else (), needs.inputs if needs else (), tuple(notes))


UPDATES_NOTHING = "the model updates nothing: no training_info has an update_binding"
NO_TRAINING = (
    "the model updates nothing: it has no training_info, so that a step only runs its graph; "
    "`onnxc make-training` makes a training model of it"
)


def check(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    max_trip: int | None = None,
) -> tuple[Problem, ...]:
    """Everything that keeps a model from being compiled, or from being looked at to its end; empty if nothing does.

    Symbolic dims left open are tried as 2, 32 and 224. Where the values of inputs decide shapes, the last problems
    tell which of them to give in `static`, so that the rest can be checked as well. InputError: dims or static that
    the model does not have.
    """
    found = examine(model, dims=dims, static=static, max_trip=max_trip)
    return found.problems + found.unchecked


def build(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    threads: int = 1,
    seed: int = 0,
    algorithm: int | None = None,
    max_trip: int | None = None,
    straight_through: bool = False,
    outputs: Sequence[str] | None = None,
    memory_limit: int | None = None,
    name: str = "onnxc",
    cpu: str = "host",
    cc: str = "cc",
) -> None:
    """Build a model ahead of time: a folder with a native library, a C header, weights and a manifest.

    `compiler.load(folder)` gives the step again, on machines that have neither onnx nor numba; docs/ahead-of-time.md
    tells about the files and the C interface. All symbolic dims must be bound; threads is the most that a loader may
    use; other arguments as for `compile`. name: prefix of every name in C, so that models with different names go into
    one program. cpu: "host", this machine's processor, or for others "x86-64", "x86-64-v2", "-v3" or "-v4". cc: the C
    compiler, with options if need be. An artifact that is there already is replaced; any other folder is not touched.

    CompileError as for `compile`. InputError: arguments that do not fit. BuildError: no C compiler, or a bad folder.
    """
    seed, straight_through = checked_seed(seed), checked_flag("straight_through", straight_through)
    threads, limit = checked_threads(threads), checked_limit(memory_limit)
    check_name(name)
    into = Path(checked_path("folder", folder))
    check_replaceable(into)
    machine = target(cpu)
    source, arrays = loaded(model, dims, static, max_trip)
    typed = {n: as_typed(source, n, a) for n, a in arrays.items()}
    imported = source.program(dims or {}, typed, algorithm)
    if outputs is not None:
        imported = replace(imported, step=returning(imported.step, checked_names("outputs", outputs)))
    work = run_program(imported, has_kernel, seed=seed, straight_through=straight_through)
    states = state_types(source, algorithm)
    initial = initial_state(source, seed, algorithm)
    inference = trained_model(source, initial)
    options = {"dims": dict(dims or {}), "static": sorted(arrays), "seed": seed, "algorithm": algorithm}
    options |= {"max_trip": max_trip} if max_trip else {}
    options |= {"straight_through": True} if straight_through else {}
    options |= {"memory_limit": limit} if limit else {}
    with building(machine):
        recipe = Recipe(
            program=replace(work, step=fitted(work.step, limit, threads, states)),
            states=state_slots(states),
            initial=initial,
            inference=inference.SerializeToString() if inference.ByteSize() < INLINE_LIMIT else None,
            name=name,
            version=__version__,
            threads=threads,
            cc=cc,
            options=options,
            averages=averages_of(source, algorithm),
        )
        write_artifact(recipe, into)
