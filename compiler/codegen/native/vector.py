"""Register-level routines as LLVM vectors: the micro kernels of GEMM and convolution, and block transposes.

They name no target: LLVM splits or legalizes the vectors. Only the tile's size is chosen for one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native import checked, modes
from compiler.codegen.native.dtypes import dtype
from compiler.codegen.native.memory import PlainPointer
from compiler.codegen.native.primitive import I32, I64, Primitive, primitive, void
from compiler.codegen.native.target import Target


class Tile(NamedTuple):
    """A register tile: mr rows of nv vectors of vl elements."""

    mr: int
    nv: int
    vl: int

    @property
    def nr(self) -> int:
        """Columns."""
        return self.nv * self.vl


# mr*nv accumulators, nv vectors of b and one broadcast must fit the vector registers (32 of AVX-512 and NEON, 16 else),
# and mr addresses of rows the others: with 13 rows, LLVM keeps vectors on the stack, which halves the speed.
_F32_TILES = {"avx512": Tile(8, 2, 16), "avx2": Tile(6, 2, 8), "neon": Tile(6, 4, 4), "generic": Tile(6, 2, 4)}


TILED = ("f32", "f64")
"""Types that have tiles."""


def tile_for(name: str, target: Target | None = None) -> Tile:
    """The register tile of an element type ("f32" or "f64") on a target (default: what is built for)."""
    tile = _F32_TILES[(target or Target.current()).vectors]
    return {"f32": tile, "f64": tile._replace(vl=tile.vl // 2)}[name]


Micro = Primitive[[int, int, int, int, int, int, int, int], None]
MicroAdd = Primitive[[int, int, int, int, int, int, int, int, int, int], None]
MicroEdge = Primitive[[int, int, int, int, int, int, int, int, int, int, int, int], None]


def make_micro(
    name: str,
    tile: Tile | None = None,
    *,
    a_row_table: bool = False,
    a_col_table: bool = False,
    b_table: bool = False,
    accumulate: bool = False,
) -> Micro:
    """micro(a, rsa, csa, b, ldb, k, c, ldc): c[i*ldc + j] = sum over q < k of a[i*rsa + q*csa] * b[q*ldb + j].

    i < mr, j < nr of the tile (by default that of `tile_for`); offsets count elements; all of c is stored, and mr rows
    of a and nr columns of b are read, so edges need their own tile, memory to read, or a smaller mr.

    a_row_table: rsa is the address of mr int64 offsets instead, row i begins at a[rsa[i]]; a_col_table: csa is one of k
    offsets (a[... + csa[q]]); b_table: ldb is one of k offsets (b[ldb[q] + j]). accumulate: start from c instead of 0.

    Each element is one chain of multiply-adds (fused where the target can) in the order of q: its bits do not depend on
    the tile it falls in, nor on splitting k between calls that accumulate. k <= 0 stores zeros, or c as it was.
    """
    tile = tile or tile_for(name)
    generate, plain = _micro(name, tile, a_row_table, a_col_table, b_table, accumulate)
    mr, nr = tile.mr, tile.nr

    def lowering(tc: Any, a: Any, rsa: Any, csa: Any, b: Any, ldb: Any, k: Any, c: Any, ldc: Any) -> Any:
        return types.void(*[types.int64] * 8), generate

    def micro(a: int, rsa: int, csa: int, b: int, ldb: int, k: int, c: int, ldc: int) -> None:
        plain(a, rsa, csa, b, ldb, k, c, ldc, 0, 0, mr, nr)

    return primitive(lowering)(micro)


def make_micro_add(name: str, tile: Tile | None = None, *, a_row_table: bool = False) -> MicroAdd:
    """micro(a, rsa, csa, b, ldb, k, c, ldc, d, ldd): as `make_micro`, but c[i*ldc + j] is that sum + d[i*ldd + j].

    d = 0: nothing is added.
    """
    tile = tile or tile_for(name)
    generate, plain = _micro(name, tile, a_row_table, False, False, False, term=True)
    mr, nr = tile.mr, tile.nr

    def lowering(
        tc: Any, a: Any, rsa: Any, csa: Any, b: Any, ldb: Any, k: Any, c: Any, ldc: Any, d: Any, ldd: Any
    ) -> Any:
        return types.void(*[types.int64] * 10), generate

    def micro(a: int, rsa: int, csa: int, b: int, ldb: int, k: int, c: int, ldc: int, d: int, ldd: int) -> None:
        plain(a, rsa, csa, b, ldb, k, c, ldc, d, ldd, mr, nr)

    return primitive(lowering)(micro)


def make_micro_edge(name: str, tile: Tile) -> MicroEdge:
    """micro(a, rsa, csa, b, ldb, k, c, ldc, d, ldd, ni, nj): as `make_micro_add`, of ni > 0 rows and nj > 0 columns.

    Rows of a, c and d from ni on are not touched, nor are columns of c from nj on; those of b and d may be read. More
    rows or columns than the tile has are as many as it has.
    """
    generate, plain = _micro(name, tile, False, False, False, False, term=True, edge=True)

    def lowering(
        tc: Any, a: Any, rsa: Any, csa: Any, b: Any, ldb: Any, k: Any, c: Any, ldc: Any, d: Any, ldd: Any,
        ni: Any, nj: Any,
    ) -> Any:  # fmt: skip
        return types.void(*[types.int64] * 12), generate

    return primitive(lowering)(plain)


def _micro(
    name: str,
    tile: Tile,
    a_row_table: bool,
    a_col_table: bool,
    b_table: bool,
    accumulate: bool,
    term: bool = False,
    edge: bool = False,
) -> tuple[Any, Callable[[int, int, int, int, int, int, int, int, int, int, int, int], None]]:
    """The LLVM code of a micro kernel, and its plain Python. term: with the operands d and ldd; edge: and ni and nj."""
    mr, nv, vl = tile
    element = dtype(name)
    scalar, size = element.storage, element.size
    vec, zero = ir.VectorType(scalar, vl), ir.Constant(ir.VectorType(scalar, vl), [0.0] * vl)
    pointer, table = scalar.as_pointer(), I64.as_pointer()

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        a_at, rsa, csa, b_at, ldb, k, c_at, ldc = args[:8]
        a0, b0, c0 = (b.inttoptr(p, pointer) for p in (a_at, b_at, c_at))
        fma = cgutils.get_or_insert_function(
            b.module, ir.FunctionType(vec, [vec] * 3), f"llvm.fmuladd.v{vl}f{8 * size}"
        )  # fused where the target can

        def offset(base: Any, i: Any) -> Any:
            return load(b, b.gep(b.inttoptr(base, table), [i]), I64, 8)

        def number(i: int) -> Any:
            """Of a row to read, for row i: the last one in place of those that are not there."""
            return _least(b, I64(i), b.sub(args[10], I64(1))) if edge else I64(i)

        rows = [b.gep(a0, [offset(rsa, I64(i)) if a_row_table else b.mul(rsa, number(i))]) for i in range(mr)]
        to = [[b.gep(c0, [b.add(b.mul(ldc, I64(i)), I64(j * vl))]) for j in range(nv)] for i in range(mr)]
        start = [[load(b, to[i][j], vec, size) if accumulate else zero for j in range(nv)] for i in range(mr)]
        before, loop, done = b.block, b.append_basic_block("k"), b.append_basic_block("done")
        b.cbranch(b.icmp_signed(">", k, I64(0)), loop, done)

        b.position_at_end(loop)
        q, col, row = b.phi(I64), b.phi(I64), b.phi(I64)
        acc = [[b.phi(vec) for _ in range(nv)] for _ in range(mr)]
        at = offset(csa, q) if a_col_table else col
        line = b.gep(b0, [offset(ldb, q) if b_table else row])
        right = [load(b, b.gep(line, [I64(j * vl)]), vec, size) for j in range(nv)]
        new = []
        for i in range(mr):
            left = splat(b, load(b, b.gep(rows[i], [at]), scalar, size), vec)
            new.append([b.call(fma, [left, right[j], acc[i][j]]) for j in range(nv)])
        here = b.block  # checked loads make blocks of their own
        nexts = b.add(q, I64(1)), b.add(col, csa), b.add(row, ldb)
        for phi, n in zip((q, col, row), nexts, strict=True):
            phi.add_incoming(I64(0), before)
            phi.add_incoming(n, here)
        for i in range(mr):
            for j in range(nv):
                acc[i][j].add_incoming(start[i][j], before)
                acc[i][j].add_incoming(new[i][j], here)
        keep_rolled(b.module, b.cbranch(b.icmp_signed("<", nexts[0], k), loop, done))

        b.position_at_end(done)
        out = [[b.phi(vec) for _ in range(nv)] for _ in range(mr)]
        for i in range(mr):
            for j in range(nv):
                out[i][j].add_incoming(start[i][j], before)
                out[i][j].add_incoming(new[i][j], here)
        if edge:
            _store_edge(b, out, to, size, args[8:])
        elif term:
            d, ldd = args[8:]
            with b.if_else(b.icmp_signed("!=", d, I64(0))) as (add, leave):
                with add:
                    d0 = b.inttoptr(d, pointer)
                    for i in range(mr):
                        more = [b.gep(d0, [b.add(b.mul(ldd, I64(i)), I64(j * vl))]) for j in range(nv)]
                        for j in range(nv):
                            store(b, b.fadd(out[i][j], load(b, more[j], vec, size)), to[i][j], size)
                with leave:
                    _store_tile(b, out, to, size)
        else:
            _store_tile(b, out, to, size)
        return void(cx)

    def plain(
        a: int, rsa: int, csa: int, b: int, ldb: int, k: int, c: int, ldc: int, d: int, ldd: int, ni: int, nj: int
    ) -> None:
        ap, bp, cp = (PlainPointer(p, name) for p in (a, b, c))
        number = np.float64 if name == "f64" else np.float32
        for i in range(min(ni, mr)):
            for j in range(min(nj, nv * vl)):
                total = float(cp[i * ldc + j]) if accumulate else 0.0
                for q in range(k):
                    x = (PlainPointer(rsa, "i64")[i] if a_row_table else i * rsa) + (
                        PlainPointer(csa, "i64")[q] if a_col_table else q * csa
                    )
                    y = PlainPointer(ldb, "i64")[q] if b_table else q * ldb
                    total = float(number(total + float(ap[x]) * float(bp[y + j])))
                cp[i * ldc + j] = number(total) + PlainPointer(d, name)[i * ldd + j] if d else total

    return generate, plain


def _store_tile(b: Any, values: list[list[Any]], to: list[list[Any]], size: int) -> None:
    for row, places in zip(values, to, strict=True):
        for value, at in zip(row, places, strict=True):
            store(b, value, at, size)


def _store_edge(b: Any, values: list[list[Any]], to: list[list[Any]], size: int, args: Any) -> None:
    """Store ni rows and nj columns of a tile, d being added if there is one."""
    d, ldd, ni, nj = args
    vl = values[0][0].type.count
    for i, (row, places) in enumerate(zip(values, to, strict=True)):
        with b.if_then(b.icmp_signed("<", I64(i), ni)):
            before = b.block
            with b.if_then(b.icmp_signed("!=", d, I64(0))):
                at = b.gep(b.inttoptr(d, places[0].type), [b.mul(ldd, I64(i))])
                more = [load(b, b.gep(at, [I64(j * vl)]), v.type, size) for j, v in enumerate(row)]
                added = [b.fadd(v, m) for v, m in zip(row, more, strict=True)]
                here = b.block
            row = [either(b, v, before, s, here) for v, s in zip(row, added, strict=True)]
            for j, (value, at) in enumerate(zip(row, places, strict=True)):
                left = b.sub(nj, I64(j * vl))
                with b.if_else(b.icmp_signed(">=", left, I64(vl))) as (whole, part):
                    with whole:
                        store(b, value, at, size)
                    with part:
                        _store_lanes(b, value, at, size, left)


def _store_lanes(b: Any, value: Any, at: Any, size: int, n: Any) -> None:
    """Store the first n lanes of a vector, n less than all of them; none if n is negative."""
    n = b.select(b.icmp_signed(">", n, I64(0)), n, I64(0))
    width = value.type.count // 2
    while width:  # a power of two at a time; what is left moves to the front
        first, rest = (shuffle(b, value, value, list(range(i, i + width))) for i in (0, width))
        behind, before = b.gep(at, [I64(width)]), b.block
        with b.if_then(b.icmp_signed("!=", b.and_(n, I64(width)), I64(0))):
            store(b, first, at, size)
            here = b.block
        value, at = either(b, first, before, rest, here), either(b, at, before, behind, here)
        width //= 2


def either(b: Any, x: Any, block_x: Any, y: Any, block_y: Any) -> Any:
    """One of two values, by the block that control comes from."""
    phi = b.phi(x.type)
    phi.add_incoming(x, block_x)
    phi.add_incoming(y, block_y)
    return phi


def _least(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.icmp_signed("<", x, y), x, y)


def make_transpose(size: int, n: int | None = None) -> Primitive[[int, int, int, int], None]:
    """block(src, lds, dst, ldd): dst[j*ldd + i] = src[i*lds + j] for an n x n block of elements of `size` bytes.

    n is a power of two (default: `transpose_block(size)`, the elements of one vector); it runs in registers.
    """
    side = n or transpose_block(size)
    generate, plain = _transpose(size, side)

    def lowering(tc: Any, src: Any, lds: Any, dst: Any, ldd: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    def block(src: int, lds: int, dst: int, ldd: int) -> None:
        plain(src, lds, dst, ldd, side)

    return primitive(lowering)(block)


def make_transpose_edge(size: int) -> Primitive[[int, int, int, int, int], None]:
    """block(src, lds, dst, ldd, ni): as `make_transpose`, of ni > 0 rows of src; the last of them is read for more."""
    generate, plain = _transpose(size, transpose_block(size))

    def lowering(tc: Any, src: Any, lds: Any, dst: Any, ldd: Any, ni: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return primitive(lowering)(plain)


def _transpose(size: int, n: int) -> tuple[Any, Callable[[int, int, int, int, int], None]]:
    """The LLVM code of a transpose, for four operands or five, and its plain Python."""
    scalar = ir.IntType(8 * size)
    vec, pointer = ir.VectorType(scalar, n), scalar.as_pointer()

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        src, lds, dst, ldd, *edge = args
        source, target = b.inttoptr(src, pointer), b.inttoptr(dst, pointer)
        rows = [_least(b, I64(i), b.sub(edge[0], I64(1))) if edge else I64(i) for i in range(n)]
        r = [load(b, b.gep(source, [b.mul(lds, i)]), vec, size) for i in rows]
        d = n // 2
        while d:  # swap the off-diagonal d x d blocks
            low = [q + n - d if q & d else q for q in range(n)]
            high = [q + n if q & d else q + d for q in range(n)]
            for i in range(n):
                if not i & d:
                    r[i], r[i + d] = shuffle(b, r[i], r[i + d], low), shuffle(b, r[i], r[i + d], high)
            d //= 2
        for i in range(n):
            store(b, r[i], b.gep(target, [b.mul(ldd, I64(i))]), size)
        return void(cx)

    def plain(src: int, lds: int, dst: int, ldd: int, ni: int) -> None:
        name = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[size]
        s, d = PlainPointer(src, name), PlainPointer(dst, name)
        for i in range(n):
            for j in range(n):
                d[j * ldd + i] = s[min(i, ni - 1) * lds + j]

    return generate, plain


def transpose_block(size: int, target: Target | None = None) -> int:
    """The side of `make_transpose`'s block for elements of `size` bytes on a target (default: this machine)."""
    return max(4, tile_for("f32", target).vl * 4 // max(size, 4))


def keep_rolled(module: Any, branch: Any) -> None:
    """Forbid LLVM to unroll the loop that a branch closes: the accumulators of two turns do not fit the registers.

    It begins at a cache line: where it lies by chance made 4 % of a convolution's time.
    """
    disable = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    name = ir.MetaDataString(module, f"loop {len(module.metadata)}")
    align = module.add_metadata([ir.MetaDataString(module, "llvm.loop.align"), I32(64)])
    loop = module.add_metadata([name, disable, align])
    loop.operands = (loop, disable, align)  # a loop's name is a node that begins with itself
    branch.set_metadata("llvm.loop", loop)


def load(b: Any, at: Any, kind: Any, align: int) -> Any:
    """A load of LLVM type `kind`, tested in checked builds; align: bytes."""
    at = b.bitcast(at, kind.as_pointer())
    if modes.checked():
        return checked.load(b, at, kind, _bytes(kind))
    value = b.load(at)
    value.align = align
    return value


def store(b: Any, value: Any, at: Any, align: int) -> None:
    """A store, tested in checked builds; align: bytes."""
    at = b.bitcast(at, value.type.as_pointer())
    if modes.checked():
        checked.store(b, value, at, _bytes(value.type))
    else:
        b.store(value, at).align = align


def _bytes(kind: Any) -> int:
    if isinstance(kind, ir.VectorType):
        return int(kind.count) * _bytes(kind.element)
    return {"float": 4, "double": 8}.get(str(kind)) or int(kind.width) // 8


def shuffle(b: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    """A vector of these lanes of x and, counting on, y."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


def splat(b: Any, value: Any, vec: Any) -> Any:
    """A vector of LLVM type `vec` with the value in all lanes."""
    undefined = ir.Constant(vec, ir.Undefined)
    return shuffle(b, b.insert_element(undefined, value, I32(0)), undefined, [0] * vec.count)
