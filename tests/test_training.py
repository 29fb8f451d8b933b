"""Training over arrays: batches, loss, metric, and what fixes the size of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import compiler
from compiler.training import Trainer, read_arrays
from tests.frontend.small import LINEAR, STEP, UPDATES, linear, make_model, training_info
from tests.models import tiny
from tests.test_api import bits
from tests.test_models import example

RANDOM = np.random.default_rng(3)
DATA = {"x": RANDOM.normal(size=(20, 4)).astype(np.float32), "label": RANDOM.integers(0, 3, 20)}


def test_epochs_are_shuffled_batches() -> None:
    trainer = Trainer(tiny(), DATA, batch=8, seed=5)
    seen: list[tuple[int, int, float | None]] = []
    epochs = list(trainer.run(2, lambda *args: seen.append(args)))
    assert [s[:2] for s in seen] == [(1, 8), (1, 16), (1, 20), (2, 8), (2, 16), (2, 20)]
    assert trainer.samples == 20

    by_hand = compiler.compile(tiny(), seed=5)
    order = np.random.default_rng(5)
    for epoch in epochs:
        rows, losses = order.permutation(20), []
        for start in (0, 8, 16):
            batch = rows[start : start + 8]
            out = by_hand({n: a[batch] for n, a in DATA.items()})
            losses.append((float(out["loss"]), len(batch)))
        assert epoch.loss == pytest.approx(sum(v * n for v, n in losses) / 20)
        assert epoch.metric is None
    assert bits(trainer.step.state) == bits(by_hand.state)


@pytest.mark.parametrize("batch", [1, 7, 20, 64])
def test_accuracy_counts_every_sample(batch: int) -> None:
    trainer = Trainer(tiny(), DATA, DATA, batch=batch)
    assert trainer.metric_name == "accuracy"
    (epoch,) = trainer.run(1)
    scores = trainer.step.infer(x=DATA["x"])["logits"]
    assert epoch.metric == pytest.approx(float((scores.argmax(1) == DATA["label"]).mean()))


def test_error_of_numbers() -> None:
    x = RANDOM.normal(size=(10, 3)).astype(np.float32)
    data = {"x": x, "t": x @ np.array([[1], [2], [3.5]], np.float32)}
    trainer = Trainer(linear(), data, data, batch=4)
    assert trainer.metric_name == "mean absolute error"
    (epoch,) = trainer.run(1)
    error = np.abs(trainer.step.infer(x=x)["y"] - data["t"]).mean()
    assert epoch.metric == pytest.approx(float(error), rel=1e-5)


def test_arrays_without_axes_belong_to_every_step() -> None:
    x = RANDOM.normal(size=(10, 3)).astype(np.float32)
    data: dict[str, Any] = {"x": x, "target": x[:, :1]}
    still = Trainer(example("linear").build(), data | {"learning_rate": np.array(0.0)}, batch=4)
    list(still.run(1))
    np.testing.assert_array_equal(still.step.state["W"], 0)
    moving = Trainer(example("linear").build(), data, batch=4)
    list(moving.run(1))
    assert moving.step.state["W"].any()


def test_what_fixes_the_batch() -> None:
    assert Trainer(tiny(), DATA).batch == 32
    assert Trainer(tiny(), DATA, batch=5).batch == 5
    fixed = Trainer(tiny(batch=6), DATA)
    assert (fixed.batch, fixed.samples) == (6, 18)
    bound = Trainer(tiny(), DATA, dims={"N": 6})
    assert (bound.batch, bound.samples) == (6, 18)
    assert len(list(bound.run(2))) == 2
    for model, dims in ((tiny(batch=6), {}), (tiny(), {"N": 6})):
        with pytest.raises(compiler.InputError, match="the model's batch size is fixed at 6: train with --batch 6"):
            Trainer(model, DATA, batch=7, dims=dims)
    two = make_model(LINEAR, training_info(STEP.replace("float[N,1] t", "float[4,1] t"), UPDATES))
    assert Trainer(two, {"x": np.ones((9, 3), np.float32), "t": np.ones((9, 1), np.float32)}).batch == 4


def test_types_that_convert() -> None:
    data = {"x": (DATA["x"] * 10).astype(np.int8), "label": DATA["label"].astype(np.uint8)}
    same = {"x": data["x"].astype(np.float32), "label": DATA["label"]}
    one, two = Trainer(tiny(), data), Trainer(tiny(), same)
    assert list(one.run(1)) == list(two.run(1))
    with pytest.raises(compiler.InputError, match="array 'label' of the data is float64"):
        Trainer(tiny(), {**DATA, "label": DATA["label"] + 0.0})
    with pytest.raises(compiler.InputError, match=r"array 'x' of the data is float64.*which cannot hold its values"):
        Trainer(tiny(), {**DATA, "x": DATA["x"].astype(float) * 1e300})


def test_one_algorithm_of_several() -> None:
    """Data for the others is not needed."""
    model = example("gan").build()
    names = [{v.name for v in (*model.graph.input, *info.algorithm.input)} for info in model.training_info]
    assert names[0] != names[1]
    for i in (0, 1):
        source_inputs = {v.name: v for v in (*model.graph.input, *model.training_info[i].algorithm.input)}
        data = {
            n: RANDOM.normal(size=[d.dim_value or 40 for d in v.type.tensor_type.shape.dim]).astype(np.float32)
            for n, v in source_inputs.items()
        }
        (epoch,) = Trainer(model, data, batch=16, algorithm=i).run(1)
        assert epoch.loss is not None
        assert np.isfinite(epoch.loss)


def test_evaluation_that_has_no_metric() -> None:
    for arrays, message in (
        ({"x": DATA["x"]}, "needs one label, an input of the training algorithm alone: it has none"),
        ({"label": DATA["label"]}, "the evaluation data has no array 'x'"),
        ({"x": DATA["x"], "label": DATA["label"][:3]}, "arrays of different numbers of samples"),
        ({"x": DATA["x"][:0], "label": DATA["label"][:0]}, "no samples in the data"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            Trainer(tiny(), DATA, arrays)


def test_read_arrays(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **DATA)
    found = read_arrays(tmp_path / "a.npz")
    assert bits(found) == bits(DATA)


def test_digits_learn(tmp_path: Path) -> None:
    train, test = example("digits").data()
    onnx.save(example("digits").build(), tmp_path / "digits.onnx")
    trainer = Trainer(tmp_path / "digits.onnx", train, test)
    epochs = list(trainer.run(3))
    assert epochs[-1].metric is not None
    assert epochs[-1].metric > 0.95
    assert epochs[-1].loss is not None
    assert epochs[0].loss is not None
    assert epochs[-1].loss < epochs[0].loss / 5
