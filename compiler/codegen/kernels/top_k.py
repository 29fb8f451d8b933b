"""TopK: the largest or smallest elements along an axis, in order; of equal ones, the first come first."""

from __future__ import annotations

from typing import Any

from compiler.codegen.calls import Call, Scratch, Site, lowers
from compiler.codegen.kernels.common import above, around, known_ints, normalized
from compiler.codegen.native import ITEMSIZE, Kernel, i64, inline, kernel, per_target, pointer
from compiler.ir.types import TensorType


@inline
def _smaller(x: Any, y: Any) -> Any:
    """Whether x comes before y among the smallest: a NaN comes last."""
    return (x < y) | ((y != y) & (x == x))


@per_target
def make_top_k(name: str, largest: bool) -> Kernel:
    """The first k > 0 of n elements along the middle axis of outer x n x inner; the range counts outer x inner lines.

    A heap of k indices, on top the one that comes last; emptied from the end, it leaves them in order.
    """
    ptr, size = pointer(name), ITEMSIZE[name]
    better = above if largest else _smaller

    @inline
    def before(x: Any, inner: Any, i: Any, j: Any) -> Any:
        return better(x[i * inner], x[j * inner]) | ((i < j) & (not better(x[j * inner], x[i * inner])))

    @inline
    def sink(heap: Any, x: Any, inner: Any, at: Any, count: Any, item: Any) -> Any:
        while 2 * at + 1 < count:
            down = 2 * at + 1
            if down + 1 < count and before(x, inner, heap[down], heap[down + 1]):
                down += 1
            if before(x, inner, heap[down], item):
                break
            heap[at] = heap[down]
            at = down
        heap[at] = item
        return at

    @kernel
    def top_k(lo: int, hi: int, src: int, values: int, indices: int, n: int, k: int, inner: int, scratch: int) -> None:
        heap = i64(scratch, 3)
        for u in range(hi - lo):
            o, j = (lo + u) // inner, (lo + u) % inner
            x = ptr(src + size * (o * n * inner + j), 0)
            y, z = ptr(values + size * (o * k * inner + j), 1), i64(indices + 8 * (o * k * inner + j), 2)
            for i in range(k):
                heap[i] = i
            for i in range(k // 2):
                sink(heap, x, inner, k // 2 - 1 - i, k, heap[k // 2 - 1 - i])
            for i in range(k, n):
                if before(x, inner, i, heap[0]):
                    sink(heap, x, inner, 0, k, i)
            for i in range(k):
                last = k - 1 - i
                z[last * inner] = heap[0]
                y[last * inner] = x[heap[0] * inner]
                sink(heap, x, inner, 0, last, heap[last])

    return top_k


@lowers("TopK")
def top_k_(site: Site) -> list[Call]:
    """Inputs x and a constant k; attributes axis, largest. The results are sorted in any case."""
    t = site.type(0)
    (k,) = known_ints(site, 1, "number of elements")
    axis = normalized(site.attr("axis"), t.rank)
    outer, n, inner = around(t.shape, axis)
    if not outer * k * inner:
        return []
    shape = (*t.shape[:axis], k, *t.shape[axis + 1 :])
    results = [site.write_or_drop(i, TensorType(dtype, shape)) for i, dtype in enumerate((t.dtype, "i64"))]
    made = make_top_k(t.dtype, bool(site.attr("largest")))
    return [Call(made, outer * inner, (site.read(0), *results, n, k, inner, Scratch(8 * k)))]
