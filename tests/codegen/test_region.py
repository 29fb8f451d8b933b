"""RegionArgMax against its definition, and regions of images that are not there."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from compiler import compile as compile_model
from compiler.errors import InputError
from tests.codegen.definition import check_definition
from tests.codegen.runner import run_op

RNG = np.random.default_rng(4)
REGIONS = {
    "MaxRoiPool": {"pooled_shape": [2, 2]},
    "RoiAlign": {"output_height": 2, "output_width": 2},
}


def bounds(count, bins, size):
    """First elements and ends, some of them empty."""
    both = RNG.integers(0, size + 1, (2, count, bins))
    return np.minimum(*both), np.maximum(*both)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1, 1, 1, 1), (2, 3, 4, 9)])
def test_region_arg_max(dtype, shape):
    n, _, height, width = shape
    x = RNG.integers(-3, 4, shape).astype(dtype)  # ties: the first wins
    inputs = [x, RNG.integers(0, n, 4), *bounds(4, 3, height), *bounds(4, 2, width)]
    (found,) = check_definition("onnxc.RegionArgMax", *inputs)
    assert (found == -1).any() or min(shape[2:]) > 1


def test_bounds_outside_are_cut():
    x = np.arange(12.0).reshape(1, 1, 3, 4)
    far = np.array([[10**12]])
    (found,) = run_op("onnxc.RegionArgMax", x, np.array([0]), -far, far, -far, far)
    assert found.item() == 11


def arrays_of(op, image):
    x, rois = np.ones((2, 1, 4, 4), np.float32), np.array([[0, 0, 2, 2]], np.float32)
    if op == "MaxRoiPool":
        return {"x": x, "rois": np.insert(rois, 0, image, 1)}
    return {"x": x, "rois": rois, "images": np.array([image])}


@pytest.mark.parametrize("op", REGIONS)
def test_there_is_no_such_image(op):
    arrays = arrays_of(op, 1)
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in arrays.items()
    ]
    node = helper.make_node(op, list(arrays), ["y"], "pool", **REGIONS[op])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 2])
    model = helper.make_model(
        helper.make_graph([node], "regions", inputs, [y]), opset_imports=[helper.make_opsetid("", 22)]
    )
    step = compile_model(model)
    assert step(arrays)["y"].max() == 1
    for image in (2, -1):  # which is no index from the end
        with pytest.raises(InputError, match=r"out of range \[(0|-2), 2\)"):
            step(arrays_of(op, image))
