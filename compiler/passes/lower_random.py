"""lower_random: every random operator becomes counter-based random bits and arithmetic on them.

A draw is a function of (seed, step, number of the draw): in the step and in inference, seed and step are hidden states,
which checkpoints save and export shows; only the step counts `step` up. In the initialization graph a draw depends on
the seed alone. A node with an attribute `seed` draws from the stream of that seed instead, which two nodes may share;
it advances with the steps all the same. The number of a draw is part of the node: a copy of a node draws the same.
In a Loop or Scan each iteration adds a number of its own to the seed, so that each draws anew.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal

import numpy as np

from compiler.ir.builder import Builder
from compiler.ir.control import iterated, scan_length
from compiler.ir.evaluate import RANDOM_OPS
from compiler.ir.graph import Graph, Node, Origin
from compiler.ir.proto import default
from compiler.ir.types import TensorType, dtype_from_onnx, onnx_dtype
from compiler.passes.iterations import with_iteration_number
from compiler.passes.rewrite import Rewrite, renamed, with_bodies

Role = Literal["step", "evaluate", "infer", "initialize"]
"""What a graph is to its Program; "evaluate": a step that updates nothing."""

SEED, STEP = "onnxc.seed", "onnxc.step"
"""Names of the hidden states, both i64[]."""

_SEEDED = 2**32  # added to the numbers of draws with an own seed: apart from those of an equal seed of the whole step
_SALT = "onnxc.salt"  # what nested graphs call it
_MIX = 0x1E3779B97F4A7C15  # odd, and without pattern: products modulo 2**64 are spread over all words
_F32, _U32 = onnx_dtype("f32"), onnx_dtype("u32")


def lower_random(graph: Graph, role: Role = "step", seed: int = 0) -> Graph:
    """Lower RandomNormal, RandomUniform (and Like), Bernoulli, Multinomial and Dropout, also in bodies.

    seed: first value of the hidden state, if the graph does not have it yet.
    """
    if not any(node.op in _RULES for _, node in _all_nodes(graph)):
        return graph
    rewrite = Rewrite(graph)
    b, key, step = rewrite.b, "", ""

    def state(name: str, first: int) -> str:
        return name if name in graph.states else b.state(name, np.array(first, np.int64))

    if any(_draws(g, node) for g, node in _all_nodes(graph)):
        key = state(SEED, seed)
        step = b.const(np.array(-1, np.int64)) if role == "initialize" else state(STEP, 0)
    _Lowering(rewrite, key, step, count()).run()
    if role == "step" and step and step not in graph.updates:
        one = b.const(np.array(1, np.int64))
        b.update(step, b.add("Add", [step, one], outputs=[f"{STEP}.next"], origin=Origin("", "lower_random"))[0])
    return rewrite.build()


def _draws(graph: Graph, node: Node) -> bool:
    """Whether a node draws random numbers; Dropout may be known not to."""
    if node.op != "Dropout":
        return node.op in RANDOM_OPS
    ratio, mode = (graph.constant(node.input(i)) for i in (1, 2))
    return bool(node.input(2)) and (mode is None or bool(mode.any())) and (ratio is None or bool(ratio.any()))


def _all_nodes(graph: Graph) -> Iterator[tuple[Graph, Node]]:
    """The nodes of a graph and of its bodies, each with the graph that it is in."""
    for node in graph.nodes:
        yield graph, node
        for body in node.bodies.values():
            yield from _all_nodes(body)


class _Lowering:
    """Lowers the nodes of one graph, drawing numbers for its draws from `numbers`.

    salt: a value that differs in each iteration of the loops around; '' outside of loops.
    """

    def __init__(self, rewrite: Rewrite, seed: str, step: str, numbers: Iterator[int], salt: str = ""):
        self.rewrite, self.b = rewrite, rewrite.b
        self.seed, self.step, self.numbers, self.salt = seed, step, numbers, salt

    def run(self) -> None:
        for node in self.rewrite.graph.nodes:
            self.b.origin = Origin(node.origin.node, node.origin.rule or "lower_random")
            lower = _RULES.get(node.op)
            if lower is not None:
                self.rewrite.replace(node, lower(self, node, self.rewrite.operands(node)))
            elif any(inner.op in _RULES for body in node.bodies.values() for _, inner in _all_nodes(body)):
                self.keep_with_stream(node)
            else:
                self.rewrite.keep(node)

    def keep_with_stream(self, node: Node) -> None:
        """A node whose bodies draw: they capture seed, step and salt as well. Each iteration has a salt of its own."""
        old = self.rewrite.graph
        types = [old.type(v) if v else None for v in node.outputs]
        made = Node(node.op, tuple(self.rewrite.operands(node)), node.outputs, node.attrs, (), node.origin)
        number = iterated(node).number if node.op == "Loop" else ""
        if node.op == "Scan" and self.seed:
            made, number = with_iteration_number(self.b, made, scan_length(node, old.type))
        stream = {name: v for name, v in ((SEED, self.seed), (STEP, self.step), (_SALT, self.salt)) if v}

        def change(body: Graph) -> Graph:
            inner = Rewrite(body)
            own = {name: inner.b.capture(name, TensorType("i64")) for name in stream}
            salt = own.get(_SALT, "")
            if number and self.seed:
                salt = _salted(inner.b, salt, inner.names[number])
            _Lowering(inner, own.get(SEED, ""), own.get(STEP, ""), self.numbers, salt).run()
            return inner.build()

        made = with_bodies(made, change)
        captures = [*renamed(node.captures, self.rewrite.names), *stream.values()]
        added = self.b.add(node.op, made.inputs, made.attrs, node.outputs, captures, node.origin, types)
        self.rewrite.replace(node, added)

    # --- numbers -----------------------------------------------------------------------------------------
    def bits(self, node: Node, like: str, shape: tuple[int, ...] = (), part: int = 0) -> tuple[str, str]:
        """Two words an element, of the shape of `like` or else of `shape`. part: one of several draws of a node."""
        own = node.attr("seed")
        seed, number = (self.seed, next(self.numbers)) if own is None else (self._own_seed(own), _SEEDED + part)
        attrs = {"draw": number} if like else {"draw": number, "shape": tuple(shape)}
        if self.salt:
            factor = self.b.const(np.array(_MIX, np.int64))
            seed = self.b.op("Add", seed, self.b.op("Mul", self.salt, factor, name="salt"), name="seed")
        operands = [seed, self.step, *([like] if like else [])]
        bits, more = self.b.add("onnxc.RandomBits", operands, attrs, ["bits", "more"])
        return bits, more

    def _own_seed(self, seed: float) -> str:
        """The stream of a seed attribute: of its value if that is whole (like Dropout's), else of its bits."""
        whole = int(seed) if float(seed).is_integer() and abs(seed) < 2**63 else None
        bits = struct.unpack("<q", struct.pack("<d", seed))[0] if whole is None else whole
        return self.b.const(np.array(bits, np.int64))

    def fraction(self, word: str) -> str:
        """A word as a number of f32 in [0, 1): its top 24 bits."""
        b = self.b
        top = b.op("BitShift", word, b.scalar(8, word), direction="RIGHT", name="top")
        number = b.op("Cast", top, to=_F32, name="number")
        return b.op("Mul", number, b.scalar(2.0**-24, number), name="uniform")

    def fraction64(self, word: str, more: str) -> str:
        """Two words as a number of f64 in [0, 1): 27 + 26 bits."""
        b = self.b
        parts = []
        for w, bits in ((word, 5), (more, 6)):
            top = b.op("BitShift", w, b.scalar(bits, w), direction="RIGHT", name="top")
            parts.append(b.op("Cast", top, to=onnx_dtype("f64"), name="number"))
        high = b.op("Mul", parts[0], b.scalar(2.0**26, parts[0]), name="high")
        number = b.op("Add", high, parts[1], name="number")
        return b.op("Mul", number, b.scalar(2.0**-53, number), name="uniform")

    def uniform(self, node: Node, dtype: str, like: str, shape: tuple[int, ...] = ()) -> str:
        """Numbers in [0, 1), of f64 if dtype is, else of f32."""
        word, more = self.bits(node, like, shape)
        return self.fraction64(word, more) if dtype == "f64" else self.fraction(word)

    def normal(self, node: Node, dtype: str, like: str, shape: tuple[int, ...]) -> str:
        """Standard normal numbers, of f64 if dtype is, else of f32: Box and Muller's cosine."""
        b = self.b
        word, more = self.bits(node, like, shape)
        if dtype == "f64":
            u, v = self.fraction64(word, more), self.fraction64(*self.bits(node, like, shape, part=1))
        else:
            u, v = self.fraction(word), self.fraction(more)
        log = b.op("Log", b.op("Sub", b.scalar(1, u), u), name="log")  # of a number in (0, 1]
        radius = b.op("Sqrt", b.op("Mul", log, b.scalar(-2, u)), name="radius")
        angle = b.op("Mul", v, b.scalar(2 * math.pi, v), name="angle")
        return b.op("Mul", radius, b.op("Cos", angle, name="cosine"), name="normal")

    def scaled(self, x: str, factor: float, offset: float) -> str:
        """x*factor + offset."""
        x = self.b.op("Mul", x, self.b.scalar(factor, x)) if factor != 1 else x
        return self.b.op("Add", x, self.b.scalar(offset, x)) if offset != 0 else x

    def cast(self, x: str, dtype: str) -> str:
        return x if self.b.type(x).dtype == dtype else self.b.op("Cast", x, to=onnx_dtype(dtype))


def _salted(b: Builder, salt: str, number: str) -> str:
    """The salt of an iteration: its number, counted from 1, after the salt of the loop around."""
    number = b.op("Reshape", number, b.ints([])) if b.shape(number) else number
    own = b.op("Add", number, b.const(np.array(1, np.int64)), name="salt")
    if not salt:
        return own
    return b.op("Add", own, b.op("Mul", salt, b.const(np.array(_MIX, np.int64)), name="salt"), name="salt")


def _shaped(node: Node, b: Builder, inputs: list[str]) -> tuple[str, str, tuple[int, ...]]:
    """(dtype, like, shape) of a generator's output."""
    like = inputs[0] if inputs else ""
    given = node.attr("dtype", default(node.op, "dtype"))
    dtype = b.type(like).dtype if given is None else dtype_from_onnx(given)
    assert dtype is not None
    return dtype, like, tuple(node.attr("shape", ()))


def _random_uniform(lowering: _Lowering, node: Node, inputs: list[str]) -> list[str]:
    dtype, like, shape = _shaped(node, lowering.b, inputs)
    low, high = (node.attr(name, default(node.op, name)) for name in ("low", "high"))
    return [lowering.cast(lowering.scaled(lowering.uniform(node, dtype, like, shape), high - low, low), dtype)]


def _random_normal(lowering: _Lowering, node: Node, inputs: list[str]) -> list[str]:
    dtype, like, shape = _shaped(node, lowering.b, inputs)
    mean, scale = (node.attr(name, default(node.op, name)) for name in ("mean", "scale"))
    return [lowering.cast(lowering.scaled(lowering.normal(node, dtype, like, shape), scale, mean), dtype)]


def _bernoulli(lowering: _Lowering, node: Node, inputs: list[str]) -> list[str]:
    dtype, like, _ = _shaped(node, lowering.b, inputs)
    u = lowering.uniform(node, lowering.b.type(like).dtype, like)
    one = lowering.b.op("Less", u, lowering.cast(like, lowering.b.type(u).dtype))
    return [lowering.cast(one, dtype)]


def _multinomial(lowering: _Lowering, node: Node, inputs: list[str]) -> list[str]:
    """How many classes have a cumulative probability of at most a uniform number: the class drawn."""
    b, (logits,) = lowering.b, inputs
    rows, classes = b.shape(logits)
    dtype, samples = dtype_from_onnx(node.attr("dtype", default(node.op, "dtype"))), node.attr("sample_size", 1)
    assert dtype is not None
    wide = lowering.cast(logits, "f64" if b.type(logits).dtype == "f64" else "f32")
    cumulative = b.op("CumSum", b.op("Softmax", wide, axis=1), b.const(np.array(1, np.int64)), name="cumulative")
    u = lowering.uniform(node, b.type(wide).dtype, "", (rows, samples))
    passed = b.op("LessOrEqual", b.op("Unsqueeze", cumulative, b.ints([1])), b.op("Unsqueeze", u, b.ints([2])))
    drawn = b.op("ReduceSum", b.op("Cast", passed, to=onnx_dtype("i64")), b.ints([2]), keepdims=0)
    # the sum of all probabilities may be rounded to less than u
    return [lowering.cast(b.op("Min", drawn, b.const(np.array(classes - 1, np.int64))), dtype)]


def _dropout(lowering: _Lowering, node: Node, inputs: list[str]) -> list[str]:
    """Where training, x*factor with the factor 0 (with probability ratio) or 1/(1 - ratio); else x."""
    b, x = lowering.b, inputs[0]
    t = b.type(x)
    ratio = inputs[1] if len(inputs) > 1 and inputs[1] else b.scalar(0.5, x)
    mode = inputs[2] if len(inputs) > 2 else ""
    old = lowering.rewrite.graph
    if not _draws(old, node):
        true = b.const(np.array(True))
        return [x, b.op("Expand", true, b.op("Shape", x), name="mask") if node.output(1) else ""]
    dropped = b.op("Less", lowering.uniform(node, "f32", x), lowering.cast(ratio, "f32"), name="dropped")
    wide = "f64" if t.dtype == "f64" else "f32"
    scale = lowering.cast(ratio, wide)
    one = b.scalar(1, scale)
    scale = b.op("Div", one, b.op("Sub", one, scale), name="scale")
    if old.constant(node.input(2)) is None:
        dropped = b.op("And", dropped, mode, name="dropped")
        scale = b.op("Where", mode, scale, one, name="scale")
    scale = lowering.cast(scale, t.slope.dtype)  # nothing is multiplied in 8 bits
    factor = b.op("Where", dropped, b.scalar(0, scale), scale, name="factor")
    y = lowering.cast(b.op("Mul", lowering.cast(x, t.slope.dtype), factor), t.dtype)
    return [y, b.op("Not", dropped, name="mask") if node.output(1) else ""]


_RULES: dict[str, Callable[[_Lowering, Node, list[str]], list[str]]] = {
    "RandomUniform": _random_uniform,
    "RandomUniformLike": _random_uniform,
    "RandomNormal": _random_normal,
    "RandomNormalLike": _random_normal,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
