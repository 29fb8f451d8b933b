"""A model's specializations: for each binding of its dims, the graphs through the passes to machine code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto

from compiler.codegen.build import Compiled, compile_graph
from compiler.codegen.memory import state_offsets
from compiler.codegen.native import load
from compiler.codegen.native.pool import make_pool
from compiler.codegen.support import has_kernel
from compiler.errors import InputError, OnnxcError
from compiler.frontend import NeedsStatic, Source
from compiler.frontend.trained import save_model, trained_model
from compiler.ir.evaluate import RANDOM_OPS
from compiler.ir.graph import Graph, Program
from compiler.ir.types import AnyArray, TensorType
from compiler.passes.lower_random import SEED, STEP
from compiler.passes.pipeline import run_program
from compiler.runtime.executable import Executable
from compiler.runtime.layout import STATE, Slot
from compiler.runtime.memory import Array, Block
from compiler.runtime.threads import Pool, PoolCode


@dataclass(frozen=True)
class Options:
    """How a model is compiled: the keyword arguments of `compiler.compile`."""

    dims: Mapping[str, int] = field(default_factory=dict)
    static: Mapping[str, AnyArray] = field(default_factory=dict)
    threads: int = 1
    seed: int = 0
    algorithm: int | None = None


def state_types(source: Source) -> dict[str, TensorType]:
    """All states of a model: the variables that its bindings name, and what random numbers are drawn from."""
    types = {name: source.initializers[name].type for name in source.variables}
    return types | ({SEED: TensorType("i64"), STEP: TensorType("i64")} if _draws(source) else {})


def state_slots(types: Mapping[str, TensorType]) -> list[Slot]:
    """Where they lie in the block that all graphs of the model share."""
    offsets, _ = state_offsets(types)
    return [Slot(n, t.dtype, t.shape, STATE, offsets[n]) for n, t in types.items()]


def initial_state(source: Source, seed: int) -> dict[str, Array]:
    """First value of every state."""
    hidden = {SEED: np.array(seed, np.int64), STEP: np.array(0, np.int64)}
    return {n: hidden[n] if n in hidden else source.initializers[n].tensor.array for n in state_types(source)}


class Specializations:
    """Programs and code of one model, made as they are needed (a `runtime.step.Backend`)."""

    def __init__(self, source: Source, options: Options) -> None:
        self._source, self.options = source, options
        self.static: frozenset[str] = frozenset()
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._compiled: dict[tuple[Any, ...], Compiled] = {}
        self._latest: tuple[Any, ...] | None = None
        self._pool = Pool(options.threads, _pool_code() if options.threads > 1 else None)
        self._types = state_types(source)
        self.states: Sequence[Slot] = state_slots(self._types)
        self.initializes = any(info.initialization.node for info in source.model.training_info)
        if not set(source.symbols) - set(options.dims):
            self._warm_up()

    def _warm_up(self) -> None:
        """Compile the step now if nothing has to wait for the first call's arrays."""
        try:
            self._code("step", self._key({}, {}, ()))
        except NeedsStatic as e:
            self.static |= frozenset(e.inputs)

    def initial(self) -> dict[str, Array]:
        """First value of every state."""
        return initial_state(self._source, self.options.seed)

    # --- programs ----------------------------------------------------------------------------------------
    def _key(
        self, dims: Mapping[str, int], static: Mapping[str, AnyArray], fetch: tuple[str, ...], fed: Iterable[str] = ()
    ) -> tuple[Any, ...]:
        sizes = {**dims, **self.options.dims}
        arrays = {**static, **self.options.static}
        parts = tuple(_Static(n, a) for n, a in sorted(arrays.items()))
        return tuple(sorted(sizes.items())), parts, fetch, tuple(sorted(fed))

    def program(self, key: tuple[Any, ...]) -> Program:
        """The graphs for a binding, after all passes."""
        if key not in self._programs:
            sizes, static, fetch, fed = key
            arrays = {s.name: s.array for s in static}
            program = self._source.program(dict(sizes), arrays, self.options.algorithm, fed)
            program = _fetching(program, fetch)
            self._programs[key] = run_program(program, has_kernel, seed=self.options.seed)
        return self._programs[key]

    def _code(self, role: str, key: tuple[Any, ...]) -> Compiled:
        if (role, key) not in self._compiled:
            graphs = self.program(key).graphs()
            graph = graphs.get(role, graphs["step"])  # a model that only infers: its step is its inference
            self._compiled[role, key] = compile_graph(graph, self.options.threads, self._types)
        if role == "step":
            self._latest = key
        return self._compiled[role, key]

    # --- what a StepFunction asks ------------------------------------------------------------------------
    def executable(self, role: str, feeds: Mapping[str, Any], fetch: tuple[str, ...], state: Block) -> Executable:
        """See `runtime.step.Backend`."""
        if role == "initialize":
            key = self._latest or self._key(dict.fromkeys(self._source.symbols, 1), {}, ())
        else:
            key = self._bound(role, feeds, fetch)
        try:
            code = self._code(role, key)
        except NeedsStatic as e:
            if not set(e.inputs) <= set(feeds) or set(e.inputs) <= self.static:
                raise
            self.static |= frozenset(e.inputs)
            return self.executable(role, feeds, fetch, state)
        return Executable(code.layout, code.address, code.const, state, self._pool)

    def _bound(self, role: str, feeds: Mapping[str, Any], fetch: tuple[str, ...]) -> tuple[Any, ...]:
        """The binding that a call's arrays make."""
        dims: dict[str, int] = dict(self.options.dims)
        for name, t in self._source.inputs.items():
            if name not in feeds:
                continue
            shape = np.shape(feeds[name])
            if len(shape) != len(t.dims):
                raise InputError(f"input {name!r} has shape {list(shape)}, the model takes {t}")
            for symbol, n in zip(t.dims, shape, strict=True):
                if isinstance(symbol, str) and dims.setdefault(symbol, n) != n:
                    raise InputError(f"input {name!r} has shape {list(shape)}: dim {symbol!r} is {dims[symbol]}, not {n}")
        if role == "infer" and dims:  # inputs of the step alone may have dims that inference does not see
            dims = dict.fromkeys(self._source.symbols, next(iter(dims.values()))) | dims
        missing = [s for s in self._source.symbols if s not in dims]
        if missing:
            needed = [n for n, t in self._source.inputs.items() if set(t.symbols) & set(missing)]
            raise InputError(f"missing input {', '.join(map(repr, needed))}: its shape decides dim {missing[0]!r}")
        static = {n: np.asarray(feeds[n]) for n in self.static if n in feeds and n not in self.options.static}
        fed = [n for n in feeds if n in self._source.defaults and n not in static]
        return self._key(dims, static, fetch, fed)

    def export(self, path: str | os.PathLike[str], state: Mapping[str, Array]) -> None:
        """Write the inference model with these values."""
        save_model(trained_model(self._source, state), path)

    @property
    def _latest_code(self) -> Compiled:
        if self._latest is None:
            raise OnnxcError("nothing is compiled yet: give dims= to compile, or call the step once")
        return self._compiled["step", self._latest]

    @property
    def graph(self) -> Graph:
        """Final IR of the step compiled last."""
        return self._latest_code.graph

    @property
    def source(self) -> str:
        """Generated Python of the step compiled last."""
        return self._latest_code.source


