"""Training steps of public models against results that their authors published."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import compiler
from tests.models.zoo import ZOO, needs_zoo, zoo_folder
from tests.slopes import exact_loss, rough_loss, slope

pytestmark = needs_zoo
RATE = 0.001  # of the published runs
FASTER = {"r13_bn_opset6": 0.03}
ROUGH = {"16_bilstm_text"}
"""Models that onnx.reference cannot evaluate: it has no bidirectional LSTM."""


def published(model: str) -> tuple[list[tuple[Any, Any]], dict[str, Any]]:
    """The batches (input, target) and the results of a model."""
    inputs = np.load(zoo_folder() / f"{model}.inputs.npz")
    outputs = np.load(zoo_folder() / f"{model}.outputs.npz")
    prefixes = ["", "mb1_", "mb2_", "mb3_"]
    return [(inputs[f"{p}arr_0000"], inputs[f"{p}arr_0001"]) for p in prefixes], dict(outputs)


def spelled(name: str) -> str:
    return re.sub(r"\W", "_", name)


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
    model = "07_resnet8_bn"
    batches, results = published(model)
    step = compiler.compile(ZOO[model].training("sgd", RATE))
    (name,) = ZOO[model].inputs
    initial = {n: a.copy() for n, a in step.state.items()}
    gradients = [f"{n}.gradient" for n in initial]
    total = dict.fromkeys(initial, 0.0)
    losses = []
    for x, y in batches:
        for n, a in initial.items():
            step.state[n] = a
        outputs = step({name: x, "label": y}, fetch=gradients)
        losses.append(outputs["loss"])
        total = {n: total[n] + outputs[f"{n}.gradient"].astype(np.float64) for n in initial}
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
def test_every_gradient_is_the_slope_of_the_loss(model: str) -> None:
    """Along a random direction of each parameter, by evaluators of others."""
    training, feeds = ZOO[model].training("sgd", RATE), ZOO[model].feeds()
    step = compiler.compile(training)
    parameters = {n: a.astype(np.float64) for n, a in step.state.items()}
    (node,) = [n for n in training.training_info[0].algorithm.node if n.op_type == "Gradient"]
    found = step(feeds, fetch=list(node.output))
    rough = model in ROUGH
    loss = (rough_loss if rough else exact_loss)(training, feeds)
    np.testing.assert_allclose(float(found["loss"].reshape(())), loss({}), rtol=1e-6)
    random = np.random.default_rng(0)
    tolerance = 1e-2 if rough else 1e-5
    wrong = {}
    for name in node.output:
        parameter, gradient = name.removesuffix(".gradient"), found[name].astype(np.float64)
        direction = random.standard_normal(gradient.shape)
        direction /= np.linalg.norm(direction)
        along = float((gradient * direction).sum())
        measured = slope(loss, parameter, parameters[parameter], direction, 1e-2 if rough else 1e-6)
        size = np.linalg.norm(gradient) / np.sqrt(gradient.size)
        if not abs(along - measured) <= tolerance * (abs(measured) + size) + 1e-8:
            wrong[parameter] = (along, measured)
    assert not wrong


@pytest.mark.parametrize("model", ZOO)
def test_twenty_steps_reduce_the_loss(model: str) -> None:
    step = compiler.compile(ZOO[model].training("adam", FASTER.get(model, RATE)))
    feeds = ZOO[model].feeds()
    losses = [float(step(feeds)["loss"].reshape(())) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0], losses
