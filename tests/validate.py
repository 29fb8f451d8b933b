"""Translation validation: a graph before and after a pass, exported to plain ONNX and run by evaluators not ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
from onnx.reference import ReferenceEvaluator

from compiler.codegen.export import bindings, export
from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import AnyArray, numpy_dtype
from compiler.passes.dce import dce

Arrays = Mapping[str, AnyArray]
Evaluator = Literal["ort", "reference"]


class Results(dict[str, AnyArray]):
    """Outputs by public name; `updates`: next values of states."""

    updates: dict[str, AnyArray]


def run(graph: Graph, feeds: Arrays, states: Arrays | None = None, evaluator: Evaluator = "ort") -> Results:
    """One step of an exported graph. states: values in place of the initial ones."""
    return run_model(export(graph), feeds, states, evaluator)


def run_model(
    model: onnx.ModelProto, feeds: Arrays, states: Arrays | None = None, evaluator: Evaluator = "ort"
) -> Results:
    """One step of an exported model."""
    return prepare(model, evaluator)(feeds, states)


def prepare(model: onnx.ModelProto, evaluator: Evaluator = "ort") -> Callable[[Arrays, Arrays | None], Results]:
    """A model loaded once, to be run on (feeds, states) many times."""
    outputs, updates = bindings(model)
    names = [o.name for o in model.graph.output]
    if evaluator == "ort":
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        run: Callable[[list[str], dict[str, AnyArray]], list[AnyArray]] = session.run
    else:
        # the reference resolves functions by their names only at the top level
        run = ReferenceEvaluator(onnx.inliner.inline_local_functions(model)).run

    def step(feeds: Arrays, states: Arrays | None) -> Results:
        given = {i.name: a for i in model.graph.input if (a := {**(states or {}), **feeds}.get(i.name)) is not None}
        found = dict(zip(names, run(names, {k: np.asarray(a) for k, a in given.items()}), strict=True))
        results = Results({public: found[o] for public, o in outputs.items()})
        results.updates = {state: found[o] for state, o in updates.items()}
        return results

    return step


def validate(
    before: Graph,
    after: Graph,
    feeds: Arrays,
    states: Arrays | None = None,
    *,
    evaluator: Evaluator = "ort",
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> None:
    """Both graphs give the same outputs and updates (`after` may have more states). AssertionError if they do not."""
    old, new = (run(g, feeds, states, evaluator) for g in (before, after))
    compare(old, new, rtol=rtol, atol=atol)
    compare(old.updates, {k: new.updates[k] for k in old.updates}, rtol=rtol, atol=atol)


def compare(old: Arrays, new: Arrays, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Same names, dtypes and shapes; values up to rounding. NaN and infinities must agree."""
    assert list(old) == list(new)
    for name, expected in old.items():
        actual = new[name]
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
        if expected.dtype.kind in "fV":
            wide = (np.asarray(a, np.float64) for a in (actual, expected))
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=name)
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=name)


def random_feeds(graph: Graph, seed: int = 0, high: int = 2) -> dict[str, AnyArray]:
    """Arrays for all inputs: normal numbers; integers in [0, high)."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, AnyArray] = {}
    for v in graph.inputs:
        t = graph.type(v)
        dtype = numpy_dtype(t.dtype)
        drawn = rng.normal(size=t.shape) if t.is_float else rng.integers(0, high, t.shape)
        feeds[v] = np.asarray(drawn).astype(dtype)
    return feeds


def slopes(
    graph: Graph,
    y: str,
    x: str,
    feeds: Arrays,
    *,
    directions: int = 3,
    step: float = 1e-4,
    evaluator: Evaluator = "ort",
) -> list[tuple[AnyArray, float]]:
    """Derivatives of the sum of output y by input or state x along random directions: (direction, central difference).

    The graph must have a meaning without y's gradient: what only Gradient nodes feed is left out before the export.
    """
    evaluate = prepare(export(dce(only_outputs(graph, [y]))), evaluator)
    rng = np.random.default_rng(7)
    start = feeds[x] if x in feeds else graph.states[x].array

    def total(value: AnyArray) -> float:
        found = evaluate({**feeds, x: value}, None) if x in feeds else evaluate(feeds, {x: value})
        return float(np.sum(found[y], dtype=np.float64))

    pairs: list[tuple[AnyArray, float]] = []
    for _ in range(directions):
        direction = rng.normal(size=start.shape).astype(start.dtype)
        ends = [total((start + sign * step * direction).astype(start.dtype)) for sign in (1, -1)]
        pairs.append((direction, (ends[0] - ends[1]) / (2 * step)))
    return pairs


def only_outputs(graph: Graph, outputs: list[str]) -> Graph:
    """The graph with these of its outputs, and no update."""
    b = Builder(graph.name)
    names = b.sources_of(graph)
    for node in graph.nodes:
        b.copy(node, names, graph)
    for public in outputs:
        b.output(public, names[graph.outputs[public]])
    return b.build()
