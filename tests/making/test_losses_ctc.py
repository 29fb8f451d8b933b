"""The loss ctc: its values, what it refuses, and lists that have no alignment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import compiler
from compiler import Loss, make_training_model
from compiler.codegen.build import compile_graph
from compiler.codegen.native.guard import guarded
from compiler.codegen.support import has_kernel
from compiler.frontend import load
from compiler.ir.interpret import interpret
from compiler.passes.pipeline import run_program
from compiler.runtime.executable import Executable
from compiler.runtime.memory import Block
from compiler.runtime.threads import Pool
from tests.making import loss_formulas as formulas
from tests.making.loss_models import FEATURES, Array, checked, linear, loss_by_reference, step_graph

TIMES, BATCH, CLASSES = 7, 3, 5
FEEDS: Mapping[str, Array] = {
    "x": np.random.default_rng(1).normal(size=(TIMES, BATCH, FEATURES)),
    "target": np.array([[1, 2, 2], [3, 4, 9], [-7, 9, 9]]),
    "input_lengths": np.array([7, 0, 4]),
    "target_lengths": np.array([3, 2, 0]),
}
FITTING = {**FEEDS, "input_lengths": np.array([7, 7, 4])}

# what is changed in FITTING: an input, the place, the number; and what the message says of it
WRONG: list[tuple[str, tuple[int, ...], int, str]] = [
    ("target", (0, 1), CLASSES, f"label out of range [0, {CLASSES})"),
    ("target", (1, 0), -1, f"label out of range [0, {CLASSES})"),
    ("target", (1, 1), -(2**63), f"label out of range [0, {CLASSES})"),
    ("input_lengths", (1,), TIMES + 1, f"length out of range [0, {TIMES + 1})"),
    ("input_lengths", (0,), -1, f"length out of range [0, {TIMES + 1})"),
    ("target_lengths", (1,), 4, "length out of range [0, 4)"),  # and not that its padding, 9, is no class
    ("target_lengths", (2,), -1, "length out of range [0, 4)"),
    ("target_lengths", (0,), 2**62, "length out of range [0, 4)"),
]


def training_model(**options: Any) -> Any:
    model = linear((TIMES, BATCH, CLASSES), dtype=TensorProto.FLOAT)
    return make_training_model(model, loss=Loss("ctc", **options), optimizer="sgd", lr=0.1, batch=None)


def as_floats(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return {**feeds, "x": feeds["x"].astype(np.float32)}


def changed(name: str, place: tuple[int, ...], number: int) -> dict[str, Array]:
    array = FITTING[name].copy()
    array[place] = number
    return as_floats({**FITTING, name: array})


@pytest.mark.parametrize(("time_axis", "blank"), [(0, 0), (1, 2)])
def test_the_loss_is_that_of_all_paths(time_axis: int, blank: int) -> None:
    """Against the sum over all paths: repeats, an empty list, a short input, padding that is no class."""
    model = linear((4, 3, 3) if time_axis == 0 else (3, 4, 3))
    label = 1 - blank // 2
    target = np.array([[label, label], [1, -7], [9, 9]])
    lengths, times = np.array([2, 1, 0]), np.array([4, 3, 4])
    x = np.random.default_rng(1).normal(size=(4, 3, FEATURES))
    log = formulas.log_softmax(x @ onnx.numpy_helper.to_array(model.graph.initializer[0]), -1)
    lists = zip(target, lengths, times, range(3), strict=True)
    costs = [formulas.ctc(log[:t, i], row[:n], blank) / max(n, 1) for row, n, t, i in lists]
    feeds = {"x": np.moveaxis(x, 0, time_axis), "target": target, "input_lengths": times, "target_lengths": lengths}
    training = make_training_model(
        model, loss=Loss("ctc", time_axis=time_axis, blank=blank), optimizer="sgd", batch=None
    )
    assert compiler.check(training) == ()
    graph = step_graph(training, feeds)
    assert float(interpret(graph, feeds)["loss"].reshape(())) == pytest.approx(float(np.mean(costs)), rel=1e-12)


def test_labels_and_lengths_out_of_range_are_told_with_their_place() -> None:
    step = compiler.compile(training_model(), dims={"target_1": 3})
    step(as_floats(FITTING))
    before = step.state["w"].copy()
    for name, place, number, what in WRONG:
        at = ", ".join(map(str, place))
        with pytest.raises(compiler.RefusedError, match=f"^{re.escape(f'{name!r}[{at}] is {number}: {what}')}") as e:
            step(changed(name, place, number))
        assert (e.value.input, e.value.index, e.value.value) == (name, place, number)
        np.testing.assert_array_equal(step.state["w"], before)
    step(as_floats(FITTING))
    assert not np.array_equal(step.state["w"], before)


@pytest.mark.slow
def test_numbers_out_of_range_are_no_access_out_of_memory() -> None:
    graph = run_program(load(training_model()).program({"target_1": 3}), has_kernel).step
    with guarded() as guard:
        code = compile_graph(graph)
        states, arena = Block(code.layout.state_bytes), Block(code.layout.arena_bytes)
        run = Executable(code.layout, code.address, code.const, states, Pool(1, None), arena=arena)
        guard.allow((run._table.ctypes.data, run._table.ctypes.data + run._table.nbytes))
        for block, size in (
            (arena, code.layout.arena_bytes),
            (states, code.layout.state_bytes),
            (run._const, code.layout.const_bytes),
        ):
            guard.allow((block.address, block.address + size))
        for name, place, number, _ in WRONG:
            with pytest.raises(compiler.RefusedError):
                run.run(changed(name, place, number))
        run.run(as_floats(FITTING))
        assert guard.violations == 0, guard.first


def test_a_list_without_an_alignment_has_an_infinite_loss_and_no_gradient() -> None:
    """Of three lists, the second has no time, in float32; its gradient is 0 either way, the others' as without it."""
    steps = {z: compiler.compile(training_model(zero_infinity=z), dims={"target_1": 3}) for z in (False, True)}
    first = steps[True].state["w"].copy()
    found = {z: step(as_floats(FEEDS), fetch=["w.gradient"]) for z, step in steps.items()}
    assert found[False]["loss"] == np.inf
    assert 0 < found[True]["loss"] < 10
    np.testing.assert_array_equal(found[False]["w.gradient"], found[True]["w.gradient"])
    np.testing.assert_array_equal(steps[False].state["w"], steps[True].state["w"])
    moved = first - steps[True].state["w"]
    assert np.isfinite(moved).all()
    # an empty list without a time has the loss 0, and no gradient
    absent = {**FEEDS, "target_lengths": np.array([3, 0, 0])}
    alone = compiler.compile(training_model(), dims={"target_1": 3})(as_floats(absent), fetch=["w.gradient"])
    np.testing.assert_allclose(found[True]["loss"], alone["loss"], rtol=1e-6)
    np.testing.assert_allclose(found[True]["w.gradient"], alone["w.gradient"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_the_loss_as_written_is_that_of_the_step(zero_infinity: bool) -> None:
    """By onnx.reference, on lists of which one has no alignment."""
    model = checked(training_model(zero_infinity=zero_infinity))
    loss = compiler.compile(model, dims={"target_1": 3})(as_floats(FEEDS))["loss"]
    assert loss_by_reference(model, as_floats(FEEDS)) == pytest.approx(float(loss), rel=1e-5)


def test_repeats_need_a_time_more() -> None:
    step = compiler.compile(training_model(), dims={"target_1": 3})
    lists = {**FITTING, "target": np.array([[2, 2, 1], [2, 2, 2], [1, 2, 1]]), "target_lengths": np.array([3, 3, 3])}
    assert np.isfinite(step(as_floats({**lists, "input_lengths": np.array([4, 5, 3])}))["loss"])
    for least in ([3, 5, 3], [4, 4, 3], [4, 5, 2]):
        assert step(as_floats({**lists, "input_lengths": np.array(least)}))["loss"] == np.inf


def test_zero_infinity_does_not_hide_what_is_no_number() -> None:
    step = compiler.compile(training_model(zero_infinity=True), dims={"target_1": 3})
    x = FITTING["x"].copy()
    x[0, 0, 0] = np.nan
    assert np.isnan(step(as_floats({**FITTING, "x": x}))["loss"])


def test_zero_infinity_is_true_or_false_and_of_ctc_alone() -> None:
    with pytest.raises(compiler.InputError, match="zero_infinity must be True or False, not 1"):
        Loss("ctc", zero_infinity=1)  # type: ignore[arg-type]
    with pytest.raises(compiler.InputError, match="the loss mse has no option zero_infinity"):
        Loss("mse", zero_infinity=True)


def test_lengths_of_two_losses_are_called_after_their_outputs() -> None:
    model = linear((TIMES, BATCH, CLASSES))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["x", "w"], ["q"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("q", TensorProto.DOUBLE, None))
    training = make_training_model(model, loss={"y": "ctc", "q": "ctc"}, batch=None)
    names = [v.name for v in training.training_info[0].algorithm.input]
    assert names == [f"{v}.{name}" for v in "yq" for name in ("target", "input_lengths", "target_lengths")]
