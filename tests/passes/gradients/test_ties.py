"""Ties, kinks and poles: the table in docs/ties.md, in which PyTorch is followed where it has a choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.types import TensorType
from compiler.passes.gradients import expand_gradients
from tests.gradcheck import run

INF, NAN = np.inf, np.nan


def gradients(op: str, inputs: list[Any], **attrs: Any) -> list[np.ndarray]:
    """Gradients of the sum of the output by all inputs."""
    b = Builder()
    feeds = {f"x{i}": np.asarray(a, np.float64) for i, a in enumerate(inputs)}
    xs = [b.input(k, TensorType("f64", a.shape)) for k, a in feeds.items()]
    y = b.op(op, *xs, **attrs)
    for i, d in enumerate(b.add(GRADIENT, [y, *xs, *xs], {"xs": len(xs)}, [f"d{i}" for i in range(len(xs))])):
        b.output(f"d{i}", d)
    results = run(expand_gradients(b.build()), feeds)
    return [results[f"d{i}"] for i in range(len(xs))]


ALPHA, GAMMA = 1.6732632423543772, 1.0507009873554805

IMAGE = [[[[1, 2, 4], [3, 7, 5], [6, 8, 9]]]]
READ = [[[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]]
CENTRE = [[[[0, 0, 0], [0, 1, 0], [0, 0, 0]]]]

CASES: dict[str, tuple[str, list[Any], dict[str, Any], list[Any]]] = {
    "Relu": ("Relu", [[-1, 0, 1]], {}, [[0, 0, 1]]),
    "LeakyRelu": ("LeakyRelu", [[-1, 0, 1]], {"alpha": 0.25}, [[0.25, 0.25, 1]]),
    "PRelu": ("PRelu", [[-2, 0, 3], [0.5]], {}, [[0.5, 0.5, 1], [-2]]),
    "ThresholdedRelu": ("ThresholdedRelu", [[0.5, 1, 2]], {}, [[0, 0, 1]]),
    "Elu": ("Elu", [[0, 1]], {"alpha": 2.0}, [[2, 1]]),
    "Selu": ("Selu", [[0, 1]], {}, [[ALPHA * GAMMA, GAMMA]]),
    "Celu": ("Celu", [[0, 1]], {"alpha": 2.0}, [[1, 1]]),
    "HardSigmoid": ("HardSigmoid", [[-2, 0, 2]], {"alpha": 0.25, "beta": 0.5}, [[0, 0.25, 0]]),
    "HardSwish": ("HardSwish", [[-4, -3, 0, 3, 4]], {}, [[0, 0, 0.5, 1, 1]]),
    "Shrink": ("Shrink", [[-1, -0.5, 0, 0.5, 1]], {"lambd": 0.5}, [[1, 0, 0, 0, 1]]),
    "Abs": ("Abs", [[-2, 0, 2]], {}, [[-1, 0, 1]]),
    "Softsign": ("Softsign", [[0]], {}, [[1]]),
    "Sqrt": ("Sqrt", [[0, 4]], {}, [[INF, 0.25]]),
    "Log": ("Log", [[0, 2]], {}, [[INF, 0.5]]),
    "Reciprocal": ("Reciprocal", [[0, 2]], {}, [[-INF, -0.25]]),
    "Asin": ("Asin", [[-1, 0, 1]], {}, [[INF, 1, INF]]),
    "Acos": ("Acos", [[-1, 0, 1]], {}, [[-INF, -1, -INF]]),
    "Acosh": ("Acosh", [[1]], {}, [[INF]]),
    "Clip": ("Clip", [[-2, -1, 0, 1, 2], -1, 1], {}, [[0, 1, 1, 1, 0], 1, 1]),
    "Clip, equal bounds": ("Clip", [[-1, 0, 1], 0, 0], {}, [[0, 1, 0], 0, 1]),
    "Clip, bounds reversed": ("Clip", [[-2, 0, 2], 1, -1], {}, [[0, 0, 0], 0, 3]),
    "Max 2": ("Max", [[1, 2, 3], [3, 2, 1]], {}, [[0, 0.5, 1], [1, 0.5, 0]]),
    "Min 2": ("Min", [[1, 2, 3], [3, 2, 1]], {}, [[1, 0.5, 0], [0, 0.5, 1]]),
    "Max 3": ("Max", [[1, 2], [1, 2], [1, 0]], {}, [[1 / 3, 0.5], [1 / 3, 0.5], [1 / 3, 0]]),
    "ReduceMax": ("ReduceMax", [[[1, 3, 3], [2, 2, 2]]], {}, [[[0, 0.5, 0.5], [0, 0, 0]]]),
    "ReduceMin": ("ReduceMin", [[1, 1, 1, 4]], {}, [[1 / 3, 1 / 3, 1 / 3, 0]]),
    "ReduceL1": ("ReduceL1", [[-2, 0, 1]], {}, [[-1, 0, 1]]),
    "ReduceL2": ("ReduceL2", [[0, 0]], {}, [[0, 0]]),
    "ReduceProd, no zero": ("ReduceProd", [[2, 3, 4]], {}, [[12, 8, 6]]),
    "ReduceProd, one zero": ("ReduceProd", [[2, 0, 4]], {}, [[0, 8, 0]]),
    "ReduceProd, two zeros": ("ReduceProd", [[0, 0, 4]], {}, [[0, 0, 0]]),
    "Pow, by the base": (
        "Pow",
        [[0, 0, 0, 0, 2], [0, 1, 2, 0.5, 3]],
        {},
        [[0, 1, 0, INF, 12], [0, 0, 0, 0, 8 * np.log(2)]],
    ),
    "Pow, negative exponent": ("Pow", [[0.0], [-1.0]], {}, [[-INF], [-INF]]),
    "Pow, negative base": ("Pow", [[-2.0], [2.0]], {}, [[-4], [NAN]]),
    "Mod": ("Mod", [[4, -5], [2, 3]], {"fmod": 1}, [[1, 1], [-2, 1]]),
    "Sign": ("Sign", [[-1, 0, 1]], {}, [[0, 0, 0]]),
    "Floor": ("Floor", [[-1, 0.5]], {}, [[0, 0]]),
    "Round": ("Round", [[-0.5, 0.5]], {}, [[0, 0]]),
    "MaxPool": (
        "MaxPool",
        [[[[[1, 2, 2], [2, 2, 2], [0, 0, 0]]]]],
        {"kernel_shape": (2, 2)},
        [[[[[0, 2, 0], [1, 1, 0], [0, 0, 0]]]]],
    ),
    "LpPool": ("LpPool", [[[[0, 0, 3, -4]]]], {"kernel_shape": (2,), "strides": (2,)}, [[[[0, 0, 0.6, -0.8]]]]),
    "LpPool, p = 3": (
        "LpPool",
        [[[[0, 0, 0, -4]]]],
        {"kernel_shape": (2,), "strides": (2,), "p": 3},
        [[[[0, 0, 0, -1]]]],
    ),
    "GlobalLpPool": ("GlobalLpPool", [[[[0, 0]]]], {}, [[[[0, 0]]]]),
    "LpNormalization": ("LpNormalization", [[[0, 0], [0, 2]]], {"p": 1}, [[[0, 0], [0.5, 0]]]),
    **{
        f"GridSample, {padding}": (
            "GridSample",
            [IMAGE, [[[[-1, -1], [1, 1], [0, 0]]]]],
            {"padding_mode": padding, "align_corners": 1},
            [READ, [[[slopes[0], slopes[1], [-2, 1]]]]],
        )
        for padding, slopes in {
            "zeros": ([1, 2], [-9, -9]),
            "border": ([0, 0], [0, 0]),
            "reflection": ([0, 0], [0, 0]),
        }.items()
    },
    "GridSample, nearest": ("GridSample", [IMAGE, [[[[0.1, 0.3]]]]], {"mode": "nearest"}, [CENTRE, [[[[0, 0]]]]]),
    "MaxRoiPool": (
        "MaxRoiPool",
        [[[[[2, 2], [1, 2]]]], [[0, 0, 0, 1, 1]]],
        {"pooled_shape": (1, 1)},
        [[[[[1, 0], [0, 0]]]], [[0, 0, 0, 0, 0]]],
    ),
    "GlobalMaxPool": ("GlobalMaxPool", [[[[[1, 3], [3, 3]]]]], {}, [[[[[0, 1], [0, 0]]]]]),
}


@pytest.mark.parametrize("case", CASES)
def test_tie(case: str) -> None:
    op, inputs, attrs, expected = CASES[case]
    for found, want in zip(gradients(op, inputs, **attrs), expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_no_nan_where_a_branch_is_masked() -> None:
    """The forward value is finite, and so is every gradient: nothing infinite is multiplied by 0."""
    far = np.array([-1e4, -100.0, 0.0, 100.0, 1e4])
    for op in ("Softplus", "Mish", "Elu", "Selu", "Celu", "Sigmoid", "Tanh", "Softsign", "Gelu", "HardSwish", "Erf"):
        (d,) = gradients(op, [far])
        assert np.isfinite(d).all(), op
