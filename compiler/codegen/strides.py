"""Transposed, cut and reshaped tensors as views with strides, where all their readers can follow strides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from compiler.codegen.calls import contiguous
from compiler.codegen.fuse import is_fusable
from compiler.codegen.units import VIEWS, Strided
from compiler.ir.control import NESTING
from compiler.ir.graph import Graph, Node
from compiler.ir.slices import slice_range
from compiler.ir.types import TensorType

FOLLOWING = {
    "Expand": (0,),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "Slice": (0,),
    "Split": (0,),
    "Transpose": (0,),
    "onnxc.AddProduct": (0, 1),
    "onnxc.Attention": (0, 1, 2),
    "onnxc.AttentionGrad": (0, 1, 2, 3),
}
"""Ops whose kernels read an operand with any strides -> which ones."""

SHORTEST = 8
"""Elements that must follow each other for a fused loop to read a view: else a copy pays."""


_Seen = tuple[str, int, tuple[int, ...]]


def strided_views(graph: Graph, keep: set[str]) -> dict[str, Strided]:
    """The values of a graph that need no memory of their own. keep: values that must have some.

    It begins with all that are some transposition, part or reshaping of another, and drops those that a reader cannot
    follow, until no more have to go: a value that gets memory changes how the views of it lie.
    """
    accepted = {v for n in graph.nodes if _is_candidate(n) for v in n.outputs if v} - keep
    while True:
        views = _layouts(graph, accepted)
        good: set[str] = set()
        for node in reversed(graph.nodes):
            good |= {v for v in node.outputs if v in views and _all_follow(graph, v, views, good)}
        if good == accepted:
            return views
        accepted = good


def _is_candidate(node: Node) -> bool:
    return node.op in VIEWS - {"BitCast"} or node.op in ("Transpose", "Split", "Slice")


def _layouts(graph: Graph, accepted: set[str]) -> dict[str, Strided]:
    """How the accepted values lie, as far as that can be said by strides."""
    views: dict[str, Strided] = {}
    for node in graph.nodes:
        if any(v in accepted for v in node.outputs):
            source = node.inputs[0]
            strides = views[source].strides if source in views else contiguous(graph.type(source).shape)
            for v, offset, own in _seen(node, graph, strides, source in views):
                if v in accepted:
                    views[v] = Strided(source, offset, own)
    return views


def _seen(node: Node, graph: Graph, strides: tuple[int, ...], strided: bool) -> list[_Seen]:
    """(output, offset, strides) of a node whose input has these strides; none if there is no such view.

    strided: whether the input is such a view itself: a reshaped tensor that has memory is a view without strides.
    """
    t = graph.type(node.inputs[0])
    if t.size == 0:
        return []
    if node.op in VIEWS:
        own = reshaped(t.shape, strides, graph.type(node.outputs[0]).shape) if strided else None
        return [] if own is None else [(node.outputs[0], 0, own)]
    if node.op == "Transpose":
        perm = node.attr("perm") or tuple(reversed(range(t.rank)))
        return [(node.outputs[0], 0, tuple(strides[p] for p in perm))]
    if node.op == "Split":
        axis = node.attr("axis", 0) % t.rank
        types = {v: graph.type(v) for v in node.outputs if v}
        if len(types) != len(node.outputs):  # the sizes of those left out are not at hand
            return []
        corners = accumulate((types[v].shape[axis] for v in node.outputs), initial=0)
        return [(v, c * strides[axis], strides) for v, c in zip(node.outputs, corners, strict=False) if types[v].size]
    return _sliced(node, graph, t, strides)


def _sliced(node: Node, graph: Graph, t: TensorType, strides: tuple[int, ...]) -> list[_Seen]:
    given = [v for v in node.inputs[1:] if v]
    if any(v not in graph.consts for v in given) or not graph.type(node.outputs[0]).size:
        return []

    def known(i: int, otherwise: Sequence[int]) -> list[int]:
        v = node.input(i)
        return [int(n) for n in graph.consts[v].array.reshape(-1)] if v else list(otherwise)

    starts, ends = known(1, ()), known(2, ())
    offset, own = 0, list(strides)
    for a, start, end, by in zip(known(3, range(t.rank)), starts, ends, known(4, [1] * len(starts)), strict=False):
        offset += slice_range(t.shape[a % t.rank], start, end, by).start * strides[a % t.rank]
        own[a % t.rank] = by * strides[a % t.rank]
    return [(node.outputs[0], offset, tuple(own))]


def reshaped(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a tensor with elements when it is reshaped; None if it would have to be copied."""
    axes: list[tuple[int, int]] = []
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if axes and axes[-1][1] == n * s:
            axes[-1] = (axes[-1][0] * n, s)
        else:
            axes.append((n, s))
    found: list[int] = []
    left, step = axes.pop() if axes else (1, 1)
    for n in reversed(to):
        if n > 1 and left == 1:
            left, step = axes.pop()
        if left % n:
            return None
        found.append(step)
        left, step = left // n, step * n
    return tuple(reversed(found))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements follow each other in row-major order."""
    return all(n == 1 or s == d for n, s, d in zip(shape, strides, contiguous(shape), strict=True))


def _all_follow(graph: Graph, v: str, views: dict[str, Strided], good: set[str]) -> bool:
    return all(_follows(graph, reader, v, views, good) for reader in graph.readers(v))


def _follows(graph: Graph, node: Node, v: str, views: dict[str, Strided], good: set[str]) -> bool:
    """Whether a reader can read a view. good: what is known to be a view that all can read."""
    if node.op == "If" or node.op in NESTING:
        return False
    if node.op in VIEWS:
        return node.op != "BitCast" and node.outputs[0] in good
    shape, strides = graph.type(v).shape, views[v].strides
    if is_dense(shape, strides):
        return True
    if node.op == "Concat":
        return True
    if node.op in FOLLOWING:
        return all(i in FOLLOWING[node.op] for i, r in enumerate(node.inputs) if r == v) and len(shape) > 1
    return is_fusable(graph, node) and has_runs(shape, strides)


def has_runs(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether so many elements follow each other that a fused loop reads or writes them where they are."""
    run = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and s != run:
            break
        run *= n
    return run >= SHORTEST
