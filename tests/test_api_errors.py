"""Calls and assignments that are wrong: each says what, where, and what to do, and changes nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import compiler
from tests.frontend.small import linear, make_model, training_info
from tests.models import tiny
from tests.test_api import T, W, X, bits

LABEL = np.array([0, 1])
FEATURES = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def linear_step() -> compiler.StepFunction:
    return compiler.compile(linear())


@pytest.fixture(scope="module")
def tiny_step() -> compiler.StepFunction:
    return compiler.compile(tiny())


class Refusing:
    """An array of another library that does not come over."""

    shape = (2, 3)

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("call detach() first")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (X.astype(np.float64), "input 'x' is float64, the model takes float32: convert it, as with .astype('float32')"),
        (X.astype(np.int64), "input 'x' is int64, the model takes float32: convert it, as with .astype('float32')"),
        (X.astype(complex), "input 'x' is complex128, the model takes float32"),
        (X.astype(object), "input 'x' is object, the model takes float32"),
        (X.astype(str), "input 'x' is <U32, the model takes float32"),
        (np.ma.masked_array(X, X > 1), "input 'x' is a masked array, and the model knows no masks: fill it first"),
        (np.zeros((2, 3), "f4,f4"), "input 'x' is [('f0', '<f4'), ('f1', '<f4')], the model takes float32"),
        (X[0], "input 'x' has shape [3], the model takes f32[N,3]"),
        (X[None], "input 'x' has shape [1, 2, 3], the model takes f32[N,3]"),
        (X[:, :2], "input 'x' has shape [2, 2], the model takes f32[N,3]"),
        (X[:0], "input 'x' has shape [0, 3], the model takes f32[N,3]: dim 'N' must be 1 or more"),
        (1.0, "input 'x' has shape [], the model takes f32[N,3]"),
        (None, "input 'x' is object, the model takes float32"),
        ("text", "input 'x' is <U4, the model takes float32"),
        (b"bytes", "input 'x' is |S5, the model takes float32"),
        ({}, "input 'x' is object, the model takes float32"),
        ([[1, 2, 3], [4, 5]], "input 'x' is no array: "),
        ([], "input 'x' has shape [0], the model takes f32[N,3]"),
        ([["a", "b", "c"]] * 2, "input 'x' is <U1: the model takes float32, which cannot hold that"),
        ([[1e300, 0, 0]] * 2, "input 'x' is float64, from 0.0 to 1e+300: the model takes float32, which cannot hold"),
        ([[1j, 0, 0]] * 2, "input 'x' is complex128: the model takes float32, which cannot hold that"),
        ([[10**400, 0, 0]] * 2, "input 'x' is object: the model takes float32, which cannot hold that"),
        (Refusing(), "input 'x' is no array: call detach() first"),
    ],
)
def test_arrays_that_do_not_fit(linear_step: compiler.StepFunction, x: Any, message: str) -> None:
    before = bits(linear_step.state)
    with pytest.raises(compiler.InputError, match=re.escape(message)):
        linear_step(x=x, t=T)
    assert bits(linear_step.state) == before


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0.5, 1], "input 'label' is float64, from 0.5 to 1.0: the model takes int64, which cannot hold that"),
        (
            np.array([0, 1], np.int32),
            "input 'label' is int32, the model takes int64: convert it, as with .astype('int64')",
        ),
        ([2**63, 1], "input 'label' is "),
        (np.array([True, False]), "input 'label' is bool, the model takes int64"),
        ([0, 3], "label"),
        ([-1, 0], "label"),
        (np.array([0, 2**40]), "label"),
    ],
)
def test_labels_that_do_not_fit(tiny_step: compiler.StepFunction, label: Any, message: str) -> None:
    before = bits(tiny_step.state)
    with pytest.raises(compiler.InputError, match=re.escape(message)):
        tiny_step(x=FEATURES, label=label)
    assert bits(tiny_step.state) == before
    assert np.isfinite(tiny_step(x=FEATURES, label=LABEL)["loss"])


def test_integers_of_small_types_do_not_wrap() -> None:
    step = compiler.compile(
        make_model("m (uint8[2] a, int8[2] b, bool[2] c, float16[2] d) => (uint8[2] p) { p = Add(a, a) }")
    )
    good = {"a": [255, 0], "b": [-128, 127], "c": [True, False], "d": [65504, 1]}
    np.testing.assert_array_equal(step(good)["p"], [254, 0])
    for name, value in (("a", [256, 0]), ("a", [-1, 0]), ("b", [128, 0]), ("c", [0, 1]), ("d", [70000, 0])):
        with pytest.raises(compiler.InputError, match=f"input '{name}' is .*which cannot hold that"):
            step(good | {name: value})


def test_missing_and_unknown_inputs(linear_step: compiler.StepFunction) -> None:
    for given, message in (
        ({}, "missing input 'x', missing input 't'; the inputs are 'x', 't'"),
        ({"x": X}, "missing input 't'; the inputs are 'x', 't'"),
        ({"x": X, "t": T, "extra": 1}, "unknown input 'extra'; the inputs are 'x', 't'"),
        ({"x": X, "T": T}, "missing input 't', unknown input 'T' (did you mean 't'?); the inputs are 'x', 't'"),
        ({"x": X, "t": T, "w": W}, "unknown input 'w' (a state: assign it to step.state); the inputs are 'x', 't'"),
        ({"x": X, "t": T, 3: W}, "unknown input 3; the inputs are 'x', 't'"),
        ({"x": X, "t": T, "y": W}, "unknown input 'y'"),
    ):
        with pytest.raises(compiler.InputError, match=re.escape(message)):
            linear_step(given)  # type: ignore[arg-type]
    with pytest.raises(compiler.InputError, match="inputs are keywords or a mapping from names to arrays, not list"):
        linear_step([X, T])  # type: ignore[arg-type]
    with pytest.raises(compiler.InputError, match="not ndarray"):
        linear_step(X)  # type: ignore[arg-type]


def test_sizes_that_contradict(linear_step: compiler.StepFunction) -> None:
    with pytest.raises(
        compiler.InputError, match=r"input 't' has shape \[1, 1\], the model takes f32\[N,1\]: dim 'N' is 2 here"
    ):
        linear_step(x=X, t=T[:1])


def test_training_goes_on_after_a_bad_label() -> None:
    """State and random stream are those of a run without the failed steps."""
    main = "m (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    algorithm = """step (int64[N] label) => (float loss, float[N,3] seen, float[3,2] w_next, int64 n_next)
    <float half = {0.5}, bool training = {1}, int64 n = {0}, int64 one = {1}>
    {
      n_next = Add(n, one)
      seen = Dropout(x, half, training)
      p = MatMul(seen, w)
      [cross_entropy] loss = SoftmaxCrossEntropyLoss(p, label)
      dw = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x", "label"], y="loss">(w, x, label)
      w_next = Sub(w, dw)
    }"""
    model = make_model(main, training_info(algorithm, {"w": "w_next", "n": "n_next"}))
    good, bad = (compiler.compile(model, threads=n) for n in (1, 2))
    rng = np.random.default_rng(0)
    for i in range(5):
        x, label = rng.normal(size=(4, 3)).astype(np.float32), rng.integers(0, 2, 4)
        if i in (0, 2, 3):
            before = bits(bad.state)
            for wrong in (2, -1, 2**40):
                message = (
                    rf"^'label'\[3\] is {wrong}: label out of range \[0, 2\), in node '(cross_entropy|loss)'; nothing "
                    "was updated: correct the input and call again$"
                )
                with pytest.raises(compiler.InputError, match=message):
                    bad(x=x, label=np.append(label[:3], wrong))
            assert bits(bad.state) == before
        assert bits(good(x=x, label=label)) == bits(bad(x=x, label=label))
    assert bits(good.state) == bits(bad.state)
    assert good.state["n"] == good.state["onnxc.step"] == 5


def test_a_call_within_a_call() -> None:
    """An array whose conversion calls the step itself: the inner call is done first."""
    step = compiler.compile(linear())

    class Calling:
        shape = (2, 3)

        def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
            step(x=X, t=T)
            return X

    step(x=Calling(), t=T)
    assert step.state["n"] == 2


def test_assignments_that_do_not_fit(linear_step: compiler.StepFunction) -> None:
    before = bits(linear_step.state)
    for name, value, message in (
        ("w", W.astype(np.float64), "state 'w' is float64, the model takes float32: convert it"),
        ("w", W[:2], r"state 'w' has shape \[2, 1\], the model takes \[3, 1\]"),
        ("w", W.T, r"state 'w' has shape \[1, 3\]"),
        ("w", 1.0, r"state 'w' has shape \[\], the model takes \[3, 1\]"),
        ("n", 0.5, "state 'n' is 0.5: the model takes int64, which cannot hold that"),
        ("n", 2**63, "state 'n' is 9223372036854775808: the model takes int64"),
        ("nothing", W, "there is no state 'nothing': there are 'w', 'n'"),
    ):
        with pytest.raises(compiler.StateError, match=message):
            linear_step.state[name] = value
    with pytest.raises(compiler.StateError, match="state 'w' belongs to the model: it cannot be deleted"):
        del linear_step.state["w"]
    with pytest.raises(KeyError):
        linear_step.state["nothing"]
    assert bits(linear_step.state) == before
