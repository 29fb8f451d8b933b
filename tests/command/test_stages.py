"""`onnxc check`, `dump-ir`, `lower` and `build`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import compiler
from compiler.command.reporting import shell as shown
from compiler.ir.parse import parse
from compiler.passes.pipeline import PASS_NAMES
from tests.command.running import Done, refused
from tests.frontend.small import LINEAR, STEP, UPDATES, make_model, training_info


def test_check(onnxc: Callable[..., Done], folder: Path) -> None:
    assert onnxc("check", folder / "linear.onnx") == (0, "ok: the model compiles\n", "")
    assert onnxc("check", folder / "linear.onnx", "--dim", "N=5").code == 0
    assert json.loads(onnxc("check", folder / "linear.onnx", "--json").out) == []
    refused(onnxc("check", folder / "linear.onnx", "--dim", "M=5"), "no symbolic dim 'M': there are 'N'")
    bad = make_model("m (float[3] x) => (float[3] y) { a = Nothing(x) b = Nowhere(a) y = Relu(b) }")
    onnx.save(bad, folder / "bad.onnx")
    done = onnxc("check", folder / "bad.onnx")
    refused(done, "Nothing", "Nowhere")
    assert len(done.err.splitlines()) == 2
    baked = make_model("m (float[N,4] x) => (float[a,b] y) <int64[2] s={64,4}> { y = Reshape(x, s) }")
    onnx.save(baked, folder / "baked.onnx")
    done = onnxc("check", folder / "baked.onnx")
    refused(done, "Reshape('x': f32[2,4], 's': i64[2]): 8 elements", "'N' had no size and was tried as 2, 32 and 224")
    assert onnxc("check", folder / "baked.onnx", "--dim", "N=64").code == 0
    done = onnxc("check", folder / "bad.onnx", "--json")
    assert done.code == 1
    assert done.err == ""
    problems = json.loads(done.out)
    assert len(problems) == 2
    assert set(problems[0]) == {"what", "where", "remedy"}


def test_dump_ir_at_every_stage(onnxc: Callable[..., Done], folder: Path) -> None:
    path = folder / "linear.onnx"
    assert onnxc("dump-ir", path, "--after", "help").out.split() == list(PASS_NAMES)
    refused(onnxc("dump-ir", path), "the size of dim 'N' is not known, in input 'x', give --dim N=...")
    texts = {}
    for options in (
        [], ["--stage", "import"], ["--stage", "final"], ["--graph", "infer"], ["--graph", "initialize"],
        *(["--after", name] for name in PASS_NAMES),
    ):  # fmt: skip
        done = onnxc("dump-ir", path, "--dim", "N=2", *options)
        assert done.code == 0
        assert done.err == ""
        assert parse(done.out).nodes
        texts[" ".join(options)] = done.out
    assert texts[""] == texts["--stage final"] == texts[f"--after {PASS_NAMES[-1]}"]
    assert "Gradient" in texts["--stage import"]
    assert "Gradient" not in texts["--after expand_gradients"]
    source = onnxc("dump-ir", path, "--dim", "N=2", "--stage", "source").out
    assert "def step(table, thread, threads):" in source
    compile(source, "source", "exec")
    everything = onnxc("dump-ir", path, "--dim", "N=2", "--graph", "all").out
    assert everything == texts[""] + texts["--graph infer"] + texts["--graph initialize"]
    refused(
        onnxc("dump-ir", folder / "plain.onnx", "--dim", "N=2", "--graph", "infer"), "the model has no graph 'infer'"
    )
    refused(onnxc("dump-ir", path, "--dim", "N=2", "--algorithm", "1"), "there is no algorithm 1: the model has 1")


def test_inputs_that_decide_shapes(onnxc: Callable[..., Done], folder: Path) -> None:
    model = make_model("m (float[2,3] x, int64[2] shape) => (float[A,B] y) { r = Reshape(x, shape) y = Neg(r) }")
    onnx.save(model, folder / "reshape.onnx")
    np.savez(folder / "shape.npz", shape=np.array([3, 2]))
    refused(onnxc("dump-ir", folder / "reshape.onnx"), "in node 'r', give --static FILE.npz with an array 'shape'")
    done = onnxc("dump-ir", folder / "reshape.onnx", "--static", folder / "shape.npz")
    assert "f32[3,2]" in done.out
    done = onnxc("check", folder / "reshape.onnx")
    refused(done, "error: not checked to the end: ", "in node 'r', give --static FILE.npz with an array 'shape'")
    assert "ok" not in done.out
    done = onnxc("check", folder / "reshape.onnx", "--static", folder / "shape.npz")
    assert done[:2] == (0, "ok: the model compiles\n")
    assert done.err.startswith("note: the model updates nothing: it has no training_info, so that a step only runs its")
    assert "make-training" in done.err
    np.savez(folder / "shape.npz", shape=np.array([3, 3]))
    refused(onnxc("check", folder / "reshape.onnx", "--static", folder / "shape.npz"), "Reshape")


def test_loops_of_unknown_length(onnxc: Callable[..., Done], folder: Path) -> None:
    model = make_model(
        """m (float[3] x, int64 n, bool c) => (float[3] y, float[R,3] z) {
        y, z = Loop(n, c, x) <body = b (int64 i, bool d, float[3] v) => (bool go, float[3] w, float[3] r) {
          go = Identity(d) w = Add(v, v) r = Neg(w) }> }"""
    )
    onnx.save(model, folder / "loop.onnx")
    refused(onnxc("check", folder / "loop.onnx"), "with arrays 'n', 'c', or bound the Loop: --max-trip N")
    refused(onnxc("dump-ir", folder / "loop.onnx"), "in node 'y', give --static", "--max-trip N")
    assert onnxc("check", folder / "loop.onnx", "--max-trip", "8").code == 0
    assert "f32[8,3]" in onnxc("dump-ir", folder / "loop.onnx", "--max-trip", "8").out
    out = folder / "lowered.onnx"
    assert onnxc("lower", folder / "loop.onnx", "--max-trip", "8", "--out", out).code == 0
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    y, z = session.run(["y", "z"], {"x": np.ones(3, np.float32), "n": np.array(3), "c": np.array(True)})
    np.testing.assert_array_equal(y, [8, 8, 8])
    np.testing.assert_array_equal(z[:, 0], [-2, -4, -8, 0, 0, 0, 0, 0])


def test_lower(onnxc: Callable[..., Done], folder: Path) -> None:
    out = folder / "lowered.onnx"
    done = onnxc("lower", folder / "linear.onnx", "--dim", "N=2", "--out", out)
    assert done == (0, f"wrote {out}\n", "")
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    feeds = {"x": np.ones((2, 3), np.float32), "t": np.zeros((2, 1), np.float32)}
    names = [o.name for o in session.get_outputs()]
    assert dict(zip(names, session.run(None, feeds), strict=True))["loss"] == 36
    for after in ("import", *PASS_NAMES):
        assert onnxc("lower", folder / "linear.onnx", "--dim", "N=2", "-o", out, "--after", after).code == 0
        onnx.load(out)
    refused(onnxc("lower", folder / "linear.onnx", "-o", out), "give --dim N=...")
    refused(
        onnxc("lower", folder / "linear.onnx", "--dim", "N=2", "-o", folder / "no" / "x.onnx"),
        "--out: there is no folder",
    )
    refused(
        onnxc("lower", folder / "linear.onnx", "--dim", "N=2", "-o", folder), "is a folder: give the name of a file"
    )


def test_lower_the_training_graph(onnxc: Callable[..., Done], folder: Path) -> None:
    path, out = folder / "linear.onnx", folder / "graph.onnx"
    assert onnxc("lower", path, "--training-graph", "-o", out) == (0, f"wrote {out}\n", "")
    onnx.checker.check_model(out, full_check=True)
    names = [n.name for n in onnx.load(out).graph.node]
    assert names[0] == "forward/y"
    assert "gradient/dw" in names
    sized = ("--training-graph", "--dim", "N=2", "-o", out)
    assert onnxc("lower", path, *sized, "--after", "expand_gradients").code == 0
    assert "gradient/y/Gemm" in [n.name for n in onnx.load(out).graph.node]
    refused(onnxc("lower", path, *sized), "add `--after expand_gradients`, or leave them out", code=2)
    refused(onnxc("lower", path, *sized, "--graph", "infer"), "leave --graph out", code=2)
    refused(onnxc("lower", folder / "plain.onnx", "--training-graph", "-o", out), "the model has no training_info")


def test_build(onnxc: Callable[..., Done], folder: Path) -> None:
    refused(onnxc("build", folder / "linear.onnx", folder / "a"), "give --dim N=...")
    refused(onnxc("build", folder / "linear.onnx", folder / "train.npz", "--dim", "N=2"), "is a file")
    refused(onnxc("build", folder / "linear.onnx", folder / "a", "--dim", "N=2", "--cc", "no-such-cc"), "no C compiler")
    refused(onnxc("build", folder / "linear.onnx", folder / "a", "--dim", "N=2", "--name", "a b"), "name must be")
    assert not (folder / "a").exists()


ROUNDED = """m (float[N,3] x) => (float[N,1] y)
<float[3,1] w = {1, 2, 3}, float[3,1] v = {1, 2, 3}, float[3,1] u = {1, 2, 3}>
{ r = Round(w) s = Sign(u) d = Mul(r, s) y = MatMul(x, d) }"""
TRAINS_ALL = """step (float[N,1] t) => (float loss, float[3,1] w_next, float[3,1] v_next, float[3,1] u_next) {
  e = Sub(y, t)
  q = Mul(e, e)
  loss = ReduceMean<keepdims=0>(q)
  dw, dv, du = ai.onnx.preview.training.Gradient<xs=["w", "v", "u"], zs=["x", "t"], y="loss">(w, v, u, x, t)
  w_next = Sub(w, dw)
  v_next = Sub(v, dv)
  u_next = Sub(u, du)
}"""


def test_variables_that_are_not_trained(onnxc: Callable[..., Done], folder: Path) -> None:
    model = make_model(ROUNDED, training_info(TRAINS_ALL, {v: f"{v}_next" for v in "wvu"}))
    onnx.save(model, folder / "rounded.onnx")
    done = onnxc("check", folder / "rounded.onnx")
    assert done[:2] == (0, "ok: the model compiles\n")
    is_zero = "is 0 whatever the data are, so it is not trained: "
    assert done.err.splitlines() == [
        f"note: the gradient by 'w' {is_zero}Round rounds on the way, in node 'r'; --straight-through trains it",
        f"note: the gradient by 'v' {is_zero}'loss' does not depend on it",
        f"note: the gradient by 'u' {is_zero}no way from it to 'loss' has a slope",
    ]
    assert compiler.api.examine(model).notes[0].endswith("straight_through=True trains it")
    train = ["train", folder / "rounded.onnx", "--data", folder / "train.npz", "--out", folder / "trained.onnx"]
    trained = onnxc(*train)
    assert trained.err.splitlines()[1:] == done.err.splitlines()
    trained = onnxc(*train, "--straight-through")
    assert trained.err.splitlines()[1:] == done.err.splitlines()[1:]
    assert onnxc("check", folder / "linear.onnx").err == ""


def test_a_large_variable_that_is_not_trained(onnxc: Callable[..., Done], folder: Path) -> None:
    algorithm = (
        STEP.replace('xs=["w"]', 'xs=["w", "v"]')
        .replace("(w, x, t)", "(w, v, x, t)")
        .replace("dw =", "dw, dv =")
        .replace("float[3,1] w_next", "float[3,1] w_next, float[3,400] v_next")
        .replace("w_next = Sub(w, d)", "w_next = Sub(w, d) v_next = Sub(v, dv)")
    )
    model = make_model(LINEAR, training_info(algorithm, UPDATES | {"v": "v_next"}))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((3, 400), np.float32), "v"))
    onnx.save(model, folder / "wide.onnx")
    assert "the gradient by 'v' is 0" in onnxc("check", folder / "wide.onnx").err


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("max_trip=..., or a constant (static=...); it", "--max-trip N, or a constant (--static FILE.npz); it"),
        ("max_trip must be an integer", "--max-trip must be an integer"),
        ("static: 'a' is no input", "--static: 'a' is no input"),
        ("install one, or name it with cc=", "install one, or name it with --cc"),
        ("name='int' makes the function", "--name 'int' makes the function"),
        ("give dims={'N': ...}", "give --dim NAME=SIZE"),
        ("numpy.savez(path, name=array)", "numpy.savez(path, name=array)"),
        ("or give batch=None to train", "or give --batch - to train"),
        ("freeze it with batch_norm='frozen'", "freeze it with --batch-norm 'frozen'"),
        ("go on with it by resume=True, or use", "go on with it by --resume, or use"),
        ("train='a*' and freeze='b' leave none", "--train 'a*' and --freeze 'b' leave none"),
        ("'v' is not: train=['*', 'a]', ...] trains it", "'v' is not: --train '*' --train 'a]' ... trains it"),
        ("node's 'cc=', straight_through=True trains it", "node's 'cc=', --straight-through trains it"),
        ('the value "it\'s static=...", static=...', 'the value "it\'s static=...", --static FILE.npz'),
    ],
)
def test_arguments_have_their_names_of_the_command(python: str, shell: str) -> None:
    assert shown(python) == shell


def test_loops_whose_gradient_needs_a_bound(onnxc: Callable[..., Done], folder: Path) -> None:
    loop = """m (float[N,3] x, int64 k, bool c) => (float[N,1] y) <float[3,1] w = {1, 2, 3}> { p = MatMul(x, w)
        y = Loop(k, c, p) <body = b (int64 i, bool d, float[N,1] v) => (bool go, float[N,1] o) {
          go = Identity(d) o = Add(v, p) }> }"""
    onnx.save(
        make_model(loop, training_info(STEP.replace('"x", "t"', '"t"').replace("x, t)", "t)"), UPDATES)),
        folder / "loop.onnx",
    )
    refused(onnxc("check", folder / "loop.onnx"), "bound the Loop: --max-trip N, or make 'k', ", "(--static FILE.npz)")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, t=x[:, :1])
    np.savez(folder / "static.npz", k=np.array(2), c=np.array(True))
    arguments = ("train", folder / "loop.onnx", "--data", folder / "data.npz", "--eval", folder / "data.npz", "--json")
    refused(onnxc(*arguments), "no array 'k', 'c'")
    done = onnxc(*arguments, "--static", folder / "static.npz", "--epochs", "2")
    assert done.code == 0, done
    assert [json.loads(line)["epoch"] for line in done.out.splitlines()] == [1, 2]
    np.savez(folder / "data.npz", x=x, t=x[:, :1], k=np.array(2), c=np.array(True))
    refused(onnxc("train", folder / "loop.onnx", "--data", folder / "data.npz"), "bound the Loop: --max-trip N")
    assert onnxc("train", folder / "loop.onnx", "--data", folder / "data.npz", "--max-trip", "4").code == 0
    refused(
        onnxc("check", folder / "loop.onnx", "--max-trip", "9999999"), "error: --max-trip must be an integer from 1"
    )
    refused(onnxc("build", folder / "linear.onnx", folder / "out", "--dim", "N=2", "--cc", "nocc"), "name it with --cc")
