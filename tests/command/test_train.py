"""`onnxc train`: what it prints, what it writes, and what it says of data that does not fit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from compiler import progress
from compiler.training import Trainer, read_arrays
from tests.command.running import ROOT, Done, refused
from tests.frontend.small import LINEAR, STEP, UPDATES, make_model, training_info
from tests.models import tiny


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
    assert done.err == "compiling...\n"  # no bar where nobody looks
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    with np.load(folder / "test.npz") as test:
        np.testing.assert_allclose(session.run(None, {"x": test["x"]})[0], test["t"], atol=0.3)

    def run(*options: Any) -> list[dict[str, Any]]:
        done = onnxc("train", model, *data, "--epochs", 2, "--json", *options)
        assert done.code == 0
        assert done.err == ""
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
    check("there are no arrays in ")
    check("the data has no array 't', 'x'", other=x)
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
    assert done.err == "compiling...\nnote: the model has no use for 'extra', 'n' of the data\n"


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
        (
            "one.npy",
            "holds one array without a name: make one with numpy.savez(path, name=array, ...), with the names of",
        ),
        ("text.npz", "is no .npz file of numeric arrays"),
        ("empty.npz", "is no .npz file of numeric arrays"),
        ("cut.npz", "is no .npz file of numeric arrays"),
        ("damaged.npz", "is no .npz file of numeric arrays"),
        ("linear.onnx", "is no .npz file of numeric arrays: it is a file of another kind; make one with numpy.savez"),
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
    refused(done, "label out of range [0, 3) among the values of 'label', in node 'loss'; nothing was updated")
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
    refused(done, "the model has no training_info, so there is nothing to train: `onnxc make-training`")
    onnx.save(make_model(LINEAR, training_info(STEP, UPDATES)), folder / "uninitialized.onnx")
    done = onnxc("train", folder / "uninitialized.onnx", "--data", folder / "train.npz", "--initialize")
    refused(done, "the model has no initialization graph to run: train without, from the values in the file")
    assert "compiling" not in done.err
    onnx.save(make_model(LINEAR, training_info(STEP, {})), folder / "idle.onnx")
    done = onnxc("train", folder / "idle.onnx", "--data", folder / "train.npz")
    assert done.code == 0
    assert "note: the model updates nothing: there is no update_binding\n" in done.err


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
    assert err.split() == ["compiling...", "error:", "interrupted"]
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
