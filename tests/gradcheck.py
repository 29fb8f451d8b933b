"""Gradients against central finite differences, in float64, along random directions.

The graphs are evaluated by onnx.reference, but for the few ops of which `tests.exact` says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest import mock

import numpy as np
import numpy.typing as npt

from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.evaluate import evaluate
from compiler.ir.graph import Graph, Node
from compiler.ir.interpret import interpret
from compiler.ir.types import numpy_dtype
from compiler.ir.verify import verify
from compiler.passes.gradients import expand_gradients
from tests.exact import EXACT

Array = npt.NDArray[np.generic]

STEP = 1e-5
RELATIVE, ABSOLUTE = 2e-6, 2e-7


@contextlib.contextmanager
def exact_reference() -> Iterator[None]:
    """Let `interpret` evaluate the ops in EXACT in float64."""

    def exact(node: Node, args: Sequence[Array | None]) -> Sequence[Array | None]:
        return EXACT[node.op](node, args) if node.op in EXACT else evaluate(node, args)

    with mock.patch("compiler.ir.interpret.evaluate", exact), np.errstate(all="ignore"):
        yield


def run(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a graph."""
    with exact_reference():
        values = interpret(graph, feeds)
    return {public: values[v] for public, v in graph.outputs.items()}


def with_gradients(
    graph: Graph, y: str, xs: Sequence[str], expand: Callable[[Graph], Graph] = expand_gradients
) -> Graph:
    """A graph that gives y and, as outputs d0, d1, .., the gradients of its output y with respect to its inputs xs."""
    b = Builder(graph.name)
    names = b.sources_of(graph)
    for node in graph.nodes:
        b.copy(node, names, graph)
    loss = names[graph.outputs[y]]
    values = [names[x] for x in xs]
    gradients = b.add(GRADIENT, [loss, *values, *values], {"xs": len(xs), "zs": 0}, [f"d{i}" for i in range(len(xs))])
    b.output(y, loss)
    for i, d in enumerate(gradients):
        b.output(f"d{i}", d)
    expanded = expand(b.build())
    verify(expanded)
    return expanded


def scalar(graph: Graph, outputs: Sequence[str], rng: np.random.Generator, square: bool) -> Graph:
    """A graph whose output `loss` is a random combination of the elements of some outputs, and of their squares.

    With squares, what arrives at an op differs from point to point: its gradient depends on x through dy as well.
    """
    b = Builder(graph.name)
    names = b.sources_of(graph)
    for node in graph.nodes:
        b.copy(node, names, graph)
    total = ""
    for public in outputs:
        v = names[graph.outputs[public]]
        weights = rng.uniform(0.5, 1.5, b.shape(v)) * rng.choice([-1, 1], b.shape(v))
        weighted = b.op("Mul", v, b.const(np.asarray(weights, numpy_dtype(b.type(v).dtype))))
        if square:
            weighted = b.op("Mul", weighted, b.op("Add", v, b.scalar(0.7, v)))
        part = b.op("ReduceSum", weighted, keepdims=0)
        total = b.op("Add", total, part) if total else part
    b.output("loss", total)
    return b.build()


def directional(graph: Graph, y: str, feeds: Mapping[str, Array], x: str, v: Array, step: float = STEP) -> float:
    """The derivative of a scalar output along direction v of input x, by central differences."""
    ahead, behind = (run(graph, {**feeds, x: feeds[x] + s * v})[y] for s in (step, -step))
    return float(ahead - behind) / (2 * step)


class Mismatch(AssertionError):
    """A gradient that is not the slope."""


def compare(
    graph: Graph, expanded: Graph, feeds: Mapping[str, Array], xs: Sequence[str], rng: np.random.Generator
) -> None:
    """Check the outputs d0, d1, .. of `expanded` as gradients of the output `loss` of `graph`."""
    results = run(expanded, feeds)
    scale = abs(float(results["loss"]))
    for i, x in enumerate(xs):
        gradient = results[f"d{i}"]
        if gradient.shape != feeds[x].shape or gradient.dtype != feeds[x].dtype:
            raise Mismatch(f"d{x} is {gradient.dtype}{gradient.shape}, {x} is {feeds[x].dtype}{feeds[x].shape}")
        v = rng.normal(size=feeds[x].shape)
        slope, found = directional(graph, "loss", feeds, x, v), float((gradient * v).sum())
        size = max(abs(slope), abs(found), float(np.linalg.norm(gradient)))
        if not abs(slope - found) <= RELATIVE * size + ABSOLUTE * (1 + scale):
            raise Mismatch(f"along a direction of {x} the slope is {slope:.9g}, the gradient gives {found:.9g}")


def check(
    graph: Graph,
    feeds: Mapping[str, Array],
    xs: Sequence[str],
    outputs: Sequence[str] | None = None,
    order: int = 2,
    seed: int = 0,
    expand: Callable[[Graph], Graph] = expand_gradients,
) -> None:
    """Check the gradients of `outputs` (all floating-point ones) with respect to inputs xs, up to an order.

    Beyond the first order: the gradients of a random combination of the elements of the gradients before.
    """
    rng = np.random.default_rng(seed)
    if outputs is None:
        outputs = [public for public, v in graph.outputs.items() if graph.type(v).dtype == "f64"]
    graph = scalar(graph, outputs, rng, square=order > 1)
    for _ in range(order):
        expanded = with_gradients(graph, "loss", xs, expand)
        compare(graph, expanded, feeds, xs, rng)
        graph = scalar(expanded, [f"d{i}" for i in range(len(xs))], rng, square=False)


def check_off_kinks(
    graph: Graph, feeds: Mapping[str, Array], xs: Sequence[str], outputs: Sequence[str] | None = None, order: int = 2
) -> None:
    """As `check`; where it fails, once more from another point: one of many elements may have been at a kink."""
    try:
        check(graph, feeds, xs, outputs, order)
    except Mismatch:
        rng = np.random.default_rng(1)
        moved = {x: feeds[x] + 1e-3 * rng.uniform(-1, 1, feeds[x].shape) for x in xs}
        check(graph, {**feeds, **moved}, xs, outputs, order, seed=1)
