"""The native layer: kernels written in Python over raw memory, compiled by LLVM to one object each.

    from compiler.codegen.native import kernel, f32, native

    @kernel
    def scale(lo: int, hi: int, src: int, dst: int, factor: int) -> None:
        s, d, q = f32(src + 4 * lo, 0), f32(dst + 4 * lo, 1), f32_of_bits(factor)
        for i in range(hi - lo):
            d[i] = s[i] * q

    native(scale)(0, n, x.ctypes.data, y.ctypes.data, bits_of(0.5, "f32"))

**Kernels** take int64 arguments only and return nothing. The first two are the half-open range of the outer axis.
Rebase pointers at lo and loop from 0, as above: a signed `range(lo, hi)` over the index itself stays scalar. Kernels
call each other by symbol (never inlined); a `@inline` function becomes part of its caller. Nothing can raise,
allocate or print. A kernel sees numbers, strings, tuples, kernels, primitives, @inline functions and numpy/numba/math
names from its globals and enclosing scopes; each is part of its symbol `onnxc_<name>_<hash>`. So kernels can be made
by factories, `def make_copy(dtype): ptr, size = pointer(dtype), ITEMSIZE[dtype]; @kernel def copy...; return copy`, or
from text: `Kernel.from_source(name, text, namespace)`. `kernel.closure()`: it and its callees, callees first.

**Memory.** `f32(addr, k)` (f64 f16 bf16 i8 .. i64 u8 .. u64 boolean; `pointer("f32")` by name) is a typed C pointer.
k is a literal number, 0 to 23, of the buffer it points into: pointers with different numbers must never overlap,
pointers into one buffer share a number. f16 and bf16 load as float32 and round to nearest even when stored. boolean is
one byte: loads give a boolean (byte != 0), stores write 0 or 1; u8 over the same memory gives numbers.
`make_tile(n, dtype)` -> `tile()` -> address of n elements on the stack.

**Types are Numba's.** A float literal is float64 and makes float32 operands float64: use np.float32 constants from
outside (`ZERO = np.float32(0)`). Small integers compute in int64 and wrap when stored; int64 with uint64 becomes
float64, so keep to one of them. `float32(x)`, `int32(x)` (from numba) convert. `max(x, ZERO)` shows a NaN of x,
`max(ZERO, x)` hides it; `maximum`/`minimum` always show one. Integer `//` and `%` by zero give 0, but -2**63 // -1
traps: `int_div`, `int_mod` and their relatives do not.

**Floating point**: contract and nsz only. `@kernel(reassoc=True)` lets sums be reordered into vector lanes: only for
loops whose trip count does not depend on how work is split.

**Math** (`from compiler.codegen.native import math`): exp, log, tanh, erf, sigmoid, softplus, expm1, log1p, in `trig`
sin, cos, tan, in `power` power: for float32 they vectorize, for float64 they call libm; isnan, isinf; the rest (sqrt,
asin, floor, rint, ...) comes from numpy.
`convert("i32")(x)` is ONNX's Cast; floats of at most 8 bits, which load as their codes, have `narrow`. `int_add`,
`int_mul`, `int_shl`, ... keep the operands' type and wrap; Numba's own operators on int64 leave overflow undefined.

**Micro kernels** (vector.py): `tile_for("f32")` is (mr, nv, vl) of the register tile; `make_micro("f32")` gives
`micro(a, rsa, csa, b, ldb, k, c, ldc)`; options take offsets of a and b from tables and accumulate; `make_micro_add`
adds a matrix at the end, `make_micro_edge` also leaves out rows and columns of the tile that are not there.
`make_dots("f32", columns)` gives scalar products of rows;
`make_transpose(size)` gives `block(src, lds, dst, ldd)` over `transpose_block(size)` rows and columns;
`make_transpose_edge` takes how many rows there are.

**Building**: `compile_objects(kernels, target, jobs)` -> objects (cached by content), `load(kernels or objects)` ->
{symbol: address}, `shared_library(objects, {name: symbol}, path, cc)`, `native(kernel)` -> a Python function.
`optimized_ir(kernel)` and `assembly(kernel)` show what became of it. `with guarded(arrays...) as guard` builds checked
kernels and counts what they touch outside those arrays (guard.violations, guard.first).
Environment: ONNXC_CACHE (directory), ONNXC_CACHE_SIZE (MB), ONNXC_CHECKED=1 (test every access: steps bring `watched`,
what `native` gives runs within `guarded` only), ONNXC_PLAIN=1 (`native` gives ordinary Python).
"""

from compiler.codegen.native.build import assembly, compile_objects, optimized_ir, shared_library
from compiler.codegen.native.convert import convert
from compiler.codegen.native.dots import make_dots
from compiler.codegen.native.dtypes import DTYPES, ITEMSIZE, Dtype, dtype
from compiler.codegen.native.engine import load, native
from compiler.codegen.native.guard import Guard, guarded, watched
from compiler.codegen.native.inline import ByDtype, Inline, inline
from compiler.codegen.native.integers import (
    int_add,
    int_and,
    int_div,
    int_floordiv,
    int_mod,
    int_mul,
    int_or,
    int_rem,
    int_shl,
    int_shr,
    int_sub,
    int_xor,
)
from compiler.codegen.native.kernel import Kernel, kernel
from compiler.codegen.native.math import isinf, isnan, maximum, minimum
from compiler.codegen.native.memory import (
    bf16,
    bits_of,
    boolean,
    f16,
    f32,
    f32_of_bits,
    f64,
    f64_of_bits,
    i8,
    i16,
    i32,
    i64,
    make_tile,
    pointer,
    u8,
    u16,
    u32,
    u64,
)
from compiler.codegen.native.modes import checking
from compiler.codegen.native.pool import Pool, make_pool
from compiler.codegen.native.primitive import Primitive, primitive
from compiler.codegen.native.target import Target, building, per_target
from compiler.codegen.native.threads import atomic_add, atomic_load, atomic_max, atomic_store, barrier, share
from compiler.codegen.native.vector import (
    TILED,
    Tile,
    make_micro,
    make_micro_add,
    make_micro_edge,
    make_transpose,
    make_transpose_edge,
    tile_for,
    transpose_block,
)

__all__ = [
    "DTYPES",
    "ITEMSIZE",
    "TILED",
    "ByDtype",
    "Dtype",
    "Guard",
    "Inline",
    "Kernel",
    "Pool",
    "Primitive",
    "Target",
    "Tile",
    "assembly",
    "atomic_add",
    "atomic_load",
    "atomic_max",
    "atomic_store",
    "barrier",
    "bf16",
    "bits_of",
    "boolean",
    "building",
    "checking",
    "compile_objects",
    "convert",
    "dtype",
    "f16",
    "f32",
    "f32_of_bits",
    "f64",
    "f64_of_bits",
    "guarded",
    "i8",
    "i16",
    "i32",
    "i64",
    "inline",
    "int_add",
    "int_and",
    "int_div",
    "int_floordiv",
    "int_mod",
    "int_mul",
    "int_or",
    "int_rem",
    "int_shl",
    "int_shr",
    "int_sub",
    "int_xor",
    "isinf",
    "isnan",
    "kernel",
    "load",
    "make_dots",
    "make_micro",
    "make_micro_add",
    "make_micro_edge",
    "make_pool",
    "make_tile",
    "make_transpose",
    "make_transpose_edge",
    "maximum",
    "minimum",
    "native",
    "optimized_ir",
    "per_target",
    "pointer",
    "primitive",
    "share",
    "shared_library",
    "tile_for",
    "transpose_block",
    "u8",
    "u16",
    "u32",
    "u64",
    "watched",
]
