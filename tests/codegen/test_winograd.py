"""Winograd's minimal filtering: its transforms, its error bound on kind and unkind inputs, and where it is chosen."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import compiler.ir.definitions  # noqa: F401  # registers onnxc.ConvWeightGrad
from compiler.codegen.calls import Words
from compiler.codegen.kernels import conv, conv_weight
from compiler.codegen.native import Kernel, kernel, native, tile_for
from compiler.codegen.native.winograd import (
    F2,
    F4,
    Filter,
    Matrix,
    make_collect,
    make_spread,
    make_transform,
    recipe_of,
    transposed,
)
from tests.codegen.runner import NodeRun, make_node, run_op
from tests.codegen.test_conv import Case, check_weight, values

Array = NDArray[Any]
SCHEMES = pytest.mark.parametrize("scheme", [F2, F4], ids=["F2", "F4"])
UNIT = 2.0**-24
PAD = (1, 1, 1, 1)


def matrices(scheme: Filter) -> tuple[Array, Array, Array]:
    return np.array(scheme.bt), np.array(scheme.g), np.array(scheme.at)


@SCHEMES
def test_the_scheme_is_a_convolution(scheme: Filter) -> None:
    """Bilinear, so it is enough to look at each input and each weight alone."""
    bt, g, at = matrices(scheme)
    for (i, j), (k, n) in ((q, p) for q in np.ndindex(scheme.a, scheme.a) for p in np.ndindex(3, 3)):
        d, w = np.zeros((scheme.a, scheme.a)), np.zeros((3, 3))
        d[i, j], w[k, n] = 1, 1
        y = at @ ((g @ w @ g.T) * (bt @ d @ bt.T)) @ at.T
        want = [[float((p + k, q + n) == (i, j)) for q in range(scheme.m)] for p in range(scheme.m)]
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-14)


def roundings(matrix: Matrix) -> int:
    """Of a term on its way through both sides of a transform, on a target that fuses nothing."""
    recipe, depth = recipe_of(matrix), [0] * len(matrix[0])
    for c, x, y in recipe.steps:
        exact = float(np.frexp(c)[0]) in (0.5, -0.5)  # a power of two
        product = depth[x] + (0 if exact else 1) + (0 if float(np.float32(c)) == c else 1)
        depth.append(max(product, depth[y]) + 1 if y >= 0 else product)
    return 2 * max(depth[i] for i in recipe.results)


@pytest.mark.parametrize(("scheme", "outputs", "weights", "size"), [(F2, 11, 8, 64), (F4, 25, 26, 564)])
def test_what_the_documentation_says_of_the_error(scheme: Filter, outputs: int, weights: int, size: int) -> None:
    assert roundings(scheme.bt) + roundings(scheme.g) + roundings(scheme.at) + 1 == outputs
    assert roundings(scheme.bt) + roundings(transposed(scheme.at)) + roundings(transposed(scheme.g)) == weights
    bt, g, at = (np.abs(p) for p in matrices(scheme))
    assert size - 1 < (at @ (bt.sum(1) * g.sum(1))).max() ** 2 <= size


@SCHEMES
@pytest.mark.parametrize("which", ["bt", "g", "at"])
def test_recipes(scheme: Filter, which: str) -> None:
    """They compute the product, with numbers that float32 has but for those of g."""
    for matrix in (getattr(scheme, which), transposed(getattr(scheme, which))):
        recipe, n = recipe_of(matrix), len(matrix[0])
        values = [*np.eye(n)]
        for c, x, y in recipe.steps:
            values.append(c * values[x] + (values[y] if y >= 0 else 0))
        np.testing.assert_allclose([values[i] for i in recipe.results], matrix, rtol=0, atol=1e-15)
        assert len(recipe.steps) <= sum(max(0, np.count_nonzero(row) - (1 in row)) for row in matrix)
        assert which == "g" or all(float(np.float32(c)) == c for c, _, _ in recipe.steps)


def make_call(do: Any, operands: int) -> Kernel:
    @kernel
    def three(lo: int, hi: int, src: int, dst: int, dp: int) -> None:
        do(src, dst, dp)

    @kernel
    def five(lo: int, hi: int, src: int, sp: int, other: int, dst: int, dp: int) -> None:
        do(src, sp, other, dst, dp)

    return {3: three, 5: five}[operands]


@SCHEMES
@pytest.mark.parametrize("which", ["inputs", "outputs", "planes", "weights"])
def test_transforms_of_tiles(scheme: Filter, which: str) -> None:
    """Small integers, most without rounding: compiled and plain Python give the same."""
    m, vl = scheme.m, tile_for("f32").vl
    matrix = {"inputs": scheme.bt, "outputs": scheme.at, "planes": scheme.bt, "weights": scheme.g}[which]
    a = len(matrix)
    p, n = np.array(matrix, np.float32), len(matrix[0])
    rng = np.random.default_rng(0)
    tiles = rng.integers(-3, 4, (vl, n, n)).astype(np.float32)
    if which == "inputs":  # of neighbouring tiles: they overlap
        image = rng.integers(-3, 4, (2 * m, m * (vl + 1))).astype(np.float32)
        tiles = np.stack([image[:n, t * m : t * m + n] for t in range(vl)])
        lines = [[image[i::m, j : j + m * vl : m] for j in range(n)] for i in range(m)]
        source = np.array(lines).reshape(m * n, -1)
        pitch, row = source.shape[1], vl
    else:
        source, pitch, row = np.zeros((n * n, vl + 3), np.float32), vl + 3, 0
        source[:, :vl] = tiles.reshape(vl, -1).T
    result = p @ tiles @ p.T
    if which == "outputs":
        bias = np.array([5], np.float32)
        k, want = make_call(make_collect(matrix), 5), np.zeros((m, m * vl + 2), np.float32)
        want[:, : m * vl] = (result + bias).transpose(1, 0, 2).reshape(m, -1)
        operands = [source.ctypes.data, pitch, bias.ctypes.data]
    else:
        k = make_call(make_transform(matrix, m if which == "inputs" else 0), 5)
        want = np.zeros((a * a, vl + 2), np.float32)
        want[:, :vl] = result.reshape(vl, -1).T
        operands = [source.ctypes.data, pitch, row]
    for run in (native(k), k):
        got = np.zeros_like(want)
        run(0, 1, *operands, got.ctypes.data, want.shape[1])
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 if which == "weights" else 0)


@SCHEMES
def test_elements_are_spread(scheme: Filter) -> None:
    m, vl = scheme.m, tile_for("f32").vl
    line = np.arange(m * vl + m, dtype=np.float32)
    for n in (m, scheme.a):
        want = np.zeros((n, vl + 3), np.float32)
        want[:, :vl] = [line[j : j + m * vl : m] for j in range(n)]
        k = make_call(make_spread(m, n), 3)
        for run in (native(k), k):
            got = np.zeros_like(want)
            run(0, 1, line.ctypes.data, got.ctypes.data, want.shape[1])
            np.testing.assert_array_equal(got, want)


def bound(scheme: Filter, x: Array, w: Array, b: Array | None, pads: Sequence[int], out: Sequence[int]) -> Array:
    """The bound of the module's docstring for each output. x [n, c, h, w] and w [o, c, 3, 3] in float64."""
    bt, g, at = (np.abs(p) for p in matrices(scheme))
    m, a = scheme.m, scheme.a
    th, tw = -(-out[0] // m), -(-out[1] // m)
    padded = np.zeros((*x.shape[:2], th * m + 2, tw * m + 2))
    inside = np.pad(np.abs(x), [(0, 0), (0, 0), *((p, 0) for p in pads[:2])])[..., : padded.shape[2], : padded.shape[3]]
    padded[..., : inside.shape[2], : inside.shape[3]] = inside
    d = np.lib.stride_tricks.sliding_window_view(padded, (a, a), (2, 3))[:, :, ::m, ::m]
    sums = np.einsum("ncijpq,ocpq->noijpq", bt @ d @ bt.T, g @ np.abs(w) @ g.T)
    y = (at @ sums @ at.T).swapaxes(3, 4).reshape(x.shape[0], w.shape[0], th * m, tw * m)[..., : out[0], : out[1]]
    units = (x.shape[1] + (11 if scheme is F2 else 25)) * UNIT
    return units / (1 - units) * (y if b is None else y + np.abs(b)[:, None, None])


def by(scheme: Filter | None) -> Any:
    """In this block, convolutions and their weights' gradients are computed by the scheme, or by none."""
    patch = pytest.MonkeyPatch()
    patch.setattr(conv, "choose", lambda *_: scheme)
    patch.setattr(conv_weight, "choose", lambda *_: scheme)
    return contextlib.closing(SimpleNamespace(close=patch.undo))


def within_bound(scheme: Filter, op: str, c: Case, x: Array, w: Array, b: Array | None) -> tuple[Array, Array]:
    """The result and the exact one, after the comparison. One group."""
    with by(scheme):
        (y,) = run_op(op, x, w, b, **c.attrs)
    if op == "Conv":
        taps, pads, want = w, c.pads, c.conv(x, w, b)
    else:
        taps, pads = w.swapaxes(0, 1)[..., ::-1, ::-1], [2 - p for p in c.pads]
        want = c.conv_transpose(x, w, b, y.shape[2:])
    wide = None if b is None else b.astype(np.float64)
    limit = bound(scheme, x.astype(np.float64), taps.astype(np.float64), wide, pads, y.shape[2:])
    assert y.shape == want.shape
    assert (np.abs(y - want) <= limit).all()
    return y, want


def kernels_of(op: str, *inputs: Array | None, **attrs: Any) -> set[str]:
    node, types, feeds, _ = make_node(op, *inputs, **attrs)
    return {call.kernel.name for call in NodeRun(node, types, feeds, threads=1).calls}


def operands(op: str, c: Case, n: int, cin: int, cout: int) -> tuple[Array, Array, Array]:
    w = (cout, cin // c.group) if op == "Conv" else (cin, cout // c.group)
    return (
        values("float32", n, cin, *c.size),
        values("float32", *w, 3, 3, seed=1),
        values("float32", cout, seed=2),
    )


CASES = [
    (Case((14, 14), (3, 3), pads=PAD), 4, 32, 64),
    (Case((32, 32), (3, 3), pads=PAD), 2, 16, 17),
    (Case((15, 13), (3, 3), pads=(0, 2, 1, 0)), 3, 37, 31),
    (Case((8, 8), (3, 3), pads=PAD), 5, 64, 40),
    (Case((8, 9), (3, 3)), 2, 390, 25),  # sums of two blocks
    (Case((40, 200), (3, 3), pads=PAD), 1, 24, 24),
]


@SCHEMES
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(("case", "n", "cin", "cout"), CASES)
def test_error_bound(scheme: Filter, case: Case, n: int, cin: int, cout: int, op: str) -> None:
    x, w, b = operands(op, case, n, cin, cout)
    within_bound(scheme, op, case, x, w, b)
    within_bound(scheme, op, case, x, w, None)


def unkind(name: str, x: Array, w: Array) -> tuple[Array, Array]:
    """Inputs on which sums cancel, or whose terms differ much in size."""
    rows, columns = np.indices(x.shape[2:])
    scales = (10.0 ** (np.arange(x.shape[1]) % 13 - 6)).astype(np.float32)
    match name:
        case "offset":  # and weights without a mean: all that is left is rounding
            return x + 1000, w - w.mean((2, 3), keepdims=True)
        case "signs":  # those of the second row of B', everywhere
            return np.abs(x) * np.float32([1, -1])[(rows + columns) % 2], np.abs(w) * np.float32([1, -1, 1])
        case "scales":
            return x * scales[:, None, None], w
        case "cancelling scales":
            return x * scales[:, None, None], w / scales[:, None, None]
    x = x * np.float32(1e-6)  # "one" large value beside small ones
    x[:, :, 5, 5] = 1e6
    return x, w


@SCHEMES
@pytest.mark.parametrize("name", ["offset", "signs", "scales", "cancelling scales", "one"])
def test_error_bound_on_unkind_inputs(scheme: Filter, name: str) -> None:
    case = Case((14, 14), (3, 3), pads=PAD)
    x, w, b = operands("Conv", case, 4, 32, 32)
    within_bound(scheme, "Conv", case, *unkind(name, x, w), b)


@SCHEMES
@pytest.mark.parametrize("channels", [16, 64])
def test_error_is_near_that_of_the_direct_sum(scheme: Filter, channels: int) -> None:
    case = Case((16, 16), (3, 3), pads=PAD)
    x, w, b = operands("Conv", case, 4, channels, 64)
    y, want = within_bound(scheme, "Conv", case, x, w, b)
    with by(None):
        (direct,) = run_op("Conv", x, w, b, **case.attrs)
    assert np.linalg.norm(y - want) < 3 * np.linalg.norm(direct - want)


@SCHEMES
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nothing_that_is_not_finite_gets_lost(scheme: Filter, bad: float) -> None:
    """It reaches the outputs that a direct sum would give it to, and the rest of their tiles."""
    case = Case((16, 16), (3, 3), pads=PAD)
    x, w, _ = operands("Conv", case, 2, 32, 32)
    x[1, 3, 7, 4] = bad
    with by(scheme):
        (y,) = run_op("Conv", x, w, **case.attrs)
    finite = np.isfinite(y)
    assert not finite[1, :, 6:9, 3:6].any()
    assert finite[0].all()
    if scheme is F2:
        finite[1, :, 6:10, 2:6] = True
    else:
        finite[1, :, 4:12, 0:8] = True
    assert finite.all()


def weight_bound(scheme: Filter, c: Case, x: Array, dy: Array, terms: int) -> Array:
    """The bound for each element of the weights' gradient, one group; terms: k of conv_winograd_weight's docstring."""
    bt, g, at = (np.abs(p) for p in matrices(scheme))
    m, a = scheme.m, scheme.a
    th, tw = (-(-o // m) for o in c.out)
    padded = np.pad(np.abs(c.pad(x))[:, 0], [(0, 0), (0, 0), (0, m), (0, m)])[..., : m * th + 2, : m * tw + 2]
    d = np.lib.stride_tricks.sliding_window_view(padded, (a, a), (2, 3))[:, :, ::m, ::m]
    grads = np.zeros((*dy.shape[:2], m * th, m * tw))
    grads[..., : c.out[0], : c.out[1]] = np.abs(dy)
    grads = grads.reshape(*dy.shape[:2], th, m, tw, m).swapaxes(3, 4)
    sums = np.einsum("ncijpq,noijpq->ocpq", bt @ d @ bt.T, at.T @ grads @ at, optimize=True)
    return terms * UNIT / (1 - terms * UNIT) * (g.T @ sums @ g)


WEIGHTS = [
    (Case((14, 14), (3, 3), pads=PAD), 9, 32, 64),
    (Case((15, 13), (3, 3), pads=(0, 2, 1, 0)), 5, 37, 31),
    (Case((8, 8), (3, 3), pads=PAD), 3, 17, 131),  # three blocks of channels
    (Case((40, 200), (3, 3), pads=PAD), 1, 5, 7),
    (Case((3, 4), (3, 3)), 2, 9, 8),
]


@SCHEMES
@pytest.mark.parametrize(("case", "n", "cin", "cout"), WEIGHTS)
@pytest.mark.parametrize("kind", ["kind", "offset", "one"])
def test_error_bound_of_weight_gradients(scheme: Filter, case: Case, n: int, cin: int, cout: int, kind: str) -> None:
    x, dy = values("float32", n, cin, *case.size), values("float32", n, cout, *case.out, seed=1)
    if kind == "offset":
        x, dy = x + 1000, dy - dy.mean((2, 3), keepdims=True)
    elif kind == "one":
        x[0, :, 1, 2], dy[-1, :, 0, 1] = 1e6, 1e6
    with by(scheme):
        node, types, inputs, _ = make_node("onnxc.ConvWeightGrad", dy, x, kernel_shape=(3, 3), **case.attrs)
        words = next(a.values for a in NodeRun(node, types, inputs, threads=1).calls[0].args if isinstance(a, Words))
        (dw,) = run_op("onnxc.ConvWeightGrad", dy, x, kernel_shape=(3, 3), **case.attrs)
    columns, span, rows, parts = words[6], words[23], words[24], words[25]
    terms = span * columns + -(-rows // span) + parts + (8 if scheme is F2 else 26)
    assert (np.abs(dw - case.weight_grad(dy, x)) <= weight_bound(scheme, case, x, dy, terms)).all()


@SCHEMES
def test_error_of_weight_gradients_is_near_that_of_the_direct_sum(scheme: Filter) -> None:
    case = Case((16, 16), (3, 3), pads=PAD)
    x, dy = values("float32", 8, 16, 16, 16), values("float32", 8, 32, 16, 16, seed=1)
    errors = []
    for s in (scheme, None):
        with by(s):
            (dw,) = run_op("onnxc.ConvWeightGrad", dy, x, kernel_shape=(3, 3), **case.attrs)
        errors.append(np.linalg.norm(dw - case.weight_grad(dy, x)))
    assert errors[0] < 3 * errors[1]


@SCHEMES
def test_nothing_that_is_not_finite_gets_lost_in_weight_gradients(scheme: Filter) -> None:
    x, dy = values("float32", 8, 32, 14, 14), values("float32", 8, 64, 14, 14, seed=1)
    x[3, 7, 5, 5] = np.inf
    attrs = {"kernel_shape": (3, 3), **Case((14, 14), (3, 3), pads=PAD).attrs}
    with by(scheme):
        (dw,) = run_op("onnxc.ConvWeightGrad", dy, x, **attrs)
    assert not np.isfinite(dw[:, 7]).any()
    assert np.isfinite(np.delete(dw, 7, 1)).all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_geometry(data: st.DataObject) -> None:
    """Also where it would not pay."""
    scheme, group = data.draw(st.sampled_from([F2, F4])), data.draw(st.sampled_from([1, 1, 2, 3]))
    size = data.draw(st.tuples(st.integers(1, 20), st.integers(1, 40)))
    case = Case(size, (3, 3), pads=data.draw(st.tuples(*[st.integers(0, 3)] * 4)), group=group)
    op = data.draw(st.sampled_from(["Conv", "ConvTranspose", "weights"]))
    back = [s + 2 - case.pads[i] - case.pads[i + 2] for i, s in enumerate(size)]
    out = back if op == "ConvTranspose" else case.out
    assume(min(out) > 0)
    n, channels = data.draw(st.integers(1, 4)), st.integers(1, 20)
    if op == "weights":
        with by(scheme):
            check_weight(case, "float32", n, data.draw(channels), data.draw(channels))
        return
    x, w, b = operands(op, case, n, group * data.draw(channels), group * data.draw(channels))
    with by(scheme):
        (y,) = run_op(op, x, w, b, **case.attrs)
    want = case.conv(x, w, b) if op == "Conv" else case.conv_transpose(x, w, b, out)
    assert y.shape == want.shape
    np.testing.assert_allclose(y, want, rtol=0, atol=2e-5 if scheme is F2 else 6e-5)


@SCHEMES
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "onnxc.ConvWeightGrad"])
@pytest.mark.parametrize(
    ("case", "n", "cin", "cout"),
    [(Case((7, 9), (3, 3), pads=(1, 0, 2, 1)), 3, 9, 13), (CASES[0][0], 1, 16, 16), (CASES[1][0], 1, 8, 8)],
)
def test_nothing_else_is_touched(scheme: Filter, case: Case, n: int, cin: int, cout: int, op: str) -> None:
    if op == "onnxc.ConvWeightGrad":
        dy, x = values("float32", n, cout, *case.out), values("float32", n, cin, *case.size)
        node, types, inputs, _ = make_node(op, dy, x, kernel_shape=(3, 3), **case.attrs)
    else:
        node, types, inputs, _ = make_node(op, *operands(op, case, n, cin, cout), **case.attrs)
    with by(scheme):
        run = NodeRun(node, types, inputs, threads=1)
    run.reset()
    run.run_checked()


def test_where_it_is_chosen() -> None:
    def chosen(x: Sequence[int], w: Sequence[int], dtype: str = "float32", **attrs: Any) -> bool:
        return "winograd" in kernels_of("Conv", np.ones(x, dtype), np.ones(w, dtype), None, **attrs)

    assert chosen((64, 32, 14, 14), (64, 32, 3, 3), pads=PAD)
    assert chosen((32, 16, 32, 32), (16, 16, 3, 3), pads=PAD)
    assert chosen((32, 64, 16, 16), (64, 32, 3, 3), pads=PAD, group=2)
    assert not chosen((64, 32, 14, 14), (64, 32, 3, 3), "float64", pads=PAD)
    assert not chosen((64, 32, 28, 28), (64, 32, 3, 3), pads=PAD, strides=(2, 2))
    assert not chosen((64, 32, 14, 14), (64, 32, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2))
    assert not chosen((64, 32, 14, 14), (64, 32, 3, 1), pads=(1, 0, 1, 0))
    assert not chosen((64, 1, 28, 28), (32, 1, 3, 3), pads=PAD)
    assert not chosen((64, 64, 28, 28), (64, 1, 3, 3), pads=PAD, group=64)
    assert not chosen((64, 32, 3, 3), (32, 32, 3, 3), pads=PAD)
    assert not chosen((0, 32, 14, 14), (64, 32, 3, 3), pads=PAD)
    assert not chosen((64, 32, 14, 0), (64, 32, 3, 3), pads=PAD)
    assert not chosen((8, 32, 8, 8, 8), (32, 32, 3, 3, 3), pads=(1,) * 6)
    dy, x = (np.ones((64, c, 14, 14), np.float32) for c in (64, 32))
    attrs = {"kernel_shape": (3, 3), **Case((14, 14), (3, 3), pads=PAD).attrs}
    assert "winograd_weight" in kernels_of("onnxc.ConvWeightGrad", dy, x, **attrs)
    assert "winograd_weight" not in kernels_of("onnxc.ConvWeightGrad", dy[:1, :, :2, :2], x[:1, :, :2, :2], **attrs)
