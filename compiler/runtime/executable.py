"""One compiled graph with its memory: copy inputs in, run, look at the status, copy outputs out."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import RefusedError
from compiler.runtime.layout import ARENA, BITS, CONST, STATE, Layout, Slot, refusal
from compiler.runtime.memory import Array, Block
from compiler.runtime.threads import Pool, alone


@dataclass(frozen=True, eq=False)
class Code:
    """A graph in machine code.

    address: of `void step(int64 table, int64 thread, int64 threads)`. const: bytes of the const block. keep:
    whatever must outlive the code.
    """

    layout: Layout
    address: int
    const: Array
    keep: object = None


class Executable:
    """Runs the native function at `address` over an arena and a state block, both of which others may share.

    Neither thread-safe nor reentrant: the caller holds a lock. `keep` is whatever must outlive the code. Nothing in the
    arena is kept from one run to the next; without one it gets its own.
    """

    def __init__(
        self,
        layout: Layout,
        address: int,
        const: Array,
        state: Block,
        pool: Pool,
        keep: object = None,
        arena: Block | None = None,
    ) -> None:
        self.layout, self.address, self.pool, self._keep = layout, address, pool, keep
        self.state = state
        self._arena = Block(layout.arena_bytes, "the step's arena") if arena is None else arena
        self._const = Block.of(const, "constants")
        self._table = layout.table(self._arena.address, state.address, self._const.address)
        self._blocks = {ARENA: self._arena, STATE: state, CONST: self._const}
        self._inputs = [(s.name, v, v.dtype, v.shape) for s in layout.inputs for v in [self._view(s)]]
        partial = any(s.dtype in BITS for s in layout.inputs)  # not any byte is an element
        self._count = -1 if partial else len(self._inputs)
        self._copies = [(s.name, self._view(s).copy) for s in layout.outputs]
        self._status = ctypes.c_int64.from_address(self._arena.address + layout.status)
        self._alone = alone(address, self._table.ctypes.data) if pool.threads == 1 else None

    def _view(self, slot: Slot) -> Array:
        return self._blocks[slot.block].view(slot)

    def attempt(self, feeds: Mapping[str, Any]) -> dict[str, Array] | None:
        """`run`, if these are the inputs: all, no others, as plain arrays of their types and shapes; None if not.

        What most calls take, so every nanosecond counts: tested and copied in one pass.
        """
        if len(feeds) != self._count:
            return None
        for name, view, dtype, shape in self._inputs:
            a = feeds.get(name)
            if type(a) is not np.ndarray or a.shape != shape or (a.dtype is not dtype and a.dtype != dtype):
                return None  # what is copied already is overwritten by the next run
            view[...] = a
        return self._step(feeds)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, the caller's to keep. feeds: all inputs, of their types and shapes.

        RefusedError: an index was out of range; the state is unchanged.
        """
        for name, view, _, _ in self._inputs:
            view[...] = feeds[name]
        return self._step(feeds)

    def _step(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        status = self._status
        status.value = 0
        if self._alone is not None:
            self._alone()
        else:
            self.pool.run(self.address, self._table.ctypes.data)
        if status.value:
            raise self._refused(status.value, feeds)
        outputs = {}
        for name, copy in self._copies:  # no comprehension, which is a call more
            outputs[name] = copy()
        return outputs

    def _refused(self, status: int, feeds: Mapping[str, Array]) -> RefusedError:
        """What a status says, with the element of an input that it is about; the arena may have lost that by now."""
        number, element = refusal(status)
        message, name = self.layout.messages[number], self.layout.checked[number]
        if not name:
            return RefusedError(message)
        index = tuple(int(i) for i in np.unravel_index(element, feeds[name].shape))
        return RefusedError(message, name, index, feeds[name][index].item())
