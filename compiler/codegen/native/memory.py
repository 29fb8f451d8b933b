"""Typed pointers over raw memory, stack tiles and bit patterns: what kernels touch memory with.

Memory is plain addresses (int64). `f32(addr, k)` is a pointer that indexes like C: `p[i]`, no bounds, negative i
reaches before addr, no reference count. k is a literal buffer number of this kernel: accesses through different
numbers are promised never to overlap, so LLVM vectorizes without run-time overlap checks. Break the promise and
results are wrong; two pointers into one buffer (in place, say) must share a number.
"""

import ctypes
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.extending import lower_builtin, models, register_model
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

from compiler.codegen.native import checked, modes
from compiler.codegen.native.dtypes import DTYPES, Dtype, dtype, numpy_dtype
from compiler.codegen.native.primitive import F32, F64, I8, I16, I32, I64, Primitive, primitive

BUFFERS = 24  # buffer numbers 0 .. 23


class Buffer(types.Type):
    """Numba's type of a pointer: element type and buffer number."""

    def __init__(self, element: Dtype, number: int) -> None:
        self.element, self.number = element, number
        super().__init__(f"Buffer({element.name}, {number})")


@register_model(Buffer)
class _BufferModel(models.PrimitiveModel):
    def __init__(self, manager: Any, t: Buffer) -> None:
        super().__init__(manager, t, t.element.storage.as_pointer())


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Buffer) and isinstance(args[1], types.Integer):
            return signature(args[0].element.value, args[0], types.intp)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Buffer) and isinstance(args[1], types.Integer):
            return signature(types.none, args[0], types.intp, args[0].element.value)
        return None


def mark(module: Any, access: Any, number: int) -> None:
    """Attach LLVM's scoped no-alias metadata to a load or store: in scope `number`, disjoint from all others."""
    domain = module.add_metadata([ir.MetaDataString(module, "onnxc")])
    scopes = [module.add_metadata([ir.MetaDataString(module, f"buffer {k}"), domain]) for k in range(BUFFERS)]
    access.set_metadata("alias.scope", module.add_metadata([scopes[number]]))
    access.set_metadata("noalias", module.add_metadata([*scopes[:number], *scopes[number + 1 :]]))


def loaded(b: Any, element: Dtype, raw: Any) -> Any:
    """Stored bits -> a kernel's value."""
    if element.name == "bool":
        return b.icmp_unsigned("!=", raw, I8(0))
    if element.name == "f16":
        return b.fpext(raw, F32)
    if element.name == "bf16":
        return b.bitcast(b.shl(b.zext(raw, I32), I32(16)), F32)
    return raw


def stored(b: Any, element: Dtype, value: Any) -> Any:
    """A kernel's value -> stored bits."""
    if element.name == "bool":
        return b.zext(value, I8)
    if element.name == "f16":
        return b.fptrunc(value, element.storage)
    if element.name == "bf16":  # round to nearest even; a NaN stays one (its top payload bit set)
        bits = b.bitcast(value, I32)
        odd = b.and_(b.lshr(bits, I32(16)), I32(1))
        rounded = b.lshr(b.add(bits, b.add(odd, I32(0x7FFF))), I32(16))
        quiet = b.or_(b.lshr(bits, I32(16)), I32(0x40))
        return b.trunc(b.select(b.fcmp_unordered("uno", value, value), quiet, rounded), I16)
    return value


@lower_builtin(operator.getitem, Buffer, types.Integer)
def _getitem(cx: Any, b: Any, sig: Any, args: Any) -> Any:
    element = sig.args[0].element
    at = b.gep(args[0], [args[1]])
    if modes.checked():
        return loaded(b, element, checked.load(b, at, element.storage, element.size))
    raw = b.load(at)
    raw.align = element.size
    mark(b.module, raw, sig.args[0].number)
    return loaded(b, element, raw)


@lower_builtin(operator.setitem, Buffer, types.Integer, types.Any)
def _setitem(cx: Any, b: Any, sig: Any, args: Any) -> Any:
    element = sig.args[0].element
    at, raw = b.gep(args[0], [args[1]]), stored(b, element, args[2])
    if modes.checked():
        checked.store(b, raw, at, element.size)
    else:
        access = b.store(raw, at)
        access.align = element.size
        mark(b.module, access, sig.args[0].number)
    return cx.get_dummy_value()


