"""The command: what it prints, its exit codes, and that every failure is one line that says what, where, what to do."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import compiler
from compiler import cli, progress
from compiler.ir.parse import parse
from compiler.passes.pipeline import PASS_NAMES
from compiler.training import Trainer, read_arrays
from tests.frontend.small import LINEAR, STEP, UPDATES, linear, make_model, training_info
from tests.models import tiny

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def onnxc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs the command in this process."""

    def run(*arguments: Any) -> Done:
        monkeypatch.setattr(sys, "argv", ["onnxc", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as e:
            cli.main()
        return Done(int(e.value.code or 0), *capsys.readouterr())

    return run


def process(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "compiler", *map(str, arguments)],
        **{"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120, **options},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of every kind, and data for the good one."""
    onnx.save(linear(), tmp_path / "linear.onnx")
    onnx.save(make_model(LINEAR), tmp_path / "plain.onnx")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)).astype(np.float32)
    t = x @ np.array([[3], [-2], [1]], np.float32)
    np.savez(tmp_path / "train.npz", x=x, t=t)
    np.savez(tmp_path / "test.npz", x=x[:11], t=t[:11])
    return tmp_path


def refused(done: Done, *parts: str, code: int = 1) -> None:
    """The exit code, and an error that has these parts, on lines of their own."""
    assert done.code == code, done
    assert done.err.startswith("error: "), done
    assert "Traceback" not in done.err
    assert "a defect of onnxc" not in done.err
    assert all(line.startswith("error: ") and line.isprintable() for line in done.err.splitlines()), done.err
    for part in parts:
        assert part in done.err


# --- the command itself ----------------------------------------------------------------------------------------------
def test_no_arguments_and_help(onnxc: Callable[..., Done]) -> None:
    shown = onnxc()
    assert shown.code == 2
    assert "Commands:" in shown.out + shown.err
    for arguments in (["--help"], ["-h"], ["train", "-h"], ["dump-ir", "--help"], ["--version"]):
        done = onnxc(*arguments)
        assert done.code == 0
        assert done.out.startswith(("Usage: onnxc", f"onnxc, version {compiler.__version__}"))
        assert done.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["check"], "Missing argument 'MODEL'"),
        (["check", "a", "b"], "unexpected extra argument"),
        (["check", "a", "--nothing"], "No such option"),
        (["train", "a"], "Missing option '--data'"),
        (["lower", "a"], "Missing option '--out'"),
        (["check", "a", "--dim", "N"], "'N' is not NAME=SIZE, as in N=64"),
        (["check", "a", "--dim", "N=0"], "'N=0' is not NAME=SIZE"),
        (["check", "a", "--dim", "N=-3"], "'N=-3' is not NAME=SIZE"),
        (["check", "a", "--dim", "N=1.5"], "'N=1.5' is not NAME=SIZE"),
        (["check", "a", "--dim", "=3"], "'=3' is not NAME=SIZE"),
        (["check", "a", "--dim", "N=²"], "'N=²' is not NAME=SIZE"),
        (["check", "a", "--dim", "N=99999999999999999999"], "is not NAME=SIZE"),
        (["dump-ir", "a", "--after", "nothing"], "There is no pass 'nothing': there are fold_constants, "),
        (["dump-ir", "a", "--after", "cse", "--stage", "final"], "--after and --stage exclude each other"),
        (["dump-ir", "a", "--stage", "nothing"], "Invalid value for '--stage'"),
        (["lower", "a", "--out", "b", "--after", "nothing"], "There is no pass 'nothing'"),
        (["train", "a", "--data", "b", "--epochs", "0"], "Invalid value for '--epochs'"),
        (["train", "a", "--data", "b", "--threads", "0"], "Invalid value for '--threads'"),
        (["train", "a", "--data", "b", "--seed", "-1"], "Invalid value for '--seed'"),
    ],
)
def test_wrong_usage(onnxc: Callable[..., Done], arguments: Sequence[str], message: str) -> None:
    refused(onnxc(*arguments), message, "See onnxc", code=2)


