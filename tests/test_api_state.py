"""State: live arrays, initialization, random numbers, checkpoints, and the exported model."""

from __future__ import annotations

import copy
import os
import pickle
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from safetensors.numpy import load_file, save_file

import compiler
from tests.artifact_models import TYPES, swapped
from tests.frontend.small import LINEAR, STARTS, STEP, UPDATES, linear, make_model, training_info
from tests.models import tiny
from tests.test_api import T, W, X, bits

DROPOUT = """step (float[N,1] t) => (float loss, float[N,3] seen, float[3,1] w_next)
<float rate = {0.1}, float half = {0.5}, bool training = {1}>
{
  seen = Dropout(x, half, training)
  p = MatMul(seen, w)
  e = Sub(p, t)
  s = Mul(e, e)
  loss = ReduceMean<keepdims=0>(s)
  dw = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x", "t"], y="loss">(w, x, t)
  d = Mul(rate, dw)
  w_next = Sub(w, d)
}"""


def dropout(initialization: bool = False) -> onnx.ModelProto:
    """The linear model with Dropout of its input in training mode."""
    start = ("start () => (float[3,1] w0) { w0 = RandomNormal<shape=[3,1]>() }", {"w": "w0"}) if initialization else ()
    return make_model(LINEAR, training_info(DROPOUT, {"w": "w_next"}, *start))


# --- live arrays -----------------------------------------------------------------------------------------------------
def test_state_is_live() -> None:
    step = compiler.compile(linear())
    w = step.state["w"]
    np.testing.assert_array_equal(w, W)
    step(x=X, t=T)
    assert not np.array_equal(w, W)
    np.testing.assert_array_equal(w, step.state["w"])
    w[...] = 0
    np.testing.assert_array_equal(step.infer(x=X)["y"], 0)
    step.state["w"] += 1
    np.testing.assert_array_equal(step.infer(x=X)["y"], X.sum(1, keepdims=True))
    step.state["w"] = W[::-1]
    np.testing.assert_array_equal(step.infer(x=X)["y"], X @ W[::-1])
    step.state["w"] = [[1], [2], [3]]
    step.state["n"] = 41
    step(x=X, t=T)
    assert step.state["n"] == 42
    assert list(step.state) == ["w", "n", "onnxc.seed", "onnxc.step"]
    assert "w" in step.state
    assert repr(step.state).startswith("<State 'w': f32[3, 1], 'n': i64[]")


def test_state_outlives_the_step() -> None:
    step = compiler.compile(linear())
    w = step.state["w"]
    del step
    np.testing.assert_array_equal(w, W)
    w[...] = 5


def test_a_view_cannot_change_the_layout_of_the_state() -> None:
    step = compiler.compile(linear())
    w = step.state["w"]
    w.shape = (3,)
    assert step.state["w"].shape == (3, 1)
    w.flags.writeable = False
    step.state["w"][...] = 1
    with pytest.raises(ValueError, match="resize"):
        step.state["w"].resize((6, 1))


def test_inputs_may_be_state() -> None:
    step = compiler.compile(linear())
    x = step.state["w"].reshape(1, 3)
    np.testing.assert_allclose(step(x=x, t=step.state["w"][:1])["y"], [[14]])


def test_copies_of_the_state_are_dicts() -> None:
    step = compiler.compile(linear())
    copies = [copy.copy(step.state), copy.deepcopy(step.state), pickle.loads(pickle.dumps(step.state))]
    before = bits(step.state)
    step(x=X, t=T)
    for c in copies:
        assert type(c) is dict
        assert bits(c) == before
        other = compiler.compile(linear())
        other.state.update(c)
        assert bits(other.state) == before


