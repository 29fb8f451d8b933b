"""Whole training steps under checked kernels: no access outside the value it belongs to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import specialize
from compiler.codegen import memory, offsets
from compiler.codegen.build import compile_graph
from compiler.codegen.calls import Temp
from compiler.codegen.native import checking, guarded, watched
from compiler.codegen.plan import BARRIER, BARRIER_BYTES, make_plan
from compiler.codegen.support import has_kernel
from compiler.frontend import load
from compiler.passes.pipeline import run_program
from compiler.runtime.executable import Executable
from compiler.runtime.layout import ARENA, CONST, STATE, TABLE
from compiler.runtime.memory import Block
from compiler.runtime.threads import Pool
from examples import digits, gan
from tests import validate
from tests.models import lenet, mlp
from tests.models.loops import loops
from tests.models.zoo import ZOO, needs_zoo

MODELS: dict[str, Any] = {
    "mlp": (lambda: mlp((19, 17, 5)), {"N": 7}),
    "digits": (digits.build, {"N": 3}),
    "lenet": (lenet, {"N": 1}),
    "gan": (gan.build, {"N": 5}),
    "loops": (loops, {}),
    "07_resnet8_bn": (lambda: ZOO["07_resnet8_bn"].training("momentum"), {}),
}


@pytest.mark.parametrize(
    "name", [n if n in MODELS and n[0] != "0" else pytest.param(n, marks=needs_zoo) for n in MODELS]
)
def test_a_step_touches_only_its_own_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    violations, first, outputs = _run(name, monkeypatch, hidden="")
    assert violations == 0, first
    assert all(np.isfinite(a).all() for a in outputs.values())


def test_the_check_sees_a_value_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    violations, first, _ = _run("mlp", monkeypatch, hidden="logits")
    assert violations > 0
    assert "store" in first or "load" in first


@pytest.mark.parametrize("threads", [1, 2])
def test_a_checked_step_is_as_any_other(threads: int) -> None:
    feeds, batch = {"images": np.ones((8, 1, 8, 8), np.float32), "labels": np.arange(8)}, {"N": 8}
    step = compiler.compile(digits.build(), dims=batch, threads=threads)
    with checking():
        tested = compiler.compile(digits.build(), dims=batch, threads=threads)
        for _ in range(4):  # the loops are other code, so they may round in another way
            assert tested(feeds)["loss"] == pytest.approx(step(feeds)["loss"], rel=1e-5)
        assert tested.evaluate(feeds)["loss"] == pytest.approx(step.evaluate(feeds)["loss"], rel=1e-5)
        with pytest.raises(compiler.RefusedError, match="is 11: label out of range"):
            tested({**feeds, "labels": np.full(8, 11)})


def test_a_checked_step_tells_of_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(run: Callable[[], None], ranges: Sequence[tuple[int, int]]) -> Callable[[], None]:
        return watched(run, [ranges[ARENA], ranges[CONST], ranges[TABLE]])

    monkeypatch.setattr(specialize, "watched", blind)
    feeds = {"images": np.ones((8, 1, 8, 8), np.float32), "labels": np.arange(8)}
    with checking():
        step = compiler.compile(digits.build(), threads=1)
        for _ in range(2):
            with pytest.raises(compiler.OnnxcError, match=r"the first: load of \d+ bytes in onnxc_\w+: "):
                step(feeds)


def test_the_environment_variable() -> None:
    """In a process of its own, which reads it: as `python` and as `onnxc` do."""
    code = (
        "import compiler, numpy; from compiler.codegen.native.modes import checked; from examples import digits\n"
        "step = compiler.compile(digits.build(), threads=1)\n"
        "print(checked(), step(images=numpy.ones((2, 1, 8, 8), 'f'), labels=numpy.arange(2))['loss'] > 1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ONNXC_CHECKED": "1"}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


def _run(name: str, monkeypatch: pytest.MonkeyPatch, hidden: str) -> tuple[int, str, dict[str, Any]]:
    """One step: accesses outside its values (of which `hidden` is not allowed), the first one, and the outputs."""
    model, dims = MODELS[name][0](), MODELS[name][1]
    # every value keeps memory of its own, so that a store beyond its end meets no other value
    monkeypatch.setattr(offsets.Pieces, "give", lambda self, piece: None)
    graph = run_program(load(model).program(dims), has_kernel).step
    plan = make_plan(graph)
    feeds = validate.random_feeds(graph, high=3)
    states = Block(plan.layout.state_bytes)
    for slot in plan.layout.states:
        states.view(slot)[...] = graph.states[slot.name].array
    placed = memory.place(graph, plan.schedule, BARRIER + BARRIER_BYTES, {v: t.type for v, t in graph.states.items()})
    with guarded() as guard:
        code = compile_graph(graph)
        run = Executable(code.layout, code.address, code.const, states, Pool(1, None))
        base = {ARENA: run._arena.address, STATE: states.address, CONST: run._const.address}
        guard.allow((run._table.ctypes.data, run._table.ctypes.data + run._table.nbytes))
        guard.allow((base[ARENA], base[ARENA] + BARRIER + BARRIER_BYTES))
        guard.allow((base[CONST], base[CONST] + code.layout.const_bytes))
        regions = {
            (p.block, p.offset): plan.schedule.types[v].nbytes
            for v, p in placed.places.items()
            if p.block != CONST and v != hidden
        }
        for (block, offset), nbytes in regions.items():
            guard.allow((base[block] + offset, base[block] + offset + nbytes))
        for place, nbytes in _temps(plan, placed):
            guard.allow((base[ARENA] + place.offset, base[ARENA] + place.offset + nbytes))
        guard.allow((base[ARENA] + placed.arena_bytes, base[ARENA] + code.layout.arena_bytes))  # threads' scratch
        outputs = run.run(feeds)
        return guard.violations, guard.first, outputs


def _temps(plan: Any, placed: memory.Memory) -> list[tuple[memory.Place, int]]:
    """Scratch memory that calls share, with its size."""
    units = memory.positions(plan.schedule.units)
    temps = [(id(u), a) for u in units for c in u.calls for a in c.args if isinstance(a, Temp)]
    sizes = {(unit, a.key): a.nbytes for unit, a in temps}
    return [(at, sizes[key]) for key, at in placed.temps.items()]