def test_a_defect_is_one_line(onnxc: Callable[..., Done], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(compiler.api, "check", broken)
    done = onnxc("check", folder / "linear.onnx")
    assert done.code == 1
    assert done.err.startswith(
        "error: a defect of onnxc, please report it: ZeroDivisionError: division by zero, in test_cli.py:"
    )
    assert len(done.err.splitlines()) == 1
    monkeypatch.setenv("ONNXC_DEBUG", "1")
    assert "Traceback" in onnxc("check", folder / "linear.onnx").err


def test_help_is_quick_to_start() -> None:
    code = "import sys, atexit; sys.argv[1:] = ['-h']; atexit.register(lambda: print(*sys.modules))"
    code += "; from compiler.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    modules = set(done.stdout.split())
    assert "click" in modules
    assert not modules & {"numpy", "onnx", "numba", "llvmlite", "networkx", "rich"}


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_closed_and_full_output(folder: Path) -> None:
    command = f"{sys.executable} -m compiler"
    names = ["x", *(f"{'v' * 200}{i}" for i in range(1000))]
    nodes = " ".join(f"{b} = Neg({a})" for a, b in itertools.pairwise(names))
    onnx.save(make_model(f"m (float[3] x) => (float[3] {names[-1]}) {{ {nodes} }}"), folder / "wide.onnx")
    for line, code, text in (
        (f"{command} dump-ir --stage import wide.onnx | head -1", "1", ""),
        (f"{command} check linear.onnx >&-", "0", ""),
        (f"{command} check linear.onnx >/dev/full", "1", "error: "),
        (f"{command} check nothing.onnx 2>&-", "1", ""),
    ):
        shell = f"{line}; echo ${{PIPESTATUS[0]}} >> code"
        (folder / "code").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "-c", shell], capture_output=True, text=True, cwd=folder, timeout=120,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
        assert (folder / "code").read_text().strip() == code, done
        assert "Traceback" not in done.stderr
        assert "Exception" not in done.stderr
        assert done.stderr.startswith(text)
        assert done.stderr.count("\n") <= 1


def test_names_beyond_the_terminals_encoding(folder: Path) -> None:
    onnx.save(make_model("m (float[3] x) => (float[3] y) { y = Neg(x) }"), folder / "ü☃.onnx")
    model = onnx.load(folder / "ü☃.onnx")
    model.graph.name = "Schneemann ☃"
    onnx.save(model, folder / "ü☃.onnx")
    for arguments in (["dump-ir", folder / "ü☃.onnx"], ["check", folder / "☃.onnx"]):
        done = process(*arguments, encoding="latin-1", env={**os.environ, "PYTHONIOENCODING": "latin-1"})
        assert "Traceback" not in done.stderr
        assert "\\u2603" in done.stdout + done.stderr