# --- initialization --------------------------------------------------------------------------------------------------
def test_initialization_sets_what_it_binds() -> None:
    step = compiler.compile(linear())
    for _ in range(3):
        step(x=X, t=T)
    assert step.state["n"] == 3
    step.initialize(5)
    assert step.state["n"] == 0
    first = step.state["w"].copy()
    assert not np.array_equal(first, W)
    step(x=X, t=T)
    step.initialize(5)
    np.testing.assert_array_equal(step.state["w"], first)
    step.initialize(6)
    assert not np.array_equal(step.state["w"], first)
    # by default with the seed that there is
    step.initialize()
    sixth = step.state["w"].copy()
    step.initialize(6)
    np.testing.assert_array_equal(step.state["w"], sixth)
    fresh = compiler.compile(linear(), seed=6)
    fresh.initialize()
    np.testing.assert_array_equal(fresh.state["w"], sixth)


def test_initialization_may_bind_some_variables_only() -> None:
    counter = "start () => (int64 n0) <int64 n0 = {7}> { }"
    step = compiler.compile(make_model(LINEAR, training_info(STEP, UPDATES, counter, {"n": "n0"})))
    step(x=X, t=T)
    w = step.state["w"].copy()
    step.initialize()
    assert step.state["n"] == 7
    np.testing.assert_array_equal(step.state["w"], w)


@pytest.mark.filterwarnings("ignore:the model has no initialization graph")
def test_without_initialization_nothing_changes() -> None:
    step = compiler.compile(tiny(), dims={"N": 2})
    step(x=np.ones((2, 4), np.float32), label=[0, 1])
    before = bits(step.state)
    step.initialize(1)
    step.initialize()
    assert bits(step.state) == before


def test_initialization_before_any_size_is_known() -> None:
    """The graph of the step does not compile for every size."""
    main = "m (float[N,1,H,H] x) => (float[N,C] y) <float[2,1,5,5] w = {WEIGHTS}> { c = Conv(x, w) y = Flatten(c) }"
    main = main.replace("{WEIGHTS}", "{" + ", ".join(["0.5"] * 50) + "}")
    algorithm = """step () => (float[2,1,5,5] w_next) { l = ReduceSum(y)
        g = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x"], y="l">(w, x)  w_next = Sub(w, g) }"""
    start = "start () => (float[2,1,5,5] w0) { w0 = RandomUniform<shape=[2,1,5,5]>() }"
    step = compiler.compile(make_model(main, training_info(algorithm, {"w": "w_next"}, start, {"w": "w0"})))
    step.initialize(3)
    assert np.unique(step.state["w"]).size == 50
    step(x=np.zeros((1, 1, 6, 6), np.float32))
    with pytest.raises(compiler.CompileError, match="Conv"):
        step(x=np.zeros((1, 1, 3, 3), np.float32))


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, "0", True])
def test_seeds_of_initialization(seed: Any) -> None:
    step = compiler.compile(linear())
    before = bits(step.state)
    with pytest.raises(compiler.InputError, match="seed must be an integer from 0 to"):
        step.initialize(seed)
    assert bits(step.state) == before


# --- random numbers --------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:the model has no initialization graph")
def test_the_random_stream_is_state() -> None:
    def run(step: compiler.StepFunction, count: int) -> list[bytes]:
        return [step(x=X, t=T)["seen"].tobytes() for _ in range(count)]

    one, two, other = (compiler.compile(dropout(), seed=s) for s in (1, 1, 2))
    a = run(one, 5)
    assert len(set(a)) > 1
    assert run(two, 5) == a
    assert run(other, 5) != a
    assert one.state["onnxc.seed"] == 1
    assert one.state["onnxc.step"] == 5
    # initialize begins the stream anew, also where the model has no initialization
    w = one.state["w"].copy()
    one.initialize()
    assert run(one, 5) == a
    one.initialize(2)
    two.initialize(2)
    assert run(one, 5) == run(two, 5) == run(compiler.compile(dropout(), seed=2), 5)
    assert w.shape == (3, 1)


def test_the_seed_of_dropout_is_that_of_compile_or_initialize() -> None:
    a, b = compiler.compile(dropout(True), seed=3), compiler.compile(dropout(True))
    a.initialize()
    b.initialize(3)
    for _ in range(3):
        assert bits(a(x=X, t=T)) == bits(b(x=X, t=T))


