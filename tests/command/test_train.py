"""`onnxc train`: what it prints, what it writes, and what it says of data that does not fit."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from compiler import make_training_model
from compiler.runtime.step import StepFunction
from compiler.training import read_log
from tests.command.running import Done, refused
from tests.frontend.small import LINEAR, STEP, UPDATES, make_model, training_info
from tests.models import tiny

NOWHERE = "note: the trained weights are written nowhere: give --out FILE, or --run DIR\n"
LINE = re.compile(r"epoch \d  loss \d+\.\d{4}  mae \S+  validation loss \d+\.\d{4}  \d+\.\d s")


def test_train(onnxc: Callable[..., Done], folder: Path) -> None:
    model, out = folder / "linear.onnx", folder / "trained.onnx"
    data = ["--data", folder / "train.npz", "--eval", folder / "test.npz"]
    done = onnxc("train", model, *data, "--epochs", 3, "--batch", 7, "--out", out)
    assert done.code == 0
    *lines, last = done.out.splitlines()
    assert [bool(LINE.fullmatch(line)) for line in lines] == [True] * 3, done.out
    assert last == f"wrote {out}"
    assert done.err == "compiling...\n"  # no bar where nobody looks
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    with np.load(folder / "test.npz") as test:
        np.testing.assert_allclose(session.run(None, {"x": test["x"]})[0], test["t"], atol=0.3)

    def run(*options: Any) -> list[dict[str, Any]]:
        done = onnxc("train", model, *data, "--epochs", 2, "--json", *options)
        assert done.code == 0
        assert done.err == NOWHERE
        rows = [json.loads(line) for line in done.out.splitlines()]
        assert all(row.pop("seconds") >= 0 for row in rows)
        return rows

    first = run()
    assert [(e["epoch"], e["step"], e["samples"]) for e in first] == [(1, 2, 50), (2, 4, 50)]
    assert set(first[0]) == {"epoch", "step", "samples", "loss", "mae", "validation_loss", "nan_step"}
    assert first == run("--threads", 2)
    assert first == run("--seed", 0)
    assert first != run("--seed", 1)
    assert first != run("--initialize")
    assert first != run("--batch", 10)
    in_order = run("--no-shuffle")
    assert first != in_order == run("--no-shuffle", "--seed", 1)
    assert set(run("--metric", "mse", "--metric", "loss")[0]) == set(first[0]) - {"mae"} | {"mse"}


def test_data_in_a_folder(onnxc: Callable[..., Done], folder: Path) -> None:
    for kind in ("train", "test"):
        (folder / kind).mkdir()
        with np.load(folder / f"{kind}.npz") as arrays:
            for name, a in arrays.items():
                np.save(folder / kind / f"{name}.npy", a)
    losses = {
        json.loads(onnxc("train", folder / "linear.onnx", "--data", data, "--eval", test, "--json").out)["mae"]
        for data, test in (("train.npz", "test.npz"), ("train", "test"))
        for data, test in [(folder / data, folder / test)]
    }
    assert len(losses) == 1


def test_averaged_weights(onnxc: Callable[..., Done], folder: Path) -> None:
    onnx.save(make_training_model(make_model(LINEAR), loss="mse", target="t", average=0.9), folder / "kept.onnx")
    written = {}
    for options in ([], ["--averaged"]):
        out = folder / f"out{len(options)}.onnx"
        done = onnxc("train", folder / "kept.onnx", "--data", folder / "train.npz", "--out", out, *options)
        assert done.code == 0, done
        written[len(options)] = {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    assert written[0].keys() == written[1].keys()
    assert any((written[0][n] != written[1][n]).any() for n in written[0])
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--out", folder / "out.onnx"]
    refused(onnxc(*command, "--averaged"), "error: ", "average")
    assert not (folder / "out.onnx").exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_log(onnxc: Callable[..., Done], folder: Path, suffix: str) -> None:
    """It has what --json prints."""
    log = folder / f"log{suffix}"
    done = onnxc(
        "train", folder / "linear.onnx", "--data", folder / "train.npz", "--eval", folder / "test.npz", "--epochs", 2,
        "--log", log, "--json",
    )  # fmt: skip
    assert done.code == 0
    assert read_log(log) == [json.loads(line) for line in done.out.splitlines()]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot(onnxc: Callable[..., Done], folder: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    plot = folder / f"losses{suffix}"
    done = onnxc("train", folder / "linear.onnx", "--data", folder / "train.npz", "--epochs", 2, "--plot", plot)
    assert done.code == 0, done
    assert done.out.endswith(f"wrote {plot}\n")
    head = plot.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in plot.read_bytes()[:2000]


def test_plot_without_matplotlib(onnxc: Callable[..., Done], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    plot = folder / "losses.png"
    done = onnxc("train", folder / "linear.onnx", "--data", folder / "train.npz", "--plot", plot)
    refused(done, "needs matplotlib, which is not installed: pip install")
    assert "compiling" not in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs --run DIR"),
        (["--checkpoint-every", 5], "--checkpoint-every needs --run DIR"),
        (["--metric", "mae"], "--metric needs --eval DATA"),
        (["--monitor", "loss"], "--monitor needs --run DIR, which keeps the best model, or --early-stop N"),
        (["--averaged"], "--averaged needs --out FILE"),
        (["--early-stop", 2, "--monitor-max"], "--monitor-max needs --monitor METRIC"),
        (["--log", "log.txt"], "'log.txt' must end with .csv or .jsonl"),
        (["--plot", "losses.gif"], "'losses.gif' must end with .png or .svg"),
        (["--early-stop", 0], "Invalid value for '--early-stop'"),
    ],
)
def test_options_that_need_others(onnxc: Callable[..., Done], options: list[Any], message: str) -> None:
    refused(onnxc("train", "a", "--data", "b", *options), message, "See onnxc train --help", code=2)


def test_metrics_that_there_are_not(onnxc: Callable[..., Done], folder: Path) -> None:
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--eval", folder / "test.npz"]
    refused(onnxc(*command, "--metric", "acuracy"), "there is no metric 'acuracy' (did you mean 'accuracy'?)")
    refused(
        onnxc(*command, "--early-stop", 3, "--monitor", "accuracy"),
        "error: --monitor: nothing is measured that is called 'accuracy': there are 'mae', 'validation_loss', 'loss'",
    )


def test_a_loss_that_is_no_number(onnxc: Callable[..., Done], folder: Path) -> None:
    np.savez(folder / "train.npz", x=np.full((40, 3), 3e38, np.float32), t=np.ones((40, 1), np.float32))
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--epochs", 3]
    done = onnxc(*command, "--json")
    assert done.code == 0
    rows = [json.loads(line, parse_constant=pytest.fail) for line in done.out.splitlines()]
    assert [(row["loss"], row["nan_step"]) for row in rows] == [(None, 1), (None, 3), (None, 5)]
    assert done.err == f"{NOWHERE}note: the loss is inf in step 1, in epoch 1\n"  # once
    assert onnxc(*command).out.startswith("epoch 1  loss inf  ")
    done = onnxc(*command, "--stop-on-nan", "--out", folder / "out.onnx", "--run", folder / "run")
    refused(done, "error: the loss is ", " in step 1, in epoch 1, train with a smaller learning rate")
    assert not (folder / "out.onnx").exists()


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
    check("the data has no array 't': it has 'x', 'label', 'w'", x=x, label=t, w=t)
    check("there are no arrays in ")
    check("the data has no array 'x', 't': it has 'other'", other=x)
    check("arrays of different numbers of samples: {'x': 50, 't': 49}", x=x, t=t[1:])
    check("no samples in the data", x=x[:0], t=t[:0])
    check("array 'x' of the data has shape [50, 3, 1]: the model takes f32[N,3]", x=x[..., None], t=t)
    check("array 'x' of the data has shape []: the model takes f32[N,3]", x=np.float32(3), t=t)
    check("array 'x' of the data has shape [50, 2], with 2 at axis 1: the model takes f32[N,3]", x=x[:, :2], t=t)
    check("array 't' of the data is complex64: the model takes float32, which cannot hold its values", x=x, t=t + 1j)
    check("array 'x' of the data is <U", x=x.astype(str), t=t)
    check("it holds Python objects, which are not loaded", x=x.astype(object), t=t)
    check("the validation data has no array 't'", True, x=x)
    check("the validation data has no array 'x'", True, t=t)
    check(
        "array 't' of the validation data has samples of shape [2]: the model takes f32[N,1]",
        True,
        x=x,
        t=np.tile(t, 2),
    )

    done = onnxc("train", model, "--data", folder / "train.npz", "--eval", folder / "test.npz", "--batch", 50)
    assert done.code == 0
    np.savez(folder / "more.npz", x=x.astype(np.float64), t=t.astype(np.float16), extra=x, n=3)
    done = onnxc("train", model, "--data", folder / "more.npz")
    assert done.code == 0
    assert done.err == f"compiling...\nnote: the model has no use for 'extra', 'n' of the data\n{NOWHERE}"


def test_files_of_data_that_are_none(onnxc: Callable[..., Done], folder: Path) -> None:
    np.save(folder / "one.npy", np.ones(3))
    (folder / "empty").mkdir()
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
        ("empty", "there are no .npy files in the folder"),
    ):
        refused(onnxc("train", folder / "linear.onnx", "--data", folder / name), message)
        refused(
            onnxc("train", folder / "linear.onnx", "--data", folder / "train.npz", "--eval", folder / name), message
        )


def test_labels_out_of_range(onnxc: Callable[..., Done], folder: Path) -> None:
    onnx.save(tiny(), folder / "tiny.onnx")
    label = np.zeros(64, np.int64)
    label[50] = 3
    np.savez(folder / "bad.npz", x=np.ones((64, 4), np.float32), label=label)
    done = onnxc("train", folder / "tiny.onnx", "--data", folder / "bad.npz", "--out", folder / "out.onnx")
    refused(done, "'label'[50] of the data is 3, out of range [0, 3), in node 'loss'")
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
    row = json.loads(done.out)
    assert row["accuracy"] * 20 == pytest.approx(round(row["accuracy"] * 20))
    assert json.loads(onnxc(*command, "--batch", 6).out) == row | {"seconds": ANY}
    refused(onnxc(*command, "--batch", 5), "batch size is fixed at 6, so it cannot be 5: leave --batch out")
    np.savez(folder / "few.npz", x=np.ones((5, 4), np.float32), label=np.zeros(5, np.int64))
    few = onnxc("train", folder / "tiny.onnx", "--data", folder / "few.npz")
    refused(few, "5 samples do not fill one batch of 6, the model's fixed size")


def test_what_a_remedy_is_called(onnxc: Callable[..., Done], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an option of the command, not in an argument of Python."""
    step = STEP.replace("float[N,1] t", "float[4,1] t")
    onnx.save(make_model(LINEAR, training_info(step, UPDATES)), folder / "half.onnx")
    done = onnxc("train", folder / "half.onnx", "--data", folder / "train.npz")
    refused(done, "the same for all samples", "here or by --static, or, if they are, the size of the model's other")
    assert done.err.endswith(" by --dim\n")
    assert onnxc("train", folder / "half.onnx", "--data", folder / "train.npz", "--dim", "N=4").code == 0

    def none(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(StepFunction, "__call__", none)
    done = onnxc("train", folder / "linear.onnx", "--data", folder / "train.npz")
    refused(done, "error: a step of 32 samples: out of memory; give a smaller --batch\n")


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
    """Told before anything is compiled."""
    model, data = folder / "linear.onnx", folder / "train.npz"
    command = ["train", model, "--data", data, "--epochs", 10**9]
    for option, name in (("--out", "out.onnx"), ("--log", "log.csv"), ("--plot", "losses.svg")):
        (folder / "full" / name).mkdir(parents=True)
        refused(onnxc(*command, option, folder / "full" / name), f"{option}: ", "is a folder")
        refused(onnxc(*command, option, folder / "no" / name), f"{option}: there is no folder")
        refused(onnxc(*command, option, data / name), f"{option}: ")
    refused(onnxc(*command, "--out", model), f"--out: {str(model)!r} is a file of MODEL, too: give another name")
    refused(onnxc(*command, "--log", folder / "a.csv", "--out", folder / "a.csv"), "is a file of --out, too")
    refused(onnxc(*command, "--run", data), f"{str(data)!r} is a file: a run needs a folder")
    if os.geteuid() != 0:
        os.chmod(folder, 0o500)
        refused(onnxc(*command, "--out", folder / "out.onnx"), "cannot be written")
        os.chmod(folder, 0o700)


def test_samples_along_another_axis(onnxc: Callable[..., Done], folder: Path) -> None:
    """It is told which one, by the name of the option that names another; data in another order is an error."""
    text = LINEAR.replace("[N,3] x", "[T,N,3] x").replace("[N,1] y", "[T,N,1] y")
    step = STEP.replace("[N,3]", "[T,N,3]").replace("[N,1] t", "[T,N,1] t")
    onnx.save(make_model(text, training_info(step, UPDATES)), folder / "times.onnx")
    np.savez(folder / "times.npz", x=np.ones((4, 9, 3), np.float32), t=np.ones((4, 9, 1), np.float32))
    command = ["train", folder / "times.onnx", "--data", folder / "times.npz", "--json"]
    done = onnxc(*command, "--batch-dim", "N")
    assert "note: samples are counted by dim 'N', axis 1 of 'x' and 't': another is named by --batch-dim\n" in done.err
    assert json.loads(done.out)["samples"] == 9
    assert json.loads(onnxc(*command).out)["samples"] == 4
    refused(onnxc(*command, "--batch-dim", "M"), "no input has a dim 'M': those that may count samples are 'T', 'N'")
