"""`onnxc train --run`: checkpoints, resuming, early stopping, and signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.command import progress
from compiler.command.signals import Signals, Stopped, caught
from compiler.specialize import Specializations
from compiler.training import Run, Trainer, read_arrays
from tests.command.running import ROOT, Done, refused
from tests.frontend.small import LINEAR, STEP, UPDATES, make_model, training_info

FILES = {"best.onnx", "checkpoint.safetensors", "last.onnx", "log.csv"}


def test_a_run_that_goes_on(onnxc: Callable[..., Done], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs in two goes give the bits of all in one."""
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--eval", folder / "test.npz"]
    command += ["--batch", 7, "--json"]

    def run(name: str, epochs: int, *options: Any) -> tuple[Done, bytes]:
        done = onnxc(*command, "--run", folder / name, "--epochs", epochs, "--out", folder / "out.onnx", *options)
        return done, (folder / "out.onnx").read_bytes()

    whole, expected = run("whole", 4)
    assert whole.code == 0
    assert {p.name for p in (folder / "whole").iterdir()} == FILES
    first, _ = run("parts", 2)
    refused(onnxc(*command, "--run", folder / "parts"), "holds a run already: go on with it by --resume, or use")
    second, trained = run("parts", 4, "--resume")
    assert first.code == second.code == 0
    rows = [[json.loads(line) | {"seconds": 0} for line in d.out.splitlines()] for d in (whole, first, second)]
    assert rows[0] == rows[1] + rows[2]
    assert trained == expected
    for name in ("best.onnx", "last.onnx"):
        assert (folder / "parts" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    done, trained = run("parts", 4, "--resume")
    assert done == (0, "", "note: the run is done, it has 4 epochs: go on with a larger --epochs\n") or done.err
    assert "the run is done, it has 4 epochs" in done.err
    assert trained == expected
    with monkeypatch.context() as m:  # it looks before it compiles
        m.setattr(Specializations, "warm_up", lambda _: pytest.fail("nothing runs"))
        done = onnxc(*command[:-1], "--run", folder / "parts", "--epochs", 3, "--resume", "--initialize")
    assert done == (0, "", "note: the run is done, it has 4 epochs: go on with a larger --epochs\n")
    other = onnxc(*command[:-3], "--batch", 8, "--run", folder / "parts", "--resume", "--epochs", 5)
    refused(other, "is a checkpoint of another training: batch was 7, now it is 8")
    assert "compiling" not in other.err
    checkpoint = folder / "parts" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    damaged = onnxc(*command, "--run", folder / "parts", "--resume", "--epochs", 5)
    refused(damaged, "is no state that onnxc saved")
    assert "compiling" not in damaged.err
    refused(onnxc(*command, "--run", folder / "new", "--resume"), "to resume from: start without --resume")


def test_early_stop(onnxc: Callable[..., Done], folder: Path) -> None:
    onnx.save(make_model(LINEAR, training_info(STEP, {})), folder / "idle.onnx")
    data = ["--data", folder / "train.npz", "--eval", folder / "test.npz", "--epochs", 50, "--early-stop", 2]
    done = onnxc("train", folder / "idle.onnx", *data)
    assert done.code == 0
    assert len(done.out.splitlines()) == 3  # nothing is ever better than the first
    assert done.err.endswith("note: stopped after epoch 3: mae was best in epoch 1\n")
    run = ["--run", folder / "run"]
    done = onnxc("train", folder / "linear.onnx", *data, *run, "--monitor", "mae", "--monitor-max")
    assert done.out.count("epoch  ") == 3
    assert done.out.endswith(f"wrote {folder}/run, best.onnx is of epoch 1\n")  # the largest error
    again = onnxc("train", folder / "linear.onnx", *data, *run, "--monitor", "mae", "--monitor-max", "--resume")
    assert (again.code, again.out) == (0, "")
    assert again.err == "note: stopped after epoch 3: mae was best in epoch 1\n"


def test_a_model_without_a_loss(onnxc: Callable[..., Done], folder: Path) -> None:
    """It trains; what needs to know which epoch is the best is told before anything is compiled."""
    step = STEP.replace("float loss, ", "float[N,1] e, ")
    onnx.save(make_model(LINEAR, training_info(step, UPDATES)), folder / "lossless.onnx")
    command = ["train", folder / "lossless.onnx", "--data", folder / "train.npz", "--epochs", 3]
    done = onnxc(*command, "--run", folder / "run")
    assert (done.code, done.out.count("epoch  ")) == (0, 0), done
    assert sorted(os.listdir(folder / "run")) == ["checkpoint.safetensors", "last.onnx", "log.csv"]
    assert onnxc(*command, "--run", folder / "run", "--resume").code == 0
    done = onnxc(*command, "--early-stop", 1)
    refused(done, "error: nothing tells which epoch is the best: the model has no loss", "give --eval for metrics")
    assert "compiling" not in done.err
    evaluated = onnxc(*command, "--early-stop", 1, "--eval", folder / "test.npz", "--monitor", "loss")
    refused(evaluated, "--monitor: nothing is measured that is called 'loss'", "there are 'mae'")


def test_a_loss_that_was_never_finite(onnxc: Callable[..., Done], folder: Path) -> None:
    np.savez(folder / "bad.npz", x=np.full((40, 3), 3e38, np.float32), t=np.ones((40, 1), np.float32))
    done = onnxc("train", folder / "linear.onnx", "--data", folder / "bad.npz", "--epochs", 5, "--early-stop", 2)
    assert done.err.endswith("note: stopped after epoch 2: loss was never finite\n")


def test_a_log_that_was_edited(onnxc: Callable[..., Done], folder: Path) -> None:
    command = ["train", folder / "linear.onnx", "--data", folder / "train.npz", "--run", folder / "run", "--epochs"]
    assert onnxc(*command, 2).code == 0
    log = folder / "run" / "log.csv"
    log.write_text(log.read_text() + log.read_text().splitlines(keepends=True)[-1])
    refused(
        onnxc(*command, 3, "--resume"), f"error: '{log}' has in line 4 not what the run wrote: was it edited, or is"
    )
    assert log.read_text().count("\n") == 4


@pytest.fixture
def long(folder: Path) -> list[str]:
    """A training that takes some tenths of a second for an epoch, with many steps."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10000, 3)).astype(np.float32)
    np.savez(folder / "long.npz", x=x, t=x @ np.array([[3], [-2], [1]], np.float32))
    command = [sys.executable, "-m", "compiler", "train", folder / "linear.onnx", "--data", folder / "long.npz"]
    return [*map(str, command), "--batch", "2"]


def interrupted(number: int, command: list[str], *options: Any) -> tuple[int, str]:
    """Exit code and errors of the command in a process of its own that gets a signal in its first steps."""
    with subprocess.Popen(
        [*command, *map(str, options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
    ) as p:  # fmt: skip
        try:
            assert p.stdout is not None
            assert p.stdout.readline().startswith("epoch ")
            time.sleep(0.05)
            p.send_signal(number)
            err = p.communicate(timeout=60)[1]
            return p.returncode, err
        finally:
            p.kill()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_checkpoint(
    onnxc: Callable[..., Done], folder: Path, long: list[str], number: int, code: int
) -> None:
    found, err = interrupted(number, long, "--epochs", 10**9, "--run", folder / "run")
    assert found == code
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert err.startswith(f"compiling...\nerror: {word} after step ")
    assert err.endswith(f"{folder}/run/checkpoint.safetensors is written, go on with: onnxc {' '.join(long[3:])} "
                        f"--epochs 1000000000 --run {folder}/run --resume\n")  # fmt: skip
    epoch = int(re.findall(r" (?:in|at the end of) epoch (\d+):", err)[0])
    files = {}
    for name, options in (("run", ["--resume"]), ("whole", [])):
        out = folder / f"{name}.onnx"
        done = onnxc(*long[3:], "--epochs", epoch, "--run", folder / name, "--out", out, *options)
        assert done.code == 0, done
        files[name] = [out.read_bytes(), *((folder / name / f).read_bytes() for f in ("best.onnx", "last.onnx"))]
    assert files["run"] == files["whole"]


def test_an_interrupt_without_a_run(folder: Path, long: list[str]) -> None:
    out = folder / "out.onnx"
    out.write_bytes(b"old")
    before = sorted(os.listdir(folder))
    code, err = interrupted(signal.SIGINT, long, "--epochs", 10**9, "--out", out)
    assert code == 130
    assert err == "compiling...\nerror: interrupted\n"
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
    with caught() as signals, pytest.raises(Stopped, match="interrupted"):
        progress.follow(trainer, Run(), 10**9, signals)
    assert len(calls) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_second_signal_does_not_wait() -> None:
    signals = Signals()
    signals.gently = True
    signals(signal.SIGTERM, None)
    signals.check()
    assert signals.number == signal.SIGTERM
    with pytest.raises(Stopped, match="interrupted") as e:
        signals(signal.SIGINT, None)
    assert e.value.code == 130


def test_the_bar_on_a_terminal(folder: Path) -> None:
    """On standard error, and in color only if NO_COLOR does not forbid it; epochs stay on standard output."""
    pty = pytest.importorskip("pty")
    for extra, colored in (({}, True), ({"NO_COLOR": "1"}, False)):
        leader, follower = pty.openpty()
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CI")} | {"TERM": "xterm-256color", **extra}
        env["COLUMNS"] = "120"
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
        text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown).decode()
        assert re.search(r"epoch [123]/3 \S+ +\d+/50 +loss \d+\.\d{4} .*ETA", text), text
