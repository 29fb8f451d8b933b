"""The pipeline: order, observation, what errors say, translation validation of whole models, and its growth."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.codegen import elementwise
from compiler.errors import UnsupportedError, VerifyError
from compiler.frontend import load
from compiler.ir.builder import GRADIENT, Builder
from compiler.ir.graph import Graph, Node, Program
from compiler.ir.types import TensorType
from compiler.passes import simplify
from compiler.passes.pipeline import PASS_NAMES, Pass, passes, run, run_program
from tests.models import networks
from tests.validate import random_feeds, slopes, validate
from tests.validate import run as run_exported


def everything(node: Node, types: Any) -> bool:
    return True


def primitives(node: Node, types: Any) -> bool:
    """What a code generator might have that knows no normalization, loss or internal operator but the steps."""
    return node.op.endswith("Step") or (
        node.op not in ("Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "Softplus")
        and not node.domain
    )


def tiny_graph() -> Graph:
    b = Builder("tiny")
    x = b.input("x", TensorType("f32", (2,)))
    b.output("y", b.op("Relu", x))
    return b.build()


def test_observed_in_order() -> None:
    seen: list[str] = []
    run(tiny_graph(), passes(everything), lambda name, graph: seen.append(name))
    assert tuple(seen) == PASS_NAMES
    assert len(set(PASS_NAMES)) == len(PASS_NAMES)


@pytest.mark.parametrize("name", PASS_NAMES)
def test_until(name: str) -> None:
    seen: list[str] = []
    run(tiny_graph(), passes(everything), lambda name, graph: seen.append(name), until=name)
    assert seen[-1] == name
    with pytest.raises(KeyError):
        run(tiny_graph(), passes(everything), until="nothing")


def test_a_wrong_pass_is_named() -> None:
    def wrong(graph: Graph) -> Graph:
        return Graph(graph.name, graph.types, graph.inputs, {}, {}, (), graph.nodes[::-1] * 2, graph.outputs, {})

    with pytest.raises(VerifyError, match="pass wrong made a wrong graph"):
        run(tiny_graph(), [Pass("wrong", wrong)])


def test_problems_of_all_graphs_are_collected() -> None:
    def graph(op: str) -> Graph:
        b = Builder(op)
        b.output("y", b.op(op, b.input("x", TensorType("f32", (2,)))))
        return b.build()

    with pytest.raises(UnsupportedError) as e:
        run_program(Program(graph("Sin"), graph("Cos")), lambda node, types: False)
    assert [p.what.split("(")[0] for p in e.value.problems] == ["operator Sin", "operator Cos"]


def staged(program: Program, has_kernel: Callable[[Node, Any], bool]) -> dict[str, list[tuple[str, Graph]]]:
    """The graphs of a program after each pass, by role."""
    stages: dict[str, list[tuple[str, Graph]]] = {}
    run_program(program, has_kernel, observe=lambda role, name, g: stages.setdefault(role, []).append((name, g)))
    return stages


def models() -> dict[str, Callable[[], onnx.ModelProto]]:
    return {
        f"{network.__name__}-{optimizer}": lambda network=network, optimizer=optimizer: network(optimizer=optimizer)
        for network, optimizer in (
            (networks.tiny, "sgd"),
            (networks.tiny, "adam"),
            (networks.tiny, "adam_written"),
            (networks.tiny, "momentum_written"),
            (networks.tiny, "nesterov"),
            (networks.tiny, "adagrad"),
            (networks.lenet, "adam"),
        )
    }


@pytest.mark.parametrize("evaluator", ["ort", "reference"])
@pytest.mark.parametrize("name", [name for name in models() if name != "lenet-adam"])
def test_every_pass_keeps_the_values(name: str, evaluator: Any) -> None:
    """From the first graph without Gradient on: outputs and updates, by an evaluator that is not ours."""
    check_translation(load(models()[name]()).program({"N": 3}), evaluator)


def test_every_pass_keeps_the_values_of_a_lenet() -> None:
    check_translation(load(models()["lenet-adam"]()).program({"N": 3}), "ort")


def check_translation(program: Program, evaluator: Any) -> None:
    feeds = random_feeds(program.step)
    for stages in staged(program, primitives).values():
        runnable = [(n, g) for n, g in stages if not any(node.op == GRADIENT for node in g.nodes)]
        first = runnable[0][1]
        given = {k: a for k, a in feeds.items() if k in first.inputs}
        for _, after in {id(g): (n, g) for n, g in runnable[1:]}.values():
            if after is not first:
                validate(first, after, given, evaluator=evaluator, rtol=1e-4, atol=1e-6)


def test_gradients_agree_with_finite_differences() -> None:
    """Across expand_gradients: slopes of the graph before, against the change that one step of SGD makes after."""
    program = load(networks.tiny(dtype=np.float64, optimizer="sgd")).program({"N": 3})
    (stages,) = (s for role, s in staged(program, primitives).items() if role == "step")
    before, after = stages[0][1], dict(stages)["expand_gradients"]
    assert any(node.op == GRADIENT for node in before.nodes)
    feeds = random_feeds(before)
    updates = run_exported(after, feeds).updates
    rate = float(before.consts["learning_rate"].array)
    for w in before.states:
        change = before.states[w].array - updates[w]
        for direction, slope in slopes(before, "loss", w, feeds):
            np.testing.assert_allclose(np.sum(change * direction), rate * slope, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", models())
def test_passes_are_idempotent(name: str) -> None:
    program = load(models()[name]()).program({"N": 3})
    for role, graph in program.graphs().items():
        for pass_name, change in passes(primitives, role):  # type: ignore[arg-type]
            graph = change(graph)
            assert change(graph) == graph, pass_name


def deep(n: int) -> Graph:
    """A network of n nodes in a row, its gradient, and an update of each weight."""
    b = Builder("deep")
    v = x = b.input("x", TensorType("f32", (2, 3)))
    ws = [b.state(f"w{i}", np.ones((3, 3), np.float32)) for i in range(n // 4)]
    for i, w in enumerate(ws):
        v = b.op("Identity", b.op("Relu", b.op("MatMul", v, w)))
        v = b.op("Add", v, b.const(np.full(3, i, np.float32)))
    loss = b.op("ReduceMean", v, keepdims=0)
    b.output("loss", loss)
    lr = b.scalar(0.1, like=x)
    gradients = b.add(GRADIENT, [loss, *ws, *ws], {"xs": len(ws), "zs": 0}, len(ws))
    for w, g in zip(ws, gradients, strict=True):
        b.update(w, b.op("Sub", w, b.op("Mul", lr, g)))
    return b.build()


def calls(graph: Graph) -> int:
    """How many function calls the pipeline makes: its work, the same on every machine."""
    profile = cProfile.Profile()
    final = profile.runcall(run, graph, passes(everything))
    assert sum(node.op == "onnxc.SgdStep" for node in final.nodes) == 1
    return sum(entry.callcount for entry in profile.getstats())


def test_growth_is_linear() -> None:
    """Five times the nodes make five times the work; nothing recurses from node to node."""
    small, large = calls(deep(250)), calls(deep(1250))
    assert large < 5.5 * small


def test_a_derivative_by_a_constant() -> None:
    """The weight is 1, like the seed of the gradient and other numbers: these are not the weight."""
    b = Builder("frozen")
    x, w = b.input("x", TensorType("f32")), b.const(np.array(1, np.float32), "w")
    (first,) = b.add(GRADIENT, [b.op("Mul", w, x, name="y"), w, w], {"xs": 1, "zs": 0})
    (second,) = b.add(GRADIENT, [b.op("Mul", first, first), w, w], {"xs": 1, "zs": 0})
    b.output("first", first)
    b.output("second", second)
    found = run_exported(run(b.build(), passes(everything)), {"x": np.float32(3)})
    assert (found["first"], found["second"]) == (3, 0)


def test_what_broadcasts_its_operands_is_what_shares_loops() -> None:
    """Passes do not know code generation, and so have a list of their own. Of PRelu only the slope is broadcast."""
    assert frozenset(elementwise.ELEMENTWISE) - simplify.ELEMENTWISE == {"PRelu"}
    assert frozenset(elementwise.ELEMENTWISE) >= simplify.ELEMENTWISE