def test_a_failed_initialization_changes_nothing() -> None:
    """Its graph gathers with an index that is drawn; most are out of range."""
    start = """start () => (float[3,1] w0, int64 n0) <float[3] few = {1, 2, 3}, int64[2] to = {3, 1}> {
        r = RandomUniform<low=3.0, high=9.0, shape=[3]>()  i = Cast<to=7>(r)
        g = Gather(few, i)  w0 = Reshape(g, to)  n0 = Constant<value_int=0>() }"""
    step = compiler.compile(make_model(LINEAR, training_info(STEP, UPDATES, start, STARTS)))
    step(x=X, t=T)
    before = bits(step.state)
    with pytest.raises(compiler.InputError, match="Gather: index out of range"):
        step.initialize(9)
    assert bits(step.state) == before
    step(x=X, t=T)


def test_variables_with_the_name_of_a_hidden_state() -> None:
    def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
        found = onnx.ModelProto.FromString(model.SerializeToString())
        for g in (found.graph, found.training_info[0].algorithm):
            for t in g.initializer:
                t.name = "onnxc.seed" if t.name == "w" else t.name
            for node in g.node:
                node.input[:] = ["onnxc.seed" if v == "w" else v for v in node.input]
                for a in node.attribute:
                    a.strings[:] = [b"onnxc.seed" if v == b"w" else v for v in a.strings]
        for b in found.training_info[0].update_binding:
            b.key = "onnxc.seed" if b.key == "w" else b.key
        return found

    for model in (dropout(), make_model(LINEAR, training_info(STEP, UPDATES))):
        with pytest.raises(compiler.ModelError, match=r"'onnxc\.seed' is a name that onnxc keeps for itself"):
            compiler.compile(renamed(model))


# --- checkpoints -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", [dropout, linear, swapped])
def test_training_goes_on_from_a_file_bit_for_bit(model: Any, tmp_path: Path) -> None:
    feeds = {} if model is swapped else {"x": X, "t": T}
    one = compiler.compile(model(), seed=4)
    for _ in range(3):
        one(feeds)
    one.save(tmp_path / "state")
    kept = bits(one.state)
    rest = [bits(one(feeds)) for _ in range(3)]
    two = compiler.compile(model(), seed=9)
    two.load(str(tmp_path / "state"))
    assert bits(two.state) == kept
    assert [bits(two(feeds)) for _ in range(3)] == rest
    assert bits(two.state) == bits(one.state)
    # into the same step as well
    one.load(tmp_path / "state")
    assert [bits(one(feeds)) for _ in range(3)] == rest
    assert set(load_file(tmp_path / "state")) == set(one.state)


def test_special_values_survive(tmp_path: Path) -> None:
    step = compiler.compile(linear())
    odd = np.array([0xFFC00001, 0x80000000, 0x00000001], np.uint32).view(np.float32).reshape(3, 1)
    step.state["w"] = odd
    step.save(tmp_path / "s")
    step.state["w"] = W
    step.load(tmp_path / "s")
    assert step.state["w"].tobytes() == odd.tobytes()


