"""`onnxc make-training`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.frontend.making.emit import concatenation
from tests.command.running import Done, refused

Run = Callable[..., Done]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """An inference model for one sample, with two outputs."""
    random = np.random.default_rng(0)
    weights = {"body.w": random.normal(size=(3, 4)), "head.w": random.normal(size=(4, 2)), "head.b": np.zeros(2)}
    nodes = [
        helper.make_node("MatMul", ["x", "body.w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "head.w", "head.b"], ["y:0"]),
    ]
    outputs = {"y:0": 2, "t": 4}
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, d]) for n, d in outputs.items()],
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


def test_what_is_refused(onnxc: Run, network: Path, tmp_path: Path) -> None:
    out = tmp_path / "training.onnx"

    def make(*arguments: object) -> Done:
        return onnxc("make-training", network, "-o", out, *arguments)

    refused(make("--freeze", "bdy*"), "freeze: no weight matches 'bdy*'")
    refused(make("--freeze", "*"), "every parameter is frozen")
    refused(make("--loss", "mse", "--loss", "l1"), "with several losses, each is OUTPUT=NAME")
    refused(make("--loss", "msee"), "there is no loss 'msee' (did you mean 'mse'?)")
    refused(make("--loss-option", "smoothing"), "--loss-option: 'smoothing' is not NAME=VALUE")
    refused(make("--loss-option", "smoothing=1"), "--loss-option: there is no option 'smoothing' of cross_entropy")
    refused(make("--loss", "mse", "--loss-option", "axis=1"), "the loss mse has no option axis")
    refused(make("--optimizer-option", "train=x"), "'train' is no option of an optimizer")
    refused(make("--optimizer-option", "momentum=2"), "optimizer adam has no option 'momentum'")
    refused(onnxc("make-training", tmp_path / "none.onnx", "-o", out), "there is no such file")
    assert not out.exists()
