"""What NonMaxSuppression keeps, against onnx.reference on random boxes."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir.builder import Builder
from compiler.ir.evaluate import evaluate
from compiler.ir.graph import Node
from compiler.ir.selection import kept_boxes


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_random_boxes(seed: int, centered: bool) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.random((2, 12, 4)).astype(np.float32)
    scores = rng.random((2, 3, 12)).astype(np.float32)
    limits = [np.array([4]), np.array([0.3], np.float32), np.array([0.2], np.float32)]
    names = ("boxes", "scores", "most", "iou", "least")
    node = Node("NonMaxSuppression", names, ("kept",), {"center_point_box": int(centered)})
    (expected,) = evaluate(node, [boxes, scores, *limits])
    np.testing.assert_array_equal(kept_boxes([boxes, scores, *limits], centered), expected)


def test_nothing_is_kept_by_default() -> None:
    boxes, scores = np.ones((1, 2, 4), np.float32), np.ones((1, 1, 2), np.float32)
    assert kept_boxes([boxes, scores], False).shape == (0, 3)


def test_shapes_must_fit() -> None:
    b = Builder()
    boxes, scores = b.const(np.ones((1, 2, 4), np.float32)), b.const(np.ones((1, 1, 3), np.float32))
    with pytest.raises(VerifyError, match="do not fit"):
        b.op("NonMaxSuppression", boxes, scores)
