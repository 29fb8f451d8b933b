"""One compiled graph with its memory: copy inputs in, run, look at the status, copy outputs out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from compiler.errors import RefusedError
from compiler.runtime.attempt import Attempt, make_attempt, no_attempt, packed
from compiler.runtime.layout import ARENA, BITS, CONST, STATE, Layout, Slot, refusal
from compiler.runtime.measured import Measured
from compiler.runtime.memory import Array, Block
from compiler.runtime.threads import Pool, alone
from compiler.runtime.turn import Turn

Watch = Callable[[Callable[[], None], Sequence[tuple[int, int]]], Callable[[], None]]
"""Makes of what runs code, and the [start, end) ranges of its memory, what also raises if it touches any other."""


@dataclass(frozen=True, eq=False)
class Code:
    """A graph in machine code.

    address: of `void step(int64 table, int64 thread, int64 threads)`. const: bytes of the const block. keep:
    whatever must outlive the code. watch: of code that tests its accesses.
    """

    layout: Layout
    address: int
    const: Array
    keep: object = None
    watch: Watch | None = None


class Executable:
    """Runs the native function at `address` over an arena and a state block, both of which others may share.

    `run` is neither thread-safe nor reentrant: its caller has the turn, which `attempt` takes itself. `keep` is
    whatever must outlive the code. Nothing in the arena is kept from one run to the next; without one it gets its own,
    and likewise with the turn. watch: see `Code`.
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
        turn: Turn | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.layout, self.address, self.pool, self._keep = layout, address, pool, keep
        self._turn, self._watch = turn or Turn(), watch
        self.state = state
        self._arena = Block(layout.arena_bytes, "the step's arena") if arena is None else arena
        self._const = Block.of(const, "constants")
        self._table = layout.table(self._arena.address, state.address, self._const.address)
        self._blocks = {ARENA: self._arena, STATE: state, CONST: self._const}
        self._inputs = [(s.name, self._view(s)) for s in layout.inputs]
        self._outputs = [(s.name, self._view(s)) for s in layout.outputs]
        self._status = ctypes.c_int64.from_address(self._arena.address + layout.status)
        table = self._table.ctypes.data
        single, together = alone(address, table, layout.brief), partial(pool.run, address, table)
        if pool.threads == 1 or layout.brief:
            self._runs_by(single)
        else:
            self._runs_by(Measured(single, together, self._status, self._runs_by) if pool.measured else together)

    def _runs_by(self, run: Callable[[], None]) -> None:
        if self._watch is not None:
            memory: list[Array] = [*(b.bytes for b in self._blocks.values()), self._table]
            run = self._watch(run, [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in memory])
        self._run = run
        partly = any(s.dtype in BITS for s in self.layout.inputs)  # not any byte is an element
        word = self._arena.bytes[self.layout.status :][:8].view(np.int64).reshape(())
        status = word if self.layout.messages else None
        whole = packed(self.layout.inputs, self._arena)
        made = make_attempt(self._inputs, self._outputs, run, status, self._turn, whole)
        self.attempt: Attempt = no_attempt if partly else made
        """`run`, if these are the inputs, in order and all right; else None. See `make_attempt`."""

    def _view(self, slot: Slot) -> Array:
        return self._blocks[slot.block].view(slot)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, the caller's to keep. feeds: all inputs, of their types and shapes.

        RefusedError: an index was out of range; the state is unchanged.
        """
        for name, view in self._inputs:
            view[...] = feeds[name]
        status = self._status
        status.value = 0
        self._run()
        if refused := status.value:
            status.value = 0  # it is the word of all who share the arena
            raise self._refused(refused, feeds)
        return {name: view.copy() for name, view in self._outputs}

    def _refused(self, status: int, feeds: Mapping[str, Array]) -> RefusedError:
        """What a status says, with the element of an input that it is about; the arena may have lost that by now."""
        number, element = refusal(status)
        message = self.layout.messages[number]
        if not message.input:
            return RefusedError(str(message))
        data = feeds[message.input]
        index = tuple(int(i) for i in np.unravel_index(element, data.shape))
        return RefusedError(message.located(), message.input, index, data[index].item())
