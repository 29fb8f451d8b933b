"""What a refused step leaves behind for the others that share its memory: nothing."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import compiler
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction

_TEXT = """<ir_version: 10, opset_import: ["": 21]>
running (float[N,3] x) => (float[N,4] logits) <float[3,4] W = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
  zero = Constant<value = float[3] {0.0, 0.0, 0.0}>()
  total, sums = Scan(zero, x) <num_scan_inputs = 1, body = add (float[3] s, float[3] e) => (float[3] t, float[3] r) {
    t = Add(s, e)
    r = Identity(t)
  }>
  logits = MatMul(sums, W)
}
"""

FEEDS = {"x": np.ones((5, 3), np.float32)}
GOOD, BAD = np.zeros(5, np.int64), np.int64([0, 0, 9, 0, 0])


def model() -> onnx.ModelProto:
    """Its inference is a loop, of which nothing is checked; its step looks at labels."""
    return compiler.make_training_model(
        parser.parse_model(_TEXT), loss="cross_entropy", target="labels", optimizer="sgd", lr=0.0
    )


def sums(step: StepFunction, factor: float = 1) -> Array:
    return step.infer(x=FEEDS["x"] * np.float32(factor))["logits"][:, 0] / factor


EXPECTED = [3, 6, 9, 12, 15]


def holds(step: StepFunction, *refused: str) -> None:
    for _ in range(2):  # as the first call, and as a repeated one
        for name in refused:
            with pytest.raises(compiler.RefusedError, match="is 9: label out of range"):
                getattr(step, name)({**FEEDS, "labels": BAD})
            assert sums(step).tolist() == EXPECTED
            assert sums(step, 2).tolist() == EXPECTED  # (what an earlier call left in memory is another value)
            getattr(step, name)({**FEEDS, "labels": GOOD})


@pytest.mark.parametrize("threads", [1, 2])
def test_inference_after_a_refused_step(threads: int) -> None:
    holds(compiler.compile(model(), threads=threads), "__call__", "evaluate")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_inference_after_a_refused_step_of_an_artifact(tmp_path: Path) -> None:
    compiler.build(model(), tmp_path / "artifact", dims={"N": 5})
    holds(compiler.load(tmp_path / "artifact"), "__call__")


def test_inference_after_a_refused_step_that_was_interrupted() -> None:
    """Ctrl-C comes when the native code returns: before anyone has looked at the word."""
    step = compiler.compile(model(), threads=1)
    step({**FEEDS, "labels": GOOD})
    assert sums(step).tolist() == EXPECTED
    step._arena.bytes[:8] = 1
    assert sums(step, 2).tolist() == EXPECTED
    with pytest.raises(compiler.RefusedError, match="'labels'"):
        step({**FEEDS, "labels": BAD})
    step._arena.bytes[:8] = 1
    assert step({**FEEDS, "labels": GOOD})["loss"] > 0


GATHERED = """<ir_version: 10, opset_import: ["": 21]>
gathered (float[N,3] x, int64[N] ids) => (float[N,3] logits) <float[5,3] E = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}> {
  three = Constant<value = int64 {3}>()
  yes = Constant<value = bool {1}>()
  logits = Loop(three, yes, x) <body = add (int64 i, bool c, float[N,3] v) => (bool d, float[N,3] w) {
    d = Identity(c)
    e = Gather<axis = 0>(E, ids)
    sum = Add(v, e)
    w = Tanh(sum)
  }>
}
"""


def test_an_index_that_a_loop_reads_is_told_with_its_place() -> None:
    """By inference, where it is read before the loop, as by the step, where the loop's gradient reads it as well."""
    network = parser.parse_model(GATHERED)
    training = compiler.make_training_model(network, loss="cross_entropy", target="labels", optimizer="sgd", lr=0.1)
    step = compiler.compile(training, threads=1)
    feeds = {"x": np.ones((4, 3), np.float32), "ids": np.int64([0, 1, 99, 2])}
    for call in (step.infer, partial(step.evaluate, labels=GOOD[:4]), partial(step, labels=GOOD[:4])):
        with pytest.raises(compiler.RefusedError) as caught:
            call(**feeds)
        assert (caught.value.input, caught.value.index, caught.value.value) == ("ids", (2,), 99)