class _Static:
    """A named array that hashes by its bits."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, np.asarray(array)
        self._key = (name, self.array.dtype.str, self.array.shape, self.array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _fetching(program: Program, fetch: Sequence[str]) -> Program:
    """The program with further values of its graphs as outputs, under their own names."""
    if not fetch:
        return program
    graphs = program.graphs()
    unknown = [name for name in fetch if not any(name in g.types for g in graphs.values())]
    if unknown:
        raise InputError(f"fetch: the graph has no value {', '.join(map(repr, unknown))}")
    done = {}
    for role, g in graphs.items():
        extra = {name: name for name in fetch if name in g.types and name not in g.outputs}
        done[role] = g if not extra or role == "initialize" else _with_outputs(g, extra)
    return Program(done["step"], done.get("infer"), done.get("initialize"))


def _with_outputs(g: Graph, extra: Mapping[str, str]) -> Graph:
    return Graph(
        g.name, g.types, g.inputs, g.states, g.consts, g.captures, g.nodes, {**g.outputs, **extra}, g.updates
    )  # fmt: skip


def _draws(source: Source) -> bool:
    """Whether any node of the model may draw random numbers."""
    model = source.model
    graphs = [model.graph, *(g for info in model.training_info for g in (info.algorithm, info.initialization))]
    nodes: list[NodeProto] = [n for g in graphs for n in g.node] + [n for f in model.functions for n in f.node]
    while nodes:
        node = nodes.pop()
        if node.op_type in RANDOM_OPS or node.op_type == "Dropout":
            return True
        nodes += [n for a in node.attribute if a.type == AttributeProto.GRAPH for n in a.g.node]
    return False


@cache
def _pool_code() -> PoolCode:
    pool = make_pool()
    addresses = load([pool.worker, pool.run])
    return PoolCode(addresses[pool.worker.symbol], addresses[pool.run.symbol])