# --- models that are none --------------------------------------------------------------------------------------------
def broken_models(folder: Path) -> dict[str, tuple[Any, str]]:
    """File or bytes, and a part of the message."""
    good = linear().SerializeToString()
    two = linear()
    two.graph.node.append(helper.make_node("Neg", ["x"], ["y"]))
    future = linear()
    future.opset_import[0].version = 99
    outside = linear()
    t = outside.graph.initializer[0]
    t.ClearField("float_data")
    t.data_location = TensorProto.EXTERNAL
    t.external_data.add(key="location", value="../secret")
    bad_binding = linear()
    bad_binding.training_info[0].update_binding[0].value = "nowhere"
    shapes = make_model("m (float[3,4] x, float[3,4] z) => (float[3,3] y) { y = MatMul(x, z) }")
    return {
        "missing": (None, "there is no such file"),
        "directory": (folder, "this is a folder, not a model"),
        "empty": (b"", "there are no bytes"),
        "text": (b"hello world, this is no model\n", "this is text, not a model"),
        "truncated": (good[: len(good) // 2], "does not parse|no ONNX model|its end is missing"),
        "garbage": (bytes(range(256)) * 3, "no ONNX model"),
        "unknown op": (make_model("m (float[3] x) => (float[3] y) { y = Nothing(x) }"), "Nothing"),
        "unknown opset": (future, "99"),
        "unknown domain": (make_model("m (float[3] x) => (float[3] y) { y = local.Nothing(x) }"), "local"),
        "two outputs of one name": (two, "'y'"),
        "external data outside": (outside, "'../secret' is not a relative path inside the model's folder"),
        "binding": (bad_binding, "nowhere"),
        "shapes": (shapes, "MatMul"),
        "old ir": (make_model(LINEAR, training_info(STEP, UPDATES), ir=6), "IR version 6"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "missing", "directory", "empty", "text", "truncated", "garbage", "unknown op", "unknown opset",
        "unknown domain", "two outputs of one name", "external data outside", "binding", "shapes", "old ir",
    ],
)  # fmt: skip
def test_models_that_are_none(onnxc: Callable[..., Done], folder: Path, name: str) -> None:
    content, message = broken_models(folder)[name]
    path = folder / "bad.onnx"
    (folder.parent / "secret").write_bytes(b"\0" * 12)
    if isinstance(content, Path):
        path = content
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_bytes(content.SerializeToString())
    before = sorted(os.listdir(folder))
    for command in (
        ["check", path],
        ["dump-ir", path, "--dim", "N=2"],
        ["dump-ir", path, "--dim", "N=2", "--stage", "import"],
        ["lower", path, "--dim", "N=2", "--out", folder / "out.onnx"],
        ["train", path, "--data", folder / "train.npz", "--out", folder / "out.onnx"] if name != "shapes" else [],
        ["build", path, folder / "artifact", "--dim", "N=2"],
    ):
        done = onnxc(*command)
        if command and "no symbolic dim" not in done.err:
            refused(done)
            assert any(part in done.err for part in message.split("|")), done.err
    assert sorted(os.listdir(folder)) == before


# --- check, dump-ir, lower, build ------------------------------------------------------------------------------------
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
    refused(onnxc("dump-ir", folder / "reshape.onnx"), "bind what decides it: static=", "'shape'")
    done = onnxc("dump-ir", folder / "reshape.onnx", "--static", folder / "shape.npz")
    assert "f32[3,2]" in done.out
    assert onnxc("check", folder / "reshape.onnx").code == 0
    assert onnxc("check", folder / "reshape.onnx", "--static", folder / "shape.npz").code == 0
    np.savez(folder / "shape.npz", shape=np.array([3, 3]))
    refused(onnxc("check", folder / "reshape.onnx", "--static", folder / "shape.npz"), "Reshape")


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


# --- train -----------------------------------------------------------------------------------------------------------
def test_train(onnxc: Callable[..., Done], folder: Path) -> None:
    model, out = folder / "linear.onnx", folder / "trained.onnx"
    data = ["--data", folder / "train.npz", "--eval", folder / "test.npz"]
    done = onnxc("train", model, *data, "--epochs", 3, "--batch", 7, "--out", out)
    assert done.code == 0
    lines = done.out.splitlines()
    assert len(lines) == 4
    assert lines[-1] == f"wrote {out}"
    assert lines[0].startswith("epoch 1  loss ")
    assert "mean absolute error" in lines[0]
    assert done.err == ""  # no bar where nobody looks
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    with np.load(folder / "test.npz") as test:
        np.testing.assert_allclose(session.run(None, {"x": test["x"]})[0], test["t"], atol=0.3)

    def run(*options: Any) -> list[dict[str, Any]]:
        done = onnxc("train", model, *data, "--epochs", 2, "--json", *options)
        assert done.code == 0
        return [json.loads(line) for line in done.out.splitlines()]

    first = run()
    assert [e["epoch"] for e in first] == [1, 2]
    assert set(first[0]) == {"epoch", "loss", "mean absolute error"}
    assert first == run("--threads", 2)
    assert first == run("--seed", 0)
    assert first != run("--seed", 1)
    assert first != run("--initialize")
    assert first != run("--batch", 10)


def test_numbers_that_json_has_not(onnxc: Callable[..., Done], folder: Path) -> None:
    np.savez(folder / "train.npz", x=np.full((4, 3), 3e38, np.float32), t=np.ones((4, 1), np.float32))
    done = onnxc("train", folder / "linear.onnx", "--data", folder / "train.npz", "--json")
    assert json.loads(done.out, parse_constant=pytest.fail)["loss"] is None


def test_data_that_does_not_fit(onnxc: Callable[..., Done], folder: Path) -> None:
    with np.load(folder / "train.npz") as f:
        x, t = f["x"], f["t"]
    model = folder / "linear.onnx"

    def check(message: str, evaluation: bool = False, /, **arrays: Any) -> None:
        np.savez(folder / "bad.npz", **arrays)
        options = ["--data", folder / "bad.npz"]
        if evaluation:
            options = ["--data", folder / "train.npz", "--eval", folder / "bad.npz"]
        refused(onnxc("train", model, *options, "--out", folder / "out.onnx"), message)
        assert not (folder / "out.onnx").exists()

    check("the data has no array 't'", x=x)
    check("the data has no array 't' (of no use are 'label', 'w')", x=x, label=t, w=t)
    check("the data has no array 't', 'x'")
    check("arrays of different numbers of samples: {'x': 50, 't': 49}", x=x, t=t[1:])
    check("no samples in the data", x=x[:0], t=t[:0])
    check("array 'x' of the data has shape [50, 3, 1]: the model takes f32[N,3]", x=x[..., None], t=t)
    check("array 'x' of the data has shape []: the model takes f32[N,3]", x=np.float32(3), t=t)
    check("input 'x' has shape [32, 2], the model takes f32[N,3]", x=x[:, :2], t=t)
    check("array 't' of the data is complex64: the model takes float32, which cannot hold its values", x=x, t=t + 1j)
    check("array 'x' of the data is <U", x=x.astype(str), t=t)
    check("it holds Python objects, which are not loaded", x=x.astype(object), t=t)
    check("the evaluation data needs one label, an input of the training algorithm alone: it has none", True, x=x)
    check("the evaluation data has no array 'x'", True, t=t)
    check("label 't' of shape [50, 2] cannot be compared with an output of shape [32, 1]", True, x=x, t=np.tile(t, 2))

    done = onnxc("train", model, "--data", folder / "train.npz", "--eval", folder / "test.npz", "--batch", 50)
    assert done.code == 0
    np.savez(folder / "more.npz", x=x.astype(np.float64), t=t.astype(np.float16), extra=x, n=3)
    done = onnxc("train", model, "--data", folder / "more.npz")
    assert done.code == 0
    assert done.err == "note: the model has no use for 'extra', 'n' of the data\n"


def test_files_of_data_that_are_none(onnxc: Callable[..., Done], folder: Path) -> None:
    np.save(folder / "one.npy", np.ones(3))
    (folder / "text.npz").write_text("hello")
    (folder / "empty.npz").write_bytes(b"")
    whole = (folder / "train.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    damaged = bytearray(whole)
    damaged[200:260] = bytes(60)
    (folder / "damaged.npz").write_bytes(damaged)
    for name, message in (
        ("nothing.npz", "there is no file"),
        ("one.npy", "holds one array: make an .npz with the model's inputs by name"),
        ("text.npz", "is no .npz file of numeric arrays"),
        ("empty.npz", "is no .npz file of numeric arrays"),
        ("cut.npz", "is no .npz file of numeric arrays"),
        ("damaged.npz", "is no .npz file of numeric arrays"),
        ("linear.onnx", "is no .npz file of numeric arrays"),
        ("", "is a folder, not an .npz file"),
    ):
        refused(onnxc("train", folder / "linear.onnx", "--data", folder / name), message)
        if name != "":
            refused(
                onnxc("train", folder / "linear.onnx", "--data", folder / "train.npz", "--eval", folder / name), message
            )


def test_labels_out_of_range(onnxc: Callable[..., Done], folder: Path) -> None:
    onnx.save(tiny(), folder / "tiny.onnx")
    label = np.zeros(64, np.int64)
    label[50] = 3
    np.savez(folder / "bad.npz", x=np.ones((64, 4), np.float32), label=label)
    done = onnxc("train", folder / "tiny.onnx", "--data", folder / "bad.npz", "--out", folder / "out.onnx")
    refused(done, "label out of range [0, 3)")
    assert not (folder / "out.onnx").exists()
    np.savez(folder / "bad.npz", x=np.ones((64, 4), np.float32), label=label.astype(np.float32))
    refused(onnxc("train", folder / "tiny.onnx", "--data", folder / "bad.npz"), "array 'label' of the data is float32")


def test_a_fixed_batch_size(onnxc: Callable[..., Done], folder: Path) -> None:
    onnx.save(tiny(batch=6), folder / "tiny.onnx")
    rng = np.random.default_rng(0)
    np.savez(folder / "tiny.npz", x=rng.normal(size=(20, 4)).astype(np.float32), label=rng.integers(0, 3, 20))
    command = ["train", folder / "tiny.onnx", "--data", folder / "tiny.npz", "--eval", folder / "tiny.npz", "--json"]
    done = onnxc(*command)
    assert done.code == 0
    assert json.loads(done.out)["accuracy"] * 20 == pytest.approx(round(json.loads(done.out)["accuracy"] * 20))
    assert onnxc(*command, "--batch", 6).out == done.out
    refused(onnxc(*command, "--batch", 5), "the model's batch size is fixed at 6: train with --batch 6")
    np.savez(folder / "few.npz", x=np.ones((5, 4), np.float32), label=np.zeros(5, np.int64))
    few = onnxc("train", folder / "tiny.onnx", "--data", folder / "few.npz")
    refused(few, "5 samples do not fill one batch of 6, the model's fixed size")


def test_models_that_cannot_be_trained(onnxc: Callable[..., Done], folder: Path) -> None:
    done = onnxc("train", folder / "plain.onnx", "--data", folder / "train.npz")
    refused(done, "the model has no training_info: there is nothing to train")


def test_output_that_cannot_be_written(onnxc: Callable[..., Done], folder: Path) -> None:
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--epochs", 10**9, "--out"]
    refused(onnxc(*command, folder), "--out: ", "is a folder")
    refused(onnxc(*command, folder / "no" / "out.onnx"), "--out: there is no folder")
    refused(onnxc(*command, folder / "train.npz" / "out.onnx"), "--out: ")
    if os.geteuid() != 0:
        os.chmod(folder, 0o500)
        refused(onnxc(*command, folder / "out.onnx"), "cannot be written")
        os.chmod(folder, 0o700)


def test_interrupting_a_long_training(folder: Path) -> None:
    out = folder / "out.onnx"
    out.write_bytes(b"old")
    before = sorted(os.listdir(folder))
    command = [sys.executable, "-m", "compiler", "train", folder / "linear.onnx", "--data", folder / "train.npz"]
    p = subprocess.Popen(
        [*command, "--epochs", "1000000000", "--out", out],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
    )  # fmt: skip
    assert p.stdout is not None
    assert p.stdout.readline().startswith("epoch ")
    time.sleep(0.2)
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 130
    assert err.strip() == "error: interrupted"
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(folder)) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops(folder: Path) -> None:
    """As in a finalizer: the training ends with the next step all the same."""

    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    trainer = Trainer(folder / "linear.onnx", read_arrays(folder / "train.npz"))
    run, calls = trainer.step, []

    def step(feeds: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            Dropping()
        return run(feeds)

    trainer.step = step  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        progress.follow(trainer, 10**9)
    assert len(calls) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_bar_on_a_terminal(folder: Path) -> None:
    """On standard error, and in color only if NO_COLOR does not forbid it; epochs stay on standard output."""
    pty = pytest.importorskip("pty")
    for extra, colored in (({}, True), ({"NO_COLOR": "1"}, False)):
        leader, follower = pty.openpty()
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")} | {"TERM": "xterm-256color", **extra}
        command = [sys.executable, "-m", "compiler", "train", folder / "linear.onnx", "--data", folder / "train.npz"]
        p = subprocess.Popen([*command, "--epochs", "3"], stdout=subprocess.PIPE, stderr=follower, cwd=ROOT, env=env)
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        os.close(leader)
        assert p.stdout is not None
        assert p.stdout.read().count(b"epoch ") == 3
        p.stdout.close()
        assert p.wait(60) == 0
        assert (b"\x1b[3" in shown or b"\x1b[38" in shown) == colored, shown
