"""Winograd's minimal filtering: its matrices, and their transforms of tiles as LLVM vectors, a tile for each lane.

F(m x m, 3 x 3) computes m x m outputs of a convolution with 3 x 3 taps from a tile of a x a inputs, a = m + 2, with
a*a multiplications instead of 9*m*m:

    Y = A' [(G g G') * (B' d B)] A          (' transposes, * multiplies element by element)

The matrices follow from a - 1 points and infinity: row k of A' is the k-th powers of the points, G has the powers 0 to
2 of each divided by the product of its differences to the others, and B the coefficients of the polynomials that are 0
at all other points. Sources: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2015,
arXiv:1509.09308; the points decide the error: B. Barabasz, A. Anderson, K. Soodhalter, D. Gregg, "Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2018, arXiv:1803.10986.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from compiler.codegen.native.memory import PlainPointer
from compiler.codegen.native.primitive import F32, I64, Primitive, primitive, void
from compiler.codegen.native.vector import keep_rolled, load, shuffle, splat, store, tile_for

Matrix = tuple[tuple[float, ...], ...]

REGISTERS = 16
"""Vectors of a tile that may stay in registers."""


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


def _filter(*points: Fraction) -> Filter:
    """The scheme of these points and infinity, m + 1 of them. Those here give A and B without rounding."""
    m, last = len(points) - 1, len(points)
    at = [[p**i for p in points] + [Fraction(i == m - 1)] for i in range(m)]
    bt, g = [], []
    for k, p in enumerate(points):
        others = [q for j, q in enumerate(points) if j != k]
        bt.append([*_polynomial(others), Fraction(0)])
        scale = _value(others, p)
        g.append([p**i / scale for i in range(3)])
    bt.append(_polynomial(points))
    g.append([Fraction(0), Fraction(0), Fraction(1)])
    assert all(len(row) == last + 1 for row in bt)
    return Filter(m, _floats(bt), _floats(g), _floats(at))


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, the constant first, of the polynomial with these roots."""
    found = [Fraction(1)]
    for r in roots:
        found = [low - r * high for low, high in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
    return found


def _value(roots: Sequence[Fraction], x: Fraction) -> Fraction:
    return prod((x - r for r in roots), start=Fraction(1))


def _floats(matrix: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(map(float, row)) for row in matrix)


F2 = _filter(Fraction(0), Fraction(1), Fraction(-1))
"""F(2 x 2, 3 x 3): 16 multiplications for 36."""

F4 = _filter(Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2))
"""F(4 x 4, 3 x 3): 36 multiplications for 144. Of points that are eighths, these have the smallest error on random
data: half of that with the usual points 1, -1, 2 and -2, and twice that of the direct sum."""


def transposed(matrix: Matrix) -> Matrix:
    """Rows for columns."""
    return tuple(zip(*matrix, strict=True))


