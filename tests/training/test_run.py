"""A run in a folder: what is in its files, when it ends early, how it goes on, and whose the folder is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import compiler
from compiler.runtime.files import replacing
from compiler.training import Epoch, Run, Trainer, draw_curve, read_log
from compiler.training.curve import check_plot
from compiler.training.log import Log
from tests.frontend.small import linear
from tests.models import tiny
from tests.training.dropping import dropping

RANDOM = np.random.default_rng(3)
DATA = {"x": RANDOM.normal(size=(20, 4)).astype(np.float32), "label": RANDOM.integers(0, 3, 20)}
FILES = ["best.onnx", "checkpoint.safetensors", "last.onnx", "log.csv"]


def trainer(**options: Any) -> Trainer:
    return Trainer(tiny(), DATA, DATA, **{"batch": 8, "metrics": ["accuracy", "loss"]} | options)


def untimed(log: Path) -> list[dict[str, float | None]]:
    return [{n: v for n, v in row.items() if n != "seconds"} for row in read_log(log)]


class Scripted(Trainer):
    """A trainer whose first metric is what we say, epoch by epoch, and its loss, if we do."""

    values: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()

    def run(self, *args: Any, **options: Any) -> Any:
        for e in super().run(*args, **options):
            said = {self.metrics[0]: self.values[e.number - 1]}
            said |= {"loss": self.losses[e.number - 1]} if self.losses else {}
            yield replace(e, metrics=e.metrics | said)


def scripted(metric: str, *values: float) -> Scripted:
    made = Scripted(tiny(), DATA, DATA, batch=20, metrics=[metric])
    made.values = values
    return made


# --- files -----------------------------------------------------------------------------------------------------------
def test_what_a_run_leaves(tmp_path: Path) -> None:
    work, run = trainer(), Run(tmp_path / "new" / "run")
    epochs = list(run.train(work, 3))
    assert run.ended == "epochs"
    assert sorted(os.listdir(tmp_path / "new" / "run")) == FILES
    lines = (tmp_path / "new" / "run" / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,samples,loss,accuracy,validation_loss,nan_step,seconds"
    assert len(lines) == 4
    assert read_log(tmp_path / "new" / "run" / "log.csv") == run.rows == [e.record() for e in epochs]
    session = onnxruntime.InferenceSession(tmp_path / "new" / "run" / "last.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {"x": DATA["x"]})[0], work.step.infer(x=DATA["x"])["logits"], 1e-4, 1e-6
    )


def test_a_log_of_lines_of_json(tmp_path: Path) -> None:
    data = {"x": np.full((4, 3), 3e38, np.float32), "t": np.ones((4, 1), np.float32)}
    run = Run(log=tmp_path / "log.jsonl")
    list(run.train(Trainer(linear(), data, batch=2), 2))
    lines = [json.loads(text, parse_constant=pytest.fail) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(r["epoch"], r["step"], r["loss"], r["nan_step"]) for r in lines] == [(1, 2, None, 1), (2, 4, None, 3)]
    assert os.listdir(tmp_path) == ["log.jsonl"]


def test_numbers_of_a_log_are_exact(tmp_path: Path) -> None:
    epoch = Epoch(1, 3, 20, 0.1 + 0.2, {'a "b",\n c': 1e-300, "loss": float("inf")}, 1.5, 2)
    log = Log(tmp_path / "log.csv", list(epoch.record()))
    log.begin()
    log.append(epoch.record())
    log.append(replace(epoch, number=2, loss=None, nan_step=None).record())
    first, second = read_log(tmp_path / "log.csv")
    assert first == epoch.record()
    assert (second["loss"], second["nan_step"], second["validation_loss"]) == (None, None, float("inf"))


def test_best_is_of_the_best_epoch(tmp_path: Path) -> None:
    """By the first metric; more accuracy is better, less of all else; NaN never is."""
    nan = float("nan")
    for i, (metric, values, best) in enumerate(
        [
            ("accuracy", (0.2, 0.7, 0.7, 0.5), 2),
            ("loss", (0.5, 0.2, nan, 0.3), 2),
            ("loss", (nan, nan, 0.9, 1.0), 3),
            ("accuracy", (nan, nan, nan, nan), 0),
        ]
    ):
        folder = tmp_path / str(i)
        work, seen = scripted(metric, *values), {}
        for epoch in Run(folder).train(work, 4):
            seen[epoch.number] = (folder / "last.onnx").read_bytes()
        assert len(set(seen.values())) == 4
        assert work.position.best_epoch == best
        if best:
            assert (folder / "best.onnx").read_bytes() == seen[best]
        else:
            assert not (folder / "best.onnx").exists()


def test_the_loss_decides_between_equal_ones(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    for i, (values, losses, best) in enumerate(
        [
            ((0.2, 1.0, 1.0, 1.0, 0.9), (0.1, 0.5, 0.3, 0.4, 0.1), 3),
            ((1.0, 1.0, 1.0, 1.0, 1.0), (nan, inf, 0.3, nan, 0.3), 3),
            ((1.0, 1.0, 1.0, 1.0, 1.0), (nan, nan, nan, nan, nan), 1),
        ]
    ):
        for epochs in (2, 5):  # the loss is in the checkpoint, too
            work = Scripted(tiny(), DATA, DATA, batch=20, metrics=["accuracy", "loss"])
            work.values, work.losses = values, losses
            list(Run(tmp_path / str(i), resume=epochs == 5).train(work, epochs))
        assert work.position.best_epoch == best


def test_the_loss_decides_without_validation(tmp_path: Path) -> None:
    work = Trainer(tiny(), DATA, batch=8)
    list(Run(tmp_path).train(work, 3))
    assert work.position.monitor == "loss"
    assert work.position.best == min(r["loss"] or 9 for r in read_log(tmp_path / "log.csv"))


# --- ending ----------------------------------------------------------------------------------------------------------
def test_early_stop(tmp_path: Path) -> None:
    values = (0.5, 0.4, 0.45, 0.44, 0.41, 0.1)
    run = Run(tmp_path, early_stop=3)
    assert len(list(run.train(scripted("loss", *values), 6))) == 5
    assert run.ended == "early stop"
    del run
    run = Run(tmp_path, resume=True, early_stop=3)
    assert list(run.train(scripted("loss", *values), 6)) == []
    assert run.ended == "early stop"
    del run
    run = Run(tmp_path, resume=True, early_stop=4)  # patience is no part of what must be equal
    assert [e.number for e in run.train(scripted("loss", *values), 6)] == [6]
    assert run.ended == "epochs"


def test_early_stop_counts_epochs_of_the_run_only(tmp_path: Path) -> None:
    work = scripted("loss", 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.3, 0.4, 0.5, 0.6, 0.7)
    list(work.run(2))
    run = Run(tmp_path / "a", early_stop=2)
    assert [e.number for e in run.train(work, 11)] == [3, 4, 5]  # 0.1 was of no run, so 0.3 is the best
    assert (run.ended, work.position.best_epoch) == ("early stop", 3)
    assert list(run.train(work, 11)) == []
    run = Run(tmp_path / "b", early_stop=2)  # another run of the same trainer has bests of its own
    assert [e.number for e in run.train(work, 7)] == [6, 7]
    assert (run.ended, work.position.best_epoch, work.position.first) == ("epochs", 7, 5)
    assert (tmp_path / "b" / "best.onnx").exists()
    list(work.run(9))  # without the run
    assert [e.number for e in run.train(work, 11)] == [10, 11]


def test_a_run_that_does_all_its_epochs_is_not_stopped(tmp_path: Path) -> None:
    run = Run(tmp_path, early_stop=1)
    assert len(list(run.train(scripted("loss", 0.1, 0.2), 2))) == 2
    assert run.ended == "epochs"


def test_early_stop_by_another_column() -> None:
    work, run = scripted("accuracy", 0.1, 0.2, 0.3, 0.4, 0.5), Run(early_stop=2, monitor="loss")
    assert len(list(run.train(work, 5))) == 5
    assert work.position.monitor == "loss"
    with pytest.raises(compiler.InputError, match=r"nothing is measured that is called 'acuracy' \(did you mean"):
        list(Run(monitor="acuracy").train(work, 6))


@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_request_ends_after_the_step(at: int, tmp_path: Path) -> None:
    model, data = dropping()
    whole = Run(tmp_path / "whole")
    list(whole.train(Trainer(model, data, data, batch=8), 3))
    run, first = Run(tmp_path / "run"), Trainer(model, data, data, batch=8)
    list(run.train(first, 3, stop=lambda: first.position.step >= at))
    assert run.ended == "request"
    assert first.position.step == at
    del run
    run, second = Run(tmp_path / "run", resume=True), Trainer(model, data, data, batch=8)
    list(run.train(second, 3))
    assert run.ended == "epochs"
    same(tmp_path / "run", tmp_path / "whole")


def same(one: Path, other: Path) -> None:
    """The same bits, but for times in the log."""
    for name in ("best.onnx", "checkpoint.safetensors", "last.onnx"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert untimed(one / "log.csv") == untimed(other / "log.csv")


def test_a_request_between_epochs(tmp_path: Path) -> None:
    """It came while the validation ran: no further step is done."""
    work, run = trainer(), Run(tmp_path)
    asked = []
    for _ in run.train(work, 3, stop=lambda: bool(asked)):
        asked.append(True)
    assert run.ended == "request"
    assert (work.position.epoch, work.position.step) == (1, 3)


def test_a_checkpoint_each_so_many_steps(tmp_path: Path) -> None:
    work, run = trainer(), Run(tmp_path, every=2)
    found = []
    look = trainer()

    def after(*_: object) -> None:
        if (tmp_path / "checkpoint.safetensors").exists():
            look.resume(tmp_path / "checkpoint.safetensors")
            found.append(look.position.step)

    list(run.train(work, 2, after))
    assert found == [2, 2, 4, 4, 4]  # after steps 2 to 6; epochs end with steps 3 and 6, when their files are written
    look.resume(tmp_path / "checkpoint.safetensors")
    assert (look.position.step, look.position.epoch, look.position.samples) == (6, 2, 0)


def test_a_run_that_diverges(tmp_path: Path) -> None:
    data = {"x": np.ones((12, 3), np.float32), "t": np.ones((12, 1), np.float32)}
    data["x"][9] = 3e38

    def work() -> Trainer:
        return Trainer(linear(), data, batch=2, shuffle=False)

    run = Run(tmp_path, every=2, stop_on_nan=True)
    with pytest.raises(
        compiler.DivergedError, match=r"in step 5, in epoch 1, .*checkpoint.safetensors is of before it"
    ):
        list(run.train(work(), 2))
    kept = work()
    kept.resume(tmp_path / "checkpoint.safetensors")
    assert kept.position.step == 4
    assert all(np.isfinite(a).all() for a in kept.step.state.values())
    with pytest.raises(compiler.DivergedError) as found:
        list(Run(stop_on_nan=True).train(work(), 2))
    assert "is of before it" not in str(found.value)


# --- going on --------------------------------------------------------------------------------------------------------
def test_more_epochs(tmp_path: Path) -> None:
    list(Run(tmp_path / "whole").train(trainer(), 4))
    list(Run(tmp_path / "run").train(trainer(), 2))
    run = Run(tmp_path / "run", resume=True)
    assert [e.number for e in run.train(trainer(), 4)] == [3, 4]
    assert [r["epoch"] for r in run.rows] == [1, 2, 3, 4]
    same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_the_log_is_cut_back(suffix: str, tmp_path: Path) -> None:
    """To the epochs of the checkpoint, whatever a killed process wrote behind."""
    log = tmp_path / f"log.{suffix}"
    list(Run(tmp_path, log=log).train(trainer(), 2))
    before = log.read_bytes()
    list(Run(tmp_path / "on", log=tmp_path / f"on.{suffix}").train(trainer(), 3))
    behind_it = (tmp_path / f"on.{suffix}").read_bytes().splitlines(keepends=True)[-1]
    for behind in (
        b"",
        behind_it,
        behind_it + behind_it[:9],
        b"3,9",
        b'{"epoch": 3, "st',
        b"\n",
    ):
        log.write_bytes(before + behind)
        list(Run(tmp_path, log=log, resume=True).train(trainer(), 2))
        assert log.read_bytes() == before
    log.unlink()
    notes: list[str] = []
    assert list(Run(tmp_path, log=log, resume=True).train(trainer(), 2, note=notes.append)) == []
    assert read_log(log) == []
    assert notes == [f"{str(log)!r} has no rows of 2 of the 2 epochs before: they were removed, or are in a log of "
                     "another name"]  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_log_that_is_not_what_was_written(suffix: str, tmp_path: Path) -> None:
    """It is told, and kept as it is: what a log says is what the run did."""
    log = tmp_path / f"log.{suffix}"
    list(Run(tmp_path, log=log).train(trainer(), 3))
    before = log.read_text()
    head, first, second, third = ["", *before.splitlines(keepends=True)][-4:]
    loss = str(read_log(log)[1]["loss"])
    checkpoint = (tmp_path / "checkpoint.safetensors").read_bytes()
    for rows, at in (
        ((first, second, second, third), 3),  # doubled
        ((first, third, second), 3),
        ((first, second.replace(loss, "0.5"), third), 2),
        ((first, second[:9] + "\n", third), 2),
        ((first, "\n", second, third), 2),
        ((first.replace("1", "9", 1), second, third), 1),  # as of an epoch behind the checkpoint
        ((first, second, third.replace("3", "4", 1)), 3),
        ((first, second, third.replace("3", "4", 1).replace("9", "12", 1)), 3),
        ((first, second, third, third.replace("3", "5", 1).replace("9", "15", 1)), 4),
        ((first, second[:9]), 2),
        ((first, "hello\n"), 2),
        ((third.replace("3", "0", 1), first), 1),
        ((first, second.replace(loss, "9" * 400), third), 2),
    ):
        log.write_text(head + "".join(rows))
        edited = log.read_bytes()
        line = at + (suffix == "csv")
        with pytest.raises(compiler.StateError, match=f"has in line {line} not what the run wrote: was it edited, or"):
            list(Run(tmp_path, log=log, resume=True).train(trainer(), 4))
        assert log.read_bytes() == edited
        assert (tmp_path / "checkpoint.safetensors").read_bytes() == checkpoint
    log.write_text(head + second + third)  # rows that are missing are told, and tell nothing wrong
    notes: list[str] = []
    run = Run(tmp_path, log=log, resume=True)
    list(run.train(trainer(), 3, note=notes.append))
    assert [r["epoch"] for r in run.rows] == [2, 3]
    assert "has no rows of 1 of the 3 epochs before" in notes[0]


def test_a_log_of_another_run(tmp_path: Path) -> None:
    """An old log is no part of a run that begins in the middle of a training."""
    list(Run(tmp_path / "old").train(trainer(seed=5), 2))
    work = trainer()
    list(work.run(2))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.csv").write_bytes((tmp_path / "old" / "log.csv").read_bytes())
    list(Run(tmp_path / "run").train(work, 3))
    assert [r["epoch"] for r in read_log(tmp_path / "run" / "log.csv")] == [3]
    work = trainer()
    run = Run(tmp_path / "run", resume=True)
    assert [e.number for e in run.train(work, 4)] == [4]
    assert [r["epoch"] for r in run.rows] == [3, 4]
    del run
    (tmp_path / "run" / "log.csv").write_bytes((tmp_path / "old" / "log.csv").read_bytes())
    with pytest.raises(compiler.StateError, match="has in line 2 not what the run wrote"):
        list(Run(tmp_path / "run", resume=True).train(trainer(), 5))


def test_a_best_model_that_was_removed(tmp_path: Path) -> None:
    notes: list[str] = []
    list(Run(tmp_path).train(scripted("loss", 0.2, 0.3, 0.4, 0.1), 2, note=notes.append))
    assert notes == []
    (tmp_path / "best.onnx").unlink()
    list(Run(tmp_path, resume=True).train(scripted("loss", 0.2, 0.3, 0.4, 0.1), 3, note=notes.append))
    assert notes == [f"{str(tmp_path / 'best.onnx')!r}, of epoch 1, was removed: only a better epoch writes it again"]
    assert not (tmp_path / "best.onnx").exists()
    list(Run(tmp_path, resume=True).train(scripted("loss", 0.2, 0.3, 0.4, 0.1), 4))
    assert (tmp_path / "best.onnx").read_bytes() == (tmp_path / "last.onnx").read_bytes()


def test_another_monitor_or_log(tmp_path: Path) -> None:
    list(Run(tmp_path).train(trainer(), 1))
    with pytest.raises(
        compiler.StateError, match="best epoch is that of the largest 'accuracy', now it were that of the small"
    ):
        list(Run(tmp_path, resume=True, monitor="loss").train(trainer(), 2))
    (tmp_path / "log.csv").write_text("epoch,step,samples,loss,other\n1,2,3,4,5\n")
    with pytest.raises(compiler.StateError, match="is a log with other columns than epoch, step, samples, loss, acc"):
        list(Run(tmp_path, resume=True).train(trainer(), 2))
    with pytest.raises(compiler.StateError, match="is a checkpoint of another training: batch was 8, now it is 5"):
        list(Run(tmp_path, resume=True).train(trainer(batch=5), 2))


# --- the folder ------------------------------------------------------------------------------------------------------
def part_of(path: Path) -> Path:
    """What a killed process may leave of writing a file; it is not there."""
    with suppress(RuntimeError), replacing(path) as part:
        raise RuntimeError
    return part


def test_whose_a_folder_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(compiler.InputError, match=r"there is no checkpoint in '.*run' to resume from: start without"):
        Run(folder, resume=True)
    assert not folder.exists()
    run = Run(folder)
    with pytest.raises(compiler.InputError, match=r"another run is at work in '.*run'"):
        Run(folder)
    program = f"import compiler.training as t\ntry: t.Run({str(folder)!r})\nexcept ValueError as e: print(e)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert "another run is at work in" in done.stdout
    for name in FILES:
        left = part_of(folder / name)
        left.write_bytes(b"of a process that was killed")
        left.with_name(f"{left.name}.d").mkdir()
        (left.with_name(f"{left.name}.d") / ".tmpab12CD").touch()
    others = part_of(folder / "mine.onnx")
    kept = {".onnxc-0123.part", ".tmpab12CD", f"{left.name}.txt", f"x{left.name}", others.name}
    for name in kept:
        (folder / name).touch()
    work = trainer()
    list(run.train(work, 1))
    with pytest.raises(compiler.InputError, match="holds a run already: go on with it by resume=True, or use another"):
        Run(folder)
    other = Run(folder, resume=True)  # the first one has ended
    assert sorted(os.listdir(folder)) == sorted([*FILES, *kept])
    with pytest.raises(compiler.InputError, match="another run is at work in"):
        next(run.train(work, 2))
    del other
    assert [e.number for e in run.train(work, 2)] == [2]
    assert [r["epoch"] for r in read_log(folder / "log.csv")] == [1, 2]
    assert sorted(os.listdir(folder)) == sorted([*FILES, *kept])
    (tmp_path / "file").touch()
    with pytest.raises(compiler.InputError, match="is a file: a run needs a folder"):
        Run(tmp_path / "file")


def test_a_folder_that_stays_empty_goes(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "a" / "b" / "c", tmp_path / "there"):
        run = Run(folder, monitor="nothing")
        assert folder.is_dir()
        with pytest.raises(compiler.InputError, match="nothing is measured that is called 'nothing'"):
            run.check(trainer())
        del run
    assert os.listdir(tmp_path) == ["there"]


def test_a_folder_that_another_run_has_by_now_stays(tmp_path: Path) -> None:
    for trains in (True, False):
        run = Run(tmp_path / "a" / "run")
        list(run.train(trainer(), 1) if trains else ())
        shutil.rmtree(tmp_path / "a")
        run = Run(tmp_path / "a" / "run")  # only now the first one is forgotten
        list(run.train(trainer(), 1))
        assert sorted(os.listdir(tmp_path / "a" / "run")) == FILES
        shutil.rmtree(tmp_path / "a")


def test_files_that_are_of_no_run(tmp_path: Path) -> None:
    """They are kept: what a run replaces is a run's."""
    for name, text, lost in (
        (
            "best.onnx",
            "a model",
            "best.onnx' would be replaced, and there is neither checkpoint nor log of a run that it is of: use ano",
        ),
        ("last.onnx", "a model", "last.onnx' would be replaced, and there is neither"),
        ("log.csv", "epoch,accuracy\n1,0.5\n", "log.csv' is there, and no log of a run: give the log another name"),
    ):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(compiler.InputError, match=lost):
            Run(folder)
        assert os.listdir(folder) == [name]
        assert (folder / name).read_text() == text
    for name, text in (("mine.csv", "a,b\n1,2\n"), ("mine.jsonl", '{"a": 1}\n')):
        (tmp_path / name).write_text(text)
        with pytest.raises(compiler.InputError, match="is there, and no log of a run: give the log another name"):
            Run(log=tmp_path / name)
        assert (tmp_path / name).read_text() == text
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(compiler.InputError, match="is there, and no log of a run"):
        Run(log=tmp_path / "pipe.csv")
    for name, text in (("empty.csv", ""), ("old.CSV", "epoch,step,samples,loss,mae\n"), ("old.jsonl", '{"epoch": 1')):
        (tmp_path / name).write_text(text)
        list(Run(log=tmp_path / name).train(trainer(), 1))
        assert len(read_log(tmp_path / name)) == 1


