"""Compile and run a graph, for the tests of code generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.codegen.build import compile_graph
from compiler.codegen.native import load
from compiler.codegen.native.pool import make_pool
from compiler.ir.graph import Graph
from compiler.runtime.executable import Executable
from compiler.runtime.memory import Block
from compiler.runtime.threads import Pool, PoolCode


class Running:
    """A compiled graph with its state."""

    def __init__(self, graph: Graph, threads: int = 1) -> None:
        code = compile_graph(graph, threads)
        self.code = code
        pool = make_pool()
        addresses = load([pool.worker, pool.run])
        state = Block(code.layout.state_bytes + 256)
        self.state = {s.name: state.view(s) for s in code.layout.states}
        for name, view in self.state.items():
            view[...] = graph.states[name].array
        workers = Pool(threads, PoolCode(addresses[pool.worker.symbol], addresses[pool.run.symbol]))
        self._executable = Executable(code.layout, code.address, code.const, state, workers)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return self._executable.run({n: np.asarray(a) for n, a in feeds.items()})
