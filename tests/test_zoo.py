"""Training steps of public models against results that their authors published."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import compiler
from tests.models.zoo import ZOO, needs_zoo, zoo_folder

pytestmark = needs_zoo
RATE = 0.001  # of the published runs


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


@pytest.mark.parametrize("model", ["03_lenet_relu", "05_mnist8_cntk", "r11_ae_ref", "07_resnet8_bn"])
def test_twenty_steps_reduce_the_loss(model: str) -> None:
    step = compiler.compile(ZOO[model].training("adam", 1e-3))
    feeds = ZOO[model].feeds()
    losses = [float(step(feeds)["loss"]) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0], losses
