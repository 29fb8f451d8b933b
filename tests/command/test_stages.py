"""`onnxc check`, `dump-ir`, `lower` and `build`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from compiler.ir.parse import parse
from compiler.passes.pipeline import PASS_NAMES
from tests.command.running import Done, refused
from tests.frontend.small import make_model


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
    refused(done, "Reshape(f32[2,4], i64[2]): 8 elements", "'N' had no size and was tried as 2, 32 and 224")
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
        "No such file or directory",
    )
    refused(onnxc("lower", folder / "linear.onnx", "--dim", "N=2", "-o", folder), "Is a directory")


def test_build(onnxc: Callable[..., Done], folder: Path) -> None:
    refused(onnxc("build", folder / "linear.onnx", folder / "a"), "give --dim N=...")
    refused(onnxc("build", folder / "linear.onnx", folder / "train.npz", "--dim", "N=2"), "is a file")
    refused(onnxc("build", folder / "linear.onnx", folder / "a", "--dim", "N=2", "--cc", "no-such-cc"), "no C compiler")
    refused(onnxc("build", folder / "linear.onnx", folder / "a", "--dim", "N=2", "--name", "a b"), "name must be")
    assert not (folder / "a").exists()
