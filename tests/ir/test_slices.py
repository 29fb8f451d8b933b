"""Which elements a Slice takes, against onnxruntime, which clamps as the standard says."""

import numpy as np

from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.slices import slice_range
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.gradients import expand_gradients
from tests.validate import run

FAR = 2**62


def test_a_start_before_the_first_element_going_backwards() -> None:
    """Unlike Python, ONNX takes the first element; the verifier and the gradient know."""
    for size, start, end, step in [(3, -5, -5, -2), (3, -4, -FAR, -1), (3, 7, -FAR, -2), (3, -7, 2, 1), (0, 0, -5, -1)]:
        b = Builder()
        x = b.input("x", TensorType("f32", (size,)))
        y = b.op("Slice", x, b.ints([start]), b.ints([end]), b.ints([0]), b.ints([step]))
        b.output("y", y)
        b.output("dx", b.op(GRADIENT, b.op("Mul", y, y), x, x, xs=1, zs=0))
        graph = b.build()
        verify(graph)
        feed = np.arange(1, size + 1, dtype=np.float32)
        found = run(expand_gradients(graph), {"x": feed})
        taken = list(slice_range(size, start, end, step))
        assert found["y"].tolist() == feed[taken].tolist()
        assert found["dx"].tolist() == [2 * a if i in taken else 0 for i, a in enumerate(feed)]
