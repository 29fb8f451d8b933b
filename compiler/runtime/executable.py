"""One compiled graph with its memory: copy inputs in, run, look at the status, copy outputs out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.runtime.layout import ARENA, CONST, STATE, Layout, Slot
from compiler.runtime.memory import Array, Block
from compiler.runtime.threads import Pool


class Executable:
    """Runs the native function at `address` over an arena of its own and a state block that others may share.

    Neither thread-safe nor reentrant: the caller holds a lock. `keep` is whatever must outlive the code.
    """

    def __init__(self, layout: Layout, address: int, const: Array, state: Block, pool: Pool, keep: object = None) -> None:
        self.layout, self.address, self.pool, self._keep = layout, address, pool, keep
        self.state = state
        self._arena = Block(layout.arena_bytes, "the step's arena")
        self._const = Block(layout.const_bytes, "constants")
        self._const.bytes[:] = const
        self._table = layout.table(self._arena.address, state.address, self._const.address)
        self._blocks = {ARENA: self._arena, STATE: state, CONST: self._const}
        self._inputs = [(s, self._view(s)) for s in layout.inputs]
        self._outputs = [(s, self._view(s)) for s in layout.outputs]
        self._status = self._arena.bytes[layout.status : layout.status + 8].view(np.int64)

    def _view(self, slot: Slot) -> Array:
        return self._blocks[slot.block].view(slot)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, the caller's to keep. InputError: an index was out of range; the state is unchanged."""
        for slot, view in self._inputs:
            view[...] = feeds[slot.name]
        self._status[0] = 0
        self.pool.run(self.address, self._table.ctypes.data)
        if code := int(self._status[0]):
            raise InputError(f"{self.layout.messages[code - 1]}; nothing was updated: correct the input and call again")
        return {slot.name: view.copy() for slot, view in self._outputs}


def checked(slot: Slot, value: Any) -> Array:
    """`value` as an array of the slot's type. InputError: another dtype or shape.

    Python numbers and lists take the slot's dtype where that loses nothing of their kind; arrays must have it.
    """
    if isinstance(value, (bool, int, float, list, tuple)):
        try:
            loose = np.asarray(value)
        except ValueError as e:
            raise InputError(f"input {slot.name!r}: {e}") from e
        if loose.size == 0 or np.can_cast(loose.dtype, slot.numpy, "same_kind") or (
            loose.dtype.kind in "iu" and slot.numpy.kind in "iuf"
        ):
            value = loose.astype(slot.numpy)
    array = np.asarray(value)
    if slot.dtype == "bf16" and array.dtype.name == "bfloat16":  # of ml_dtypes, which the runtime does not need
        array = array.view(np.uint16)
    if array.dtype != slot.numpy:
        raise InputError(
            f"input {slot.name!r} is {array.dtype}, the model takes {slot.numpy}: convert it, as with "
            f".astype({slot.numpy.name!r})"
        )
    if array.shape != slot.shape:
        raise InputError(f"input {slot.name!r} has shape {list(array.shape)}, the model takes {list(slot.shape)}")
    return array


def check_names(given: Mapping[str, Any], slots: Iterable[Slot], static: Iterable[str] = ()) -> None:
    """InputError if inputs are missing or unknown, all of them at once."""
    wanted = [*(s.name for s in slots), *static]
    missing = [n for n in wanted if n not in given]
    extra = [n for n in given if n not in wanted]
    if missing or extra:
        parts = [f"missing input {n!r}" for n in missing] + [f"unknown input {n!r}" for n in extra]
        raise InputError(f"{', '.join(parts)}; the inputs are {', '.join(map(repr, wanted)) or 'none'}")
