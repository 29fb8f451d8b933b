"""Public models: training models of them, and steps against results that their authors published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import compiler
from tests.models.zoo import ZOO, needs_zoo, zoo_folder
from tests.slopes import exact_loss, in_float64, rough_loss, slope

pytestmark = needs_zoo
RATE = 0.001  # of the published runs
FASTER = {"r13_bn_opset6": 0.03}
ROUGH = {"16_bilstm_text"}
"""Models that onnx.reference cannot evaluate: it has no bidirectional LSTM."""
FROZEN = {"r13_bn_opset6"}
"""Models of which it cannot evaluate the training form: BatchNormalization of opset 13."""


def published(model: str) -> tuple[list[tuple[Any, Any]], dict[str, Any]]:
    """The batches (input, target) and the results of a model."""
    inputs = np.load(zoo_folder() / f"{model}.inputs.npz")
    outputs = np.load(zoo_folder() / f"{model}.outputs.npz")
    prefixes = ["", "mb1_", "mb2_", "mb3_"]
    return [(inputs[f"{p}arr_0000"], inputs[f"{p}arr_0001"]) for p in prefixes], dict(outputs)


def spelled(name: str) -> str:
    return re.sub(r"\W", "_", name)


def gradients_of(training: onnx.ModelProto) -> list[str]:
    """What the Gradient of a training model gives."""
    (node,) = [n for n in training.training_info[0].algorithm.node if n.op_type == "Gradient"]
    return list(node.output)


def test_autoencoder_takes_four_steps_of_sgd() -> None:
    batches, results = published("r11_ae_ref")
    step = compiler.compile(ZOO["r11_ae_ref"].training("sgd", RATE))
    (name,) = ZOO["r11_ae_ref"].inputs
    losses = [step({name: x, "label": y})["loss"] for x, y in batches]
    np.testing.assert_allclose(np.ravel(losses), results["loss"], rtol=2e-6)
    weights = {spelled(n): a for n, a in step.state.items()}
    compared = [n for n in results if n != "loss"]
    assert len(compared) == 14
    for n in compared:
        np.testing.assert_allclose(weights[n], results[n], atol=2e-7, err_msg=n)


def test_resnet_gives_the_summed_gradients_of_four_batches() -> None:
    """In float64: one Relu reads 2e-7, which rounding may decide the other way. float32 agrees where it cannot."""
    model = "07_resnet8_bn"
    batches, results = published(model)
    z = ZOO[model]
    inference, options = z.inference(), {"output": z.output, "batch": None, "batch_norm": z.batch_norm}
    exact, rough = (
        compiler.make_training_model(m, loss=z.loss, optimizer="sgd", lr=RATE, target="label", **options)
        for m in (in_float64(inference), inference)
    )
    gradients = gradients_of(exact)
    relus = [f"{n.input[0]}.train" for n in inference.graph.node if n.op_type == "Relu"]
    steps = [compiler.compile(m) for m in (exact, rough)]
    initial = {n: steps[1].state[n].copy() for n in (g.removesuffix(".gradient") for g in gradients)}
    total: dict[str, Any] = dict.fromkeys(initial, 0.0)
    losses, sure = [], 0
    for x, y in batches:
        for step in steps:
            for n, a in initial.items():
                step.state[n] = a.astype(step.state[n].dtype)
        (name,) = z.inputs
        wide = steps[0]({name: x.astype(np.float64), "label": y}, fetch=[*gradients, *relus])
        narrow = steps[1]({name: x, "label": y}, fetch=gradients)
        losses.append(narrow["loss"])
        total = {n: total[n] + wide[f"{n}.gradient"] for n in initial}
        if min(np.abs(wide[r]).min() / wide[r].std() for r in relus) > 1e-5:
            sure += 1
            for g in gradients:
                np.testing.assert_allclose(narrow[g], wide[g], rtol=0, atol=2e-5 * np.abs(wide[g]).max(), err_msg=g)
    assert sure == 2
    np.testing.assert_allclose(np.ravel(losses), results["loss"], rtol=1e-5)
    compared = [n for n in initial if spelled(n) in results]
    assert len(compared) > 20
    for n in compared:
        before, after = initial[n].astype(np.float64), results[spelled(n)]
        cancellation = 1.2e-7 * np.abs(before).max() / RATE  # of the published weights in float32
        scale = np.abs(total[n]).max()
        np.testing.assert_allclose(
            total[n], (before - after) / RATE, rtol=1e-3, atol=cancellation + 1e-4 * scale, err_msg=n
        )


@pytest.mark.slow
@pytest.mark.parametrize("model", ZOO)
@pytest.mark.parametrize("most", [12, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_every_gradient_is_the_slope_of_the_loss(model: str, most: int) -> None:
    """Along a random direction of each parameter, or of so many from the first to the last, by evaluators of others."""
    feeds = ZOO[model].feeds()
    training = ZOO[model].training("sgd", RATE, **({"batch_norm": "frozen"} if model in FROZEN else {}))
    step = compiler.compile(training)
    parameters = {n: a.astype(np.float64) for n, a in step.state.items()}
    gradients = gradients_of(training)
    found = step(feeds, fetch=gradients)
    rough = model in ROUGH
    loss = (rough_loss if rough else exact_loss)(training, feeds)
    np.testing.assert_allclose(float(found["loss"].reshape(())), loss({}), rtol=1e-6)
    random = np.random.default_rng(0)
    tolerance = 1e-2 if rough else 1e-5
    wrong = {}
    for name in gradients[:: -(-len(gradients) // most)]:
        parameter, gradient = name.removesuffix(".gradient"), found[name].astype(np.float64)
        direction = random.standard_normal(gradient.shape)
        direction /= np.linalg.norm(direction)
        along = float((gradient * direction).sum())
        measured = slope(loss, parameter, parameters[parameter], direction, 1e-2 if rough else 1e-6)
        size = np.linalg.norm(gradient) / np.sqrt(gradient.size)
        # a bias before a BatchNormalization has no influence: what is left is rounding
        if not abs(along - measured) <= tolerance * (abs(measured) + size) + 5e-8:
            wrong[parameter] = (along, measured)
    assert not wrong


FIXED = {"r8_textcnn"}
"""Models that cannot be opened: this one drops the axis of samples."""


@pytest.mark.parametrize("model", [m for m in ZOO if not ZOO[m].bind and m not in FIXED])
def test_an_opened_batch_computes_each_sample_as_before(model: str) -> None:
    published = ZOO[model].inference()
    kept, opened = (compiler.make_training_model(published, loss="mse", batch=batch) for batch in (None, "N"))
    ((name, shape),) = ZOO[model].inputs.items()
    samples = np.random.default_rng(0).random((3, *shape[1:])).astype(np.float32)
    by_one, by_three = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]) for m in (kept, opened)
    )
    alone = np.concatenate([by_one.run(None, {name: samples[i : i + 1]})[0] for i in range(3)])
    np.testing.assert_allclose(by_three.run(None, {name: samples})[0], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ZOO)
def test_twenty_steps_reduce_the_loss_and_the_trained_model_runs_elsewhere(model: str, tmp_path: Path) -> None:
    training, feeds = ZOO[model].training("adam", FASTER.get(model, RATE)), ZOO[model].feeds()
    assert compiler.check(training) == ()
    onnx.checker.check_model(compiler.training_graph(training), full_check=True)
    step = compiler.compile(training)
    losses = [float(step(feeds)["loss"].reshape(())) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0], losses
    step.export(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    given = {n: a for n, a in feeds.items() if n != "label"}
    mine = step.infer(given)
    for output, value in zip(session.get_outputs(), session.run(None, given), strict=True):
        np.testing.assert_allclose(mine[output.name], value, rtol=1e-3, atol=1e-4 * np.abs(value).max())
