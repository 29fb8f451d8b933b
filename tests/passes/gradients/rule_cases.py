"""What onnx's own tests of nodes leave out: shapes, attributes and operands at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ir.builder import Builder

DOUBLE, INT64 = 11, 7
RNG = np.random.default_rng(5)

Emit = Callable[..., Any]


def op(name: str, *order: str, **attrs: Any) -> Emit:
    """One node on the inputs, in the order of their names if none is given; '-' is an absent operand."""

    def emit(b: Builder, /, **inputs: str) -> str:
        given = [inputs[k] if k != "-" else "" for k in order] if order else list(inputs.values())
        return b.op(name, *given, **attrs)

    return emit


CONVOLUTIONS = {
    "1-D, stride leaves a rest": (op("Conv", strides=(3,)), {"x": (2, 2, 9), "w": (3, 2, 2)}),
    "3-D": (op("Conv", pads=(1, 0, 1, 0, 1, 1)), {"x": (1, 2, 3, 4, 3), "w": (2, 2, 2, 2, 3), "b": (2,)}),
    "groups": (op("Conv", group=2, strides=(2, 1), pads=(1, 1, 0, 2)), {"x": (2, 4, 5, 4), "w": (6, 2, 3, 3)}),
    "depthwise, dilated": (op("Conv", group=3, dilations=(2, 1)), {"x": (2, 3, 7, 4), "w": (3, 1, 3, 2), "b": (3,)}),
    "dilation and stride": (op("Conv", dilations=(2, 3), strides=(2, 3)), {"x": (1, 1, 8, 11), "w": (2, 1, 2, 3)}),
    "same lower": (op("Conv", auto_pad="SAME_LOWER", strides=(2, 2)), {"x": (1, 2, 6, 5), "w": (2, 2, 3, 2)}),
    "valid": (op("Conv", auto_pad="VALID", strides=(2, 2)), {"x": (1, 2, 6, 5), "w": (2, 2, 3, 2)}),
    "pads larger than the kernel": (op("Conv", pads=(3, 4), strides=(2,)), {"x": (1, 2, 5), "w": (2, 2, 2)}),
    "one by one": (op("Conv"), {"x": (2, 3, 4, 4), "w": (5, 3, 1, 1), "b": (5,)}),
    "no rows": (op("Conv"), {"x": (0, 2, 4, 4), "w": (2, 2, 3, 3)}),
    "transposed": (op("ConvTranspose", strides=(2,), pads=(1, 0)), {"x": (2, 3, 4), "w": (3, 2, 3), "b": (2,)}),
    "transposed, groups, output padding": (
        op("ConvTranspose", group=2, strides=(3, 2), output_padding=(2, 1), pads=(1, 0, 1, 1)),
        {"x": (1, 4, 2, 3), "w": (4, 2, 3, 2)},
    ),
    "transposed, dilated": (
        op("ConvTranspose", dilations=(3,), strides=(2,), output_padding=(2,)),
        {"x": (1, 2, 3), "w": (2, 2, 2)},
    ),
    "transposed, small output shape": (
        op("ConvTranspose", output_shape=(4,), strides=(2,)),
        {"x": (1, 1, 3), "w": (1, 1, 3)},
    ),
    "transposed, same": (
        op("ConvTranspose", auto_pad="SAME_LOWER", strides=(2, 2)),
        {"x": (1, 2, 3, 3), "w": (2, 1, 3, 4)},
    ),
}

POOLS = {
    "max 1-D": (op("MaxPool", kernel_shape=(3,), strides=(2,), pads=(1, 1)), {"x": (2, 2, 7)}),
    "max, overlapping": (op("MaxPool", kernel_shape=(3, 2), pads=(1, 0, 1, 1)), {"x": (2, 2, 5, 4)}),
    "max, ceil": (op("MaxPool", kernel_shape=(2, 2), strides=(2, 3), ceil_mode=1), {"x": (1, 2, 5, 6)}),
    "max, dilated": (op("MaxPool", kernel_shape=(2, 2), dilations=(2, 3)), {"x": (1, 2, 5, 6)}),
    "max 3-D": (op("MaxPool", kernel_shape=(2, 2, 2), strides=(1, 2, 1)), {"x": (1, 2, 3, 4, 3)}),
    "max, same": (op("MaxPool", kernel_shape=(3, 3), strides=(2, 2), auto_pad="SAME_UPPER"), {"x": (1, 1, 6, 5)}),
    "average, same": (
        op("AveragePool", kernel_shape=(3, 2), strides=(2, 2), auto_pad="SAME_LOWER"),
        {"x": (1, 1, 6, 5)},
    ),
    "average 1-D, ceil": (op("AveragePool", kernel_shape=(3,), strides=(2,), ceil_mode=1), {"x": (2, 2, 8)}),
    "average, rest": (op("AveragePool", kernel_shape=(2, 2), strides=(3, 3)), {"x": (2, 2, 7, 8)}),
    "average, ceil, padding counts": (
        op("AveragePool", kernel_shape=(3, 3), strides=(2, 2), pads=(1, 0, 0, 1), ceil_mode=1, count_include_pad=1),
        {"x": (1, 2, 6, 6)},
    ),
    "average, dilated": (
        op("AveragePool", kernel_shape=(2, 3), dilations=(2, 2), pads=(1, 1, 1, 1)),
        {"x": (1, 2, 6, 6)},
    ),
    "global average 1-D": (op("GlobalAveragePool"), {"x": (2, 3, 5)}),
    "global max 3-D": (op("GlobalMaxPool"), {"x": (2, 3, 2, 3, 2)}),
}

PRODUCTS = {
    **{
        f"MatMul {a} {b}": (op("MatMul"), {"a": a, "b": b})
        for a, b in [
            ((3,), (3,)),
            ((3,), (3, 2)),
            ((2, 3), (3,)),
            ((3,), (4, 3, 2)),
            ((4, 2, 3), (3,)),
            ((4, 2, 3), (3, 5)),
            ((2, 3), (4, 3, 5)),
            ((4, 1, 2, 3), (5, 3, 2)),
            ((1, 2, 3), (4, 3, 2)),
            ((0, 3), (3, 2)),
            ((2, 0), (0, 2)),
        ]
    },
    **{
        f"Gemm {ta}{tb} {c}": (
            op("Gemm", transA=ta, transB=tb, alpha=0.5, beta=2.0 if c == (3,) else 1.0),
            {"a": (4, 2) if ta else (2, 4), "b": (3, 4) if tb else (4, 3), **({"c": c} if c is not None else {})},
        )
        for ta, tb, c in [(0, 0, (3,)), (0, 1, (2, 1)), (1, 0, ()), (1, 1, (2, 3)), (0, 0, None), (1, 0, (1, 3))]
    },
}


def power(exponent: float | int) -> tuple[Emit, dict[str, Any]]:
    return (lambda b, x: b.op("Pow", x, b.const(np.array(exponent)))), {"x": RNG.uniform(0.5, 2, (2, 3))}


ELEMENTWISE = {
    "Add": (op("Add"), {"a": (2, 1, 3), "b": (4, 1)}),
    "Sub": (op("Sub"), {"a": (3,), "b": (2, 3)}),
    "Mul": (op("Mul"), {"a": (), "b": (2, 3)}),
    "Mul with itself": (lambda b, x: b.op("Mul", x, x), {"x": (2, 3)}),
    "Div": (op("Div"), {"a": (2, 1), "b": RNG.uniform(1, 2, (2, 3))}),
    "Max 3": (op("Max"), {"a": (2, 3), "b": (3,), "c": (2, 1)}),
    "Min 2": (op("Min"), {"a": (2, 3), "b": (1, 3)}),
    "Max 1": (op("Max"), {"a": (2, 3)}),
    "Mean 3": (op("Mean"), {"a": (2, 3), "b": (3,), "c": ()}),
    "Where": (op("Where"), {"c": np.array([[True], [False]]), "a": (2, 3), "b": (3,)}),
    "PRelu": (op("PRelu"), {"x": (2, 3, 4), "slope": (3, 1)}),
    "Mod": (op("Mod", fmod=1), {"a": RNG.uniform(-9, 9, (3, 4)), "b": RNG.uniform(1, 3, (4,))}),
    "Clip": (op("Clip"), {"x": (20,), "low": np.array(-0.5), "high": np.array(0.5)}),
    "Clip from below": (op("Clip"), {"x": (20,), "low": np.array(0.1)}),
    "Clip from above": (op("Clip", "x", "-", "high"), {"x": (20,), "high": np.array(0.1)}),
    "Clip, bounds reversed": (op("Clip"), {"x": (20,), "low": np.array(0.5), "high": np.array(-0.5)}),
    "Pow": (op("Pow"), {"a": RNG.uniform(0.5, 2, (2, 3)), "b": (3,)}),
    "Pow of integers": (op("Pow"), {"a": (4,), "b": np.array([0, 1, 2, 3])}),
    **{f"Pow {e}": power(e) for e in (0, 1, 2, 3, 4, -1, 0.5, 2.5, 0.0)},
    "Trilu": (lambda b, x: b.op("Trilu", x, b.const(np.array(-1)), upper=0), {"x": (2, 3, 4)}),
    "Trilu upper": (op("Trilu"), {"x": (3, 3)}),
    "Cast there and back": (lambda b, x: b.op("Cast", b.op("Mul", x, x), to=DOUBLE), {"x": (3,)}),
    "CastLike": (op("CastLike"), {"x": (3,), "like": (2,)}),
    "Gelu far out": (op("Gelu"), {"x": np.array([-30.0, -6.0, 0.0, 6.0, 30.0])}),
    "Softplus far out": (op("Softplus"), {"x": np.array([-800.0, -30.0, 0.0, 30.0, 800.0])}),
    "Mish far out": (op("Mish"), {"x": np.array([-60.0, -3.0, 0.5, 30.0])}),
    "Selu far out": (op("Selu"), {"x": np.array([-800.0, -3.0, 0.5, 800.0])}),
    "Elu far out": (op("Elu", alpha=2.0), {"x": np.array([-800.0, -3.0, 0.5, 800.0])}),
    "Celu far out": (op("Celu", alpha=0.5), {"x": np.array([-800.0, -3.0, 0.5, 800.0])}),
    "Sigmoid far out": (op("Sigmoid"), {"x": np.array([-800.0, -3.0, 0.5, 800.0])}),
    "Dropout at inference": (lambda b, x: b.op("Dropout", x, b.scalar(0.5, x)), {"x": (5,)}),
}


def pad(pads: list[int], mode: str = "constant", axes: list[int] | None = None) -> Emit:
    def emit(b: Builder, /, x: str, value: str = "") -> str:
        return b.op("Pad", x, b.ints(pads), value, b.ints(axes) if axes else "", mode=mode)

    return emit


def cut(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Emit:
    return lambda b, x: b.op("Slice", x, b.ints(starts), b.ints(ends), b.ints(axes), b.ints(steps))


MOVEMENT = {
    "Pad": (pad([1, 0, 2, 3]), {"x": (2, 3), "value": ()}),
    "Pad some axes": (pad([1, 2], axes=[-1]), {"x": (2, 3), "value": ()}),
    "Pad and crop": (pad([-1, 1, 2, -2]), {"x": (3, 4), "value": ()}),
    "Pad reflect": (pad([1, 2, 0, 2], "reflect"), {"x": (3, 4)}),
    "Pad edge": (pad([1, 2, 3, 2], "edge"), {"x": (3, 4)}),
    "Pad wrap": (pad([1, 2, 3, 2], "wrap"), {"x": (3, 4)}),
    "Slice": (cut([1], [3], [1], [1]), {"x": (2, 4)}),
    "Slice backwards": (cut([-1, 5], [-100, 0], [0, 1], [-1, -2]), {"x": (3, 7)}),
    "Slice with steps": (cut([0, 1], [100, 100], [1, 0], [3, 2]), {"x": (6, 8)}),
    "Slice of nothing": (cut([3], [3], [0], [1]), {"x": (4, 2)}),
    "Slice of one": (cut([2], [3], [0], [5]), {"x": (4, 2)}),
    "Split": (lambda b, x: b.add("Split", [x, b.ints([1, 3])], {"axis": 1}, 2), {"x": (2, 4)}),
    "Split, one used": (lambda b, x: b.add("Split", [x, b.ints([1, 3, 1])], {"axis": -1}, 3)[1], {"x": (2, 5)}),
    "Concat": (op("Concat", axis=-1), {"a": (2, 1), "b": (2, 3), "c": (2, 2)}),
    "Concat with itself": (lambda b, x: b.op("Concat", x, x, axis=0), {"x": (2, 3)}),
    "Tile": (lambda b, x: b.op("Tile", x, b.ints([2, 1, 3])), {"x": (2, 3, 1)}),
    "Expand": (lambda b, x: b.op("Expand", x, b.ints([4, 1, 3])), {"x": (2, 1)}),
    "Transpose": (op("Transpose", perm=(2, 0, 1)), {"x": (2, 3, 4)}),
    "Reshape": (lambda b, x: b.op("Reshape", x, b.ints([0, -1])), {"x": (2, 3, 4)}),
    "Reshape of nothing": (lambda b, x: b.op("Reshape", x, b.ints([0, 4]), allowzero=1), {"x": (0, 3)}),
    "Squeeze": (op("Squeeze"), {"x": (1, 3, 1)}),
    "ReverseSequence": (
        lambda b, x: b.op("ReverseSequence", x, b.ints([1, 3, 2]), batch_axis=1, time_axis=0),
        {"x": (4, 3, 2)},
    ),
    "DepthToSpace": (op("DepthToSpace", blocksize=2, mode="CRD"), {"x": (1, 8, 2, 3)}),
}

I32 = np.int32
INDEXING = {
    "Gather": (op("Gather", axis=1), {"x": (2, 5), "i": np.array([[0, 4], [-1, 4]])}),
    "Gather one": (op("Gather", axis=-1), {"x": (2, 3, 4), "i": np.array(-2)}),
    "Gather int32": (op("Gather"), {"x": (5, 2), "i": np.array([3, 3, 0], I32)}),
    "Gather none": (op("Gather"), {"x": (5, 2), "i": np.zeros((0,), np.int64)}),
    "GatherElements": (op("GatherElements", axis=-1), {"x": (2, 3), "i": np.array([[0, -1, 0, 1], [2, 2, 2, 0]])}),
    "GatherND": (op("GatherND"), {"x": (3, 4, 2), "i": np.array([[0, 1], [0, 1], [-1, 3]])}),
    "GatherND in batches": (op("GatherND", batch_dims=1), {"x": (2, 3, 4), "i": np.array([[[1], [1]], [[0], [2]]])}),
    **{
        f"ScatterElements {mode}": (
            op("ScatterElements", axis=1, reduction=mode),
            {
                "x": (2, 4),
                "i": np.array([[0, 2, 2], [-1, 1, 0]]) if mode != "none" else np.array([[0, 2], [3, 1]]),
                "u": (2, 3) if mode != "none" else (2, 2),
            },
        )
        for mode in ("none", "add", "mul", "max", "min")
    },
    **{
        f"ScatterND {mode}": (
            op("ScatterND", reduction=mode),
            {"x": (4, 2), "i": np.array([[1], [1], [3]]) if mode != "none" else np.array([[1], [0], [3]]), "u": (3, 2)},
        )
        for mode in ("none", "add", "mul", "max", "min")
    },
    "OneHot": (
        lambda b, i, v: b.op("OneHot", i, b.const(np.array(3)), v, axis=0),
        {"i": np.array([0, 2, -1]), "v": (2,)},
    ),
    "TopK": (lambda b, x: b.add("TopK", [x, b.ints([2])], {"axis": 0, "largest": 0}, 2)[0], {"x": (4, 3)}),
}


def reduce(name: str, axes: list[int] | None, **attrs: Any) -> Emit:
    return lambda b, x: b.op(name, x, b.ints(axes) if axes is not None else "", **attrs)


REDUCTIONS = {
    **{
        f"Reduce{kind} {axes} {attrs}": (reduce(f"Reduce{kind}", axes, **attrs), {"x": RNG.uniform(0.5, 2, (2, 3, 4))})
        for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
        for axes, attrs in [([-1, 0], {"keepdims": 0}), ([], {"noop_with_empty_axes": 1}), (None, {"keepdims": 0})]
    },
    "ReduceSum of a scalar": (reduce("ReduceSum", None), {"x": ()}),
    "ReduceLogSumExp far out": (reduce("ReduceLogSumExp", [0]), {"x": np.array([[800.0, -800.0], [799.0, -801.0]])}),
    **{
        f"CumSum {exclusive}{reverse}": (
            lambda b, x, e=exclusive, r=reverse: b.op("CumSum", x, b.const(np.array(-1, I32)), exclusive=e, reverse=r),
            {"x": (2, 4)},
        )
        for exclusive in (0, 1)
        for reverse in (0, 1)
    },
    "Softmax": (op("Softmax", axis=0), {"x": (3, 2)}),
    "Softmax far out": (op("Softmax"), {"x": np.array([[800.0, 0.0, -800.0], [1.0, 1.0, 2.0]])}),
    "LogSoftmax": (op("LogSoftmax", axis=1), {"x": (2, 3, 2)}),
}


def loss(kind: str, labels: Any, weights: bool = False, outputs: int = 1, **attrs: Any) -> tuple[Emit, dict[str, Any]]:
    labels = np.asarray(labels)
    shape = (labels.shape[0], 4, *labels.shape[1:])
    inputs = {"x": shape, "labels": labels, **({"w": RNG.uniform(0.5, 2, 4)} if weights else {})}
    return (lambda b, /, **i: b.add(kind, list(i.values()), attrs, outputs)), inputs


SCE, NLL = "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"
LOSSES = {
    **{
        f"{kind[:3]} {reduction} {ignore} {weights}": loss(
            kind,
            [[0, 3], [2, 1], [1, 1]],
            weights,
            reduction=reduction,
            **({"ignore_index": ignore} if ignore is not None else {}),
        )
        for kind in (SCE, NLL)
        for reduction in ("mean", "sum", "none")
        for ignore in (None, 1)
        for weights in (False, True)
    },
    "ignored outside": loss(SCE, [0, -1, 2], ignore_index=-1),
    "ignored outside, weights": loss(NLL, [0, 77, 2], True, ignore_index=77),
    "int32 labels": loss(SCE, np.array([0, 1, 3], I32)),
    "log_prob": loss(SCE, [0, 1, 3], outputs=2),
    "log_prob, weights": loss(SCE, [[0, 1], [3, 3]], True, outputs=2, reduction="sum"),
    "log_prob only": (
        lambda b, x: b.add(SCE, [x, b.ints([0, 1])], {}, 2)[1],
        {"x": (2, 3)},
    ),
}


def layer_norm(outputs: int = 1, **attrs: Any) -> Emit:
    return lambda b, /, **i: b.add("LayerNormalization", list(i.values()), attrs, outputs)


def batch_norm(training: int, **attrs: Any) -> Emit:
    def emit(b: Builder, /, **i: str) -> str:
        given = list(i.values())
        if training:
            given = [*given, b.const(np.zeros(3)), b.const(np.ones(3))]
        return b.add("BatchNormalization", given, {"training_mode": training, **attrs}, 3 if training else 1)[0]

    return emit


NORMALIZATIONS = {
    "Layer": (layer_norm(), {"x": (2, 3, 4), "scale": (4,), "bias": (4,)}),
    "Layer, two axes, no bias": (layer_norm(axis=1, epsilon=0.1), {"x": (2, 3, 4), "scale": (3, 4)}),
    "RMS": (op("RMSNormalization", stash_type=DOUBLE), {"x": (2, 5), "scale": (5,)}),
    "Batch": (batch_norm(1), {"x": (4, 3, 2, 2), "scale": (3,), "bias": (3,)}),
    "Batch of vectors": (batch_norm(1, epsilon=0.1), {"x": (5, 3), "scale": (3,), "bias": (3,)}),
    "Batch at inference": (
        batch_norm(0),
        {"x": (2, 3, 4), "scale": (3,), "bias": (3,), "mean": (3,), "variance": RNG.uniform(0.5, 2, 3)},
    ),
    "MeanVariance": (op("MeanVarianceNormalization", axes=(0, 2)), {"x": (2, 3, 4, 2)}),
}

CASES: dict[str, tuple[Emit, dict[str, Any]]] = {
    **CONVOLUTIONS,
    **POOLS,
    **PRODUCTS,
    **ELEMENTWISE,
    **MOVEMENT,
    **INDEXING,
    **REDUCTIONS,
    **LOSSES,
    **NORMALIZATIONS,
}