def test_folders_that_will_not_do(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").mkdir()
    for resume in (False, True):
        with pytest.raises(compiler.InputError, match=r"checkpoint\.safetensors' is no file, so a run cannot write"):
            Run(tmp_path, resume=resume)
    (tmp_path / "file").touch()
    with pytest.raises(compiler.InputError, match=r"the folder '.*file/run' cannot be made: Not a directory"):
        Run(tmp_path / "file" / "run")


def test_arguments_that_are_wrong(tmp_path: Path) -> None:
    for options, message in (
        ({"every": 3}, "checkpoints need a folder"),
        ({"resume": True}, "checkpoints need a folder"),
        ({"folder": tmp_path, "every": 0}, "every must be a positive integer, not 0"),
        ({"early_stop": -1}, "early_stop must be a positive integer, not -1"),
        ({"early_stop": True}, "early_stop must be a positive integer, not True"),
        ({"stop_on_nan": "no"}, "stop_on_nan must be True or False, not 'no'"),
        ({"log": tmp_path / "log.txt"}, r"log.txt' must end with .csv or .jsonl"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            Run(**options)


def test_files_that_are_no_log(tmp_path: Path) -> None:
    with pytest.raises(compiler.InputError, match="there is no log"):
        read_log(tmp_path / "log.csv")
    for name, text in (
        ("a.csv", ""),
        ("a.csv", "a,b\n1\n"),
        ("a.csv", "a\nx\n"),
        ("a.jsonl", "[1]\n"),
        ("a.jsonl", "{"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(compiler.InputError, match="is no log of a run"):
            read_log(tmp_path / name)


# --- the picture -----------------------------------------------------------------------------------------------------
ROWS = [
    Epoch(n, n, 1, loss, {"accuracy": 0.1 * n, "loss": loss}).record()
    for n, loss in enumerate((2.0, 1.0, float("nan"), 0.5), 1)
]


def test_a_picture_of_the_losses(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, head in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("b.SVG", b"<?xml")):
        draw_curve(ROWS, tmp_path / name, "a title")
        assert (tmp_path / name).read_bytes().startswith(head)
    text = (tmp_path / "a.svg").read_text()
    for word in ("validation loss", "accuracy", "epoch", "a title"):
        assert f"<!-- {word} -->" in text
    draw_curve(ROWS, tmp_path / "b.svg", "a title")
    assert (tmp_path / "b.svg").read_text() == text
    draw_curve([Epoch(1, 1, 1, None).record()], tmp_path / "empty.png")
    with pytest.raises(compiler.InputError, match="there are no epochs to draw"):
        draw_curve([], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_what_a_picture_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(compiler.InputError, match=r"must end with \.png or \.svg"):
        check_plot(tmp_path / "a.jpg")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(compiler.BuildError, match="needs matplotlib, which is not installed: pip install"):
        check_plot(tmp_path / "a.png")
