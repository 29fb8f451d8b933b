"""Malformed nodes of the ops that resample images: each must be refused, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir.verify import verify
from tests.ir.malformed import i64
from tests.ir.test_malformed import graph_of


def f32(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


X = "f32[2,4,5,6]"
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}
ROI = f32(0, 0, 0, 0, 1, 1, 1, 1)
SIZES = i64(2, 4, 3, 3)
POOLED = {"pooled_shape": (2, 2)}

CORPUS: dict[str, list[tuple[Any, ...]]] = {
    # op: (operands, attributes, what the message says)
    "Resize": [
        ([X], {}, ""),
        ([X, None, f32(1, 1, 2, 2), SIZES], {}, ""),
        ([X, None, f32(1, 1, 2)], {}, "scales"),
        ([X, None, f32(1, 1, 2, 0)], {}, "positive"),
        ([X, None, f32(1, 1, 2, np.nan)], {}, ""),
        ([X, None, f32(1, 1, 2, -1)], {}, ""),
        ([X, None, None, i64(2, 4, 3)], {}, "sizes"),
        ([X, None, None, i64(2, 4, 3, -3)], {}, ""),
        ([X, None, None, i64(3)], {"axes": (4,)}, ""),
        ([X, None, None, i64(3, 3)], {"axes": (2, 2)}, "more than once"),
        ([X, None, None, i64(3, 3)], {"axes": (2, -2)}, "more than once"),
        ([X, None, None, SIZES], CROP, "roi"),
        ([X, f32(0, 1), None, SIZES], CROP, "roi has 2 elements"),
        ([X, f32(0, 0, 0, 0, 1, 1, 1, np.inf), None, SIZES], CROP, "not finite"),
        ([X, "f32[8]", None, SIZES], CROP, "run-time values: 'in1'"),
        ([X, None, "f32[4]"], {}, "run-time values: 'in2'"),
        ([X, None, None, SIZES], {"mode": "area"}, "not one of nearest"),
        ([X, None, None, SIZES], {"nearest_mode": "round"}, "not one of round_prefer_floor"),
        ([X, None, None, SIZES], {"coordinate_transformation_mode": "half"}, "not one of half_pixel"),
        ([X, None, None, SIZES], {"keep_aspect_ratio_policy": "keep"}, ""),
        ([X, None, None, SIZES], {"antialias": 1}, "linear and cubic only"),
        ([X, None, None, SIZES], {"antialias": 2, "mode": "linear"}, "not 0 or 1"),
        (["bool[2,2]", None, None, i64(3, 3)], {"mode": "linear"}, "booleans"),
        (["f32[2,0]", None, None, i64(2, 3)], {}, "empty"),
    ],
    "GridSample": [
        (["f32[2,4]", "f32[2,0]"], {}, ""),
        ([X, "f32[2,3,3,3]"], {}, "the last dimension of the grid"),
        ([X, "f32[1,3,3,2]"], {}, "between 1 and 2"),
        ([X, "f32[2,3,2]"], {}, ""),
        (["f32[2,4,0,6]", "f32[2,3,3,2]"], {}, "no spatial elements"),
        ([X, "f32[2,3,3,2]"], {"mode": "bilinear"}, "not one of linear"),
        ([X, "f32[2,3,3,2]"], {"padding_mode": "wrap"}, "not one of zeros"),
        ([X, "f32[2,3,3,2]"], {"align_corners": 2}, "not 0 or 1"),
        (["bool[2,4,5,6]", "f32[2,3,3,2]"], {"mode": "linear"}, "booleans"),
    ],
    "AffineGrid": [
        (["f32[2,2,3]", i64(2, 1, 4)], {}, ""),
        (["f32[2,2,3]", i64(3, 1, 4, 4)], {}, "does not fit the size"),
        (["f32[2,3,4]", i64(2, 1, 4, 4)], {}, ""),
        (["f32[2,2,3]", i64(2, 1, 4, -4)], {}, ""),
        (["f32[2,2,3]", "i64[4]"], {}, "run-time values: 'in1'"),
    ],
    "DeformConv": [
        ([X, "f32[3,4,2,2]", "f32[2,8,4,4]"], {}, "the offset has the shape"),
        ([X, "f32[3,4,2,2]", "f32[2,6,4,5]"], {}, "the offset has the shape"),
        ([X, "f32[3,3,2,2]", "f32[2,8,4,5]"], {}, "4 channels in 1 groups"),
        ([X, "f32[3,2,2,2]", "f32[2,8,4,5]"], {"group": 2}, "4 channels in 2 groups"),
        ([X, "f32[3,4,2,2]", "f32[2,24,4,5]"], {"offset_group": 3}, "3 offset groups"),
        ([X, "f32[3,4,2,2]", "f32[2,8,4,5]", "f32[4]"], {}, "the bias"),
        ([X, "f32[3,4,2,2]", "f32[2,8,4,5]", None, "f32[2,8,4,5]"], {}, "the mask"),
        ([X, "f32[3,4,2,2]", "f32[2,8,4,5]"], {"kernel_shape": (3, 3)}, "kernel_shape"),
        ([X, "f32[3,4,2,2]", "f32[2,8,4,5]"], {"strides": (1,)}, ""),
        ([X, "f32[3,4,2,2]", "f32[2,8,4,5]"], {"pads": (0, 0, 0, -1)}, ""),
        ([X, "f32[3,4,7,2]", "f32[2,28,1,5]"], {}, ""),
    ],
    "RoiAlign": [
        (["f32[2,4,5]", "f32[3,4]", "i64[3]"], {}, ""),
        ([X, "f32[3,5]", "i64[3]"], {}, "between 5 and 4"),
        ([X, "f32[3,4]", "i64[2]"], {}, ""),
        ([X, "f32[3,4]", np.array([0, 1, -1])], {}, "not within the 2 images"),
        (["f32[0,4,5,6]", "f32[3,4]", "i64[3]"], {}, "no images"),
        (["f32[2,4,0,6]", "f32[3,4]", "i64[3]"], {}, "no spatial elements"),
        ([X, "f32[3,4]", "i64[3]"], {"output_height": 0}, "too small"),
        ([X, "f32[3,4]", "i64[3]"], {"sampling_ratio": -1}, "too small"),
        ([X, "f32[3,4]", "i64[3]"], {"sampling_ratio": 2**40}, "too large"),
        ([X, "f32[3,4]", "i64[3]"], {"spatial_scale": -1.0}, "spatial_scale"),
        ([X, "f32[3,4]", "i64[3]"], {"mode": "mean"}, "not one of avg"),
    ],
    "MaxRoiPool": [
        ([X, "f32[3,4]"], POOLED, "between 4 and 5"),
        ([X, "f32[3,5]"], {"pooled_shape": (2,)}, ""),
        ([X, "f32[3,5]"], {"pooled_shape": (2, 0)}, ""),
        ([X, "f32[3,5]"], {**POOLED, "spatial_scale": float("nan")}, "spatial_scale"),
        (["f32[0,4,5,6]", "f32[3,5]"], POOLED, "no images"),
    ],
    "Col2Im": [
        (["f32[2,9,4]", i64(4, 4), i64(2, 2)], {}, "9 rows of columns"),
        (["f32[2,8,4]", i64(4, 4), i64(2, 2)], {}, "there are 4 columns"),
        (["f32[2,8,9]", i64(4, 4), i64(2)], {}, ""),
        (["f32[2,8,9]", i64(4, 4), i64(2, 0)], {}, ""),
        (["f32[2,8,9]", i64(4, 4), i64(5, 5)], {}, ""),
        (["f32[2,8,9]", i64(4, 4), i64(2, 2)], {"dilations": (0, 1)}, ""),
        (["f32[2,8,9]", i64(4, 4), i64(2, 2)], {"pads": (0, 0)}, ""),
        (["bool[2,8,9]", i64(4, 4), i64(2, 2)], {}, "booleans"),
        (["f32[2,8,9]", "i64[2]", i64(2, 2)], {}, "run-time values: 'in1'"),
    ],
    "MaxUnpool": [
        ([X, "i64[2,4,5,5]"], {"kernel_shape": (2, 2)}, "differ in shape"),
        ([X, X.replace("f32", "i64")], {"kernel_shape": (2, 2), "pads": (5, 0, 5, 0)}, "would be unpooled"),
        ([X, X.replace("f32", "i64"), i64(2, 3, 9, 9)], {"kernel_shape": (2, 2)}, "does not fit the input"),
        (["f32[1,1,1,2]", np.array([[[[5, 6]]]])], {"kernel_shape": (1, 3)}, "from 5 to 6 are not within"),
    ],
    "LRN": [([X], {"size": 0}, "0 channels")],
    "LpNormalization": [([X], {"p": 3}, "not one of 1, 2"), ([X], {"axis": 4}, "")],
}


@pytest.mark.parametrize(("op", "case"), [(op, i) for op, cases in CORPUS.items() for i in range(len(cases))])
def test_malformed(op: str, case: int) -> None:
    operands, attrs, message = CORPUS[op][case]
    graph, _accepted = graph_of(op, operands, attrs)
    with pytest.raises(VerifyError) as e:
        verify(graph)
    problems = e.value.problems
    assert any(message in p.what for p in problems), [p.what for p in problems]
    assert all(p.where and op in p.what for p in problems)
