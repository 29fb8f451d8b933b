"""Movement ops against onnx.reference, bit for bit, in every element size."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.calls import In, Out
from compiler.codegen.kernels.strided import copy_call
from compiler.codegen.native import native
from compiler.ir.evaluate import evaluate
from tests.codegen.runner import make_node, run_node, run_op

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int16, np.int32, np.int64]
DTYPES += [np.uint8, np.uint16, np.uint32, np.uint64, np.bool_]
TWO = [np.float32, np.float64]


def data(shape, dtype=np.float32):
    n = int(np.prod(shape))
    if dtype == np.bool_:
        return (np.arange(n) % 3 == 0).reshape(shape)
    return (np.arange(n) % 125 + 1).astype(dtype).reshape(shape)


def ints(*values):
    return np.array(values, np.int64)


def check(op, *inputs, outputs=1, constants=(), **attrs):
    """The lowering's bits are the reference's."""
    node, types, feeds, known = make_node(op, *inputs, outputs=outputs, constants=constants, **attrs)
    want = evaluate(node, inputs[: len(node.inputs)])
    got = run_node(node, types, feeds, known)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        assert g.tobytes() == np.ascontiguousarray(w).tobytes()
    return got


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_every_second_element(dtype):
    for n in (1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 70):
        for odd in (0, 1):
            x = np.arange(6 * (2 * n - odd)).reshape(6, 2 * n - odd).astype(dtype)
            (got,) = run_op("Slice", x, ints(0, 0), ints(6, 1000), ints(0, 1), ints(2, 2), constants=(1, 2, 3, 4))
            np.testing.assert_array_equal(got, x[::2, ::2])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((5, 7), (1, 0)),
        ((33, 70), (1, 0)),
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((3, 17, 40), (0, 2, 1)),
        ((2, 3, 4), (2, 1, 0)),
    ],
)
def test_transpose(shape, perm, dtype):
    check("Transpose", data(shape, dtype), perm=perm)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=0, max_size=5), st.randoms(), st.sampled_from(TWO))
def test_transpose_any(shape, random, dtype):
    perm = list(range(len(shape)))
    random.shuffle(perm)
    check("Transpose", data(shape, dtype), perm=tuple(perm))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_of_depth(mode):
    check("DepthToSpace", data((2, 12, 3, 5)), blocksize=2, mode=mode)
    (got,) = check("SpaceToDepth", data((2, 3, 4, 6)), blocksize=2, mode=mode)
    (back,) = check("DepthToSpace", got, blocksize=2, mode=mode)
    assert (back == data((2, 3, 4, 6))).all()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "to"),
    [((), (3, 4)), ((1,), (1000,)), ((3, 1), (2, 3, 5)), ((3, 1), (1, 1)), ((1, 4, 1), (3, 4, 17)), ((2, 1), (2, 0))],
)
def test_expand(shape, to, dtype):
    check("Expand", data(shape, dtype), ints(*to), constants=(1,))


@pytest.mark.parametrize("dtype", TWO)
@pytest.mark.parametrize(
    ("shape", "repeats"), [((3,), (4,)), ((2, 3), (3, 2)), ((2, 3, 4), (1, 5, 1)), ((2, 3), (0, 2)), ((0, 3), (2, 2))]
)
def test_tile(shape, repeats, dtype):
    check("Tile", data(shape, dtype), ints(*repeats), constants=(1,))


slices = st.tuples(st.integers(-12, 12), st.integers(-12, 12), st.sampled_from([1, 2, 3, -1, -2, -5]))


def sliced(n, start, end, step):
    """Indices by the text of the standard (NumPy differs where a start before 0 goes backwards)."""
    start, end = (v + n if v < 0 else v for v in (start, end))
    start = min(max(start, 0), n if step > 0 else n - 1)
    end = min(max(end, 0 if step > 0 else -1), n if step > 0 else n - 1)
    return list(range(start, end, step)) if n else []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), slices), min_size=1, max_size=4), st.sampled_from([np.float32, np.int8]))
def test_slice_any(axes, dtype):
    x = data([n for n, _ in axes], dtype)
    starts, ends, steps = (ints(*v) for v in zip(*(s for _, s in axes), strict=True))
    node, types, feeds, known = make_node(
        "Slice", x, starts, ends, ints(*range(len(axes))), steps, constants=(1, 2, 3, 4)
    )
    (got,) = run_node(node, types, feeds, known)
    want = x[np.ix_(*(np.array(sliced(n, *s), np.int64) for n, s in axes))]
    assert got.shape == want.shape
    assert (got == want).all()


def test_slice_defaults_and_extremes():
    x = data((4, 6))
    big = 2**63 - 1
    check("Slice", x, ints(1, 2), ints(3, 5), constants=(1, 2))
    check("Slice", x, ints(0), ints(big), ints(-1), ints(2), constants=(1, 2, 3, 4))
    check("Slice", x, ints(-1), ints(-big - 1), ints(1), ints(-1), constants=(1, 2, 3, 4))
    check("Slice", x, ints(big), ints(-big), ints(0), ints(-2), constants=(1, 2, 3, 4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_and_split(dtype, axis):
    sizes = (3, 0, 1, 40)
    shapes = [[4, 5, 6] for _ in sizes]
    for shape, n in zip(shapes, sizes, strict=True):
        shape[axis] = n
    (whole,) = check("Concat", *(data(s, dtype) for s in shapes), axis=axis)
    check("Split", whole, ints(*sizes), constants=(1,), outputs=4, axis=axis)


def test_split_by_number():
    check("Split", data((7, 3)), outputs=3, num_outputs=3)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_constant_of_shape(dtype):
    from compiler.ir.types import Tensor

    check("ConstantOfShape", ints(3, 50), constants=(0,), value=Tensor(np.ones(1, dtype)))
    check("ConstantOfShape", ints(3, 50), constants=(0,))
    check("ConstantOfShape", ints(3, 0), constants=(0,))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("elem", [1, 6, 7, 9, 10, 11, 16])
@pytest.mark.parametrize(("shape", "k"), [((4, 6), 0), ((4, 6), 2), ((6, 4), -3), ((3, 3), 9), ((3, 3), -9)])
def test_eye_like(elem, shape, k):
    check("EyeLike", data(shape, np.int32), dtype=elem, k=k)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 5, -100, 2**62])
def test_trilu(dtype, upper, k):
    check("Trilu", data((2, 4, 5), dtype), *([] if k is None else [np.array(k)]), upper=upper)


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(1, 10, 2), (10, 4, -2), (0, 0, 1), (5, 1, 1), (0.0, 1.0, 0.1), (3.5, -2.0, -0.25)]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_range(start, limit, delta, dtype):
    if dtype not in TWO and isinstance(start, float):
        return
    node, types, feeds, known = make_node(
        "Range", *(np.array(v, dtype) for v in (start, limit, delta)), constants=(0, 1, 2)
    )
    (got,) = run_node(node, types, feeds, known)
    np.testing.assert_allclose(got, np.arange(start, limit, delta).astype(dtype), rtol=1e-6)


@pytest.mark.parametrize("batch_axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_reverse_sequence(batch_axis, dtype):
    shape = (3, 4, 5) if batch_axis == 0 else (4, 3, 5)
    check("ReverseSequence", data(shape, dtype), ints(4, 1, 2), batch_axis=batch_axis, time_axis=1 - batch_axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(dtype, mode):
    x = data((3, 4, 5), dtype)
    value = np.array(7).astype(dtype) if mode == "constant" else None
    check("Pad", x, ints(1, 0, 2, 0, 3, 4), value, constants=(1,), mode=mode)
    check("Pad", x, ints(2, 1), value, ints(-1), constants=(1, 3), mode=mode)


def test_pad_constant_edges():
    x = data((3, 4, 5))
    value = np.array(-2, np.float32)
    check("Pad", x, ints(0, 0, 0, 0, 0, 0), value, constants=(1,))
    check("Pad", x, ints(1, 0, 0, 1, 0, 3), constants=(1,))
    check("Pad", data((0, 4)), ints(1, 0, 1, 3), value, constants=(1,))


def test_pad_wraps_and_reflects_far():
    check("Pad", data((3, 4)), ints(7, 9, 8, 5), constants=(1,), mode="wrap")
    check("Pad", data((3, 4)), ints(7, 9, 8, 5), constants=(1,), mode="reflect")


pads = st.tuples(st.integers(1, 8), st.integers(-4, 4), st.integers(-4, 4)).filter(lambda a: sum(a) >= 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(pads, min_size=1, max_size=4), st.sampled_from(["constant", "reflect", "edge", "wrap"]))
def test_pad_any(axes, mode):
    """A negative pad removes elements, the others are NumPy's."""
    x = data([n for n, _, _ in axes])
    if mode != "constant":
        axes = [(n, max(b, 0), max(e, 0)) for n, b, e in axes]
    amounts = ints(*(b for _, b, _ in axes), *(e for _, _, e in axes))
    node, types, feeds, known = make_node("Pad", x, amounts, constants=(1,), mode=mode)
    (got,) = run_node(node, types, feeds, known)
    want = np.pad(x, [(max(b, 0), max(e, 0)) for _, b, e in axes], mode=mode)
    want = want[tuple(slice(max(-b, 0), want.shape[k] - max(-e, 0)) for k, (_, b, e) in enumerate(axes))]
    assert got.shape == want.shape
    assert (got == want).all()


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000])
def test_copy_call(nbytes):
    src, dst = np.arange(nbytes + 8, dtype=np.uint8), np.full(nbytes + 8, 255, np.uint8)
    call = copy_call(In("a"), Out("b"), nbytes)
    run = native(call.kernel)
    for t in range(3):
        run(call.n * t // 3, call.n * (t + 1) // 3, src.ctypes.data, dst.ctypes.data, nbytes)
    assert (dst[:nbytes] == src[:nbytes]).all()
    assert (dst[nbytes:] == 255).all()
