"""Every pass on every example and zoo model: exported and run by onnxruntime, the graph after a pass gives the values
from before it; gradients equal finite differences of the exported forward graph; the compiled step gives them, too."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import compiler
from compiler.codegen.support import has_kernel
from compiler.frontend import load
from compiler.ir.builder import GRADIENT
from compiler.ir.graph import Graph, Program
from compiler.ir.text import dump, parse, tensors_of
from compiler.passes.pipeline import run_program
from examples import digits, gan, linear, second_order
from tests import validate
from tests.models import lenet, mlp, tiny
from tests.models.zoo import ZOO, needs_zoo

MODELS: dict[str, Any] = {
    "digits": (digits.build, {"N": 6}),
    "gan": (gan.build, {"N": 6}),
    "linear": (linear.build, {"N": 6}),
    "second_order": (second_order.build, {}),
    "tiny": (tiny, {"N": 6}),
    "mlp": (lambda: mlp((20, 16, 12, 10)), {"N": 6}),
    "lenet": (lenet, {"N": 2}),
}
ZOO_USED = ("03_lenet_relu", "05_mnist8_cntk", "07_resnet8_bn", "r11_ae_ref")


def stages(model: onnx.ModelProto, dims: Mapping[str, int]) -> dict[str, list[tuple[str, Graph]]]:
    """Graphs by role: as imported, and after each pass."""
    program: Program = load(model).program(dims)
    found = {role: [("import", g)] for role, g in program.graphs().items()}
    run_program(program, has_kernel, observe=lambda role, name, g: found[role].append((name, g)))
    return found


def cases() -> list[Any]:
    zoo = [pytest.param(name, marks=needs_zoo) for name in ZOO_USED]
    return [*MODELS, *zoo]


def build(name: str) -> tuple[onnx.ModelProto, dict[str, int], dict[str, Any] | None]:
    """(model, dims, feeds or None)."""
    if name in MODELS:
        make, dims = MODELS[name]
        return make(), dims, None
    return ZOO[name].training("adam"), dict(ZOO[name].bind), ZOO[name].feeds()


@pytest.mark.parametrize("name", cases())
def test_every_stage_parses_back(name: str) -> None:
    model, dims, _ = build(name)
    for graphs in stages(model, dims).values():
        for stage, g in graphs:
            assert parse(dump(g), tensors_of(g)) == g, stage


@pytest.mark.parametrize("name", cases())
def test_every_pass_keeps_the_values(name: str) -> None:
    model, dims, feeds = build(name)
    for role, graphs in stages(model, dims).items():
        runnable = [(stage, g) for stage, g in graphs if not any(n.op == GRADIENT for n in g.nodes)]
        if any(n.op.startswith("Random") for n in graphs[0][1].nodes):  # other draws than onnxruntime's
            runnable = [(stage, g) for stage, g in runnable if not any(n.op.startswith("Random") for n in g.nodes)]
        arrays = feeds or validate.random_feeds(graphs[0][1])
        arrays = {v: arrays[v] for v in graphs[0][1].inputs}
        assert len(runnable) > 3, role
        for (_, before), (stage, after) in itertools.pairwise(runnable):
            if before is not after and dump(before) != dump(after):
                try:
                    validate.validate(before, after, arrays, rtol=2e-4, atol=2e-5)
                except AssertionError as e:
                    raise AssertionError(f"{role}: {stage} changed the values") from e


@pytest.mark.parametrize("name", ["digits", "linear", "tiny", "mlp", "lenet"])
def test_the_compiled_step_is_the_exported_one(name: str) -> None:
    """Fifty steps of onnxruntime on the lowered model and of the compiled step have the same losses."""
    model, dims, _ = build(name)
    lowered = compiler.lower(model, dims=dims)
    run = validate.prepare(lowered)
    step = compiler.compile(model, dims=dims)
    graph = step.graph
    states = {n: t.array for n, t in graph.states.items()}
    for i in range(50):
        feeds = validate.random_feeds(graph, seed=i % 3, high=3)
        want = run(feeds, states)
        states = {n: want.updates.get(n, a) for n, a in states.items()}
        got = step(feeds)
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=2e-3, atol=1e-5, err_msg=f"step {i}")


@pytest.mark.parametrize("name", ["digits", "tiny", "mlp"])
def test_gradients_are_slopes_of_the_exported_forward_graph(name: str) -> None:
    model, dims, _ = build(name)
    found = dict(stages(model, dims)["step"])
    imported = found["import"]
    gradient = next(n for n in imported.nodes if n.op == GRADIENT)
    arrays = validate.random_feeds(imported)
    wanted = [(x, v) for x, v in zip(gradient.inputs[1:], gradient.outputs, strict=False) if v and x in imported.states]
    step = compiler.compile(model, dims=dims)
    got = step(arrays, fetch=[v for _, v in wanted])
    checked = 0
    for x, v in wanted:
        for direction, slope in validate.slopes(imported, "loss", x, arrays, directions=2, step=1e-2):
            ours = float(np.sum(got[v].astype(np.float64) * direction))
            scale = float(np.abs(got[v]).sum()) + 1e-3
            assert abs(ours - slope) < 0.03 * scale, (x, ours, slope)
            checked += 1
    assert checked >= 4