def bf16_bits(value: Any) -> int:
    """The bfloat16 nearest to a number (ties to even), as its 16 bits."""
    bits = int(np.float32(value).view(np.uint32))
    return bits >> 16 | 0x40 if np.isnan(value) else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16_value(bits: int) -> Any:
    """The float32 of a bfloat16's 16 bits."""
    return np.uint32(int(bits) << 16).view(np.float32)


class PlainPointer:
    """A pointer in ordinary Python: NumPy scalars over raw memory."""

    def __init__(self, address: int, name: str) -> None:
        self.address, self.name, self.dtype = int(address), name, numpy_dtype(name)

    def _bytes(self, i: int) -> Any:
        n = self.dtype.itemsize
        return (ctypes.c_char * n).from_address(self.address + int(i) * n)

    def __getitem__(self, i: int) -> Any:
        raw = np.frombuffer(self._bytes(i).raw, self.dtype)[0]
        if self.name == "bf16":
            return bf16_value(raw)
        return np.float32(raw) if self.name == "f16" else raw

    def __setitem__(self, i: int, value: Any) -> None:
        if self.name == "bf16":
            value = bf16_bits(value)
        with np.errstate(all="ignore"):
            self._bytes(i).raw = np.asarray(value).astype(self.dtype).tobytes()


def _make_pointer(name: str) -> Primitive[[int, int], PlainPointer]:
    element = dtype(name)

    def lowering(tc: Any, address: Any, number: Any) -> Any:
        if not isinstance(number, types.IntegerLiteral) or not 0 <= number.literal_value < BUFFERS:
            return None
        sig = Buffer(element, number.literal_value)(types.int64, number)
        return sig, lambda cx, b, s, a: b.inttoptr(a[0], cx.get_value_type(s.return_type))

    def pointer_(address: int, number: int) -> PlainPointer:
        return PlainPointer(address, name)

    pointer_.__name__ = pointer_.__qualname__ = name
    return primitive(lowering, literal=True)(pointer_)


_POINTERS = {name: _make_pointer(name) for name in DTYPES}


def pointer(name: str) -> Primitive[[int, int], PlainPointer]:
    """The pointer constructor of an element type: `pointer("f32")` is `f32`. KeyError: no such type."""
    return _POINTERS[dtype(name).name]


f32, f64, f16, bf16 = pointer("f32"), pointer("f64"), pointer("f16"), pointer("bf16")
i8, i16, i32, i64 = pointer("i8"), pointer("i16"), pointer("i32"), pointer("i64")
u8, u16, u32, u64, boolean = pointer("u8"), pointer("u16"), pointer("u32"), pointer("u64"), pointer("bool")


def make_tile(n: int, name: str = "f32") -> Primitive[[], int]:
    """tile() -> address of n elements on the stack, 64-byte aligned, with 128 bytes of slack for edge reads.

    Contents are undefined; one call site is one tile, however often it runs; it dies with the kernel's call.
    """
    size = n * dtype(name).size
    kept: list[Any] = []  # plain Python only

    def lowering(tc: Any) -> Any:
        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            with b.goto_entry_block():
                p = b.alloca(ir.ArrayType(I8, size + 128))
            p.align = 64
            address = b.ptrtoint(p, I64)
            if modes.checked():
                checked.tile(b, address, size)
            return address

        return types.int64(), gen

    def tile() -> int:
        memory = (ctypes.c_char * (size + 192))()
        kept.append(memory)
        return (ctypes.addressof(memory) + 63) // 64 * 64

    return primitive(lowering)(tile)


def _from_bits(storage: Any, value: Any) -> Callable[..., Any]:
    def lowering(tc: Any, bits: Any) -> Any:
        if not isinstance(bits, types.Integer):
            return None

        def gen(cx: Any, b: Any, s: Any, a: Any) -> Any:
            return b.bitcast(a[0] if storage is F64 else b.trunc(a[0], I32), storage)

        return value(types.int64), gen

    return lowering


@primitive(_from_bits(F64, types.float64))
def f64_of_bits(bits: int) -> Any:
    """The float64 whose bits an int64 argument carries."""
    return np.int64(bits).view(np.float64)


@primitive(_from_bits(F32, types.float32))
def f32_of_bits(bits: int) -> Any:
    """The float32 whose bits the low half of an int64 argument carries."""
    return np.uint32(bits & 0xFFFFFFFF).view(np.float32)


def bits_of(value: float, name: str) -> int:
    """The int64 that a kernel's `f32_of_bits` or `f64_of_bits` turns back into `value`."""
    if name == "f64":
        return int(np.float64(value).view(np.int64))
    return int(np.float32(value).view(np.int32))
