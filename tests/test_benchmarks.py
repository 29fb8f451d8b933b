"""The benchmarks: what they count, that they run, and that they tell when a side fails or does other work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import compiler
from benchmarks.__main__ import interpreters, main
from benchmarks.cases import batch, trainable, training_model
from benchmarks.flops import step_flops, trained_numbers
from benchmarks.limits import Limits
from benchmarks.peers import Case
from benchmarks.race import Result, compare, lookup, race
from benchmarks.report import Outcome, Report, text
from benchmarks.workloads import SIX, WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_is_a_model_that_can_be_compiled(name: str) -> None:
    workload = WORKLOADS[name]
    model = workload.build()
    onnx.checker.check_model(model, full_check=True)
    training = training_model(model)
    assert compiler.check(training) == ()
    weights = [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    assert set(trainable(training)) == {w for w in weights if "running_" not in w}
    arrays = batch(workload, model)
    logits = model.graph.output[0].type.tensor_type.shape.dim
    assert logits[1].dim_value == workload.classes
    assert arrays["label"].max() < workload.classes


def flops(name: str) -> int:
    model = WORKLOADS[name].build()
    return step_flops(model, trainable(training_model(model)))


def test_operations_by_hand() -> None:
    # the first layer has a gradient of its weights only, as its input is the batch
    assert flops("tiny") == 2 * 16 * (2 * 4 * 16 + 3 * 16 * 3)
    first, second = 28 * 28 * 32 * 9, 14 * 14 * 64 * 32 * 9
    assert flops("lenet") == 2 * 64 * (2 * first + 3 * (second + 3136 * 128 + 128 * 10))
    assert flops("lstm") == 2 * 32 * (28 * 512 * (2 * 28 + 3 * 128) + 3 * 128 * 10)
    layer = 3 * (512 * (3 * 512 + 512 + 2 * 2048) + 2 * 128 * 512)
    assert flops("wide") == 2 * 512 * (layer + 3 * 512 * 256)


def test_operations_of_frozen_weights_do_not_count() -> None:
    model = WORKLOADS["tiny"].build()
    assert step_flops(model, ["fc2.weight"]) == 2 * 16 * (4 * 16 + 2 * 16 * 3)
    assert trained_numbers(model, ["fc2.weight", "fc2.bias"]) == 16 * 3 + 3


def test_run_of_onnxc_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--peers", "--threads", "1", "--rounds", "2", "--seconds", "0.01", "--no-cold", "--out", str(tmp_path)]
    assert main(["--workloads", "tiny", *options]) == 0
    assert "Milliseconds of a step, 1 thread:" in capsys.readouterr().out
    (case,) = json.loads((tmp_path / "report.json").read_text())["cases"]
    side = case["sides"]["onnxc"]
    assert len(side["medians"]) == 2
    assert case["ratios"] == {}
    assert side["facts"]["plan_bytes"] >= 4 * 3 * trained_numbers(WORKLOADS["tiny"].build(), side_weights())
    assert case["limits"]["gflops"] > 0
    assert case["limits"]["gbytes"] > 0
    assert side["losses"] == sorted(side["losses"], reverse=True)
    np.testing.assert_allclose(side["losses"][0], first_loss(), rtol=1e-5)


def side_weights() -> list[str]:
    return trainable(training_model(WORKLOADS["tiny"].build()))


def first_loss() -> float:
    """The loss of `tiny` before any training, by onnxruntime and the definition of cross-entropy."""
    model = WORKLOADS["tiny"].build()
    arrays = batch(WORKLOADS["tiny"], model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {"x": arrays["x"]})[0].astype(np.float64)
    chosen = logits[np.arange(len(logits)), arrays["label"]]
    return float(np.mean(np.log(np.exp(logits).sum(1)) - chosen))


def test_side_that_fails_is_an_error_of_the_report(tmp_path: Path) -> None:
    results = race({"onnxc": sys.executable}, Case(tmp_path, 1), 1, 0.01)  # the case has no files
    outcome = Outcome("tiny", 1, 1, 1, Limits(1, 1.0, 1.0), results)
    assert "training.onnx" in results[0].error
    assert outcome.medians() == {}
    assert "error: tiny, 1 thread, onnxc: FileNotFoundError" in text(Report([outcome]))
    assert not Report([outcome]).valid()


def test_other_losses_are_other_work() -> None:
    losses = [2.0, 1.9, 1.8, 1.7]
    sides = {
        "onnxc": Result("onnxc", losses=losses, medians=[1.0]),
        "torch": Result("torch", losses=[2.0001, 1.9, 1.801, 1.7], medians=[2.0]),
        "jax": Result("jax", losses=[2.001, 1.9, 1.8, 1.7], medians=[0.5]),
        "ort": Result("ort", losses=[2.0, 1.9, 1.8, float("nan")], medians=[0.5]),
    }
    compare(sides)
    assert [name for name, r in sides.items() if r.error] == ["jax", "ort"]
    assert "other work" in sides["jax"].error
    outcome = Outcome("tiny", 1, 1, 1, Limits(1, 1.0, 1.0), list(sides.values()))
    assert outcome.ratios() == {"torch": 2.0}
    assert not Report([outcome]).valid()
    unable = Result("ort", error="RuntimeError: no gradient of ConvTranspose")
    assert Report([Outcome("unet", 1, 1, 1, Limits(1, 1.0, 1.0), [sides["onnxc"], unable])]).valid()


def report(ratios: dict[str, float]) -> Report:
    """Of one thread: onnxc takes a second, torch so many, jax twice as many."""
    limits = Limits(1, 2.0, 1.0)
    found = Report()
    for name, ratio in ratios.items():
        sides = {"onnxc": 1.0, "torch": ratio, "jax": 2 * ratio}
        results = [Result(side, medians=[t, t, 100 * t]) for side, t in sides.items()]
        found.outcomes.append(Outcome(name, 1, 10**9, 10**6, limits, results))
    return found


def test_means_are_of_the_best_other_side() -> None:
    of_six = report(dict(zip(SIX, [1, 4, 1, 4, 1, 4], strict=True)) | {"unet": 128.0})
    assert of_six.means(1)["six"] == pytest.approx(2)
    assert of_six.means(1)["all"] == pytest.approx(2 ** (13 / 7))
    assert "six" not in report({"tiny": 2.0}).means(1)
    outcome, limits = of_six.outcomes[0], of_six.limits(1)
    assert outcome.floor(limits) == pytest.approx(0.5)  # 1 GFLOP at 2 GFLOP/s
    assert outcome.traffic(limits) == pytest.approx(0.028)
    line = next(line for line in text(of_six).splitlines() if line.startswith("unet"))
    assert line.split() == ["unet", "1000", "128000", "256000", "128", "1.00", "500", "50%", "28.0"]
    json.dumps(of_six.to_json())


def test_what_is_absent_is_said(tmp_path: Path) -> None:
    found, absent = lookup(["onnxc", "jax"], {"jax": str(tmp_path / "python")})
    assert list(found) == ["onnxc"]
    assert "No such file" in absent["jax"]
    assert interpreters(["ort=/a/b=c"]) == {"ort": "/a/b=c"}
    with pytest.raises(ValueError, match="FAMILY=PATH"):
        interpreters(["tensorflow=/a"])


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = pytest.importorskip("benchmarks.picture")
    picture.draw(report({"tiny": 2.0, "mlp": 3.0}), tmp_path / "report.svg")
    assert (tmp_path / "report.svg").read_text().count("<svg") == 1
