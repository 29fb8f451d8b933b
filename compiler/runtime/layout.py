"""Where everything of a compiled graph lives in memory: the contract between code generation and the runtime.

A compiled graph is a native function `step(table, thread, threads)` and this description. Memory is four blocks, each
64-byte aligned: `arena` (inputs, outputs, intermediate values, the status word, the barrier), `state`, `const`, and
the table itself: int64 words, each a number or an address in one of the other blocks. A loop moves addresses in the
table from iteration to iteration; when it ends they are as before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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

SEED, STEP = "onnxc.seed", "onnxc.step"
"""The states that random numbers are drawn from, in models that draw any: the seed, and the number of steps so far."""

# bf16 and the types of at most 8 bits have no NumPy dtype of their own: their bits
NUMPY = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "uint16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool",
    "f8e4m3fn": "uint8", "f8e4m3fnuz": "uint8", "f8e5m2": "uint8", "f8e5m2fnuz": "uint8", "f8e8m0": "uint8",
    "f6e2m3": "uint8", "f6e3m2": "uint8", "f4e2m1": "uint8", "i4": "int8", "u4": "uint8", "i2": "int8", "u2": "uint8",
}  # fmt: skip

ML_DTYPES = {
    "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f6e2m3": "float6_e2m3fn", "f6e3m2": "float6_e3m2fn",
    "f4e2m1": "float4_e2m1fn", "i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2",
}  # fmt: skip
"""What ml_dtypes calls the types that NumPy has not."""

BITS = {"f6e2m3": 6, "f6e3m2": 6, "f4e2m1": 4, "i4": 4, "u4": 4, "i2": 2, "u2": 2}
"""Bits of the types that do not fill their byte: an integer in their range, or a code with zeros above."""


ELEMENTS = 1 << 40
"""More than the elements of any checked value. The status of a refused run is n * ELEMENTS - i: see `Layout.status`."""


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
class Message:
    """What a check reports.

    what: what is wrong; value: what it is an element of, or ''; input: the input of the graph that has the same
    elements in the same order, or ''; node: where the check is.
    """

    what: str
    value: str
    input: str
    node: str

    def __str__(self) -> str:
        """For who does not know the element."""
        among = f" among the values of {self.value!r}" if self.value else ""
        return f"{self.what}{among}, in {self.node}"

    def located(self) -> str:
        """Beside the element of the input."""
        among = f" among the values of {self.value!r}" if self.value != self.input else ""
        return f"{self.what}{among}, in {self.node}"


def refusal(status: int) -> tuple[int, int]:
    """Number of a message, from 0, and of an element, of a status that is not 0.

    Kernels keep the largest status, so of all wrong elements the first one is told, whatever thread found which.
    """
    number = -(-status // ELEMENTS)
    return number - 1, number * ELEMENTS - status


def padded(nbytes: int) -> int:
    """Bytes that a buffer takes: its slack behind it, and up to the next aligned address."""
    return (nbytes + SLACK + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def state_bytes(states: Sequence[Slot]) -> int:
    """Bytes of the block that these states lie in."""
    return max((s.offset + padded(s.nbytes) for s in states), default=0)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that are allocated to run a compiled graph.

    state: variables, and what belongs to them; constants; arena: inputs, outputs, intermediate values and working
    memory; table: addresses and numbers for the code. docs/memory.md tells what is not counted.
    """

    state: int
    constants: int
    arena: int
    table: int

    @property
    def total(self) -> int:
        """All of it: the peak, since the step allocates nothing while it runs."""
        return self.state + self.constants + self.arena + self.table


@dataclass(frozen=True)
class Layout:
    """Memory of one compiled graph.

    inputs, outputs: by public name; states: all that the graph reads or updates. status: offset in the arena of an
    int64 that is 0, or after a refused step tells by `refusal` the number of a message and the first element that it is
    about. messages: what may be wrong. table_blocks, table_values: the words of the table. threads: how many threads
    the arena has scratch memory for. brief: whether it surely ends in less than a millisecond, so that one thread runs
    it alone, and in Python keeps the interpreter's lock: to let that go and get it again takes as long as a small
    matrix product.
    """

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    states: tuple[Slot, ...]
    arena_bytes: int
    state_bytes: int
    const_bytes: int
    status: int
    messages: tuple[Message, ...]
    threads: int
    table_blocks: tuple[int, ...]
    table_values: tuple[int, ...]
    brief: bool

    @property
    def memory(self) -> MemoryUse:
        """What the blocks take."""
        return MemoryUse(self.state_bytes, self.const_bytes, self.arena_bytes, 8 * len(self.table_values))

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
        d["messages"] = tuple(Message(**m) for m in d["messages"])
        for part in ("table_blocks", "table_values"):
            d[part] = tuple(d[part])
        return cls(**d)
