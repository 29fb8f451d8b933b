"""What is written over what is read: refused before anything is compiled, and all files stay as they are."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from compiler.command.progress import shown
from compiler.frontend.files import files_of
from compiler.training.log import Log
from tests.command.running import Done, refused
from tests.frontend.small import LINEAR, linear, make_model

Onnxc = Callable[..., Done]


@pytest.fixture
def files(folder: Path) -> Path:
    """Models whose weights are in files of their own, data in a folder, links, and a run."""
    for name, model in (("linear", linear()), ("plain", make_model(LINEAR))):
        for t in model.graph.initializer:  # only raw data can be in another file
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t), t.name))
        onnx.save(model, folder / f"{name}-ext.onnx", save_as_external_data=True, location=f"{name}.bin",
                  size_threshold=0)  # fmt: skip
    for kind in ("train", "test"):
        (folder / kind).mkdir()
        with np.load(folder / f"{kind}.npz") as arrays:
            for name, a in arrays.items():
                np.save(folder / kind / f"{name}.npy", a)
    (folder / "link.onnx").symlink_to("linear.onnx")
    (folder / "link-ext.onnx").symlink_to("linear-ext.onnx")
    (folder / "link.csv").symlink_to("train.npz")
    (folder / "link.svg").symlink_to("test/x.npy")
    return folder


def kept(onnxc: Onnxc, folder: Path, *arguments: Any, message: str) -> None:
    """The command is refused at once, and every file has the bytes that it had."""
    before = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    done = onnxc(*(folder / a if isinstance(a, Path) else a for a in arguments))
    refused(done, message)
    assert "compiling" not in done.err
    assert {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()} == before


MODEL, EXTERNAL = Path("linear.onnx"), Path("linear-ext.onnx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lower", MODEL, "-o", MODEL, "--dim", "N=2"], "linear.onnx' is a file of MODEL, too: give another name"),
        (["lower", MODEL, "-o", MODEL, "--training-graph"], "linear.onnx' is a file of MODEL, too"),
        (["lower", MODEL, "-o", Path("link.onnx")], "link.onnx' is a file of MODEL, too"),
        (["lower", EXTERNAL, "-o", Path("linear.bin")], "linear.bin' is a file of MODEL, too"),
        (["lower", MODEL, "-o", Path("train.npz"), "--static", Path("train.npz")], "is a file of --static, too"),
        (["make-training", Path("plain.onnx"), "-o", Path("plain.onnx")], "plain.onnx' is a file of MODEL, too"),
        (["make-training", Path("plain-ext.onnx"), "-o", Path("plain.bin")], "plain.bin' is a file of MODEL, too"),
        (["build", Path("in/linear.onnx"), Path("in"), "--dim", "N=2"], "FOLDER: "),
        (["build", Path("in/linear.onnx"), Path("."), "--dim", "N=2"], "a file of MODEL: give another folder"),
        (["build", MODEL, MODEL, "--dim", "N=2"], "is a file: choose another name"),
    ],
    ids=str,
)  # fmt: skip
def test_commands_of_one_output(onnxc: Onnxc, files: Path, arguments: list[Any], message: str) -> None:
    (files / "in").mkdir()
    onnx.save(linear(), files / "in" / "linear.onnx")
    kept(onnxc, files, *arguments, message=message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", EXTERNAL], "linear-ext.onnx' is a file of MODEL, too"),
        (["--out", Path("link-ext.onnx")], "link-ext.onnx' is a file of MODEL, too"),
        (["--out", Path("linear.bin")], "linear.bin' is a file of MODEL, too"),
        (["--out", Path("train/x.npy")], "x.npy' is a file of --data, too"),
        (["--out", Path("test/t.npy")], "t.npy' is a file of --eval, too"),
        (["--out", Path("test.npz"), "--static", Path("test.npz")], "test.npz' is a file of --static, too"),
        (["--plot", Path("link.svg")], "link.svg' is a file of --eval, too"),
        (["--log", Path("link.csv"), "--static", Path("train.npz")], "link.csv' is a file of --static, too"),
        (["--run", Path("r"), "--out", Path("r/checkpoint.safetensors")], "--run: "),
        (["--run", Path("r"), "--out", Path("r/best.onnx")], "best.onnx' is a file of --out, too"),
        (["--run", Path("r"), "--out", Path("r/last.onnx")], "last.onnx' is a file of --out, too"),
        (["--run", Path("r"), "--out", Path("r/log.csv")], "log.csv' is a file of --out, too"),
        (["--run", Path("new"), "--out", Path("new")], "--run: "),
        (["--run", Path("m")], "last.onnx' is a file of MODEL, too"),
        (["--log", Path("a.csv"), "--out", Path("a.csv")], "a.csv' is a file of --out, too"),
        (["--log", Path("mine.csv")], "mine.csv' is there, and no log of a run"),
    ],
    ids=str,
)  # fmt: skip
def test_train(onnxc: Onnxc, files: Path, options: list[Any], message: str) -> None:
    pytest.importorskip("matplotlib")
    (files / "mine.csv").write_text("name,value\na,1\n")
    (files / "m").mkdir()
    model = EXTERNAL
    if options[-1] == Path("m"):
        model = Path("m", "last.onnx")
        onnx.save(linear(), files / model)
    if "r" in map(str, options):
        os.rename(files / "test", files / "r")  # a folder of data may be that of a run
        options = [*options, "--eval", Path("r")]
    else:
        options = [*options, "--eval", Path("test")]
    kept(onnxc, files, "train", model, "--data", Path("train"), *options, message=message)


def test_what_is_written_over_on_purpose(onnxc: Onnxc, files: Path) -> None:
    """Old outputs, and the log of a run in its folder, by whatever name."""
    command = ["train", files / "linear-ext.onnx", "--data", files / "train", "--epochs", 1]
    for _ in range(2):
        assert onnxc(*command, "--out", files / "out.onnx", "--log", files / "log.csv").code == 0
    for name in ("log.csv", "other.jsonl"):
        run = files / name.partition(".")[0]
        options = ["--run", run, "--log", run / name, "--out", run / "trained.onnx"]
        assert onnxc(*command, *options).code == 0
        assert onnxc(*command, *options, "--resume").code == 0
        assert sorted(os.listdir(run)) == sorted(
            ["best.onnx", "checkpoint.safetensors", "last.onnx", "trained.onnx", name]
        )
    for _ in range(2):
        assert onnxc("lower", files / "linear.onnx", "--dim", "N=2", "-o", files / "lowered.onnx").code == 0
    assert onnxc("lower", files / "linear.onnx", "--dim", "N=2", "-o", os.devnull).code == 0


def test_external_data_anywhere_in_a_model(folder: Path) -> None:
    """Of weights, of the training algorithm, and of tensors in nodes."""
    model = linear()
    body = model.training_info[0].algorithm
    tensors = [
        model.graph.initializer[0],
        body.initializer.add(name="c"),
        body.node.add(op_type="Constant").attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t,
        body.node.add(op_type="If").attribute.add(type=onnx.AttributeProto.GRAPH).g.initializer.add(name="d"),
        model.graph.sparse_initializer.add().values,
    ]
    for i, t in enumerate(tensors):
        t.data_location = onnx.TensorProto.EXTERNAL
        t.external_data.add(key="location", value=f"data/{i}")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert files_of(path) == [path, *(folder / "data" / str(i) for i in range(5))]


# --- a run that cannot be ---------------------------------------------------------------------------------------------
def test_no_run_is_left_behind(onnxc: Onnxc, folder: Path) -> None:
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--run", folder / "new" / "run"]
    before = sorted(os.listdir(folder))
    for options, message in (
        (["--monitor", "acuracy"], "--monitor: nothing is measured that is called 'acuracy': there are 'loss'"),
        (["--averaged", "--out", folder / "out.onnx"], "average"),
        (["--batch", 8, "--eval", folder / "test.npz", "--metric", "no"], "there is no metric 'no'"),
        (["--initialize", "--monitor", "mae"], "--monitor: nothing is measured that is called 'mae'"),
    ):
        done = onnxc(*command, *options)
        refused(done, message)
        assert "compiling" not in done.err
        assert sorted(os.listdir(folder)) == before


def test_folders_that_cannot_be(onnxc: Onnxc, folder: Path) -> None:
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz"]
    if Path("/proc").is_dir():
        refused(onnxc(*command, "--run", "/proc/x"), "the folder '/proc/x' cannot be made: No such file or directory")
    (folder / "run" / "checkpoint.safetensors").mkdir(parents=True)
    for options in ([], ["--resume"]):
        done = onnxc(*command, "--run", folder / "run", *options)
        refused(done, "checkpoint.safetensors' is no file, so a run cannot write it: use another folder")


def test_files_of_a_run_that_were_removed(onnxc: Onnxc, folder: Path) -> None:
    run = folder / "run"
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--run", run]
    assert onnxc(*command, "--epochs", 2, "--monitor", "loss", "--monitor-max").code == 0
    (run / "best.onnx").unlink()
    (run / "log.csv").unlink()
    done = onnxc(*command, "--epochs", 3, "--monitor", "loss", "--monitor-max", "--resume")
    assert done.code == 0
    assert done.out.endswith(f"\nwrote {run}\n")
    assert f"note: {str(run / 'log.csv')!r} has no rows of 2 of the 2 epochs before: they were removed, or" in done.err
    assert f"note: {str(run / 'best.onnx')!r}, of epoch 1, was removed: only a better epoch writes it" in done.err


@pytest.mark.parametrize("option", ["--data", "--eval", "--static"])
def test_data_that_is_no_file(onnxc: Onnxc, folder: Path, option: str) -> None:
    """A pipe that nobody writes to, by itself or in a folder; a device without an end."""
    os.mkfifo(folder / "pipe.npz")
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "x.npy")
    (folder / "pipes" / "t.npy").symlink_to("/dev/zero")
    given = {"--data": folder / "train.npz"}
    for path in (folder / "pipe.npz", folder / "pipes", "/dev/zero"):
        options = [text for pair in (given | {option: path}).items() for text in pair]
        refused(onnxc("train", folder / "linear.onnx", *options), "it is no regular file, but a pipe or a device")


# --- a disk that is full ----------------------------------------------------------------------------------------------
@contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """No file may be longer."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_file_that_gets_too_large_is_named(onnxc: Onnxc, folder: Path) -> None:
    out = folder / "out.onnx"
    before = sorted(os.listdir(folder))
    for command in (
        ["lower", folder / "linear.onnx", "--dim", "N=2", "-o", out],
        ["make-training", folder / "plain.onnx", "--loss", "mse", "--target", "t", "-o", out],
    ):
        with limited(100):
            done = onnxc(*command)
        refused(done, f"error: {str(out)!r}: File too large")
        assert sorted(os.listdir(folder)) == before
    log = Log(folder / "log.csv", ["epoch"])
    log.begin()
    with limited(10), pytest.raises(OSError, match=r"File too large: '.*log\.csv'"):
        log.append({"epoch": 123456})


def test_losses_that_are_large() -> None:
    values = (0.25, 999999.0, 1e6, -3e30, float("inf"), float("nan"))
    assert [shown("loss", v) for v in values] == ["0.2500", "999999.0000", "1e+06", "-3e+30", "inf", "nan"]


def test_the_seed_of_no_initialization(onnxc: Onnxc, folder: Path) -> None:
    done = onnxc("make-training", folder / "plain.onnx", "--loss", "mse", "--seed", 1, "-o", folder / "out.onnx")
    refused(done, "error: --seed is of the initialization: give --initialize ")
