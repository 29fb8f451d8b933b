"""What a compiled step shows of itself, and what is told of a model without compiling it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest

import compiler
from tests.frontend.small import linear, make_model
from tests.models import tiny
from tests.test_api import T, W, X, bits, run_python


# --- fetch -----------------------------------------------------------------------------------------------------------
def test_fetch_intermediates_gradients_state_and_inputs() -> None:
    step = compiler.compile(linear())
    out = step(x=X, t=T, fetch=["e", "dw", "w", "x", "w_next", "n"])
    assert list(out) == ["y", "loss", "e", "dw", "w", "x", "w_next", "n"]
    e = X @ W - T
    np.testing.assert_allclose(out["e"], e)
    np.testing.assert_allclose(out["dw"], 2 * X.T @ e / 2, rtol=1e-6)
    np.testing.assert_array_equal(out["w"], W)  # before the update
    np.testing.assert_array_equal(out["x"], X)
    np.testing.assert_array_equal(out["w_next"], step.state["w"])
    assert out["n"] == 0
    plain = compiler.compile(linear())
    plain(x=X, t=T)
    assert bits(plain.state) == bits(step.state)
    assert list(step(x=X, t=T)) == ["y", "loss"]
    assert list(step.infer(x=X, fetch=("w",))) == ["y", "w"]


def test_fetch_what_is_not_there() -> None:
    step = compiler.compile(linear())
    with pytest.raises(compiler.InputError, match="fetch: the graph has no value 'nothing', 'none'"):
        step(x=X, t=T, fetch=["e", "nothing", "none"])
    with pytest.raises(compiler.InputError, match="fetch: the graph has no value 'e'"):
        step.infer(x=X, fetch=["e"])
    with pytest.raises(compiler.InputError, match=r"fetch is a list of names: fetch=\['e'\]"):
        step(x=X, t=T, fetch="e")
    with pytest.raises(compiler.InputError, match="fetch is a list of names, and 3 is none"):
        step(x=X, t=T, fetch=[3])  # type: ignore[list-item]
    with pytest.raises(compiler.InputError, match=r"no value 'los' \(did you mean 'loss'\?\); what the imported"):
        step(x=X, t=T, fetch=["los"])
    assert step.state["n"] == 0
    step(x=X, t=T, fetch=(n for n in ["e", "e"]))  # type: ignore[arg-type]


# --- what is shown ---------------------------------------------------------------------------------------------------
def test_graph_and_source() -> None:
    step = compiler.compile(linear(), dims={"N": 2})
    assert step.graph.updates.keys() == {"w", "n"}
    assert "def step(table, thread, threads):" in step.source
    assert "# y: f32[2,1] = MatMul(x, w)" in step.source
    compile(step.source, "source", "exec")
    assert repr(step) == "<StepFunction of 'x', 't', 4 states>"


def test_lower_and_check() -> None:
    assert compiler.check(linear()) == ()
    onnx.checker.check_model(compiler.lower(linear(), dims={"N": 2}))
    with pytest.raises(compiler.InputError, match="the model has no graph 'initialize': it has step, infer"):
        compiler.lower(tiny(), dims={"N": 2}, graph="initialize")
    with pytest.raises(compiler.InputError, match=r"there is no pass 'csee' \(did you mean 'cse'\?\)"):
        compiler.lower(linear(), "csee", dims={"N": 4})
    with pytest.raises(compiler.InputError, match="there is no pass 'nothing': there are import, fold"):
        compiler.lower(linear(), "nothing", dims={"N": 2})
    with pytest.raises(compiler.NeedsDims, match="the size of dim 'N' is not known"):
        compiler.lower(linear())
    bad = make_model("m (float[3] x) => (float[3] y) { a = Nothing(x) b = Nowhere(a) y = Relu(b) }")
    assert len(compiler.check(bad)) == 2
    with pytest.raises(compiler.InputError, match="no symbolic dim 'M'"):
        compiler.check(linear(), dims={"M": 2})


def test_step_functions_are_not_copied() -> None:
    step = compiler.compile(linear())
    for f in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a StepFunction cannot be copied or pickled: compile the model again"):
            f(step)


def test_importing_the_package_loads_nothing_large() -> None:
    code = """
        import sys, compiler
        compiler.CompileError, compiler.StepFunction, compiler.load, dir(compiler)
        heavy = {"onnx", "numba", "llvmlite", "networkx", "click", "rich"} & set(sys.modules)
        assert not heavy, heavy
        try:
            compiler.nothing
        except AttributeError as e:
            assert "nothing" in str(e)
        assert compiler.compile and compiler.backend and compiler.api
    """
    run_python(code)
