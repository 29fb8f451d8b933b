"""compiler.compile and the step function: what its arguments mean, what a call takes and gives."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import compiler
from compiler.runtime import step as step_module
from tests.frontend.small import LINEAR, STEP, UPDATES, linear, make_model, training_info
from tests.models import tiny
from tests.test_models import example

X = np.array([[1, 0, 2], [0, 1, -1]], np.float32)
T = np.array([[1], [2]], np.float32)
W = np.array([[1], [2], [3]], np.float32)


def by_hand(w: np.ndarray, x: np.ndarray = X, t: np.ndarray = T) -> tuple[float, np.ndarray]:
    """Loss and next w of the linear model."""
    e = x @ w - t
    return float((e * e).mean()), w - 0.1 * 2 * x.T @ e / len(x)


def bits(arrays: Any) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    return {n: (a.shape, a.dtype.str, a.tobytes()) for n, a in arrays.items()}


# --- arguments of compile --------------------------------------------------------------------------------------------
def test_from_path_bytes_and_message(tmp_path: Path) -> None:
    model = linear()
    path = tmp_path / "linear.onnx"
    onnx.save(model, path)
    loss, w = by_hand(W)
    for given in (path, str(path), path.read_bytes(), model):
        step = compiler.compile(given)
        out = step(x=X, t=T)
        assert list(out) == ["y", "loss"]
        np.testing.assert_allclose(out["loss"], loss, rtol=1e-6)
        np.testing.assert_allclose(out["y"], X @ W)
        np.testing.assert_allclose(step.state["w"], w, rtol=1e-6)
        assert step.state["n"] == 1
    with pytest.raises(TypeError, match=r"a model is a path, bytes or an onnx\.ModelProto, not int"):
        compiler.compile(3)  # type: ignore[arg-type]


def test_the_message_may_change_after_compiling(tmp_path: Path) -> None:
    model = linear()
    step = compiler.compile(model)
    del model.training_info[:]
    del model.graph.node[:]
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(W * 100, "w"))
    np.testing.assert_allclose(step(x=X, t=T)["y"], X @ W)
    step.export(tmp_path / "trained.onnx")
    assert len(onnx.load(tmp_path / "trained.onnx").graph.node) == 1


def test_the_first_call_binds_symbols_and_others_another_time() -> None:
    step = compiler.compile(linear())
    with pytest.raises(compiler.OnnxcError, match="nothing is compiled yet: give dims="):
        _ = step.graph
    w = W
    for n in (2, 5, 2, 1, 5):
        x, t = np.tile(X, (3, 1))[:n], np.tile(T, (3, 1))[:n]
        loss, w = by_hand(w, x, t)
        out = step(x=x, t=t)
        np.testing.assert_allclose(out["loss"], loss, rtol=1e-5)
        assert out["y"].shape == (n, 1)
        np.testing.assert_allclose(step.state["w"], w, rtol=1e-5)
    assert step.state["n"] == 5
    assert step.infer(x=X[:1])["y"].shape == (1, 1)


def test_sizes_share_one_arena() -> None:
    step = compiler.compile(linear())
    for n in (2, 6, 4):
        step(x=np.ones((n, 3), np.float32), t=np.ones((n, 1), np.float32))
    assert {len(e._inputs[0][1]) for e in step._executables.values()} == {6, 4}  # that of 2 was too small for 6
    assert len({e._arena.address for e in step._executables.values()}) == 1


def test_dims() -> None:
    step = compiler.compile(linear(), dims={"N": 2})
    assert step.graph.type("x").shape == (2, 3)
    step(x=X, t=T)
    with pytest.raises(compiler.InputError, match=r"input 'x' has shape \[1, 3\].*dim 'N' is 2 here"):
        step(x=X[:1], t=T[:1])
    np.testing.assert_allclose(step.infer(x=np.ones((7, 3), np.float32))["y"], np.ones((7, 3)) @ step.state["w"])
    for dims, message in (
        ({"M": 2}, "no symbolic dim 'M': there are 'N'"),
        ({"n": 2}, r"no symbolic dim 'n' \(did you mean 'N'\?\)"),
        ({"N": 0}, "dim 'N' must be a positive integer, not 0"),
        ({"N": 2.5}, "dim 'N' must be a positive integer, not 2.5"),
        ({"N": True}, "dim 'N' must be a positive integer"),
        ({"N": "2"}, "dim 'N' must be a positive integer"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            compiler.compile(linear(), dims=dims)  # type: ignore[arg-type]
    assert compiler.compile(linear(), dims={"N": np.int64(2)}).graph.type("x").shape == (2, 3)


def test_sizes_of_another_universe() -> None:
    for n in (2**60, 2**100):
        with pytest.raises(compiler.OnnxcError):
            compiler.compile(linear(), dims={"N": n})


@pytest.mark.parametrize("threads", [0, -1, 257, 1.5, "2", True])
def test_threads_that_are_none(threads: Any) -> None:
    with pytest.raises(compiler.InputError, match="threads must be an integer from 1 to 256, not"):
        compiler.compile(linear(), threads=threads)


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, "0", None, True])
def test_seeds_that_are_none(seed: Any) -> None:
    with pytest.raises(compiler.InputError, match="seed must be an integer from 0 to"):
        compiler.compile(linear(), seed=seed)


RESHAPE = (
    "m (float[2,3] x, int64[2] shape) => (float[A,B] y) <float[1] k = {2}> { r = Reshape(x, shape) y = Mul(r, k) }"
)


def test_a_shape_bound_by_static() -> None:
    step = compiler.compile(make_model(RESHAPE), static={"shape": [3, 2]})
    assert step(x=X)["y"].shape == (3, 2)
    assert step(x=X, shape=[3, 2])["y"].shape == (3, 2)
    with pytest.raises(compiler.InputError, match="input 'shape' was bound by static=, to another value"):
        step(x=X, shape=[6, 1])
    with pytest.raises(compiler.InputError, match="static: 'other' is no input; the inputs are 'x', 'shape'"):
        compiler.compile(make_model(RESHAPE), static={"other": 1})
    with pytest.raises(compiler.InputError, match=r"static: 'shapes' is no input \(did you mean 'shape'\?\)"):
        compiler.compile(make_model(RESHAPE), static={"shapes": 1})
    with pytest.raises(compiler.InputError, match="static: input 'shape' is float64"):
        compiler.compile(make_model(RESHAPE), static={"shape": np.array([3.0, 2.0])})
    with pytest.raises(compiler.CompileError, match=r"4.*6|6.*4|Reshape"):
        compiler.compile(make_model(RESHAPE), static={"shape": [2, 2]})


def test_a_shape_bound_by_calls() -> None:
    step = compiler.compile(make_model(RESHAPE))
    for shape in ([3, 2], [1, 6], [3, 2], np.array([-1, 1])):
        out = step(x=X, shape=shape)["y"]
        np.testing.assert_array_equal(out, 2 * X.reshape(*shape))
    with pytest.raises(compiler.InputError, match="missing input 'shape'"):
        step(x=X)
    with pytest.raises(compiler.CompileError, match="Reshape"):
        step(x=X, shape=[4, 4])
    np.testing.assert_array_equal(step(x=X, shape=[6, 1])["y"], 2 * X.reshape(6, 1))


def test_many_values_of_a_static_input_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "EXECUTABLES", 3)
    step = compiler.compile(linear())
    for n in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5):
        x = np.ones((n, 3), np.float32)
        np.testing.assert_allclose(step.infer(x=x)["y"], x @ W)
    assert len(step._executables) == 3


# --- algorithms ------------------------------------------------------------------------------------------------------
def two_algorithms() -> onnx.ModelProto:
    second = STEP.replace("step (", "again (").replace("loss", "loss2")
    return make_model(LINEAR, training_info(STEP, UPDATES), training_info(second, UPDATES))


def test_two_algorithms_in_order_or_one() -> None:
    model = two_algorithms()
    both, first = compiler.compile(model), compiler.compile(model, algorithm=1)
    out = both(x=X, t=T)
    assert list(out) == ["y", "loss", "loss2"]
    loss, w = by_hand(W)
    np.testing.assert_allclose(out["loss"], loss, rtol=1e-6)
    loss2, w2 = by_hand(w)
    np.testing.assert_allclose(out["loss2"], loss2, rtol=1e-6)
    np.testing.assert_allclose(both.state["w"], w2, rtol=1e-5)
    assert list(first(x=X, t=T)) == ["y", "loss2"]
    np.testing.assert_allclose(first.state["w"], w, rtol=1e-6)
    for algorithm in (2, -1):
        with pytest.raises(compiler.InputError, match=f"no algorithm {algorithm}: the model has 2"):
            compiler.compile(model, algorithm=algorithm)


def test_outputs_of_one_name_are_called_after_their_algorithms() -> None:
    second = STEP.replace("step (", "again (")
    model = make_model(LINEAR, training_info(STEP, UPDATES), training_info(second, UPDATES))
    step = compiler.compile(model)
    out = step(x=X, t=T)
    assert list(out) == ["y", "step/loss", "again/loss"]
    assert out["step/loss"] > out["again/loss"]
    assert list(step(x=X, t=T, fetch=["again/loss"])) == list(out)


def test_the_gan_trains_both_players() -> None:
    model = example("gan").build()
    step = compiler.compile(model)
    rng = np.random.default_rng(0)
    before = bits(step.state)
    shapes = {v.name: [d.dim_value or 8 for d in v.type.tensor_type.shape.dim] for v in step_inputs(model)}
    step({n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()})
    after = bits(step.state)
    assert all(before[n] != after[n] for n in before if "weight" in n)
    one = compiler.compile(model, algorithm=0)
    assert set(one.state) < set(step.state)


def step_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    found = {v.name: v for v in model.graph.input}
    for info in model.training_info:
        found |= {v.name: v for v in info.algorithm.input}
    initializers = {t.name for t in model.graph.initializer}
    return [v for n, v in found.items() if n not in initializers]


# --- inputs ----------------------------------------------------------------------------------------------------------
def test_inputs_with_a_default_value() -> None:
    step = compiler.compile(example("linear").build())
    x, t = X, T
    step(x=x, target=t)
    one = step.state["W"].copy()
    again = compiler.compile(example("linear").build())
    again(x=x, target=t, learning_rate=0.0)
    np.testing.assert_array_equal(again.state["W"], 0)
    again({"learning_rate": np.float32(0.2), "x": x, "target": t})
    np.testing.assert_allclose(again.state["W"], 2 * one, rtol=1e-5)
    again(x=x, target=t)
    with pytest.raises(compiler.InputError, match="learning_rate"):
        again(x=x, target=t, learning_rate=np.ones(3, np.float32))


def test_mapping_keywords_and_both() -> None:
    step = compiler.compile(linear())
    step({"x": X, "t": T})
    step({"x": X}, t=T)
    step(t=T, x=X)
    assert len(step._executables) == 1
    assert step.state["n"] == 3


def test_outputs_are_the_callers() -> None:
    step = compiler.compile(linear())
    first = step(x=X, t=T)
    kept = bits(first)
    step(x=X, t=T)
    assert bits(first) == kept
    first["y"][...] = 7
    for a in first.values():
        assert a.flags.writeable
        assert a.flags.owndata
    loss = by_hand(step.state["w"].copy())[0]
    np.testing.assert_allclose(step(x=X, t=T)["loss"], loss, rtol=1e-5)


def test_inputs_are_copied_and_not_changed() -> None:
    step = compiler.compile(linear())
    x = X.copy()
    x.flags.writeable = False
    out = step(x=x, t=T)
    np.testing.assert_array_equal(x, X)
    assert not np.shares_memory(out["y"], x)


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda a: np.repeat(a, 2, 1)[:, ::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: np.flip(np.flip(a, 1).copy(), 1),
        lambda a: a.astype(">f4"),
        lambda a: a.tolist(),
        lambda a: [list(row) for row in a],
        lambda a: tuple(map(tuple, a.astype(int).tolist())),
        lambda a: list(a),
        lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape),
        lambda a: a.view(type("Sub", (np.ndarray,), {})),
        lambda a: type("Lazy", (), {"__array__": lambda self, dtype=None, copy=None: a})(),
        lambda a: np.broadcast_to(a, a.shape),
        memoryview,
    ],
)
def test_arrays_of_any_layout(change: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain, odd = compiler.compile(linear()), compiler.compile(linear())
    assert bits(plain(x=x, t=T)) == bits(odd(x=change(x), t=T))
    assert bits(plain.state) == bits(odd.state)


# --- inference -------------------------------------------------------------------------------------------------------
def test_infer_changes_nothing() -> None:
    step = compiler.compile(linear())
    step(x=X, t=T)
    before = bits(step.state)
    np.testing.assert_allclose(step.infer(x=X)["y"], X @ step.state["w"], rtol=1e-6)
    assert bits(step.state) == before
    with pytest.raises(compiler.InputError, match=r"unknown input 't' \(only the step takes it\); the inputs are 'x'"):
        step.infer(x=X, t=T)


def test_infer_before_the_first_step() -> None:
    step = compiler.compile(linear())
    np.testing.assert_allclose(step.infer(x=X)["y"], X @ W)


def test_infer_binds_its_own_symbols_only() -> None:
    """The step would not compile for sizes that inference takes: the label has a symbol of its own."""
    main = "m (float[N,K] x) => (float[N,1] y) <float[2,1] w = {1, 2}> { y = MatMul(x, w) }"
    algorithm = STEP.replace("float[N,1] t", "float[M,1] t").replace("float[3,1]", "float[2,1]")
    step = compiler.compile(make_model(main, training_info(algorithm, UPDATES)))
    assert step.infer(x=np.ones((5, 2), np.float32))["y"].shape == (5, 1)
    step(x=np.ones((4, 2), np.float32), t=np.ones((4, 1), np.float32))
    with pytest.raises(compiler.CompileError, match="Sub"):
        step(x=np.ones((4, 2), np.float32), t=np.ones((3, 1), np.float32))


def test_models_without_training_info() -> None:
    step = compiler.compile(make_model(LINEAR))
    np.testing.assert_allclose(step(x=X)["y"], X @ W)
    np.testing.assert_allclose(step.infer(x=X)["y"], X @ W)
    assert len(step.state) == 0
    with pytest.warns(UserWarning, match="the model has no initialization graph, so its variables keep the values"):
        step.initialize()
    gradient = """m (float[3] x) => (float[3] dx) {
        y = ReduceSumSquare<keepdims=0>(x)
        dx = ai.onnx.preview.training.Gradient<xs=["x"], y="y">(x)
    }"""
    np.testing.assert_allclose(compiler.compile(make_model(gradient))(x=X[0])["dx"], 2 * X[0])


def test_infer_of_a_plain_model_does_not_count_draws() -> None:
    step = compiler.compile(make_model("m (float[4] x) => (float[4] y) { r = RandomUniformLike(x) y = Add(x, r) }"))
    x = np.zeros(4, np.float32)
    a, b = step.infer(x=x)["y"], step.infer(x=x)["y"]
    np.testing.assert_array_equal(a, b)
    c, d = step(x=x)["y"], step(x=x)["y"]
    np.testing.assert_array_equal(a, c)
    assert not np.array_equal(c, d)
    assert step.state["onnxc.step"] == 2


def run_python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=root, timeout=120, env={**os.environ, "PYTHONPATH": str(root)}, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_external_data(tmp_path: Path) -> None:
    model = tiny()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer[0].data_location == 1
    step = compiler.compile(tmp_path / "m.onnx")
    plain = compiler.compile(tiny())  # onnx.save has moved the data out of the other message
    x, label = np.ones((2, 4), np.float32), [0, 2]
    for _ in range(2):
        assert bits(step(x=x, label=label)) == bits(plain(x=x, label=label))
    (tmp_path / "out").mkdir()
    step.export(tmp_path / "out" / "trained.onnx")
    found = onnx.load(tmp_path / "out" / "trained.onnx")
    for t in found.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(t), step.state[t.name])
    with pytest.raises(compiler.ModelError, match="have their data in other files, and there is no folder"):
        compiler.compile((tmp_path / "m.onnx").read_bytes())


def test_outputs_that_are_not_wanted_are_not_computed() -> None:
    model = linear()
    every = compiler.compile(model, dims={"N": 2})
    few = compiler.compile(model, dims={"N": 2}, outputs=["loss"])
    feeds = {"x": X, "t": T}
    all_of_them, found = every(feeds), few(feeds)
    assert set(all_of_them) > set(found) == {"loss"}
    np.testing.assert_array_equal(found["loss"], all_of_them["loss"])
    for name, value in every.state.items():
        np.testing.assert_array_equal(few.state[name], value)
    (public,) = set(all_of_them) - {"loss"}
    assert set(few(feeds, fetch=[public])) == {"loss", public}
    with pytest.raises(compiler.InputError, match=r"no output 'lass' \(did you mean 'loss'\?\)"):
        compiler.compile(model, dims={"N": 2}, outputs=["lass"])
    with pytest.raises(compiler.InputError, match="no output 'lass'"):  # before any size is known
        compiler.compile(model, outputs=["lass"])
    with pytest.raises(compiler.InputError, match="list of names"):
        compiler.compile(model, outputs="loss")
