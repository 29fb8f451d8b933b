"""fold_constants: computes what follows from constants and shapes, and removes operations that change no bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.control import EVALUATIONS, scan_length, trip_count
from compiler.ir.evaluate import evaluate, is_random
from compiler.ir.graph import Graph, Node
from compiler.ir.interpret import iterate
from compiler.ir.types import FLOATS, INTEGERS, NARROW_FLOATS, AnyArray, Tensor, TensorType, dtype_of, limits
from compiler.passes.iterations import with_fixed_count
from compiler.passes.rewrite import Rewrite, renamed, reshaped, with_bodies, with_interface
from compiler.passes.simplify import constant, simplified

FOLD_LIMIT = 64 * 1024
"""Bytes up to which a folded result may exceed its operands: a big Expand or Range stays a computation."""

NOT_FOLDED = {
    "AffineGrid": "computes in float32, also for float64",
    "Attention": "gives capped scores where raw ones are asked for",
    "DeformConv": "built on the reference's GridSample",
    "DequantizeLinear": "ignores the zero point of 8-bit floats",
    "Erf": "an approximation in float32, also for float64",
    "Gelu": "built on the reference's Erf",
    "GRU": "lacks sequence_lens, directions and activations",
    "GridSample": "coordinates in float32, also for float64",
    "GroupNormalization": "computes in float32, also for float64",
    "LRN": "takes the size of the batch for the number of channels",
    "LSTM": "lacks sequence_lens, directions and activations",
    "LinearAttention": "computes in float32, also for float64",
    "LpNormalization": "wrong for p = 1 and negative numbers",
    "LpPool": "wrong where windows reach into the padding",
    "NegativeLogLikelihoodLoss": "counts ignored labels in the mean when ignore_index is -1",
    "QuantizeLinear": "ignores the zero point of 8-bit floats, wraps what is far out of range",
    "RNN": "lacks sequence_lens, directions and activations",
    "Resize": "cubic weights in float32, also for float64",
}
"""Operators whose reference implementation (onnx 1.23) is not the operator's meaning at full precision, and why."""


def fold_constants(graph: Graph) -> Graph:
    """Fold constants, operations without effect and If nodes of known condition, also in bodies.

    A Loop whose number of iterations is known gets it as a constant, and no condition.

    Shapes stay computed where a Gradient node will evaluate a part of the graph again at other shapes.
    """
    return _Folder(graph).run()


