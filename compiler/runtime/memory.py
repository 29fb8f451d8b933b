"""Aligned blocks of memory and the arrays in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import NoMemoryError
from compiler.runtime.layout import ALIGNMENT, Slot

Array = npt.NDArray[Any]


class Block:
    """`nbytes` zeroed bytes at an aligned address; owns them."""

    def __init__(self, nbytes: int, what: str = "memory") -> None:
        try:
            whole = np.zeros(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as e:
            raise NoMemoryError(f"{what} needs {nbytes / 1e6:.0f} MB, which this machine does not give") from e
        start = -whole.ctypes.data % ALIGNMENT
        self.bytes: npt.NDArray[np.uint8] = whole[start : start + nbytes]
        self.address: int = self.bytes.ctypes.data

    @classmethod
    def of(cls, contents: Array, what: str = "memory") -> Block:
        """A block of these bytes: `contents` itself if it is aligned (and then nobody may write to it)."""
        if contents.ctypes.data % ALIGNMENT == 0 and contents.flags.c_contiguous:
            block = cls.__new__(cls)
            block.bytes, block.address = contents, contents.ctypes.data
            return block
        block = cls(contents.nbytes, what)
        block.bytes[:] = contents
        return block

    def view(self, slot: Slot) -> Array:
        """The array of a slot: writable, and live as long as anyone holds it."""
        return self.bytes[slot.offset : slot.offset + slot.nbytes].view(slot.numpy).reshape(slot.shape)
