"""Conv, ConvTranspose and onnxc.ConvWeightGrad against sums over the taps of the kernel in float64, and onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

import compiler.ir.definitions  # noqa: F401  # registers onnxc.ConvWeightGrad
from compiler.codegen.kernels import conv, conv_weight  # noqa: F401  # register the lowerings
from tests.codegen.runner import NodeRun, make_node, run_op

Array = NDArray[np.floating]
FLOATS = ("float32", "float64")
TOLERANCE = {"float32": 2e-6, "float64": 4e-15}


def values(dtype: str, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def close(got: Array, want: Array, terms: int) -> None:
    """Within the rounding of sums of so many terms of size about 1."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=TOLERANCE[str(got.dtype)] * (terms + 8))


class Case:
    """A convolution's geometry, with the plain meaning of the three ops. pads: begins, then ends."""

    def __init__(
        self,
        size: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int] = (),
        pads: Sequence[int] = (),
        dilations: Sequence[int] = (),
        group: int = 1,
    ):
        n = self.n = len(size)
        self.size, self.kernel, self.group = tuple(size), tuple(kernel), group
        self.strides, self.dilations = tuple(strides) or (1,) * n, tuple(dilations) or (1,) * n
        self.pads = tuple(pads) or (0,) * 2 * n
        self.reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        self.padded = [s + self.pads[i] + self.pads[i + n] for i, s in enumerate(self.size)]
        self.fits = all(p >= r for p, r in zip(self.padded, self.reach, strict=True))
        self.out = [(p - r) // s + 1 for p, r, s in zip(self.padded, self.reach, self.strides, strict=True)]
        self.attrs = {"strides": self.strides, "pads": self.pads, "dilations": self.dilations, "group": group}

    def windows(self, padded: Array, out: Sequence[int]) -> list[tuple[tuple[int, ...], Array]]:
        """(tap, the view of a padded array that it meets)."""
        found = []
        for tap in product(*map(range, self.kernel)):
            at = [t * d for t, d in zip(tap, self.dilations, strict=True)]
            cut = (slice(a, a + max(0, (o - 1) * s + 1), s) for a, o, s in zip(at, out, self.strides, strict=True))
            found.append((tap, padded[(..., *cut)]))
        return found

    def grouped(self, x: Array, axis: int) -> Array:
        """In float64, the channel axis split in (group, channels of one)."""
        shape = (*x.shape[:axis], self.group, x.shape[axis] // self.group, *x.shape[axis + 1 :])
        return x.reshape(shape).astype(np.float64)

    def pad(self, x: Array) -> Array:
        widths = [(self.pads[i], self.pads[i + self.n]) for i in range(self.n)]
        return np.pad(self.grouped(x, 1), [(0, 0)] * 3 + widths)

    def conv(self, x: Array, w: Array, b: Array | None) -> Array:
        weights = self.grouped(w, 0)
        y = np.zeros((x.shape[0], self.group, w.shape[0] // self.group, *self.out))
        for tap, view in self.windows(self.pad(x), self.out):
            y += np.einsum("ngc...,goc->ngo...", view, weights[(slice(None),) * 3 + tap])
        y = y.reshape(x.shape[0], w.shape[0], *self.out)
        return y if b is None else y + b.reshape(-1, *(1,) * self.n)

    def conv_transpose(self, x: Array, w: Array, b: Array | None, out: Sequence[int]) -> Array:
        """From space `size` (of x here) to `out`; pads of the ends are not used."""
        data, weights = self.grouped(x, 1), self.grouped(w, 0)
        whole = [(i - 1) * s + r for i, s, r in zip(self.size, self.strides, self.reach, strict=True)]
        room = [max(f, p + o) for f, p, o in zip(whole, self.pads, out, strict=False)]
        y = np.zeros((x.shape[0], self.group, w.shape[1], *room))
        for tap, view in self.windows(y, self.size):
            view += np.einsum("ngc...,gco->ngo...", data, weights[(slice(None),) * 3 + tap])
        y = y[(..., *(slice(p, p + o) for p, o in zip(self.pads, out, strict=False)))]
        y = y.reshape(x.shape[0], self.group * w.shape[1], *out)
        return y if b is None else y + b.reshape(-1, *(1,) * self.n)

    def weight_grad(self, dy: Array, x: Array) -> Array:
        dw = np.zeros((dy.shape[1], x.shape[1] // self.group, *self.kernel))
        grads = self.grouped(dy, 1).reshape(dy.shape[0], self.group, dy.shape[1] // self.group, int(np.prod(self.out)))
        for tap, view in self.windows(self.pad(x), self.out):
            part = np.einsum("ngcp,ngop->goc", view.reshape(*view.shape[:3], int(np.prod(self.out))), grads)
            dw[(slice(None), slice(None), *tap)] = part.reshape(dw.shape[:2])
        return dw


def check_conv(c: Case, dtype: str, n: int, cin: int, cout: int, bias: bool = True) -> None:
    x, w = values(dtype, n, c.group * cin, *c.size), values(dtype, c.group * cout, cin, *c.kernel, seed=1)
    b = values(dtype, c.group * cout, seed=2) if bias else None
    (y,) = run_op("Conv", x, w, b, **c.attrs)
    close(y, c.conv(x, w, b), cin * int(np.prod(c.kernel)))


def check_transpose(c: Case, dtype: str, n: int, cin: int, cout: int, extra: Sequence[int], bias: bool = True) -> bool:
    """Whether there is an output at all; if so, it is right."""
    x, w = values(dtype, n, c.group * cin, *c.size), values(dtype, c.group * cin, cout, *c.kernel, seed=1)
    b = values(dtype, c.group * cout, seed=2) if bias else None
    out = [
        (s - 1) * st_ + e + r - c.pads[i] - c.pads[i + c.n]
        for i, (s, st_, e, r) in enumerate(zip(c.size, c.strides, extra, c.reach, strict=True))
    ]
    if min(out) > 0:
        (y,) = run_op("ConvTranspose", x, w, b, output_padding=tuple(extra), **c.attrs)
        close(y, c.conv_transpose(x, w, b, out), cin * int(np.prod(c.kernel)))
    return min(out) > 0


def check_weight(c: Case, dtype: str, n: int, cin: int, cout: int) -> None:
    x, dy = values(dtype, n, c.group * cin, *c.size), values(dtype, n, c.group * cout, *c.out, seed=1)
    (dw,) = run_op("onnxc.ConvWeightGrad", dy, x, kernel_shape=c.kernel, **c.attrs)
    close(dw, c.weight_grad(dy, x), n * int(np.prod(c.out)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, str, int, int, int]:
    axes = draw(st.integers(1, 3))

    def ints(low: int, high: int, count: int = axes) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    group = draw(st.sampled_from([1, 1, 2, 3]))
    case = Case(ints(1, (40, 20, 8)[axes - 1]), ints(1, 3), ints(1, 3), ints(0, 2, 2 * axes), ints(1, 2), group)
    assume(case.fits)
    channels = draw(st.tuples(st.integers(1, 5), st.integers(1, 9)))
    return case, draw(st.sampled_from(FLOATS)), draw(st.integers(0, 3)), *channels


# many geometries have kernels of their own, which takes long
@settings(max_examples=25, deadline=None)
@given(cases(), st.booleans())
def test_conv_of_any_geometry(case: tuple[Case, str, int, int, int], bias: bool) -> None:
    check_conv(*case, bias)


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(cases(), st.booleans())
def test_conv_of_many_geometries(case: tuple[Case, str, int, int, int], bias: bool) -> None:
    check_conv(*case, bias)


@settings(max_examples=80, deadline=None)
@given(cases(), st.booleans(), st.data())
def test_conv_transpose_of_any_geometry(case: tuple[Case, str, int, int, int], bias: bool, data: st.DataObject) -> None:
    c = case[0]
    limits = [max(s, d) - 1 for s, d in zip(c.strides, c.dilations, strict=True)]
    assume(check_transpose(*case, extra=[data.draw(st.integers(0, most)) for most in limits], bias=bias))


@settings(max_examples=25, deadline=None)
@given(cases())
def test_weight_gradient_of_any_geometry(case: tuple[Case, str, int, int, int]) -> None:
    check_weight(*case)


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(cases())
def test_weight_gradient_of_many_geometries(case: tuple[Case, str, int, int, int]) -> None:
    check_weight(*case)


LARGER = [
    (Case((14, 14), (3, 3), pads=(1, 1, 1, 1)), 3, 16, 35),  # rows shorter than a panel
    (Case((28, 28), (3, 3), pads=(1, 1, 1, 1)), 2, 1, 32),
    (Case((33, 31), (5, 3), (2, 3), (2, 0, 1, 2)), 2, 3, 7),
    (Case((60, 60), (3, 3), pads=(1, 1, 1, 1)), 1, 64, 8),  # in chunks of rows
    (Case((7, 7), (3, 3), pads=(1, 1, 1, 1)), 2, 50, 17),  # sums of two blocks
    (Case((3000,), (5,), (1,), (2, 2)), 2, 40, 3),  # chunks of one axis
    (Case((1500,), (5,), (2,), (2, 1)), 1, 40, 20),
    (Case((40, 41), (3, 3), (2, 3), (1, 0, 1, 1), (2, 1)), 1, 20, 20),  # few images: in chunks to share out
    (Case((8, 9, 10), (3, 1, 2), (2, 1, 1), (1, 0, 0, 1, 0, 1)), 2, 20, 9),
    (Case((20, 20), (3, 3), pads=(1, 1, 1, 1), group=24), 2, 1, 1),  # depthwise
    (Case((14, 14), (3, 3), (2, 2), (1, 1, 1, 1), group=9), 3, 1, 1),
    (Case((9, 28), (5, 5), pads=(2, 2, 2, 2), group=4), 2, 1, 2),  # two outputs for each input
    (Case((7, 8), (2, 2), (3, 3), group=5), 2, 1, 1),  # strides over the kernel: not all of the image is read
    (Case((11, 13), (3, 2), (1, 2), (1, 0, 2, 1), (2, 3), group=3), 2, 1, 1),
    (Case((700,), (4,), (2,), (1, 2), group=3), 2, 1, 1),
    (Case((4, 6, 9), (2, 3, 3), (1, 2, 1), (0, 1, 1, 1, 1, 1), group=2), 2, 1, 1),
    (Case((200, 260), (3, 3), pads=(1, 1, 1, 1), group=2), 1, 1, 1),  # in chunks of rows
    (Case((9, 9), (1, 1)), 3, 20, 19),
    (Case((9, 9), (1, 1), group=3), 3, 20, 19),
    (Case((9, 9), (1, 1), (2, 2)), 3, 20, 19),
    (Case((4, 4), (2, 2), (3, 3)), 20, 3, 4),  # strides over the kernel
    (Case((2, 2), (3, 3), pads=(1, 1, 1, 1)), 200, 2, 3),  # many small images
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("case", "n", "cin", "cout"), LARGER)
def test_larger_ones(case: Case, n: int, cin: int, cout: int, dtype: str) -> None:
    check_conv(case, dtype, n, cin, cout)
    assert check_transpose(case, dtype, n, cin, cout, [0] * case.n)
    check_weight(case, dtype, n, cin, cout)


STRIDED_POINTS = [
    (Case((16, 16), (1, 1), (2, 2)), (1, 1)),
    (Case((9, 7), (1, 1), (2, 3), group=2), (1, 2)),
    (Case((33,), (1,), (4,)), (0,)),
    (Case((4, 5, 6), (1, 1, 1), (2, 1, 2)), (1, 0, 0)),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("case", "extra"), STRIDED_POINTS)
def test_one_tap_of_every_stride(case: Case, extra: tuple[int, ...], dtype: str) -> None:
    check_conv(case, dtype, 3, 20, 19, bias=False)
    check_conv(case, dtype, 3, 20, 19)
    assert check_transpose(case, dtype, 3, 20, 19, extra, bias=False)
    assert check_transpose(case, dtype, 3, 20, 19, extra)
    check_weight(case, dtype, 3, 20, 19)


@pytest.mark.parametrize(("case", "n", "cin", "cout"), [c for c in LARGER if c[0].size != (60, 60)])
def test_nothing_else_is_touched(case: Case, n: int, cin: int, cout: int) -> None:
    n, dtype = min(n, 3), "float32"
    x, dy = values(dtype, n, case.group * cin, *case.size), values(dtype, n, case.group * cout, *case.out)
    w, b = values(dtype, case.group * cout, cin, *case.kernel), values(dtype, case.group * cout)
    back = values(dtype, case.group * cin, cout, *case.kernel)
    for node, types, inputs, _ in (
        make_node("Conv", x, w, b, **case.attrs),
        make_node("ConvTranspose", x, back, b, **case.attrs),
        make_node("onnxc.ConvWeightGrad", dy, x, kernel_shape=case.kernel, **case.attrs),
    ):
        run = NodeRun(node, types, inputs, threads=1)
        run.reset()
        run.run_checked()


def onnxruntime_conv(op: str, x: Array, w: Array, out: Sequence[int], **attrs: object) -> Array:
    operands = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in (("x", x), ("w", w))]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, out)
    graph = helper.make_graph([helper.make_node(op, ["x", "w"], ["y"], **attrs)], "g", operands, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": x, "w": w})
    return np.asarray(result)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 5)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_auto_pad(op: str, auto_pad: str, kernel: tuple[int, int], strides: tuple[int, int]) -> None:
    x = values("float32", 2, 3, 11, 12)
    w = values("float32", *((4, 3) if op == "Conv" else (3, 4)), *kernel, seed=1)
    (y,) = run_op(op, x, w, auto_pad=auto_pad, strides=strides)
    close(y, onnxruntime_conv(op, x, w, y.shape, auto_pad=auto_pad, strides=strides), 30)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "NOTSET"])
@pytest.mark.parametrize("shape", [(33, 22), (32, 24), (34, 25), (30, 23)])
def test_output_shape_of_conv_transpose(auto_pad: str, shape: tuple[int, int]) -> None:
    x, w = values("float32", 1, 3, 11, 12), values("float32", 3, 4, 3, 3, seed=1)
    attrs = {"auto_pad": auto_pad, "strides": (3, 2), "output_shape": shape}
    (y,) = run_op("ConvTranspose", x, w, **attrs)
    assert y.shape == (1, 4, *shape)
    close(y, onnxruntime_conv("ConvTranspose", x, w, y.shape, **attrs), 30)


def test_conv_transpose_is_the_data_gradient() -> None:
    """<dy, conv(x, w)> is <conv_transpose(dy, w), x>, for a stride that leaves an end of x unread."""
    case = Case((12, 11), (3, 3), (2, 3), (1, 1, 0, 1))
    x, w = values("float64", 2, 3, 12, 11), values("float64", 5, 3, 3, 3, seed=1)
    (y,) = run_op("Conv", x, w, **case.attrs)
    dy = values("float64", *y.shape, seed=2)
    covered = [(o - 1) * s + r - p for o, s, r, p in zip(case.out, case.strides, case.reach, case.pads, strict=False)]
    rest = tuple(i - c + p for i, c, p in zip(case.size, covered, case.pads[2:], strict=True))
    (dx,) = run_op("ConvTranspose", dy, w, output_padding=rest, **case.attrs)
    assert dx.shape == x.shape
    np.testing.assert_allclose(np.vdot(dx, x), np.vdot(dy, y), rtol=1e-12)
