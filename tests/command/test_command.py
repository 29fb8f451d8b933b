"""The command: what it prints, its exit codes, and that every failure is one line that says what, where, what to do."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from onnx import TensorProto, helper

import compiler
from compiler.command import entry, hints, reporting
from compiler.frontend.making import loss_options, optimizer_spec
from tests.command.running import ROOT, Done, process, refused
from tests.frontend.small import LINEAR, STEP, UPDATES, linear, make_model, training_info


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
        (["check", "a", "--dim", "N=3", "--dim", "N=4"], "dim 'N' is given twice"),
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

    monkeypatch.setattr(compiler.api, "examine", broken)
    done = onnxc("check", folder / "linear.onnx")
    assert done.code == 1
    assert done.err.startswith(
        "error: a defect of onnxc, please report it: ZeroDivisionError: division by zero, in test_command.py:"
    )
    assert len(done.err.splitlines()) == 1
    monkeypatch.setenv("ONNXC_DEBUG", "1")
    assert "Traceback" in onnxc("check", folder / "linear.onnx").err


def test_help_is_quick_to_start() -> None:
    code = "import sys, atexit; sys.argv[1:] = ['-h']; atexit.register(lambda: print(*sys.modules))"
    code += "; from compiler.command.entry import main; main()"
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
        "missing": (None, "there is no file"),
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "m", "--lr", "1"], "'--lr': `onnxc make-training` has --lr."),
        (["train", "m", "--learning-rate", "1"], "'--learning-rate': `onnxc make-training` has --lr."),
        (["make-training", "m", "--learning-rate", "1"], "'--learning-rate': it is --lr."),
        (["make-training", "m", "--epochs", "1"], "'--epochs': `onnxc train` has --epochs."),
        (["train", "m", "--weight-decay", "1"], "`onnxc make-training --optimizer-option weight_decay=VALUE`."),
        (["make-training", "m", "--scheduler", "a"], "`onnxc make-training --optimizer-option schedule=VALUE`."),
        (
            ["make-training", "m", "--label-smoothing", "a"],
            "`onnxc make-training --loss-option label_smoothing=VALUE`.",
        ),
        (["memory", "m", "--keep-output", "y"], "'--keep-output' (did you mean '--output'?)."),
        (["check", "m", "--rubbish"], "'--rubbish'."),
        (["--rubbish"], "'--rubbish'."),
    ],
)
def test_where_an_option_is_given_instead(arguments: list[str], said: str, onnxc: Callable[..., Done]) -> None:
    done = onnxc(*arguments)
    refused(done, "error: No such option ", said, code=2)


def test_names_of_options_of_optimizers_and_losses() -> None:
    known = {name for options in optimizer_spec.DEFAULTS.values() for name in options}
    assert known | optimizer_spec._UNSAID.keys() == hints.OF_OPTIMIZERS
    assert set().union(loss_options._COMMON, *loss_options._OPTIONS.values()) == hints.OF_LOSSES


def test_errors_name_options_that_there_are() -> None:
    of = {name: {option for p in c.params for option in p.opts} for name, c in entry.command.commands.items()}
    for argument, known in reporting._OPTIONS.items():
        options = [o.partition(" ")[0] for o in ((known,) if isinstance(known, str) else known)]
        for option in options:
            (*_, last) = having = [name for name, there in of.items() if option in there]
            assert having
            with click.Context(entry.command.commands[last]):
                assert reporting.shell(f"{argument}: wrong") in {f"{o}: wrong" for o in options if o in of[last]}
