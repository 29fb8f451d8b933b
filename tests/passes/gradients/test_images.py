"""Gradients of the ops that resample images, in forms that onnx's own tests leave out, against central differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType, dtype_of
from tests.gradcheck import check_off_kinks

DEFORMED = {"group": 2, "offset_group": 2, "strides": (2, 1), "dilations": (2, 2), "pads": (1, 0, 1, 1)}
REGIONS = np.array([[1.1, 1.2, 5.3, 4.4], [0.2, 0.3, 4.9, 3.8], [2.7, 1.6, 3.1, 2.2], [-3.1, -4.2, 9.3, 8.4]])
IMAGES = np.array([0, 1, 1, 0])
NUMBERED = np.concatenate([IMAGES[:, None], REGIONS], 1)
ALIGN = {"output_height": 2, "output_width": 3}
BIG = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 3.0}

CASES: dict[str, tuple[str, list[Any], dict[str, Any], list[int]]] = {
    # op, operands (shapes are drawn; the positions in the last entry are constants), attributes
    "linear, 1-D": ("Resize", [(2, 5), None, None, np.array([2, 8])], {"mode": "linear"}, [3]),
    "linear, 3-D": (
        "Resize",
        [(1, 2, 3, 2, 4), None, None, np.array([5, 3, 2])],
        {"mode": "linear", "axes": (2, 3, 4)},
        [3],
    ),
    "cubic, antialias": (
        "Resize",
        [(1, 2, 7, 3), None, None, np.array([3, 5])],
        {"mode": "cubic", "axes": (2, 3), "antialias": 1, "exclude_outside": 1},
        [3],
    ),
    "linear, long": ("Resize", [(1, 200), None, None, np.array([1, 210])], {"mode": "linear"}, [3]),
    "crop": (
        "Resize",
        [(1, 1, 4, 5), np.array([0.2, -0.3, 1.4, 0.8], np.float32), None, np.array([3, 6])],
        {"mode": "cubic", "axes": (2, 3), **BIG},
        [1, 3],
    ),
    **{
        f"grid {mode} {padding} {aligned}": (
            "GridSample",
            [(1, 2, 3, 4), 1.7 * np.random.default_rng(aligned).normal(size=(1, 2, 2, 2))],
            {"mode": mode, "padding_mode": padding, "align_corners": aligned},
            [],
        )
        for mode in ("linear", "nearest", "cubic")
        for padding in ("zeros", "border", "reflection")
        for aligned in (0, 1)
    },
    "grid 1-D": ("GridSample", [(2, 2, 5), (2, 3, 1)], {"mode": "cubic"}, []),
    "grid 3-D": ("GridSample", [(1, 2, 2, 3, 2), (1, 2, 1, 2, 3)], {"padding_mode": "reflection"}, []),
    "deformed": ("DeformConv", [(2, 4, 5, 6), (4, 2, 2, 3), (2, 24, 3, 3), (4,), (2, 12, 3, 3)], DEFORMED, []),
    "deformed, 1-D": ("DeformConv", [(2, 2, 5), (3, 2, 2), (2, 2, 4)], {}, []),
    **{
        f"regions {mode} {ratio} {pixel}": (
            "RoiAlign",
            [(2, 2, 5, 6), REGIONS[: 4 if mode == "avg" else 3], IMAGES[: 4 if mode == "avg" else 3]],
            {**ALIGN, "mode": mode, "sampling_ratio": ratio, "coordinate_transformation_mode": pixel},
            [],
        )
        for mode in ("avg", "max")
        for ratio in (0, 2)
        for pixel in ("half_pixel", "output_half_pixel")
    },
    "largest of regions": ("MaxRoiPool", [(2, 2, 5, 6), NUMBERED], {"pooled_shape": (2, 3)}, [1]),
    **{
        f"norms {p}": (
            "LpPool",
            [(2, 2, 7, 6)],
            {"kernel_shape": (3, 2), "strides": (2, 3), "pads": (1, 0, 1, 1), "ceil_mode": 1, "p": p},
            [],
        )
        for p in (1, 2, 3, 4)
    },
    "norms, dilated": ("LpPool", [(1, 2, 7)], {"kernel_shape": (3,), "dilations": (2,), "p": 3}, []),
    **{f"norm {p}": ("GlobalLpPool", [(2, 2, 3, 2)], {"p": p}, []) for p in (1, 2, 3)},
    "unpooled": (
        "MaxUnpool",
        [(1, 2, 2, 2), np.array([[[[5, 2], [8, 15]], [[16, 19], [25, 31]]]]), np.array([1, 2, 6, 5])],
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        [2],
    ),
    "channels": ("LRN", [(2, 5, 3)], {"size": 4, "alpha": 0.7, "beta": 0.6, "bias": 0.8}, []),
}


def graph_of(
    op: str, operands: list[Any], attrs: dict[str, Any], constants: list[int]
) -> tuple[Graph, dict[str, np.ndarray[Any, Any]]]:
    """A case as a graph with the output y, and arrays for its inputs."""
    rng = np.random.default_rng(8)
    b, names, feeds = Builder(), [], {}
    for i, given in enumerate(operands):
        if given is None:
            names.append("")
            continue
        array = rng.normal(size=given) if isinstance(given, tuple) else given
        if i in constants:
            names.append(b.const(array, f"in{i}"))
        else:
            names.append(b.input(f"in{i}", TensorType(dtype_of(array), array.shape)))
            feeds[names[-1]] = array
    b.output("y", b.op(op, *names, **attrs))
    return b.build(), feeds


@pytest.mark.parametrize("case", CASES)
def test_gradient(case: str) -> None:
    graph, feeds = graph_of(*CASES[case])
    check_off_kinks(graph, feeds, [v for v, a in feeds.items() if a.dtype == np.float64])
