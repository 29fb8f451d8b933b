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
from compiler.frontend import NeedsStatic
from compiler.frontend import load as load_source
from compiler.frontend.trained import INLINE_LIMIT, trained_model
from compiler.ir.graph import Graph, Program
from compiler.passes.pipeline import PASS_NAMES, run_program
from compiler.runtime.step import StepFunction
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
    arrays of each call (another size is compiled when it first comes). static: values of inputs that decide shapes.
    threads: 1 to the number of CPUs; by default 1. The results have the same bits for any number. seed: of random
    numbers. algorithm: index of the one TrainingInfoProto that the step runs; by default all, in order.

    CompileError lists everything in the model that cannot be compiled. InputError: arguments that do not fit it.
    """
    threads = 1 if threads is None else threads
    if not isinstance(threads, int) or not 1 <= threads <= 256:
        raise InputError(f"threads must be an integer from 1 to 256, not {threads!r}")
    arrays = {name: np.asarray(a) for name, a in (static or {}).items()}
    work = Specializations(load_source(model), Options(dict(dims or {}), arrays, threads, seed, algorithm))
    return StepFunction(work, work.initial())


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
    arrays = {name: np.asarray(a) for name, a in (static or {}).items()}
    imported = load_source(model).program(dims or {}, arrays, algorithm)
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
    graphs = program(model, dims=dims, static=static, algorithm=algorithm, until=until).graphs()
    if graph not in graphs:
        raise InputError(f"the model has no graph {graph!r}: it has {', '.join(graphs)}")
    chosen: Graph = graphs[graph]
    return export(chosen)


def emitted(graph: Graph) -> str:
    """The generated Python of a graph that has been through the passes. UnsupportedError."""
    return plan_and_emit(graph)[1].source


def check(model: Model, *, dims: Mapping[str, int] | None = None) -> tuple[Problem, ...]:
    """Everything that keeps a model from being compiled; empty if nothing does. Symbolic dims left open are 2.

    InputError: dims that the model does not have.
    """
    try:
        source = load_source(model)
        sizes = dict.fromkeys(source.symbols, 2) | dict(dims or {})
        for graph in run_program(source.program(sizes), has_kernel).graphs().values():
            plan_and_emit(graph)
    except NeedsStatic:
        return ()  # an input's value decides a shape: the first call binds it
    except CompileError as e:
        return e.problems
    return ()


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
    if not isinstance(threads, int) or not 1 <= threads <= 256:
        raise InputError(f"threads must be an integer from 1 to 256, not {threads!r}")
    check_name(name)
    check_replaceable(Path(folder))
    machine = target(cpu)
    arrays = {n: np.asarray(a) for n, a in (static or {}).items()}
    source = load_source(model)
    work = run_program(source.program(dims or {}, arrays, algorithm), has_kernel, seed=seed)
    initial = initial_state(source, seed)
    inference = trained_model(source, initial)
    options = {"dims": dict(dims or {}), "static": sorted(arrays), "seed": seed, "algorithm": algorithm}
    recipe = Recipe(
        program=work,
        states=state_slots(state_types(source)),
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
