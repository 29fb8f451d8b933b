"""The public functions: compile, lower, check, build."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from compiler import __version__
from compiler.codegen.build import plan_and_emit
from compiler.codegen.export import export
from compiler.codegen.library import check_name
from compiler.codegen.library_artifact import Recipe, check_replaceable, write_artifact
from compiler.codegen.library_cpu import target
from compiler.codegen.support import has_kernel
from compiler.errors import CompileError, InputError, Problem
from compiler.frontend import NeedsStatic, Source
from compiler.frontend import load as load_source
from compiler.frontend.source import TRIED_SIZES
from compiler.frontend.source import check as check_source
from compiler.frontend.trained import trained_model
from compiler.ir.dump import dump as dump
from compiler.ir.graph import Graph, Program
from compiler.ir.types import AnyArray
from compiler.passes.pipeline import PASS_NAMES as PASS_NAMES
from compiler.passes.pipeline import run_program
from compiler.runtime.arguments import as_array
from compiler.runtime.step import StepFunction, check_seed
from compiler.saving import INLINE_LIMIT
from compiler.saving import save_model as save_model
from compiler.specialize import Options, Specializations, initial_state, state_slots, state_types

Model = onnx.ModelProto | bytes | str | os.PathLike[str]


def compile(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    threads: int | None = None,
    seed: int = 0,
    algorithm: int | None = None,
) -> StepFunction:
    """Compile a training model to a step function.

    model: a path, the bytes of a file, or a ModelProto. dims: sizes of symbolic dims; those left open are bound by the
    arrays of each call (another size is compiled when it first comes). static: values of inputs that decide shapes;
    others that do are bound by each call. threads: 1 to 256; the results have the same bits for any number. By default
    1: more of them wait for each other while a step runs, which pays only on cores that nobody else uses, and for steps
    that take longer than about a millisecond. seed: of random numbers. algorithm: index of the one TrainingInfoProto
    that the step runs; by default all, in order.

    A model without training_info compiles as well: a call runs its graph. CompileError lists everything in the model
    that cannot be compiled. InputError: arguments that do not fit it.
    """
    check_seed(seed)
    source = load_source(_own(model))
    options = Options(dict(dims or {}), _static(source, static), checked_threads(threads), int(seed), algorithm)
    work = Specializations(source, options)
    return StepFunction(work, work.initial())


def checked_threads(threads: Any) -> int:
    """The number of threads. InputError: none from 1 to 256."""
    if threads is None:
        return 1
    if not isinstance(threads, int | np.integer) or isinstance(threads, bool) or not 1 <= threads <= 256:
        raise InputError(f"threads must be an integer from 1 to 256, not {threads!r}")
    return int(threads)


def _own(model: Model) -> Model:
    """A model that the caller cannot change later, when another size is compiled."""
    if not isinstance(model, onnx.ModelProto):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _static(source: Source, static: Mapping[str, Any] | None) -> dict[str, AnyArray]:
    """Values of static inputs as arrays of the inputs' types. InputError."""
    if unknown := [n for n in static or {} if n not in source.inputs]:
        raise InputError(f"static: {unknown[0]!r} is no input; the inputs are {', '.join(map(repr, source.inputs))}")
    return {n: as_array(f"static: input {n!r}", a, source.inputs[n].dtype) for n, a in (static or {}).items()}


def program(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    algorithm: int | None = None,
    until: str | None = None,
) -> Program:
    """The IR of a model's graphs: as imported (until="import"), after the pass `until`, or after all passes."""
    if until is not None and until not in ("import", *PASS_NAMES):
        raise InputError(f"there is no pass {until!r}: there are import, {', '.join(PASS_NAMES)}")
    source = load_source(model)
    imported = source.program(dims or {}, _static(source, static), algorithm)
    return imported if until == "import" else run_program(imported, has_kernel, until=until)


def lower(
    model: Model,
    until: str | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    algorithm: int | None = None,
    graph: str = "step",
) -> onnx.ModelProto:
    """The step as plain ONNX that any runtime can run: state are extra inputs and outputs.

    until: "import", or the name of the pass after which to stop; by default all passes. graph: "step", "infer" or
    "initialize". Ops of onnxc are model-local functions with standard bodies. `metadata_props` say which output is
    the next value of which state input.
    """
    return export(graph_of(program(model, dims=dims, static=static, algorithm=algorithm, until=until), graph))


def graph_of(program: Program, role: str) -> Graph:
    """A graph of a program. InputError: it has none of that role."""
    graphs = program.graphs()
    if role not in graphs:
        raise InputError(f"the model has no graph {role!r}: it has {', '.join(graphs)}")
    return graphs[role]


def emitted(graph: Graph) -> str:
    """The generated Python of a graph that has been through the passes. UnsupportedError."""
    return plan_and_emit(graph)[1].source


def check(
    model: Model, *, dims: Mapping[str, int] | None = None, static: Mapping[str, Any] | None = None
) -> tuple[Problem, ...]:
    """Everything that keeps a model from being compiled; empty if nothing does.

    Symbolic dims left open are tried as 2, 32 and 224. What depends on the value of an input that decides a shape can
    be checked only if `static` has it. InputError: dims or static that the model does not have.
    """
    arrays = {n: np.asarray(a) for n, a in (static or {}).items()}
    if found := check_source(model, dims, arrays):
        return tuple(found)
    source = load_source(model)
    for size in TRIED_SIZES:
        try:
            work = source.program(dict.fromkeys(source.symbols, size) | dict(dims or {}), arrays)
        except NeedsStatic:
            return ()
        except CompileError:
            continue
        return _blockers(work)
    raise AssertionError("no size is good, but nothing was wrong")


def _blockers(imported: Program) -> tuple[Problem, ...]:
    """What keeps graphs as imported from becoming code."""
    try:
        graphs = run_program(imported, has_kernel).graphs()
    except CompileError as e:
        return e.problems
    problems: dict[Problem, None] = {}
    for graph in graphs.values():
        try:
            plan_and_emit(graph)
        except CompileError as e:
            problems |= dict.fromkeys(e.problems)
    return tuple(problems)


def build(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, Any] | None = None,
    threads: int = 1,
    seed: int = 0,
    algorithm: int | None = None,
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
    check_seed(seed)
    threads = checked_threads(threads)
    check_name(name)
    check_replaceable(Path(folder))
    machine = target(cpu)
    source = load_source(model)
    arrays = _static(source, static)
    work = run_program(source.program(dims or {}, arrays, algorithm), has_kernel, seed=seed)
    initial = initial_state(source, seed, algorithm)
    inference = trained_model(source, initial)
    options = {"dims": dict(dims or {}), "static": sorted(arrays), "seed": seed, "algorithm": algorithm}
    recipe = Recipe(
        program=work,
        states=state_slots(state_types(source, algorithm)),
        initial=initial,
        inference=inference.SerializeToString() if inference.ByteSize() < INLINE_LIMIT else None,
        name=name,
        version=__version__,
        target=machine,
        threads=threads,
        cc=cc,
        options=options,
    )
    write_artifact(recipe, Path(folder))
