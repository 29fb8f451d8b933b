"""What a node becomes: calls of kernels on values, scratch memory and numbers. The plan gives them addresses.

A *lowering* turns one node into calls, in order: `@lowers("Gemm") def gemm(site: Site) -> list[Call]`. It sees types
and compile-time constants only, never memory. Between two calls the plan puts a barrier where one reads or
overwrites what the other writes; within one call, threads work on disjoint slices of [0, n) and must not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from compiler.codegen.native import Kernel
from compiler.ir.graph import Attr, Node
from compiler.ir.proto import default
from compiler.ir.types import AnyArray, Tensor, TensorType


@dataclass(frozen=True, slots=True)
class In:
    """Address of a value that the call reads, `offset` bytes in. 128 bytes behind it may be read, never written.

    piece: how many bytes of it the items of the call's range need that go together, if they follow each other: the
    i-th of these groups needs those from i * piece to (i + 1) * piece, if there are so many, and no others. Else 0.
    """

    value: str
    offset: int = 0
    piece: int = 0


@dataclass(frozen=True, slots=True)
class Out:
    """Address of a value that the call writes. A value is written whole by the calls of its node, in any order.

    piece: as of `In`, how many bytes are written by the items that go together.
    """

    value: str
    offset: int = 0
    piece: int = 0


@dataclass(frozen=True, slots=True)
class Temp:
    """Address of scratch memory that all calls of this lowering and all threads share, named by `key`.

    nbytes must be the same wherever the key is used. writes: whether this call writes it (it may read it either way).
    """

    key: str
    nbytes: int
    writes: bool = True


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory of each thread's own, `nbytes` for one. Only as the last argument, to a kernel's parameter `scratch`."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Words:
    """Address of constant int64 words: extents, strides, tables of offsets."""

    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """Address of a constant tensor."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Listing:
    """Address of words that hold these arguments: for kernels that work on a list of values."""

    items: tuple[In | Out | int, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A float as an argument: the bits of a float64 (`f64_of_bits` in the kernel; float32(...) of it where needed)."""

    value: float


@dataclass(frozen=True, slots=True)
class Status:
    """Address of the status word, for a kernel that checks indices: store `code - i` there with `atomic_max`.

    i is the number of the first element that is wrong; 0 if it is about no element. Only in calls with `check=True`,
    which write nothing else but may read any value.
    """

    what: str
    """What is wrong, for the user: 'label out of range [0, 10)'."""
    value: str = ""
    """The value that element i is of."""


@dataclass(frozen=True, slots=True)
class Peek:
    """Address of the status word, for a kernel that only looks whether something is wrong already; 0: no check yet."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Address and number of the words that change with each iteration of a loop (two parameters of the kernel).

    A pair for each: the address of the word, which holds an address, and by how many bytes it moves. cycle: the loop.
    """

    cycle: str


Arg = In | Out | Temp | Scratch | Words | Data | Listing | Number | int | Status | Peek | Moves


@dataclass(frozen=True)
class Call:
    """One kernel on [0, n) of its outer axis. args: the kernel's parameters after lo and hi.

    together: of how many items the arguments tell what they touch: see `In`.
    check: the call only tests its inputs and reports through the status word; all checks run before state is written.
    For a Status argument the kernel gets two words: the address and the code to store; for Moves address and number.
    """

    kernel: Kernel
    n: int
    args: tuple[Arg, ...]
    check: bool = False
    together: int = 1

    def __post_init__(self) -> None:
        given = sum(2 if isinstance(a, Status | Moves) else 1 for a in self.args)
        if given != self.kernel.nargs - 2:
            raise TypeError(f"kernel {self.kernel.name} takes {self.kernel.nargs - 2} arguments, not {given}")


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a dense row-major tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@dataclass(frozen=True)
class Joint:
    """Elementwise work that the kernel of a node does on its way: see `join`.

    The kernel's argument for the node's first result, or first operand, is then the address of `memory`. Where it would
    write element `at + i` of the result it calls `first(value, memory, at, i, channel)`. Where it would read `count`
    elements of the operand it calls `first(memory, at, count, channel)`, the second time `again`, which gives their
    address. channel: of the element; of the first element at hand, if there are no spatial axes. A reduction reads its
    operand once: it calls `first(memory, room, at, count)`, which may put the elements into the kernel's `room`.
    """

    memory: Listing
    first: Any
    again: Any


@dataclass(frozen=True)
class Site:
    """A node to lower, with the types of its operands and what is known of them."""

    node: Node
    types: Mapping[str, TensorType]
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    """Inputs that are the same in all iterations of the loop around: a call that only packs them runs once."""

    given_strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of inputs that are no dense tensors; only ops in `strides.FOLLOWING` get any."""

    joint: Joint | None = None
    """Only ops in `join.BEHIND`, `join.BEFORE` and `join.REDUCTIONS` get one."""

    def strides(self, i: int) -> tuple[int, ...]:
        """Elements from index to index of each axis of the i-th input."""
        return self.given_strides.get(self.node.inputs[i]) or contiguous(self.type(i).shape)

    def type(self, i: int) -> TensorType:
        """Type of the i-th input, which must be present."""
        return self.types[self.node.inputs[i]]

    def has(self, i: int) -> bool:
        """Whether the i-th input is present."""
        return bool(self.node.input(i))

    def out(self, i: int = 0) -> TensorType:
        """Type of the i-th output, which must be present."""
        return self.types[self.node.outputs[i]]

    def attr(self, name: str, otherwise: Attr = None) -> Attr:
        """An attribute, or the schema's default, or `otherwise`."""
        if name in self.node.attrs:
            return self.node.attrs[name]
        d = default(self.node.op, name)
        return otherwise if d is None else d

    def constant(self, i: int) -> AnyArray | None:
        """Value of the i-th input if it is a compile-time constant (axes, shapes, ...), else None."""
        t = self.constants.get(self.node.input(i))
        return None if t is None else t.array

    def ints(self, i: int) -> tuple[int, ...] | None:
        """A constant input as integers; None if it is absent or no constant."""
        a = self.constant(i)
        return None if a is None else tuple(int(v) for v in np.asarray(a).reshape(-1))

    def is_fixed(self, i: int) -> bool:
        """Whether the i-th input is the same in all iterations of a loop around the node."""
        return self.node.input(i) in self.fixed

    def read(self, i: int, offset: int = 0, piece: int = 0) -> In:
        """The i-th input as an argument, from `offset` bytes on; piece: as of `In`."""
        return In(self.node.inputs[i], offset, piece)

    def write(self, i: int = 0, offset: int = 0, piece: int = 0) -> Out:
        """The i-th output as an argument, from `offset` bytes on; piece: as of `In`."""
        return Out(self.node.outputs[i], offset, piece)

    def in_pieces(self, n: int, together: int = 1) -> tuple[In, Out]:
        """The first input and output as arguments, each of n equal pieces, of which items need some together."""
        x, y = (t.nbytes // max(1, n) * together for t in (self.type(0), self.out()))
        return self.read(0, piece=x), self.write(piece=y)

    def write_or_drop(self, i: int, t: TensorType) -> Out | Temp:
        """The i-th output, of type t, as an argument; where it is absent, memory that nobody reads."""
        name = self.node.output(i)
        return Out(name) if name else Temp(f"output {i}", t.nbytes)


Lowering = Callable[[Site], list[Call]]

LOWERINGS: dict[str, Lowering] = {}
"""Op -> its lowering. Elementwise ops and views are not here: see `elementwise` and `views`."""


def lowers(*ops: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering."""

    def register(f: Lowering) -> Lowering:
        LOWERINGS.update((op, f) for op in ops)
        return f

    return register
