"""Checked builds: every access of a kernel is tested against the memory it was given.

A checked kernel calls `access` before each load and store. It looks the address up in a table of regions (a control
block, see below) and a bad access is counted, the first one recorded, and made harmless: the load reads zeros, the
store goes nowhere. Without a table every access is bad. `guard.Guard` is the way to use it from Python.

Control block, int64 words: violations, first address, first kind (LOAD or STORE), first size, its kernel (the first 60
bits of its symbol's hash), regions, tiles so far; from word REGIONS_AT on (start, end) of MOST_REGIONS regions, then of
MOST_TILES stack tiles. A load may reach SLACK bytes beyond a region's end, a store may not.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native import modes
from compiler.codegen.native.kernel import kernel
from compiler.codegen.native.primitive import I64, primitive
from compiler.codegen.native.threads import atomic_add, atomic_load, atomic_store

LOAD, STORE, TILE, INSTALL = 0, 1, 2, 3
SLACK = 128
VIOLATIONS, ADDRESS, KIND, SIZE, KERNEL, REGIONS, TILES, REGIONS_AT = 0, 8, 16, 24, 32, 40, 48, 128
MOST_REGIONS, MOST_TILES = 4096, 1024
TILES_AT = REGIONS_AT + 16 * MOST_REGIONS
BLOCK_BYTES = TILES_AT + 16 * MOST_TILES


def _cell_lowering(tc: Any) -> Any:
    def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
        name = "onnxc_checked_block"
        cell = b.module.globals.get(name)
        if cell is None:
            cell = cgutils.add_global_variable(b.module, I64, name)
            cell.initializer = I64(0)
        return b.ptrtoint(cell, I64)

    return types.int64(), gen


@primitive(_cell_lowering)
def _cell() -> int:
    """Address of the word that holds the control block's address."""
    raise NotImplementedError("checks run in compiled code only")


@kernel
def access(kind: int, address: int, size: int, out: int, who: int) -> None:
    """Allow a LOAD or STORE (1 or 0 to `out`), admit a TILE of the stack, or INSTALL the control block at `address`."""
    if kind == INSTALL:
        atomic_store(_cell(), address)
        return
    block = atomic_load(_cell())
    allowed = 0
    if block != 0:
        tiles = min(atomic_load(block + TILES), MOST_TILES)
        if kind == TILE:
            at = -1
            for i in range(tiles):
                if atomic_load(block + TILES_AT + 16 * i) == address:
                    at = i
            if at < 0:
                at = atomic_add(block + TILES, 1) % MOST_TILES
            atomic_store(block + TILES_AT + 16 * at, address)
            atomic_store(block + TILES_AT + 16 * at + 8, address + size)
            return
        slack = SLACK if kind == LOAD else 0
        for i in range(atomic_load(block + REGIONS)):
            at = block + REGIONS_AT + 16 * i
            if atomic_load(at) <= address and address + size <= atomic_load(at + 8) + slack:
                allowed = 1
        for i in range(tiles):
            at = block + TILES_AT + 16 * i
            if atomic_load(at) <= address and address + size <= atomic_load(at + 8) + slack:
                allowed = 1
        if allowed == 0 and atomic_add(block + VIOLATIONS, 1) == 0:
            atomic_store(block + ADDRESS, address)
            atomic_store(block + KIND, kind)
            atomic_store(block + SIZE, size)
            atomic_store(block + KERNEL, who)
    if kind != TILE:
        atomic_store(out, allowed)


modes.checker = access


def _access(b: Any, kind: int, address: Any, size: int, out: Any) -> None:
    f = cgutils.get_or_insert_function(b.module, ir.FunctionType(ir.VoidType(), [I64] * 5), access.symbol)
    b.call(f, [I64(kind), address, I64(size), out, I64(modes.lowering.current)])


def _allowed(b: Any, kind: int, at: Any, storage: Any, size: int) -> Any:
    """`at` if the access is allowed, else a spare zero of that type."""
    with b.goto_entry_block():
        out, spare = b.alloca(I64), b.alloca(storage)
    b.store(ir.Constant(storage, None), spare)
    _access(b, kind, b.ptrtoint(at, I64), size, b.ptrtoint(out, I64))
    return b.select(b.icmp_signed("!=", b.load(out), I64(0)), at, spare)


def load(b: Any, at: Any, storage: Any, size: int) -> Any:
    """A tested load of `size` bytes as LLVM type `storage`."""
    value = b.load(_allowed(b, LOAD, at, storage, size))
    value.align = 1
    return value


def store(b: Any, value: Any, at: Any, size: int) -> None:
    """A tested store of `size` bytes."""
    b.store(value, _allowed(b, STORE, at, value.type, size)).align = 1


def tile(b: Any, address: Any, size: int) -> None:
    """Admit a tile of the stack."""
    _access(b, TILE, address, size, I64(0))
