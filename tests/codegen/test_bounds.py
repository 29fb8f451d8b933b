"""No kernel of the families touches memory beyond what it was given, whatever the shape; and all use vectors."""

import re

import numpy as np
import pytest

import compiler.codegen.kernels
import compiler.ir.definitions  # noqa: F401
from compiler.codegen.kernels import arg, batch_norm, layer_norm, pool, pool_grad, random, softmax, strided
from compiler.codegen.kernels.reduce_kernels import make_reduce
from compiler.codegen.native import Target, optimize
from compiler.codegen.native.guard import guarded
from tests.codegen.runner import Memory, NodeRun, make_node

RNG = np.random.default_rng(0)


def f(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def n(*values):
    return np.array(values, np.int64)


def index(below, *shape):
    return RNG.integers(-below, below, shape)


WINDOW = {"kernel_shape": (3, 3), "strides": (2, 2), "dilations": (1, 1), "pads": (1, 1, 0, 1), "ceil_mode": 0}
TILED = {"kernel_shape": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0), "ceil_mode": 0}
ROW, COLUMN = np.ones((6, 1), np.float32), np.ones(7, np.float32)
CASES = {
    "Transpose": ("Transpose", (f(33, 70),), {"perm": (1, 0)}, ()),
    "Transpose 4-D": ("Transpose", (f(2, 3, 5, 7),), {"perm": (3, 1, 0, 2)}, ()),
    "Slice": ("Slice", (f(9, 11), n(8, 1), n(-20, 11), n(0, 1), n(-3, 2)), {}, (1, 2, 3, 4)),
    "Expand": ("Expand", (f(3, 1), n(2, 3, 5)), {}, (1,)),
    "Tile": ("Tile", (f(3, 5), n(2, 3)), {}, (1,)),
    "Concat": ("Concat", (f(3, 5), f(3, 2)), {"axis": 1}, ()),
    "Split": ("Split", (f(3, 7), n(2, 5)), {"axis": 1, "outputs": 2}, (1,)),
    "Pad": ("Pad", (f(3, 5), n(1, 2, -1, 3)), {}, (1,)),
    "Pad reflected": ("Pad", (f(3, 5), n(1, 2, 2, 3)), {"mode": "reflect"}, (1,)),
    "Trilu": ("Trilu", (f(2, 5, 7),), {"upper": 0}, ()),
    "EyeLike": ("EyeLike", (f(5, 7),), {"k": -1}, ()),
    "ReverseSequence": ("ReverseSequence", (f(4, 3, 5), n(4, 1, 2)), {}, ()),
    "ReduceSum of rows": ("ReduceSum", (f(5, 37), n(1)), {}, (1,)),
    "ReduceSum of columns": ("ReduceSum", (f(37, 65), n(0)), {}, (1,)),
    "ReduceSum in parts": ("ReduceSum", (f(70001), n(0)), {}, (1,)),
    "ReduceLogSumExp": ("ReduceLogSumExp", (f(2, 9, 5, 3), n(0, 2)), {}, (1,)),
    "ArgMax": ("ArgMax", (f(5, 37),), {"axis": 1}, ()),
    "ArgMax of columns": ("ArgMax", (f(5, 67),), {"axis": 0}, ()),
    "Hardmax": ("Hardmax", (f(5, 7),), {}, ()),
    "CumSum": ("CumSum", (f(5, 67), np.array(0)), {}, (1,)),
    "Softmax": ("Softmax", (f(5, 37),), {}, ()),
    "Softmax of short rows": ("Softmax", (f(70, 5),), {}, ()),
    "LogSoftmax of short rows": ("LogSoftmax", (f(3, 16),), {}, ()),
    "Softmax of columns": ("Softmax", (f(5, 67),), {"axis": 0}, ()),
    "SoftmaxCrossEntropyLoss": ("SoftmaxCrossEntropyLoss", (f(5, 7, 3), index(1, 5, 3) + 1), {"outputs": 2}, ()),
    "loss gradient": (
        "onnxc.NegativeLogLikelihoodLossGrad",
        (f(5), n(1, 2, 3, 4, 5)),
        {"reduction": "none", "classes": 7},
        (),
    ),
    "loss gradient of planes": (
        "onnxc.NegativeLogLikelihoodLossGrad",
        (f(5, 3), index(7, 5, 3)),
        {"reduction": "none", "classes": 7},
        (),
    ),
    "loss gradient by scores": (
        "onnxc.SoftmaxCrossEntropyLossGrad",
        (f(5), f(5, 7), n(1, 2, 3, 4, 5)),
        {"reduction": "none"},
        (),
    ),
    "loss gradient by many scores": (
        "onnxc.SoftmaxCrossEntropyLossGrad",
        (f(), f(5, 77), n(1, 2, 3, 4, 5), f(77)),
        {"reduction": "mean", "ignore_index": 3},
        (),
    ),
    "loss gradient by scores of positions": (
        "onnxc.SoftmaxCrossEntropyLossGrad",
        (f(), f(2, 7, 3, 5), index(7, 2, 3, 5), f(7)),
        {"reduction": "mean", "ignore_index": 3},
        (),
    ),
    "loss gradient by scores of many positions": (
        "onnxc.SoftmaxCrossEntropyLossGrad",
        (f(2, 1027), f(2, 5, 1027), index(5, 2, 1027)),
        {"reduction": "none"},
        (),
    ),
    "MaxPool": ("MaxPool", (f(2, 3, 9, 10),), WINDOW, ()),
    "MaxPool with indices": ("MaxPool", (f(2, 3, 9, 10),), {**WINDOW, "outputs": 2}, ()),
    "MaxPool in tiles": ("MaxPool", (f(2, 3, 9, 11),), TILED, ()),
    "MaxPoolGrad": ("onnxc.MaxPoolGrad", (f(2, 3, 4, 5), f(2, 3, 9, 10)), WINDOW, ()),
    "MaxPoolGrad in tiles": ("onnxc.MaxPoolGrad", (f(2, 3, 4, 5), f(2, 3, 9, 11)), TILED, ()),
    "MaxPoolGrad in tiles, f64": (
        "onnxc.MaxPoolGrad",
        (f(2, 3, 4, 5, dtype=np.float64), f(2, 3, 8, 10, dtype=np.float64)),
        TILED,
        (),
    ),
    "AveragePool": ("AveragePool", (f(2, 3, 9, 10),), WINDOW, ()),
    "AveragePoolGrad": ("onnxc.AveragePoolGrad", (f(2, 3, 4, 5),), {**WINDOW, "shape": (2, 3, 9, 10)}, ()),
    "AveragePool in tiles": ("AveragePool", (f(2, 3, 9, 11),), TILED, ()),
    "AveragePoolGrad in tiles": ("onnxc.AveragePoolGrad", (f(2, 3, 4, 5),), {**TILED, "shape": (2, 3, 9, 11)}, ()),
    "BatchNorm": ("onnxc.BatchNorm", (f(4, 3, 17), f(3), f(3)), {"epsilon": 1e-5, "outputs": 3}, ()),
    "BatchNorm of columns": ("onnxc.BatchNorm", (f(4, 67), f(67), f(67)), {"epsilon": 1e-5, "outputs": 3}, ()),
    "BatchNormGrad": ("onnxc.BatchNormGrad", (f(4, 3, 17), f(4, 3, 17), f(3), f(3), f(3)), {"outputs": 3}, ()),
    "BatchNormGrad of columns": ("onnxc.BatchNormGrad", (f(4, 67), f(4, 67), f(67), f(67), f(67)), {"outputs": 3}, ()),
    "LayerNormalization": ("LayerNormalization", (f(6, 7), f(7), f(7)), {"outputs": 3}, ()),
    "LayerNormGrad": ("onnxc.LayerNormGrad", (f(6, 7), f(6, 7), f(7), ROW, ROW), {"axis": 1, "outputs": 2}, ()),
    "LayerNormGrad broadcast": (
        "onnxc.LayerNormGrad",
        (f(6, 7), f(6, 7), f(6, 1), ROW, ROW),
        {"axis": 1, "outputs": 2},
        (),
    ),
    "Attention": ("onnxc.Attention", (f(2, 7, 5), f(2, 9, 5), f(2, 9, 3)), {"outputs": 2}, ()),
    "Attention in blocks": ("onnxc.Attention", (f(70, 20), f(90, 20), f(90, 33), f(1, 90)), {"outputs": 2}, ()),
    "AttentionGrad": (
        "onnxc.AttentionGrad",
        (f(2, 7, 3), f(2, 7, 5), f(2, 9, 5), f(2, 9, 3), f(2, 7, 9), f(2, 7, 3), f(2, 7)),
        {"outputs": 3},
        (),
    ),
    "AttentionGrad in blocks": (
        "onnxc.AttentionGrad",
        (f(70, 33), f(70, 20), f(90, 20), f(90, 33), None, f(70, 33), f(70)),
        {"outputs": 3},
        (),
    ),
    "Gather": ("Gather", (f(5, 7), index(7, 9)), {"axis": 1}, ()),
    "GatherElements": ("GatherElements", (f(5, 7), index(5, 3, 7)), {"axis": 0}, ()),
    "GatherND": ("GatherND", (f(5, 7), index(5, 3, 1)), {}, ()),
    "OneHot": ("OneHot", (index(7, 3, 4), np.array(5), f(2)), {}, (1,)),
    "ScatterElements": ("ScatterElements", (f(5, 7), index(5, 3, 7), f(3, 7)), {"reduction": "add"}, ()),
    "ScatterND": ("ScatterND", (f(5, 7), index(5, 9, 1), f(9, 7)), {"reduction": "max"}, ()),
    "GatherGrad": ("onnxc.GatherGrad", (f(3, 4, 7), index(5, 3, 4)), {"axis": 0, "shape": (5, 7)}, ()),
    "SgdRows": ("onnxc.SgdRows", (f(), f(300, 7), f(3, 4, 7), index(300, 3, 4)), {}, ()),
    "RandomBits": ("onnxc.RandomBits", (np.array(1), np.array(2)), {"draw": 3, "shape": (5, 7), "outputs": 2}, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_every_access_is_inside(case):
    op, inputs, attrs, constants = CASES[case]
    node, types, feeds, known = make_node(op, *inputs, constants=constants, **attrs)
    with guarded() as guard:
        run = NodeRun(node, types, feeds, known, threads=2)
        kept = [k.bytes if isinstance(k, Memory) else k for k in run._keep]
        records = [r for rs in run._records for r in rs]
        guard.allow(*(m.bytes for m in run.memory.values()), *kept, *records, run._status)
        run.reset()
        for threads in (1, 2):
            run.run(threads)
            assert not guard.violations, guard.first


def vector_operations(kernel):
    """Names of LLVM operations on vectors of several elements in the optimized kernel."""
    host = Target.host()
    text = str(optimize.optimized(kernel.ir(), optimize.machine(host.cpu, host.features, host.triple)))
    found = set()
    for line in text.splitlines():
        m = re.match(r"\s+(?:%\S+ = )?(?:tail )?(\w+) .*<\d+ x (?:float|double|i\d+)>", line)
        if m:
            call = re.search(r"@llvm\.(\w+)\.", line)
            found.add(call[1] if m[1] == "call" and call else m[1])
    return found


VECTORS = [
    (lambda t: strided.make_rows({"f32": 4, "f64": 8}[t]), {"shufflevector", "store"}),
    (lambda t: strided.make_strips({"f32": 4, "f64": 8}[t]), {"shufflevector", "store"}),
    (lambda t: make_reduce("Sum", t, t, False), {"fadd"}),
    (lambda t: make_reduce("Sum", t, t, True), {"fadd"}),
    (lambda t: make_reduce("Max", t, t, False), {"maximum"}),
    (lambda t: make_reduce("SumSquare", t, t, False), {"fadd", "fmul"}),
    (lambda t: softmax.make_rows(t, False), {"fdiv", "maximum"}),
    (lambda t: softmax.make_columns(t, True), {"fsub", "maximum"}),
    (lambda t: pool.make_max(t), {"maximum"}),
    (lambda t: pool.make_max_indices(t), {"select"}),
    (lambda t: pool.make_sum(t, 0), {"fadd", "fdiv"}),
    (lambda t: pool_grad.make_max_grad_pairs(t), {"select", "fcmp"}),
    (lambda t: pool_grad.make_average_grad(t), {"fadd", "fdiv"}),
    (lambda t: pool_grad.make_average_grad_pairs(t), {"fmul", "store"}),
    (lambda t: batch_norm.make_planes(t, batch_norm.make_store(t)), {"fadd", "fsub", "fmul"}),
    (lambda t: batch_norm.make_columns(t, batch_norm.make_store(t)), {"fadd", "fsub", "fmul"}),
    (lambda t: batch_norm.make_planes_grad(t, *[batch_norm.make_load(t)] * 2), {"fadd", "fsub", "fmul"}),
    (lambda t: batch_norm.make_columns_grad(t, *[batch_norm.make_load(t)] * 2), {"fadd", "fsub", "fmul"}),
    (lambda t: layer_norm.make_layer_norm(t, t), {"fadd", "fsub", "fmul"}),
    (lambda t: layer_norm.make_input_grad(t), {"fadd", "fsub", "fmul"}),
    (lambda t: layer_norm.make_scale_grad(t), {"fadd", "fsub", "fmul"}),
    (lambda t: arg.make_rows(t, True), {"maximum"}),
    (lambda t: arg.make_columns(t, True), {"select", "fcmp"}),
]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("make", "wanted"), VECTORS)
def test_vectors(dtype, make, wanted):
    assert wanted <= vector_operations(make(dtype))


def test_random_bits_use_vectors():
    assert {"add", "xor", "fshl"} <= vector_operations(random.random_bits)
