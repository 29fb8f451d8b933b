"""Winograd's minimal filtering: its matrices, and their transforms of tiles as LLVM vectors, a tile for each lane.

F(m x m, 3 x 3) computes m x m outputs of a convolution with 3 x 3 taps from a tile of a x a inputs, a = m + 2, with
a*a multiplications instead of 9*m*m:

    Y = A' [(G g G') * (B' d B)] A          (' transposes, * multiplies element by element)

Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, arXiv:1509.09308.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.memory import PlainPointer
from compiler.codegen.native.primitive import F32, I64, Primitive, primitive, void
from compiler.codegen.native.vector import TILE, load, shuffle, splat, store

Matrix = tuple[tuple[float, ...], ...]


class Filter(NamedTuple):
    """F(m x m, 3 x 3): a = m + 2; bt [a, a] transforms inputs, g [a, 3] weights, at [m, a] turns sums to outputs."""

    m: int
    bt: Matrix
    g: Matrix
    at: Matrix

    @property
    def a(self) -> int:
        """Side of a tile of inputs."""
        return self.m + 2


F2 = Filter(
    2,
    ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    ((1, 1, 1, 0), (0, 1, -1, -1)),
)
"""F(2 x 2, 3 x 3), from the points 0, 1, -1 and infinity: 16 multiplications for 36."""


def transposed(matrix: Matrix) -> Matrix:
    """Rows for columns."""
    return tuple(zip(*matrix, strict=True))


def make_transform(matrix: Matrix, step: int = 0) -> Primitive[[int, int, int, int], None]:
    """transform(src, sp, dst, dp): X = P d P' for vl tiles d at once, P = matrix [a, n], float32.

    Offsets count elements, vl is the number of lanes (`TILE["f32"].vl`). X[i, j] of tile t goes to
    dst[(i*a + j)*dp + t]; d[i, j] comes from src[(i*n + j)*sp + t], or, for a step, from src[i*sp + t*step + j]: tiles
    that follow each other along a row, of which (vl + 1)*step elements are read (vl*step if n = step). n <= 2*step.
    """
    n, vl = len(matrix[0]), TILE["f32"].vl

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        src, sp, dst, dp = args
        source, target = (b.inttoptr(p, F32.as_pointer()) for p in (src, dst))
        tile = _rows(b, source, sp, n, step) if step else _planes(b, source, sp, n)
        for q, value in enumerate(_both(b, matrix, tile)):
            store(b, value, b.gep(target, [b.mul(dp, I64(q))]), 4)
        return void(cx)

    def lowering(tc: Any, src: Any, sp: Any, dst: Any, dp: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    def transform(src: int, sp: int, dst: int, dp: int) -> None:
        s, d, p = PlainPointer(src, "f32"), PlainPointer(dst, "f32"), np.array(matrix, np.float32)
        for t in range(vl):
            places = [i * sp + t * step + j if step else (i * n + j) * sp + t for i in range(n) for j in range(n)]
            tile = np.array([s[at] for at in places], np.float32).reshape(n, n)
            for q, value in enumerate((p @ tile @ p.T).reshape(-1)):
                d[q * dp + t] = value

    return primitive(lowering)(transform)


def make_collect(matrix: Matrix) -> Primitive[[int, int, int, int, int], None]:
    """collect(src, sp, bias, dst, dp): Y = P X P' + bias for vl tiles X, P = matrix [m, a], float32.

    X[i, j] of tile t comes from src[(i*a + j)*sp + t]; Y[i, j] goes to dst[i*dp + t*m + j]: tiles follow each other
    along a row. bias: the address of a number. m is a power of two.
    """
    m, a, vl = len(matrix), len(matrix[0]), TILE["f32"].vl
    vec = ir.VectorType(F32, vl)

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        src, sp, bias, dst, dp = args
        source, number, target = (b.inttoptr(p, F32.as_pointer()) for p in (src, bias, dst))
        add = splat(b, load(b, number, F32, 4), vec)
        values = [b.fadd(v, add) for v in _both(b, matrix, _planes(b, source, sp, a))]
        for i in range(m):
            row = values[i * m : (i + 1) * m]
            while len(row) > 1:  # the first half with the second, lane by lane, until one vector has them in order
                h, w = len(row) // 2, row[0].type.count
                lanes = [q for k in range(w) for q in (k, w + k)]
                row = [shuffle(b, row[k], row[k + h], lanes) for k in range(h)]
            store(b, row[0], b.gep(target, [b.mul(dp, I64(i))]), 4)
        return void(cx)

    def lowering(tc: Any, src: Any, sp: Any, bias: Any, dst: Any, dp: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    def collect(src: int, sp: int, bias: int, dst: int, dp: int) -> None:
        s, d, p = PlainPointer(src, "f32"), PlainPointer(dst, "f32"), np.array(matrix, np.float32)
        for t in range(vl):
            x = np.array([s[q * sp + t] for q in range(a * a)], np.float32).reshape(a, a)
            for (i, j), value in np.ndenumerate(p @ x @ p.T + PlainPointer(bias, "f32")[0]):
                d[i * dp + t * m + j] = value

    return primitive(lowering)(collect)


def _planes(b: Any, source: Any, pitch: Any, n: int) -> list[list[Any]]:
    """[row][column] of n x n tiles of which an element of all is a vector."""
    vec = ir.VectorType(F32, TILE["f32"].vl)
    return [[load(b, b.gep(source, [b.mul(pitch, I64(i * n + j))]), vec, 4) for j in range(n)] for i in range(n)]


def _rows(b: Any, source: Any, pitch: Any, n: int, step: int) -> list[list[Any]]:
    """[row][column] of n x n tiles that follow each other along rows, `step` apart."""
    lanes = TILE["f32"].vl * step
    rows = []
    for i in range(n):
        row: list[Any] = []
        for first in range(0, n, step):
            at = b.gep(source, [b.add(b.mul(pitch, I64(i)), I64(first))])
            line = load(b, at, ir.VectorType(F32, lanes), 4)
            row += [shuffle(b, line, line, list(range(j, lanes, step))) for j in range(min(step, n - first))]
        rows.append(row)
    return rows


def _both(b: Any, matrix: Matrix, tile: list[list[Any]]) -> list[Any]:
    """P d P', row by row, of a tile [row][column] of vectors."""
    columns = [_apply(b, matrix, list(column)) for column in zip(*tile, strict=True)]
    return [v for i in range(len(matrix)) for v in _apply(b, matrix, [column[i] for column in columns])]


def _apply(b: Any, matrix: Matrix, values: list[Any]) -> list[Any]:
    """The products of the rows of a matrix with vectors of lanes: chains of multiply-adds, none by 0 or 1."""
    vec = values[0].type
    fma = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(vec, [vec] * 3), f"llvm.fmuladd.v{vec.count}f32"
    )  # fused where the target can
    out = []
    for row in matrix:
        terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda t: t[0] != 1)
        total = None
        for c, v in terms:
            factor = ir.Constant(vec, [float(c)] * vec.count)
            if total is None:
                total = v if c == 1 else b.fmul(factor, v)
            elif c in (1, -1):
                total = b.fadd(total, v) if c == 1 else b.fsub(total, v)
            else:
                total = b.call(fma, [factor, v, total])
        out.append(total)
    return out
