"""Which indices a Slice takes."""

from __future__ import annotations


def slice_range(size: int, start: int, end: int, step: int) -> range:
    """The indices along an axis of `size` elements, in order.

    As in Python, but for negative steps from before the first element: ONNX clamps that start to the first element
    and takes it, Python takes none.
    """
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)