def test_foreign_files(tmp_path: Path) -> None:
    step = compiler.compile(make_model(LINEAR, training_info(STEP, UPDATES)))
    before = bits(step.state)

    def refused(path: Path, message: str) -> None:
        with pytest.raises(compiler.StateError, match=message):
            step.load(path)
        assert bits(step.state) == before

    other = compiler.compile(tiny())
    other.save(tmp_path / "other")
    refused(tmp_path / "other", "is the state of another model: missing 'w'; missing 'n'; extra .*'fc1.weight'")
    save_file({"w": W.astype(np.float64), "n": np.array([1])}, tmp_path / "types")
    refused(
        tmp_path / "types", r"'w' is float64\[3, 1\], the model's is float32\[3, 1\]; 'n' is int64\[1\], the model's is"
    )
    save_file({"w": W}, tmp_path / "half")
    refused(tmp_path / "half", "missing 'n'$")
    save_file({"w": W, "n": np.array(1), "m": W}, tmp_path / "more")
    refused(tmp_path / "more", "extra 'm'$")
    step.save(tmp_path / "good")
    whole = (tmp_path / "good").read_bytes()
    for name, data in {
        "empty": b"", "cut": whole[:-1], "head": whole[:20], "text": b"hello, this is no state at all",
        "huge": struct.pack("<Q", 2**60) + whole, "more": whole + b"\0",
        "bf16": whole.replace(b'"F32"', b'"BF16"').replace(b'"shape":[3,1]', b'"shape":[6,1]'),
        "list": struct.pack("<Q", 2) + b"[]",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, "no state that onnxc saved|another model")
    refused(tmp_path / "nowhere", "there is no file")
    refused(tmp_path, "is a folder, not a saved state")
    step.load(tmp_path / "good")


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = compiler.compile(linear())
    path = tmp_path / "state"
    step.save(path)
    os.chmod(path, 0o600)
    old = path.read_bytes()
    step(x=X, t=T)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        for write in (step.save, step.export):
            with pytest.raises(OSError, match="No space left"):
                write(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["state"]
    link = tmp_path / "link"
    link.symlink_to(path)
    step.save(link)
    assert link.is_symlink()
    assert path.read_bytes() != old
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    step.save(os.devnull)
    assert not os.path.isfile(os.devnull)
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        step.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere/state"):
        step.save(tmp_path / "nowhere" / "state")
    step.export(tmp_path / ("n" * 250))
    assert sorted(os.listdir(tmp_path)) == sorted(["state", "link", "n" * 250])


# --- export ----------------------------------------------------------------------------------------------------------
def test_the_exported_model_in_onnxruntime(tmp_path: Path) -> None:
    step = compiler.compile(tiny())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 4)).astype(np.float32)
    for _ in range(5):
        step(x=x, label=rng.integers(0, 3, 8))
    step.export(tmp_path / "trained.onnx")
    model = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert not model.training_info
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    for n in (8, 3):
        np.testing.assert_allclose(
            session.run(None, {"x": x[:n]})[0], step.infer(x=x[:n])["logits"], rtol=1e-5, atol=1e-6
        )
    again = compiler.compile(tmp_path / "trained.onnx")
    assert bits(again(x=x)) == bits(step.infer(x=x))


def test_every_type_in_the_exported_model(tmp_path: Path) -> None:
    step = compiler.compile(swapped())
    before = {n: a.copy() for n, a in step.state.items()}
    step()
    step.export(tmp_path / "m.onnx")
    found = {t.name: t for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    for t in TYPES:
        assert found[f"{t}.a"].data_type == onnx.TensorProto.DataType.Value(t.upper())
        array = numpy_helper.to_array(found[f"{t}.a"])
        assert array.tobytes() == step.state[f"{t}.a"].tobytes() == before[f"{t}.b"].tobytes()
        assert array.dtype == helper.tensor_dtype_to_np_dtype(found[f"{t}.a"].data_type)
    fresh = compiler.compile(swapped())
    fresh.state["bfloat16.a"] = [[1.0, -2.5], [3, 1e30]]
    fresh.export(tmp_path / "m.onnx")
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    np.testing.assert_allclose(found["bfloat16.a"].astype(np.float32), [[1.0, -2.5], [3, 1e30]], rtol=0.004)
    fresh.state["bfloat16.b"] = found["bfloat16.a"]
    assert fresh.state["bfloat16.b"].tobytes() == fresh.state["bfloat16.a"].tobytes()


def test_names_that_no_state_has(tmp_path: Path) -> None:
    compiler.build(linear(), tmp_path / "artifact", dims={"N": 4})
    for step in (compiler.compile(linear()), compiler.load(tmp_path / "artifact")):
        with pytest.raises(compiler.StateError, match=r"^there is no state 'W' \(did you mean 'w'\?\)$") as e:
            step.state["W"]
        assert isinstance(e.value, KeyError)
        with pytest.raises(compiler.StateError, match=r"no state 'zzz': there are 'w', 'n', "):
            step.state["zzz"] = 0
        assert step.state.get("W") is None
        assert "W" not in step.state
        assert "w" in step.state
