"""The trainer: batches, loss, what fixes the size of a batch, positions and going on from them."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

import compiler
from compiler.frontend.types import InputType
from compiler.runtime.checkpoint import save_state
from compiler.runtime.step import StepFunction
from compiler.training import Trainer
from compiler.training.position import save_checkpoint
from compiler.training.samples import samples_of
from tests.frontend.small import LINEAR, STEP, UPDATES, linear, make_model, training_info
from tests.models import tiny
from tests.test_api import bits
from tests.test_models import example
from tests.training.dropping import dropping

RANDOM = np.random.default_rng(3)
DATA = {"x": RANDOM.normal(size=(20, 4)).astype(np.float32), "label": RANDOM.integers(0, 3, 20)}


def test_epochs_are_shuffled_batches() -> None:
    trainer = Trainer(tiny(), DATA, batch=8, seed=5)
    seen: list[tuple[int, int, float | None]] = []
    epochs = list(trainer.run(2, lambda *args: seen.append(args)))
    assert [s[:2] for s in seen] == [(1, 8), (1, 16), (1, 20), (2, 8), (2, 16), (2, 20)]
    assert trainer.samples == 20

    by_hand = compiler.compile(tiny(), seed=5)
    for epoch in epochs:
        rows, losses = np.random.default_rng([5, epoch.number]).permutation(20), []
        for start in (0, 8, 16):
            batch = rows[start : start + 8]
            out = by_hand({n: a[batch] for n, a in DATA.items()})
            losses.append((float(out["loss"]), len(batch)))
        assert epoch.loss == pytest.approx(sum(v * n for v, n in losses) / 20)
        assert (epoch.step, epoch.samples, epoch.metrics) == (3 * epoch.number, 20, {})
        assert epoch.seconds > 0
    assert bits(trainer.step.state) == bits(by_hand.state)


@pytest.mark.parametrize("batch", [1, 7, 20, 64])
def test_accuracy_counts_every_sample(batch: int) -> None:
    trainer = Trainer(tiny(), DATA, DATA, batch=batch)
    assert "accuracy" in trainer.metrics
    (epoch,) = trainer.run(1)
    scores = trainer.step.infer(x=DATA["x"])["logits"]
    assert epoch.metrics["accuracy"] == pytest.approx(float((scores.argmax(1) == DATA["label"]).mean()))


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
        with pytest.raises(compiler.InputError, match=r"batch size is fixed at 6, so it cannot be 7: leave batch= out"):
            Trainer(model, DATA, batch=7, dims=dims)
    two = make_model(LINEAR, training_info(STEP.replace("float[N,1] t", "float[4,1] t"), UPDATES))
    data = {"x": np.ones((9, 3), np.float32), "t": np.ones((9, 1), np.float32)}
    assert Trainer(two, data, dims={"N": 4}).batch == 4
    with pytest.raises(
        compiler.InputError, match=r"'t' of the data has shape \[9, 1\]: the model takes f32\[4,1\], the sa"
    ):
        Trainer(two, data)


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


def test_digits_learn(tmp_path: Path) -> None:
    train, test = example("digits").data()
    onnx.save(example("digits").build(), tmp_path / "digits.onnx")
    trainer = Trainer(tmp_path / "digits.onnx", train, test)
    epochs = list(trainer.run(3))
    assert epochs[-1].metrics["accuracy"] > 0.95
    assert epochs[-1].loss is not None
    assert epochs[0].loss is not None
    assert epochs[-1].loss < epochs[0].loss / 5


def test_without_shuffling() -> None:
    """Batches are slices of the arrays: nothing is gathered."""
    trainer = Trainer(tiny(), DATA, batch=8, shuffle=False)
    (epoch,) = trainer.run(1)
    by_hand = compiler.compile(tiny())
    for start in (0, 8, 16):
        by_hand({n: a[start : start + 8] for n, a in DATA.items()})
    assert bits(trainer.step.state) == bits(by_hand.state)
    assert epoch.samples == 20


def test_run_counts_epochs_in_all() -> None:
    trainer, once = Trainer(tiny(), DATA, batch=8), Trainer(tiny(), DATA, batch=8)
    assert [e.number for e in trainer.run(1)] == [1]
    assert [e.number for e in trainer.run(3)] == [2, 3]
    assert list(trainer.run(3)) == []
    list(once.run(3))
    assert bits(trainer.step.state) == bits(once.step.state)


@pytest.mark.parametrize("at", [1, 3, 5, 6])
def test_going_on_from_a_checkpoint(at: int, tmp_path: Path) -> None:
    """At any step, also the last one of an epoch, before its validation: the same bits as without a break."""
    model, data = dropping()
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    whole = Trainer(model, data, data, batch=8, seed=3)
    wanted = list(whole.run(3))
    first = Trainer(model, data, data, batch=8, seed=3)
    begun = list(first.run(3, count, stop=lambda: steps == at))
    assert first.position.step == at == steps
    assert first.position.samples == (20 if at % 3 == 0 else at % 3 * 8)
    first.save(tmp_path / "c.safetensors")

    second = Trainer(model, data, data, batch=8, seed=3, threads=2)
    second.resume(tmp_path / "c.safetensors")
    rest = list(second.run(3))
    assert [replace(e, seconds=0) for e in begun + rest] == [replace(e, seconds=0) for e in wanted]
    assert bits(second.step.state) == bits(whole.step.state)
    assert whole.step.state["onnxc.step"] == 9
    second.step.load(tmp_path / "c.safetensors")  # a checkpoint is a file of step.save as well
    assert bits(second.step.state) == bits(first.step.state)


def test_a_checkpoint_of_another_training(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    trainer = Trainer(tiny(), DATA, DATA, batch=8)
    trainer.save(path)
    before = bits(trainer.step.state)

    def other(*parts: str, model: onnx.ModelProto | None = None, data: Any = DATA, **options: Any) -> None:
        with pytest.raises(compiler.StateError, match="is a checkpoint of another training: ") as found:
            Trainer(model or tiny(), data, options.pop("validation", DATA), **{"batch": 8, **options}).resume(path)
        assert str(found.value).partition("training: ")[2].split("; ") == list(parts)

    other("batch was 8, now it is 5", batch=5)
    other("seed was 0, now it is 7", seed=7)
    other("batch was 8, now it is 4", "seed was 0, now it is 7", "shuffling was on, now it is off",
          batch=4, seed=7, shuffle=False)  # fmt: skip
    changed = {**DATA, "x": DATA["x"].copy()}
    changed["x"][11, 2] += 1
    other("data: other contents", data=changed)
    fewer = {n: a[:19] for n, a in DATA.items()}
    other("data was 20 samples of x, label, now it is 19 samples of x, label", data=fewer)
    metrics = f"metrics was {', '.join(trainer.metrics)}, now it is none"
    other("validation data was 20 samples of x, label, now it is none", metrics, validation=None)
    other("metrics was accuracy, loss, now it is loss", metrics=["loss"])
    other("model: other contents", model=tiny(seed=1))
    assert bits(trainer.step.state) == before


def test_checkpoints_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    trainer = Trainer(tiny(), DATA, batch=8)
    list(trainer.run(1))
    trainer.save(path)
    whole, before, at = path.read_bytes(), bits(trainer.step.state), replace(trainer.position)

    def refused(message: str) -> None:
        with pytest.raises(compiler.StateError, match=message):
            trainer.resume(path)
        assert bits(trainer.step.state) == before
        assert trainer.position == at

    for damaged in (b"", whole[:5], whole[:-1], b"hello" * 100):
        path.write_bytes(damaged)
        refused("is no state that onnxc saved")
    trainer.step.save(path)
    refused("holds a state, but not where a training stands: read it with step.load")
    path.unlink()
    refused("there is no file")


def test_each_bit_of_a_checkpoint_counts(tmp_path: Path) -> None:
    """Of the position as well as of the numbers: one that is another is told, unless it says nothing."""
    path = tmp_path / "c.safetensors"
    trainer = Trainer(tiny(), DATA, batch=8)
    list(trainer.run(1))
    trainer.save(path)
    whole, before, at = path.read_bytes(), bits(trainer.step.state), trainer.position
    head = 8 + int.from_bytes(whole[:8], "little")
    bit = RANDOM.integers(0, 8, head)  # of each byte; all of them were tried as well, which takes a while
    places = [*(8 * np.arange(head) + bit).tolist(), *RANDOM.integers(8 * head, 8 * len(whole), 200).tolist()]
    harmless = set()
    for place in places:
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            trainer.resume(path)
        except compiler.StateError:
            pass
        else:
            harmless.add(place // 8)
        assert bits(trainer.step.state) == before
        assert trainer.position == at
    assert {whole[i] for i in harmless} <= {ord(" ")}  # the header is filled up with them


def test_positions_that_cannot_be(tmp_path: Path) -> None:
    """What a checkpoint says must fit the training, whoever wrote it."""
    path = tmp_path / "c.safetensors"
    trainer = Trainer(tiny(), DATA, batch=8)
    list(trainer.run(1))
    middle = replace(trainer.position, samples=8, step=4, total=1.0)
    wrong: list[tuple[str, Any]] = [
        ("epoch", -1), ("epoch", True), ("epoch", 1.0), ("samples", 28), ("samples", 7), ("samples", -8), ("step", 5),
        ("step", -1), ("total", "1"), ("total", 2), ("nan_step", 5), ("nan_step", 3), ("seconds", float("nan")),
        ("seconds", float("inf")), ("seconds", -1.0), ("monitor", 3), ("larger", 1), ("best", float("nan")),
        ("best", 10**400), ("best_epoch", 2), ("best_epoch", 1), ("rows", [1, 2]), ("rows", ["a"]), ("rows", 3),
        ("best_loss", 0.5), ("first", 2), ("first", -1),
    ]  # fmt: skip
    for name, value in wrong:
        changes: dict[str, Any] = {name: value}
        save_checkpoint(path, trainer.step.state, replace(middle, **changes), trainer.identity())
        with pytest.raises(compiler.StateError, match="is a damaged checkpoint, or of another version of onnxc: "):
            trainer.resume(path)
        assert trainer.position.samples == 0
    for position, message in (
        ("3", "damaged checkpoint"), ("[", "damaged checkpoint"), ('{"apoch": 1}', "damaged checkpoint"),
    ):  # fmt: skip
        save_state(path, trainer.step.state, {"position": position, "training": "{}"})
        with pytest.raises(compiler.StateError, match=message):
            trainer.resume(path)
    save_checkpoint(path, trainer.step.state, middle, trainer.identity())
    trainer.resume(path)
    assert trainer.position == middle
    old = {"position": json.dumps(asdict(middle)), "training": "{}", "checksum": "00000000"}
    save_file(dict(trainer.step.state), path, {"onnxc": json.dumps(old)})
    with pytest.raises(compiler.StateError, match="has no checksum: it is damaged, or of another version of onnxc"):
        trainer.resume(path)
    trainer.step.load(path)  # files of other programs have none


# --- which inputs have samples ---------------------------------------------------------------------------------------
SCALED = """scaled (float[N,3] x, float[3] scale) => (float[N,1] y) <float[3,1] w = {1, 2, 3}>
{ scaled = Mul(x, scale) y = MatMul(scaled, w) }"""


def test_inputs_that_are_the_same_for_all_samples() -> None:
    step = STEP.replace('"x", "t"', '"x", "scale", "t"').replace("(w, x, t)", "(w, x, scale, t)")
    model = make_model(SCALED, training_info(step, UPDATES))
    x, t, scale = np.ones((9, 3), np.float32), np.ones((9, 1), np.float32), np.array([1, 2, 3], np.float32)
    data = {"x": x, "t": t, "scale": scale}
    given = Trainer(model, data, data, batch=4)
    bound = Trainer(model, {"x": x, "t": t}, batch=4, static={"scale": scale})
    assert [e.samples for e in given.run(2)] == [9, 9]
    list(bound.run(2))
    assert bits(given.step.state) == bits(bound.step.state)
    with pytest.raises(
        compiler.InputError, match="'scale' is in static= and in the data: leave it out of the data, or"
    ):
        Trainer(model, data, batch=4, static={"scale": scale})
    with pytest.raises(compiler.InputError, match="input 'scale' is the same for all samples, so it labels none"):
        Trainer(model, data, data, metrics=["mae:y:scale"])
    three = Trainer(model, {n: a[:3] for n, a in data.items()}, batch=2)  # as many samples as it has elements
    assert three.samples == 3
    list(three.run(1))
    message = (
        r"array 'scale' of the data has shape \[9\]: the model takes f32\[3\], the same for all samples, .* by static="
    )
    with pytest.raises(compiler.InputError, match=message):
        Trainer(model, data | {"scale": np.ones(9, np.float32)})
    with pytest.raises(
        compiler.InputError, match=r"'x' of the data has shape \[9, 2\], with 2 at axis 1: the model takes"
    ):
        Trainer(model, data | {"x": x[:, :2]}, compiling=lambda _: pytest.fail("it is told too late"))


@pytest.mark.parametrize(
    ("dims", "bound", "names"),
    [
        ({"x": ("N", 3), "scale": (3,), "rate": ()}, {}, "x"),
        ({"x": ("N", 3), "t": ("x[0]",)}, {}, "x t"),  # dims without a name, each a symbol of its own
        ({"x": ("N", "T"), "mask": ("T", "T")}, {}, "x"),
        ({"x": ("N", 3), "pairs": ("N", "N")}, {}, "x pairs"),
        ({"x": ("N", 3), "c": ("M", 3)}, {}, "x c"),
        ({"x": ("N", 3), "c": ("M", 3)}, {"M": 5}, "x"),
        ({"x": ("N", 3), "t": (4,), "scale": (3,)}, {"N": 4}, "x t"),
        ({"x": (4, 3), "t": (4,)}, {}, "x t"),
        ({"rate": ()}, {}, ""),
    ],
)
def test_which_inputs_have_samples(dims: dict[str, tuple[int | str, ...]], bound: dict[str, int], names: str) -> None:
    inputs = {n: InputType("f32", d) for n, d in dims.items()}
    assert samples_of(inputs, bound).axes(inputs) == dict.fromkeys(names.split(), 0)


# --- memory ----------------------------------------------------------------------------------------------------------
def test_a_batch_larger_than_the_data() -> None:
    """It takes the memory of the samples, not of the batch."""
    large = Trainer(tiny(), DATA, DATA, batch=10**15)
    assert (large.batch, large.samples) == (10**15, 20)
    (epoch,) = large.run(1)
    (other,) = Trainer(tiny(), DATA, DATA, batch=20).run(1)
    assert (epoch.loss, epoch.metrics) == (other.loss, other.metrics)


def test_memory_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(tiny(), DATA, DATA, batch=8)

    def none(*_: Any, **__: Any) -> Any:
        raise MemoryError("Unable to allocate 9 GB")

    for name, what in (("__call__", "a step"), ("evaluate", "the validation")):
        with monkeypatch.context() as patch:
            patch.setattr(StepFunction, name, none)
            message = f"{what} of 8 samples: Unable to allocate 9 GB; give a smaller batch="
            with pytest.raises(compiler.OnnxcError, match=message) as e:
                list(trainer.run(1))
            assert isinstance(e.value, MemoryError)
    monkeypatch.setattr(StepFunction, "__call__", none)
    fixed = Trainer(tiny(batch=4), DATA)
    with pytest.raises(compiler.OnnxcError, match="Unable to allocate 9 GB; make the model with a smaller batch"):
        list(fixed.run(1))


def test_a_loss_that_is_not_finite() -> None:
    data = {"x": np.ones((12, 3), np.float32), "t": np.ones((12, 1), np.float32)}
    data["x"][7] = 3e38
    trainer = Trainer(linear(), data, batch=2, shuffle=False)
    first, second = trainer.run(2)
    assert first.loss is not None
    assert not np.isfinite(first.loss)
    assert (first.nan_step, second.nan_step) == (4, 7)  # from then on, all are
    trainer = Trainer(linear(), data, batch=2, shuffle=False)
    with pytest.raises(
        compiler.DivergedError, match=r"the loss is (nan|inf) in step 4, in epoch 1, train with"
    ) as found:
        list(trainer.run(2, stop_on_nan=True))
    assert (found.value.step, found.value.epoch) == (4, 1)
    assert trainer.position.step == 4
    copy = pickle.loads(pickle.dumps(found.value))
    assert (str(copy), copy.step) == (str(found.value), 4)


def test_a_label_out_of_range_changes_nothing(tmp_path: Path) -> None:
    """Neither state nor position: what was done until then can be kept."""
    data = {**DATA, "label": DATA["label"].copy()}
    trainer = Trainer(tiny(), data, batch=4, shuffle=False)
    data["label"][13] = 3
    with pytest.raises(compiler.InputError, match="label out of range"):
        list(trainer.run(1))
    assert (trainer.position.step, trainer.position.samples) == (3, 12)
    by_hand = Trainer(tiny(), {n: a[:12] for n, a in data.items()}, batch=4, shuffle=False)
    list(by_hand.run(1))
    assert bits(trainer.step.state) == bits(by_hand.step.state)


def test_arguments_that_are_wrong() -> None:
    for options, message in (
        ({"batch": 0}, "batch must be a positive integer, not 0"),
        ({"batch": 2.5}, "batch must be a positive integer, not 2.5"),
        ({"batch": True}, "batch must be a positive integer, not True"),
        ({"seed": -1}, "seed must be an integer from 0"),
        ({"threads": 0}, "threads must be an integer from 1 to 256, not 0"),
        ({"dims": {"N": 0}}, "dim 'N' must be a positive integer, not 0"),
        ({"dims": {"M": 1}}, "the model has no symbolic dim 'M': there are 'N'"),
        ({"dims": 4}, "dims must be a mapping from symbols to sizes, as {'N': 32}, not 4"),
        ({"max_trip": True}, "max_trip must be an integer from 1 to"),
        ({"shuffle": "no"}, "shuffle must be True or False, not 'no'"),
        ({"initialize": 1}, "initialize must be True or False, not 1"),
        ({"straight_through": "no"}, "straight_through must be True or False, not 'no'"),
        (
            {"validation": DATA["x"]},
            "validation must be a mapping from names of inputs to arrays, not array",
        ),
        ({"static": 5}, "static must be a mapping from names of inputs to arrays, not int"),
        ({"algorithm": 1}, "there is no algorithm 1: the model has 1"),
        ({"algorithm": "0"}, "there is no algorithm '0': the model has 1"),
        ({"algorithm": 0.5}, "there is no algorithm 0.5: the model has 1"),
        ({"metrics": 5, "validation": DATA}, "metrics must be a list of names, not 5"),
        ({"metrics": ["accuracy"]}, "metrics are measured on validation data, and there is none"),
        ({"initialize": True}, "no initialization graph"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            Trainer(tiny(), DATA, **options)
    wrong: Any = DATA["x"]
    with pytest.raises(
        compiler.InputError, match=r"the data must be a mapping .*, not ndarray: the model takes 'x', 'l"
    ):
        Trainer(tiny(), wrong)
    wrong = "no"
    with pytest.raises(compiler.InputError, match="straight_through must be True or False, not 'no'"):
        compiler.compile(tiny(), straight_through=wrong)


@pytest.mark.parametrize("epochs", ["3", 1.5, -1, 0, True, None])
def test_epochs_are_a_positive_integer(epochs: Any) -> None:
    trainer = Trainer(tiny(), DATA)
    with pytest.raises(compiler.InputError, match="epochs must be a positive integer, not"):
        trainer.run(epochs)
    number: Any = np.int64(1)
    assert [e.number for e in trainer.run(number)] == [1]


def test_weights_of_zeros_that_were_to_be_initialized() -> None:
    nothing = make_model(LINEAR.replace("{1, 2, 3}", "{0, 0, 0}"))
    model = compiler.make_training_model(nothing, loss="mse", initialize="xavier")
    data = {"x": np.ones((4, 3), np.float32), "target": np.ones((4, 1), np.float32)}
    assert any("the weights are all 0" in note for note in Trainer(model, data).notes)
    assert Trainer(model, data, initialize=True).notes == []
    assert Trainer(compiler.make_training_model(nothing, loss="mse"), data).notes == []
    begun = compiler.make_training_model(make_model(LINEAR), loss="mse", initialize="xavier")
    assert Trainer(begun, data).notes == []