def make_transform(matrix: Matrix, m: int = 0) -> Primitive[[int, int, int, int, int], None]:
    """transform(src, sp, row, dst, dp): X = P d P' for vl tiles d at once, P = matrix [a, n], float32.

    Offsets count elements, vl is the number of lanes (`tile_for("f32").vl`). X[i, j] of tile t goes to
    dst[(i*a + j)*dp + t]; d[i, j] comes from src[(i*n + j)*sp + t], or, for tiles m apart, from
    src[((i%m)*n + j)*sp + i//m*row + t]: m rows of images are followed by the next m.
    """
    n, vl = len(matrix[0]), tile_for("f32").vl
    m = m or n

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        src, sp, row, dst, dp = args
        source, target = (b.inttoptr(p, F32.as_pointer()) for p in (src, dst))

        def get(i: Any, j: Any) -> Any:
            place = b.mul(sp, b.add(b.mul(b.urem(i, I64(m)), I64(n)), j))
            return load(b, b.gep(source, [b.add(place, b.mul(b.udiv(i, I64(m)), row))]), _vector(), 4)

        def put(i: Any, row: list[Any]) -> None:
            for j, value in enumerate(row):
                store(b, value, b.gep(target, [b.mul(dp, b.add(b.mul(i, I64(len(matrix))), I64(j)))]), 4)

        _both(b, matrix, get, put)
        return void(cx)

    def lowering(tc: Any, src: Any, sp: Any, row: Any, dst: Any, dp: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    def transform(src: int, sp: int, row: int, dst: int, dp: int) -> None:
        s, d, p = PlainPointer(src, "f32"), PlainPointer(dst, "f32"), np.array(matrix, np.float32)
        for t in range(vl):
            places = [(i % m * n + j) * sp + i // m * row + t for i in range(n) for j in range(n)]
            tile = np.array([s[at] for at in places], np.float32).reshape(n, n)
            for q, value in enumerate((p @ tile @ p.T).reshape(-1)):
                d[q * dp + t] = value

    return primitive(lowering)(transform)


def make_collect(matrix: Matrix) -> Primitive[[int, int, int, int, int], None]:
    """collect(src, sp, bias, dst, dp): Y = P X P' + bias for vl tiles X, P = matrix [m, a], float32.

    X[i, j] of tile t comes from src[(i*a + j)*sp + t]; Y[i, j] goes to dst[i*dp + t*m + j]: tiles follow each other
    along a row. bias: the address of a number. m is a power of two.
    """
    m, a, vl = len(matrix), len(matrix[0]), tile_for("f32").vl

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        src, sp, bias, dst, dp = args
        source, number, target = (b.inttoptr(p, F32.as_pointer()) for p in (src, bias, dst))
        add = splat(b, load(b, number, F32, 4), _vector())

        def get(i: Any, j: Any) -> Any:
            return load(b, b.gep(source, [b.mul(sp, b.add(b.mul(i, I64(a)), j))]), _vector(), 4)

        def put(i: Any, row: list[Any]) -> None:
            for k, value in enumerate(_merged(b, [b.fadd(v, add) for v in row])):
                store(b, value, b.gep(target, [b.add(b.mul(dp, i), I64(k * vl))]), 4)

        _both(b, matrix, get, put)
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


def make_spread(m: int, n: int) -> Primitive[[int, int, int], None]:
    """spread(src, dst, dp): dst[j*dp + t] = src[t*m + j] for j < n and t < vl, float32.

    m is a power of two, n at most 2*m.
    """
    vl = tile_for("f32").vl

    def generate(cx: Any, b: Any, sig: Any, args: Any) -> Any:
        src, dst, dp = args
        source, target = (b.inttoptr(p, F32.as_pointer()) for p in (src, dst))
        for first in range(0, n, m):
            line = [load(b, b.gep(source, [I64(first + k * vl)]), _vector(), 4) for k in range(m)]
            for j, value in enumerate(_parted(b, line)[: n - first], first):
                store(b, value, b.gep(target, [b.mul(dp, I64(j))]), 4)
        return void(cx)

    def lowering(tc: Any, src: Any, dst: Any, dp: Any) -> Any:
        return types.void(*[types.int64] * 3), generate

    def spread(src: int, dst: int, dp: int) -> None:
        s, d = PlainPointer(src, "f32"), PlainPointer(dst, "f32")
        for j in range(n):
            for t in range(vl):
                d[j * dp + t] = s[t * m + j]

    return primitive(lowering)(spread)


def _vector() -> Any:
    return ir.VectorType(F32, tile_for("f32").vl)


def _merged(b: Any, vectors: list[Any]) -> list[Any]:
    """Element t*m + j of the result, in vectors one behind the other, is element t of vector j of m."""
    vl, rows = tile_for("f32").vl, [[v] for v in vectors]
    low, high = ([q for k in range(first, first + vl // 2) for q in (k, vl + k)] for first in (0, vl // 2))
    while len(rows) > 1:  # the first half with the second, until one row has all in order
        half = len(rows) // 2
        pairs = zip(rows[:half], rows[half:], strict=True)
        rows = [[shuffle(b, p, q, lanes) for p, q in zip(x, y, strict=True) for lanes in (low, high)] for x, y in pairs]
    return rows[0]


def _parted(b: Any, line: list[Any]) -> list[Any]:
    """The vectors that `_merged` gives this line for."""
    vl, rows = tile_for("f32").vl, [line]
    while len(rows[0]) > 1:  # those at even places from those at odd ones
        rows = [
            [shuffle(b, row[k], row[k + 1], list(range(first, 2 * vl, 2))) for k in range(0, len(row), 2)]
            for first in (0, 1)
            for row in rows
        ]
    return [row[0] for row in rows]


def _both(b: Any, matrix: Matrix, get: Callable[[Any, Any], Any], put: Callable[[Any, list[Any]], None]) -> None:
    """P d P' of a tile of vectors: `get` gives one by row and column, `put` takes a row.

    First P d, a column at a time, to memory; then a row at a time. Small tiles stay in registers; the loops of others
    are kept, as LLVM would mix the turns of both, which have not nearly enough registers.
    """
    n, m = len(matrix[0]), len(matrix)
    if n * m <= REGISTERS:
        columns = [_apply(b, matrix, [get(I64(i), I64(j)) for i in range(n)]) for j in range(n)]
        for i in range(m):
            put(I64(i), _apply(b, matrix, [column[i] for column in columns]))
        return
    tile = cgutils.alloca_once(b, _vector(), size=n * m)
    with _rolled(b, n) as j:
        for i, value in enumerate(_apply(b, matrix, [get(I64(i), j) for i in range(n)])):
            b.store(value, b.gep(tile, [b.add(I64(i * n), j)]))
    with _rolled(b, m) as i:
        put(i, _apply(b, matrix, [b.load(b.gep(tile, [b.add(b.mul(i, I64(n)), I64(k))])) for k in range(n)]))


@contextmanager
def _rolled(b: Any, count: int) -> Iterator[Any]:
    """A loop over [0, count) that LLVM must not unroll; gives the index."""
    before, loop, done = b.block, b.append_basic_block("turn"), b.append_basic_block("done")
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(I64)
    yield i
    following = b.add(i, I64(1))
    i.add_incoming(I64(0), before)
    i.add_incoming(following, b.block)  # checked accesses make blocks of their own
    keep_rolled(b.module, b.cbranch(b.icmp_signed("<", following, I64(count)), loop, done))
    b.position_at_end(done)


def _apply(b: Any, matrix: Matrix, values: list[Any]) -> list[Any]:
    """The products of the rows of a matrix with vectors of lanes."""
    vec = values[0].type
    fma = cgutils.get_or_insert_function(
        b.module, ir.FunctionType(vec, [vec] * 3), f"llvm.fmuladd.v{vec.count}f32"
    )  # fused where the target can
    recipe, found = recipe_of(matrix), list(values)
    for c, x, y in recipe.steps:
        factor = ir.Constant(vec, [c] * vec.count)
        if y < 0:
            found.append(b.fmul(factor, found[x]))
        elif c in (1, -1):
            found.append(b.fadd(found[y], found[x]) if c == 1 else b.fsub(found[y], found[x]))
        else:
            found.append(b.call(fma, [factor, found[x], found[y]]))
    return [found[i] for i in recipe.results]


class Recipe(NamedTuple):
    """How to multiply a matrix by a vector. Numbers below the vector's length name its elements, others the steps.

    steps: (c, x, y) is c*x + y, or c*x for a negative y. results: what the rows come to.
    """

    steps: tuple[tuple[float, int, int], ...]
    results: tuple[int, ...]


@cache
def recipe_of(matrix: Matrix) -> Recipe:
    """The shortest of three: row by row; by sums and differences of rows that differ in signs; by those of columns."""
    return min((_by_rows(matrix), _by_pairs_of_rows(matrix), _by_pairs_of_columns(matrix)), key=lambda r: len(r.steps))


def _by_rows(matrix: Matrix) -> Recipe:
    steps: list[tuple[float, int, int]] = []
    results = tuple(_chain(steps, len(matrix[0]), enumerate(row)) for row in matrix)
    return Recipe(tuple(steps), results)


def _by_pairs_of_rows(matrix: Matrix) -> Recipe:
    """Of rows e + o and e - o, both parts are made once. A factor is taken out of o, as it is multiplied anyway."""
    n = len(matrix[0])
    steps: list[tuple[float, int, int]] = []
    results: dict[int, int] = {}
    for i, row in enumerate(matrix):
        if i in results:
            continue
        other = next((j for j in range(i + 1, len(matrix)) if _mirrors(row, matrix[j])), None)
        if other is None:
            results[i] = _chain(steps, n, enumerate(row))
            continue
        odd = [(k, c) for k, c in enumerate(row) if c and c != matrix[other][k]]
        even = _chain(steps, n, ((k, c) for k, c in enumerate(row) if c == matrix[other][k]))
        factor = next((f for _, f in odd if all(_is_float32(c / f) for _, c in odd)), odd[-1][1])
        part = _chain(steps, n, ((k, c / factor) for k, c in odd))
        steps += [(factor, part, even), (-factor, part, even)]
        results[i], results[other] = n + len(steps) - 2, n + len(steps) - 1
    return Recipe(tuple(steps), tuple(results[i] for i in range(len(matrix))))


def _by_pairs_of_columns(matrix: Matrix) -> Recipe:
    """Of columns that differ in signs, a row takes the sum or the difference of their elements."""
    n, columns = len(matrix[0]), transposed(matrix)
    steps: list[tuple[float, int, int]] = []
    terms: list[list[tuple[int, float]]] = [[] for _ in matrix]
    left = list(range(n))
    while left:
        k = left.pop(0)
        other = next((j for j in left if _mirrors(columns[k], columns[j])), None)
        if other is not None:
            left.remove(other)
            steps += [(1.0, other, k), (-1.0, other, k)]
        for i, c in enumerate(columns[k]):
            same = other is None or c == columns[other][i]
            at = k if other is None else n + len(steps) - (2 if same else 1)
            terms[i].append((at, c))
    results = tuple(_chain(steps, n, row) for row in terms)
    return Recipe(tuple(steps), results)


def _mirrors(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether they differ in signs, but neither everywhere nor nowhere."""
    pairs = [(c, d) for c, d in zip(x, y, strict=True) if c or d]
    return all(abs(c) == abs(d) for c, d in pairs) and len({c == d for c, d in pairs}) == 2


def _is_float32(x: float) -> bool:
    return float(np.float32(x)) == x


def _chain(steps: list[tuple[float, int, int]], n: int, terms: Iterable[tuple[int, float]]) -> int:
    """Append the steps of a sum of multiples, none by 0 or 1; where it is."""
    at = -1
    for x, c in sorted(((x, c) for x, c in terms if c), key=lambda t: t[1] != 1):
        if at < 0 and c == 1:
            at = x
        else:
            steps.append((c, x, at))
            at = n + len(steps) - 1
    return at