class _Folder:
    """One graph being folded."""

    def __init__(self, graph: Graph):
        self.graph, self.rewrite = graph, Rewrite(graph)
        self.static = not reshaped(graph)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self.rewrite.b.origin = node.origin
            self.fold(node)
        return self.rewrite.build()

    def constant(self, value: str) -> AnyArray | None:
        """The array of a constant of the new graph, unless a derivative is asked for at it."""
        return None if value in self.rewrite.points else constant(self.rewrite.b, value)

    def fold(self, node: Node) -> None:
        b, rewrite = self.rewrite.b, self.rewrite
        inputs = rewrite.operands(node)
        if node.bodies:
            condition = self.constant(inputs[0]) if node.op == "If" else None
            if condition is None:
                self.fold_bodies(node, inputs)
            else:
                self.take_branch(node, bool(np.all(condition)))
            return
        if self.static and (values := simplified(b, node, inputs, rewrite.points)) is not None:
            rewrite.replace(node, values)
            return
        results = None if rewrite.points.intersection(node.results) else self.evaluate(node, inputs)
        if results is None:
            rewrite.keep(node)
            return
        rewrite.names.update((old, b.const(tensor, old)) for old, tensor in results.items())

    def evaluate(self, node: Node, inputs: list[str]) -> dict[str, Tensor] | None:
        """Each present output of a node as a constant; None if it has to be computed at run time."""
        types = {v: self.graph.type(v) for v in node.results}
        if node.op in ("Shape", "Size") and self.static:
            return {node.outputs[0]: Tensor(_shape_value(node, self.rewrite.b.type(inputs[0])))}
        if node.domain or node.op in NOT_FOLDED or is_random(node):
            return None
        args = [self.constant(v) if v else None for v in inputs]
        if any(a is None and v for a, v in zip(args, inputs, strict=True)):
            return None
        size = sum(t.nbytes for t in types.values())
        if size > max(FOLD_LIMIT, sum(a.nbytes for a in args if a is not None)) or not _castable(node, args, types):
            return None
        try:
            with np.errstate(all="ignore"):
                found = evaluate(node, args)
        except Exception:  # noqa: BLE001 - the reference raises anything; the kernel will compute the value
            return None
        results = {v: Tensor(a) for v, a in zip(node.outputs, found, strict=True) if v and a is not None}
        # a result of another type is a defect of the reference: not to be trusted
        return results if {v: t.type for v, t in results.items()} == types else None

    def take_branch(self, node: Node, condition: bool) -> None:
        """Put the nodes of one branch in place of an If. They may see constants that were captures to the branch."""
        b, names = self.rewrite.b, self.rewrite.names
        branch: Graph = node.attrs["then_branch" if condition else "else_branch"]
        outer = dict(zip(branch.captures, renamed(node.captures, names), strict=True))
        known = {v: a for v, o in outer.items() if (a := self.constant(o)) is not None}
        inner = fold_constants(with_interface(branch, constants=known))
        self.rewrite.replace(node, b.inline(inner, {v: outer[v] for v in inner.captures}, node.origin))

    def fold_bodies(self, node: Node, inputs: list[str]) -> None:
        """Fold inside the bodies, with captures that are constant turned into constants of the body."""
        b = self.rewrite.b
        captures = renamed(node.captures, self.rewrite.names)
        known = [self.constant(v) for v in captures]

        def change(body: Graph) -> Graph:
            values = {v: a for v, a in zip(body.captures, known, strict=True) if a is not None}
            return fold_constants(with_interface(body, constants=values))

        kept = [v for v, a in zip(captures, known, strict=True) if a is None]
        node = Node(node.op, tuple(inputs), node.outputs, with_bodies(node, change).attrs, tuple(kept), node.origin)
        if node.op == "Loop":
            node = with_fixed_count(b, node)
        if not kept and not self.rewrite.points.intersection(node.results):
            args = [self.constant(v) if v else None for v in node.inputs]
            if (results := self.iterated(node, args)) is not None:
                self.rewrite.names.update((old, b.const(tensor, old)) for old, tensor in results.items())
                return
        types = [self.graph.type(v) if v else None for v in node.outputs]
        added = b.add(node.op, node.inputs, node.attrs, node.outputs, kept, node.origin, types)
        self.rewrite.names.update((old, new) for old, new in zip(node.outputs, added, strict=False) if old)

    def iterated(self, node: Node, args: Sequence[AnyArray | None]) -> dict[str, Tensor] | None:
        """The results of a Loop or Scan of constants, if they are found soon; None if they are left to run time."""
        if node.op not in ("Loop", "Scan") or any(a is None and v for a, v in zip(args, node.inputs, strict=True)):
            return None
        body: Graph = node.attrs["body"]
        b, types = self.rewrite.b, {v: self.graph.type(v) for v in node.results}
        count = trip_count(node, b.known) if node.op == "Loop" else scan_length(node, b.type)
        if count is None or count * len(body.nodes) > EVALUATIONS or sum(t.nbytes for t in types.values()) > FOLD_LIMIT:
            return None
        if any(n.domain or n.bodies or n.op in NOT_FOLDED or is_random(n) for n in body.nodes):
            return None
        try:
            with np.errstate(all="ignore"):
                found = iterate(node, args, [])
        except Exception:  # noqa: BLE001 - the reference raises anything; the kernels will compute the value
            return None
        results = {v: Tensor(a) for v, a in zip(node.outputs, found, strict=False) if v}
        return results if {v: t.type for v, t in results.items()} == types else None


def _shape_value(node: Node, t: TensorType) -> AnyArray:
    if node.op == "Size":
        return np.array(t.size, np.int64)
    return np.array(t.shape, np.int64)[node.attr("start", 0) : node.attr("end", t.rank)]


def _castable(node: Node, args: list[AnyArray | None], types: dict[str, TensorType]) -> bool:
    """Whether the reference gives the one right result of a Cast.

    NaN or a number out of range has none as an integer. To floats of at most 8 bits the reference rounds 64-bit numbers
    twice, and takes infinity for NaN and subnormal numbers for 0 in f8e8m0.
    """
    target, x = types[node.outputs[0]].dtype, args[0] if args else None
    if node.op not in ("Cast", "CastLike") or x is None:
        return True
    source = dtype_of(x)
    if target in NARROW_FLOATS:
        return target != "f8e8m0" and source not in ("f64", "i64", "u64")
    if target not in INTEGERS or source not in FLOATS:
        return True
    (least, most), wide = limits(target), x.astype(np.float64)
    return bool(np.all((wide > least - 1) & (wide < most + 1)))
