"""step.memory is what is allocated; memory_limit keeps the bits, or tells what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import compiler
from compiler import memory_report
from tests.models import lenet

TEXT = """<ir_version: 10, opset_import: ["": 21]>
network (float[8,3,16,16] x) => (float[8,5] logits)
<float[16,3,3,3] w1, float[16] scale, float[16] shift, float[16] mean, float[16] var, float[16,16,3,3] w2,
 float[5,16] w3, float ratio = {0.25}, bool yes = {1}> {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b, running_mean, running_var = BatchNormalization<training_mode=1>(a, scale, shift, mean, var)
    c = Relu(b)
    d, mask = Dropout(c, ratio, yes)
    e = Conv<pads=[1,1,1,1]>(d, w2)
    f = Gelu(e)
    g = MaxPool<kernel_shape=[2,2], strides=[2,2]>(f)
    h = GlobalAveragePool(g)
    i = Flatten(h)
    logits = Gemm<transB=1>(i, w3)
}"""


def network() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    shapes = {"w1": (16, 3, 3, 3), "scale": 16, "shift": 16, "mean": 16, "w2": (16, 16, 3, 3), "w3": (5, 16)}
    values = {n: 0.2 * random.standard_normal(s) for n, s in shapes.items()} | {"var": np.ones(16)}
    kept = [t for t in model.graph.initializer if t.name in ("ratio", "yes")]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v.astype(np.float32), n) for n, v in values.items())
    return compiler.make_training_model(model, loss="cross_entropy", optimizer="adam", batch=None)


FEEDS = {
    "x": np.random.default_rng(1).standard_normal((8, 3, 16, 16)).astype(np.float32),
    "label": np.arange(8, dtype=np.int64) % 5,
}


def allocated(step: compiler.StepFunction) -> list[int]:
    run = step._recent["step"]
    return [step._block.bytes.nbytes, run._const.bytes.nbytes, step._arena.bytes.nbytes, run._table.nbytes]


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_is_what_is_allocated(threads: int) -> None:
    step = compiler.compile(network(), threads=threads)
    step(FEEDS)
    use = step.memory
    assert allocated(step) == [use.state, use.constants, use.arena, use.table]
    assert use.total == sum(allocated(step))
    assert memory_report.memory(network(), threads=threads).use == use


@pytest.mark.parametrize("part", [0.85, 0.7])
def test_a_limit_keeps_the_bits(part: float) -> None:
    free = compiler.compile(network(), outputs=["loss"])
    limit = int(part * free.memory.total)
    tight = compiler.compile(network(), outputs=["loss"], memory_limit=limit)
    assert tight.memory.total <= limit
    for _ in range(3):
        assert free(FEEDS)["loss"].tobytes() == tight(FEEDS)["loss"].tobytes()
    assert {n: a.tobytes() for n, a in free.state.items()} == {n: a.tobytes() for n, a in tight.state.items()}
    assert allocated(tight)[2] == tight.memory.arena
    assert free.evaluate(FEEDS)["loss"].tobytes() == tight.evaluate(FEEDS)["loss"].tobytes()


def test_the_least_limit_is_told_and_can_be_reached() -> None:
    least = memory_report.memory(network(), smallest=True).least
    assert least is not None
    report = memory_report.memory(network(), memory_limit=least)
    assert report.use.total <= least
    assert report.recomputed > 0
    with pytest.raises(compiler.MemoryLimitError, match=f"needs at least {least} bytes, .*: 1 bytes over"):
        compiler.compile(network(), memory_limit=least - 1)


JOINED = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
joined (float[33,4] x) => (float y) {
    zero = Constant<value_ints = [0]>()
    part = Concat<axis = 0>(x, x, x)
    view = Unsqueeze(part, zero)
    inner = Concat<axis = 0>(part, x)
    other = Concat<axis = 0>(view, view, view)
    whole = Concat<axis = 0>(inner, part, part)
    a = ReduceSum<keepdims = 0>(other)
    b = ReduceSum<keepdims = 0>(whole)
    y = Sum(a, b)
}"""


def test_a_view_of_a_part_of_a_concat_is_where_the_part_is() -> None:
    """Though the whole comes later: `view` is read before that."""
    model = onnx.parser.parse_model(JOINED)
    algorithm = onnx.parser.parse_graph("step () => (float loss, float[33,4] dx) { loss = Identity(y) }")
    gradient = onnx.helper.make_node("Gradient", ["x"], ["dx"], domain="ai.onnx.preview.training", xs=["x"], y="y")
    algorithm.node.append(gradient)
    model.training_info.add().algorithm.CopyFrom(algorithm)
    x = np.random.default_rng(0).standard_normal((33, 4)).astype(np.float32)
    free = compiler.compile(model)
    least = memory_report.memory(model, smallest=True).least
    assert least is not None
    assert least < free.memory.total
    for limit in (least, free.memory.total - 1):
        tight = compiler.compile(model, memory_limit=limit)
        assert tight.memory.total <= limit
        assert {n: a.tobytes() for n, a in tight(x=x).items()} == {n: a.tobytes() for n, a in free(x=x).items()}


def test_each_size_has_to_fit() -> None:
    small = compiler.compile(lenet(), dims={"N": 2}).memory.total
    step = compiler.compile(lenet(), memory_limit=small)
    inputs = {n: t.dims for n, t in compiler.api.loaded(lenet(), None, None, None)[0].inputs.items()}
    shape = [d for d in inputs["x"] if isinstance(d, int)]
    label = next(n for n in inputs if n != "x" and len(inputs[n]) == 1)

    def run(n: int) -> None:
        step({"x": np.zeros((n, *shape), np.float32), label: np.zeros(n, np.int64)})

    run(2)
    with pytest.raises(compiler.MemoryLimitError):
        run(512)
    run(2)


@pytest.mark.parametrize("limit", ["200MB", 0, -1, 1.5, True])
def test_limits_that_are_no_bytes(limit: Any) -> None:
    with pytest.raises(compiler.InputError, match="memory_limit must be a number of bytes, 1 or more, not"):
        compiler.compile(network(), memory_limit=limit)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_an_artifact_has_the_memory_and_the_bits(tmp_path: Path) -> None:
    model = network()
    limit = int(0.8 * memory_report.memory(model).use.total)
    compiler.build(model, tmp_path / "built", memory_limit=limit)
    built, free = compiler.load(tmp_path / "built"), compiler.compile(model)
    assert built(FEEDS)["loss"].tobytes() == free(FEEDS)["loss"].tobytes()
    assert built.memory == compiler.compile(model, memory_limit=limit).memory
    assert allocated(built) == [built.memory.state, built.memory.constants, built.memory.arena, built.memory.table]
