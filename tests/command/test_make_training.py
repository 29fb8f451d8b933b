"""`onnxc make-training`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from tests.command.running import Done, refused
from tests.models.concatenation import concatenation

Run = Callable[..., Done]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """An inference model for one sample, with three outputs."""
    random = np.random.default_rng(0)
    weights = {"body.w": random.normal(size=(3, 4)), "head.w": random.normal(size=(4, 2)), "head.b": np.zeros(2)}
    nodes = [
        helper.make_node("MatMul", ["x", "body.w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "head.w", "head.b"], ["y:0"]),
        helper.make_node("ArgMax", ["y:0"], ["class"], axis=1, keepdims=0),
    ]
    outputs = {"y:0": 2, "t": 4}
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [
            *(helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, d]) for n, d in outputs.items()),
            helper.make_tensor_value_info("class", TensorProto.INT64, [1]),
        ],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    path = tmp_path / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_training_model_that_trains(onnxc: Run, network: Path, tmp_path: Path) -> None:
    out = tmp_path / "training.onnx"
    done = onnxc("make-training", network, "-o", out, "--freeze", "body*", "--optimizer", "sgd", "--lr", 0.1,
                 "--optimizer-option", "momentum=0.9", "--loss-option", "label_smoothing=0.1",
                 "--initialize", "xavier")  # fmt: skip
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "2 tensors train, 10 numbers: 'head.w', 'head.b'",
        "a step takes 'x' [N, 3], 'label' [N]",
        f"wrote {out}",
    ]
    onnx.checker.check_model(concatenation(onnx.load(out)), full_check=True)
    assert onnxc("check", out).code == 0
    data = tmp_path / "data.npz"
    x = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    np.savez(data, x=x, label=(x[:, 0] > 0).astype(np.int64))
    trained = tmp_path / "trained.onnx"
    assert onnxc("train", out, "--data", data, "--batch", 5, "--initialize", "--out", trained).code == 0
    before, after = ({t.name: numpy_helper.to_array(t) for t in onnx.load(p).graph.initializer} for p in (out, trained))
    assert (before["body.w"] == after["body.w"]).all()
    assert (before["head.w"] != after["head.w"]).all()


def test_several_losses(onnxc: Run, network: Path, tmp_path: Path) -> None:
    out = tmp_path / "training.onnx"
    done = onnxc("make-training", network, "-o", out, "--loss", "y:0=cross_entropy", "--loss", "t=mse",
                 "--loss-weight", "t=0.5", "--batch", "-")  # fmt: skip
    assert done.code == 0, done.err
    assert "'y:0.label' [1], 't.target' [1, 4]" in done.out
    assert compiler.check(out) == ()
    arguments = ["--loss", "y:0=mse", "--loss", "t=mse"]
    done = onnxc("make-training", network, "-o", out, *arguments, "--target", "y:0=a", "--target", "t=b")
    assert "'a' [N, 2], 'b' [N, 4]" in done.out
    done = onnxc("make-training", network, "-o", out, *arguments, "--target", "y:0=a", "--target", "t=a")
    refused(
        done, "error: --target: 'a' cannot be one input for two losses: the targets of 'y:0' are FLOAT[N, 2], those"
    )


def test_a_loss_of_a_file(onnxc: Run, network: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "training.onnx", tmp_path / "rate=1"
    mine = folder / "mine.onnx"
    folder.mkdir()
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> mine (float[N, C] p, float[N, C] truth) => (float cost) {
        error = Sub (p, truth)
        size = Abs (error)
        cost = ReduceMean <keepdims: int = 0> (size)
        }"""
    )
    onnx.save(model, mine)
    for loss, takes in {
        f"{mine}": "'x' [N, 3], 'truth' [N, 2]",
        f"t={mine}": "'x' [N, 3], 'truth' [N, 4]",
    }.items():
        done = onnxc("make-training", network, "-o", out, "--loss", loss)
        assert done.code == 0, done.err
        assert f"a step takes {takes}\n" in done.out
        assert onnxc("check", out).code == 0
    done = onnxc("make-training", network, "-o", out, "--loss", f"y:0={mine}", "--loss", "t=l1", "--target", "y:0=a")
    assert "'a' [N, 2], 't.target' [N, 4]" in done.out
    refused(onnxc("make-training", network, "-o", mine, "--loss", mine), f"--out: {str(mine)!r} is a file of --loss")
    refused(onnxc("make-training", network, "-o", out, "--loss", "no.onnx"), "error: there is no loss 'no.onnx': there")
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, mine)
    out.unlink()
    refused(
        onnxc("make-training", network, "-o", out, "--loss", mine), "error: your loss does not fit the network: Sub("
    )
    assert not out.exists()


