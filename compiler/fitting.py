"""Making a step fit into a limit of memory: the pass, with code generation's planner."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from compiler.codegen.footprint import footprint
from compiler.errors import InputError, shown
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.recompute import recompute


def checked_limit(memory_limit: Any) -> int | None:
    """A limit of memory in bytes, or None. InputError: no positive integer."""
    if memory_limit is None:
        return None
    if not isinstance(memory_limit, int | np.integer) or isinstance(memory_limit, bool) or memory_limit < 1:
        raise InputError(f"memory_limit must be a number of bytes, 1 or more, not {shown(memory_limit)}")
    return int(memory_limit)


def fitted(graph: Graph, limit: int | None, threads: int = 1, states: Mapping[str, TensorType] | None = None) -> Graph:
    """A graph after all passes, changed so that it takes at most `limit` bytes to run; itself if it does anyway.

    Other arguments as for `make_plan`. MemoryLimitError: it cannot be reached. UnsupportedError.
    """
    if limit is None:
        return graph
    changed = recompute(graph, limit, partial(footprint, threads=threads, states=states))
    if changed is not graph:
        verify(changed)
    return changed
