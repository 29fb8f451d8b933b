"""Resize in all modes: our definition in float64 against onnxruntime in float32.

onnxruntime does two things otherwise than ONNX says, which are left out here: align_corners where the scale gives no
whole number of elements (ONNX's node tests say how), and a crop to the size that x has (it takes that for no change).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from compiler.ir.graph import Node
from compiler.ir.proto import node_to_proto
from tests.exact import by_definition

TRANSFORMATIONS = (
    *("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"),
    *("asymmetric", "align_corners", "tf_crop_and_resize"),
)
SCALES = [(1.5, 0.6), (0.3, 2.0), (2.7, 0.8)]
WHOLE = [(2.0, 0.5), (3.0, 1.5), (0.5, 2.0)]
SIZES = [(7, 3), (1, 9), (4, 6)]
SHAPE = (1, 2, 4, 6)
ROI = np.array([0, 0, -0.1, 0.3, 1, 1, 0.8, 1.2], np.float32)


def attributes(mode: str) -> Iterator[dict[str, Any]]:
    if mode == "nearest":
        for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            yield {"nearest_mode": how}
        return
    for antialias, exclude in product((0, 1), (0, 1)):
        if mode == "linear" and exclude and not antialias:
            continue  # onnxruntime takes it for cubic, and with antialias
        yield {"antialias": antialias, "exclude_outside": exclude, **({"cubic_coeff_a": -0.5} if exclude else {})}


def by_onnxruntime(node: Node, args: list[Any]) -> np.ndarray[Any, Any]:
    x = args[0].astype(np.float32)
    constants = [numpy_helper.from_array(a, n) for n, a in zip(node.inputs[1:], args[1:], strict=True) if n]
    inputs = [helper.make_tensor_value_info("x", 1, x.shape)]
    outputs = [onnx.ValueInfoProto(name="y")]
    graph = helper.make_graph([node_to_proto(node)], "resize", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_against_onnxruntime(mode: str, transformation: str) -> None:
    x = np.random.default_rng(2).normal(size=SHAPE)
    crop = transformation == "tf_crop_and_resize"
    scaled = WHOLE if transformation == "align_corners" else SCALES
    for more in attributes(mode):
        attrs = {"mode": mode, "coordinate_transformation_mode": transformation, "extrapolation_value": 2.5, **more}
        if crop and more.get("antialias"):
            continue
        for scales, sizes in [*((s, None) for s in scaled), *((None, s) for s in SIZES)]:
            if crop and sizes == SHAPE[2:]:
                continue
            names = ("x", "roi" if crop else "", "scales" if scales else "", "sizes" if sizes else "")
            args = [
                x,
                ROI if crop else None,
                np.array((1, 1, *scales), np.float32) if scales else None,
                np.array((1, 2, *sizes)) if sizes else None,
            ]
            node = Node("Resize", names, ("y",), attrs)
            (found,) = by_definition(node, args)
            expected = by_onnxruntime(node, args)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5, err_msg=f"{attrs} {scales} {sizes}")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_integers_are_rounded(dtype: Any) -> None:
    x = np.array([0, 1, 100, 3], dtype)
    node = Node(
        "Resize", ("x", "", "", "sizes"), ("y",), {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    )
    (found,) = by_definition(node, [x, None, None, np.array([8])])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [0, 0, 1, 50, 100, 52, 3, 3])


def test_what_is_not_finite_stays_where_it_is() -> None:
    """An element that is not read does not matter, where elements are read one by one."""
    x = np.arange(400.0)
    x[399] = np.inf
    node = Node("Resize", ("x", "", "", "sizes"), ("y",), {"mode": "linear"})
    (found,) = by_definition(node, [x, None, None, np.array([500])])
    assert np.isfinite(found[:490]).all()
    assert not np.isfinite(found[-1])
