"""Where everything of a compiled graph lives in memory: the contract between code generation and the runtime.

A compiled graph is a native function `step(table, thread, threads)` and this description. Memory is four blocks, each
64-byte aligned: `arena` (inputs, outputs, intermediate values, the status word, the barrier), `state`, `const`, and
the table itself: int64 words, each a number or an address in one of the other blocks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

ARENA, STATE, CONST, TABLE = 0, 1, 2, 3
"""Numbers of the blocks in `Layout.table_blocks` (TABLE: the table itself); -1 there marks a plain number."""

SLACK = 128
"""Bytes behind every value that kernels may read (never write)."""

ALIGNMENT = 64

# bf16 has no NumPy dtype of its own: its bits
NUMPY = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "uint16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """One named array: its type and where it lies (`offset` bytes into block ARENA, STATE or CONST)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    block: int
    offset: int

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's type of the elements."""
        return np.dtype(NUMPY[self.dtype])

    @property
    def nbytes(self) -> int:
        """Size without slack."""
        return prod(self.shape) * self.numpy.itemsize


@dataclass(frozen=True)
class Layout:
    """Memory of one compiled graph.

    inputs, outputs: by public name; states: all that the graph reads or updates. status: offset in the arena of an
    int64 that is 0, or after a refused step the number of a message, counted from 1. table_blocks, table_values: the
    words of the table. threads: how many threads the arena has scratch memory for.
    """

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    states: tuple[Slot, ...]
    arena_bytes: int
    state_bytes: int
    const_bytes: int
    status: int
    messages: tuple[str, ...]
    threads: int
    table_blocks: tuple[int, ...]
    table_values: tuple[int, ...]

    def table(self, arena: int, state: int, const: int) -> npt.NDArray[np.int64]:
        """The table for blocks at these addresses."""
        table = np.array(self.table_values, np.int64)
        bases = np.array([arena, state, const, table.ctypes.data, 0], np.int64)  # block -1 reads the last
        table += bases[np.array(self.table_blocks, np.int64)]
        return table

    def to_json(self) -> str:
        """All of it as text, for a manifest."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """The inverse of `to_json`; TypeError, ValueError, KeyError for other text."""
        d = json.loads(text)
        for part in ("inputs", "outputs", "states"):
            d[part] = tuple(Slot(**{**s, "shape": tuple(s["shape"])}) for s in d[part])
        for part in ("messages", "table_blocks", "table_values"):
            d[part] = tuple(d[part])
        return cls(**d)
