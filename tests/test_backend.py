"""`compiler.backend` as tools use any ONNX backend."""

import numpy as np
import onnx.backend.base
import onnx.parser
import pytest
from onnx import helper

import compiler
from compiler.errors import CompileError, InputError


def test_it_is_a_backend() -> None:
    assert issubclass(compiler.backend, onnx.backend.base.Backend)
    assert compiler.backend.supports_device("CPU")
    assert not compiler.backend.supports_device("CUDA")


def test_a_prepared_model_runs_on_other_shapes() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[N] x, float[N] y) => (float[N] z) { z = Sub(x, y) }'
    )
    rep = compiler.backend.prepare(model)
    for n in (2, 5):
        x = np.arange(n, dtype=np.float32)
        (z,) = rep.run([x, np.ones_like(x)])
        np.testing.assert_array_equal(z, x - 1)
    np.testing.assert_array_equal(rep.run({"y": x, "x": x})[0], 0 * x)
    with pytest.raises(InputError, match="2 inputs"):
        rep.run([x])


def test_training_dropout_draws_the_reference_mask_for_every_shape() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[N] x, float r, bool t) => (float[N] y, bool[N] m)'
        "{ y, m = Dropout<seed = 3>(x, r, t) }"
    )
    rep = compiler.backend.prepare(model)
    for n, ratio in ((50, 0.25), (8, 0.5), (8, 0.75)):
        x = np.ones(n, np.float32)
        y, m = rep.run([x, np.float32(ratio), np.array(True)])
        kept = np.random.RandomState(3).uniform(0, 1.0, n) >= ratio
        np.testing.assert_array_equal(m, kept)
        np.testing.assert_allclose(y, kept / (1 - ratio), rtol=1e-6)
    y, m = rep.run([x, np.float32(0.5), np.array(False)])
    assert m.all()
    np.testing.assert_array_equal(y, x)


def test_one_node() -> None:
    node = helper.make_node("Gemm", ["a", "b"], ["c"], transB=1)
    a, b = np.ones((2, 3), np.float32), np.full((4, 3), 2, np.float32)
    (c,) = compiler.backend.run_node(node, [a, b])
    np.testing.assert_array_equal(c, a @ b.T)
    (d,) = compiler.backend.run_node(
        helper.make_node("Clip", ["x"], ["y"], min=0.0), [np.float32([-1, 1])], opset_version=7
    )
    np.testing.assert_array_equal(d, [0, 1])


def test_refusals() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18, "acme" : 1]> g (float[4] x) => (float[4] y) { y = acme.Magic(x) }'
    )
    with pytest.raises(InputError, match="CUDA"):
        compiler.backend.prepare(model, "CUDA")
    with pytest.raises(CompileError, match="Magic"):
        compiler.backend.prepare(model).run([np.ones(4, np.float32)])
