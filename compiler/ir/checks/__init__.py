"""What operators demand of their operands beyond what ONNX's inference checks.

Kernels run on raw memory, so a gap here is a read or write outside of it. Sizes and indices that are known at compile
time are checked here; indices that are known at run time only (labels, gather indices) are checked by the kernels.
To add an operator: a function in the module of its family under `@precondition("Op")`, or its name in `SAFE`.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.checks import (
    attention,
    general,
    indexing,
    matrix,
    movement,
    numeric,
    quantized,
    recurrent,
    sampling,
    signal,
    spatial,
    training,
)
from compiler.ir.checks.base import PRECONDITIONS, NodeFacts

__all__ = ["check_node", "covers"]

# importing a family registers its functions
_FAMILIES = (
    attention,
    general,
    indexing,
    matrix,
    movement,
    numeric,
    quantized,
    recurrent,
    sampling,
    signal,
    spatial,
    training,
)


def check_node(f: NodeFacts) -> Iterator[str]:
    """Say what a node's operands or attributes violate."""
    found = list(general.tables(f))
    yield from found
    if not found:  # the functions may count on ranks, axes and spellings
        for precondition in PRECONDITIONS.get(f.node.op, ()):
            yield from precondition(f)


def covers(op: str) -> bool:
    """Whether somebody has thought about what can go wrong with this standard op's operands."""
    return op in PRECONDITIONS or op in general.SAFE