def test_what_is_refused(onnxc: Run, network: Path, tmp_path: Path) -> None:
    """All in one line that says what to do, in the words of the command."""
    out = tmp_path / "training.onnx"

    def check(message: str, *arguments: object) -> None:
        done = onnxc("make-training", network, "-o", out, *arguments)
        refused(done, f"error: {message}")
        assert len(done.err.splitlines()) == 1

    there = "there are 'body.w', 'head.w', 'head.b'"
    check(f"--freeze: no weight matches 'bdy*': {there}", "--freeze", "bdy*")
    check(f"--train: no weight matches 'bdy*': {there}", "--train", "bdy*", "--freeze", "*")
    check("every parameter is frozen: --freeze '*' leaves none of 'body.w', 'head.w', 'head.b'", "--freeze", "*")
    check(
        "every parameter is frozen: --train 'head.b' and --freeze 'head.*', 'body.*' leave none of",
        "--train", "head.b", "--freeze", "head.*", "--freeze", "body.*",
    )  # fmt: skip
    check("a loss cannot be on output 'class', which is INT64, a loss needs", "--output", "class")
    check("a loss cannot be on output 'class', which is INT64, a loss needs", "--loss", "class=mse", "--loss", "y:0=l1")
    check("--keep-output: the model has no output 'nope'", "--keep-output", "nope")
    check("--loss: with several losses, each is OUTPUT=NAME", "--loss", "mse", "--loss", "l1")
    check("there is no loss 'msee' (did you mean 'mse'?)", "--loss", "msee")
    check("--loss-option: 'smoothing' is not NAME=VALUE", "--loss-option", "smoothing")
    check(
        "a loss has no option 'smoothing' (did you mean 'label_smoothing'?): cross_entropy has",
        "--loss-option",
        "smoothing=1",
    )
    check("a loss has no option 'kind'", "--loss-option", "kind=mse")
    check("--loss-option: 'axis' is given twice: leave out one", "--loss-option", "axis=0", "--loss-option", "axis=1")
    check("--loss: output 't' has two losses: leave out one", "--loss", "t=mse", "--loss", "t=l1")
    check("--target is one name, but there are several losses", "--loss", "t=l1", "--loss", "y:0=l1", "--target", "a")
    check("lr and learning_rate are the same option", "--lr", 1, "--optimizer-option", "learning_rate=1")
    check("--optimizer-option: 'note' is no option of an optimizer", "--optimizer-option", "note=x")
    check("the loss mse has no option axis", "--loss", "mse", "--loss-option", "axis=1")
    check("--optimizer-option: 'train' is no option of an optimizer", "--optimizer-option", "train=x")
    check("--optimizer-option: the rate is given by --lr already", "--optimizer-option", "lr=1", "--lr", 2)
    check("optimizer adam has no option 'momentum'", "--optimizer-option", "momentum=2")
    check("--lr must be a number from 0 on, not nan", "--lr", "nan")
    check("--batch: '8' is no symbol", "--batch", 8)
    check("--batch-norm must be one of auto, train, frozen, not 'x'", "--batch-norm", "x")
    check("--target: the model has a value 'head.w' already", "--target", "head.w")
    assert not out.exists()
    refused(onnxc("make-training", tmp_path / "none.onnx", "-o", out), "there is no file")
    refused(onnxc("make-training", network, "-o", network), f"--out: {str(network)!r} is a file of MODEL, too")
    refused(onnxc("make-training", network, "-o", tmp_path / "no" / "out.onnx"), "--out: there is no folder")


def test_a_note_on_tensors_that_were_merged(onnxc: Run, network: Path, tmp_path: Path) -> None:
    model = onnx.load(network)
    model.graph.node.append(helper.make_node("Add", ["t", "body.b"], ["u"], "shift"))
    model.graph.node.append(helper.make_node("Mul", ["u", "body.b"], ["v"], "scale"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "body.b"))
    model.graph.output[1].name = "v"
    onnx.save(model, network)
    done = onnxc("make-training", network, "-o", tmp_path / "out.onnx", "--output", "v", "--loss", "mse")
    assert done.code == 0, done.err
    assert done.err.startswith("note: 'body.b', all 1, is read by 2 nodes ('shift', 'scale') and trains as one tensor")


def test_a_note_tells_options_of_the_command(onnxc: Run, network: Path, tmp_path: Path) -> None:
    model = onnx.load(network)
    fills = {"val_1": np.ones(4, np.float32), "val_2": np.zeros(4, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in fills.items())
    model.graph.node[1].CopyFrom(helper.make_node("LayerNormalization", ["h", *fills], ["t"]))
    onnx.save(model, network)
    done = onnxc("make-training", network, "-o", tmp_path / "training.onnx")
    assert done.err.startswith("note: 'val_1', 'val_2' do not train")
    assert done.err.endswith("; --train '*' --train 'val_1' ... trains them as well\n")


def test_a_note_on_a_name_that_is_taken(onnxc: Run, network: Path, tmp_path: Path) -> None:
    model = onnx.load(network)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "label"
    onnx.save(model, network)
    done = onnxc("make-training", network, "-o", tmp_path / "out.onnx", "--optimizer-option", "amsgrad=True")
    assert done.code == 0, done.err
    assert done.err == "note: the name 'label' is taken in the model: what is usually called so is 'label_1' here\n"


@pytest.mark.parametrize(
    ("loss", "option", "message"),
    [
        ("cross_entropy", "label_smoothing=much", "label_smoothing must be a number from 0 to 1, not 'much'"),
        ("cross_entropy", "ignore_index=1.5", "ignore_index must be an integer (of 64 bits), not 1.5"),
        ("cross_entropy", "axis=true", "axis must be an integer (of 64 bits), not True"),
        ("cross_entropy", 'weight=["a", "b"]', "weight must be finite numbers, not ['a', 'b']"),
        ("cross_entropy", "weight=[[1], [2, 3]]", "weight must be finite numbers, not [[1], [2, 3]]"),
        ("cross_entropy", "from_logits=maybe", "from_logits must be True or False, not 'maybe'"),
        ("cross_entropy", "reduction=3", "reduction must be a name, not 3"),
        ("huber", "delta=[1]", "delta must be a number greater than 0, not [1]"),
        ("cross_entropy", "weight=[1,2,nope", "--loss-option: weight: '[1,2,nope' is no valid JSON list"),
        ("bce", "pos_weight=x", "pos_weight must be finite numbers, not 'x'"),
    ],
)
def test_options_of_a_loss_that_are_no_such_values(
    onnxc: Run, network: Path, tmp_path: Path, loss: str, option: str, message: str
) -> None:
    arguments = ["--loss", loss, "--loss-option", option]
    refused(onnxc("make-training", network, "-o", tmp_path / "out.onnx", *arguments), f"error: {message}")
