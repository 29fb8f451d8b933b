"""Samples that do not lie along the first axis, as in PyTorch's default layout of sequences, [T, N, ...]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import compiler
from compiler.frontend.types import InputType
from compiler.runtime.memory import Array
from compiler.training import Trainer, data, read_arrays
from compiler.training.data import MAPPED, Dataset
from compiler.training.samples import samples_of
from tests.frontend.small import make_model
from tests.test_api import bits

RANDOM = np.random.default_rng(7)
T, N, C = 6, 22, 3

X = RANDOM.normal(size=(T, N, 5)).astype(np.float32)
LABEL = RANDOM.integers(0, C, N)

LAST = """last (float[T,N,5] x) => (float[N,3] y) <float[5,3] w = {SMALL}>
{ times = Constant <value_ints = [0]> () mean = ReduceMean <keepdims = 0> (x, times) y = MatMul(mean, w) }"""
EACH = "each (float[T,N,5] x) => (float[T,N,3] y) <float[5,3] w = {SMALL}> { y = MatMul(x, w) }"
SMALL = ", ".join(str(v / 10) for v in range(-7, 8))


def model(text: str, **options: Any) -> onnx.ModelProto:
    made: dict[str, Any] = {"loss": "cross_entropy", "optimizer": "sgd", "lr": 0.5, "target": "label"}
    return compiler.make_training_model(make_model(text.replace("SMALL", SMALL)), **made | options)


def first(a: Array) -> Array:
    return np.ascontiguousarray(a.swapaxes(0, 1))


@pytest.mark.parametrize(
    ("dims", "bound", "named", "axes"),
    [
        ({"x": ("T", "N", 5), "label": ("N",)}, {}, None, {"x": 1, "label": 0}),
        ({"x": ("T", "N", 5), "label": ("T", "N")}, {}, None, {"x": 0, "label": 0}),  # as [N, T, 5] is: nothing tells
        ({"x": ("T", "N", 5), "label": ("T", "N")}, {}, "N", {"x": 1, "label": 1}),
        ({"x": ("T", "N", 5), "h": (2, "N", 8), "label": ("T", "N")}, {}, "N", {"x": 1, "h": 1, "label": 1}),
        ({"s": ("S", "N", 5), "t": ("T", "N", 5), "y": ("T", "N")}, {}, "N", {"s": 1, "t": 1, "y": 1}),
        ({"x": ("T", "N", 5), "label": ("N",), "mask": ("T", "T")}, {}, None, {"x": 1, "label": 0}),
        ({"x": ("T", "N", 5), "label": ("N",), "at": ("T",)}, {}, "N", {"x": 1, "label": 0}),
        ({"x": ("T", "N", 5), "label": ("label[0]",)}, {}, "N", {"x": 1, "label": 0}),  # a dim without a name
        ({"x": ("T", "N", 5), "label": ("N",)}, {"N": 4}, None, {"x": 1, "label": 0}),
        ({"x": ("T", "N", 5), "label": ("N",)}, {"T": 6}, None, {"x": 1, "label": 0}),
        ({"x": ("N", "T"), "label": ("N",)}, {"N": 4}, None, {"x": 0, "label": 0}),
        ({"x": (4, "H", "W"), "label": (4,)}, {}, None, {"x": 0, "label": 0}),
        ({"x": (6, 4, 5), "label": (6, 4)}, {}, 4, {"x": 1, "label": 1}),
        ({"x": (6, 4, 5), "label": (6, 4)}, {}, "4", {"x": 1, "label": 1}),
    ],
)
def test_which_axis_has_samples(
    dims: dict[str, tuple[int | str, ...]], bound: dict[str, int], named: Any, axes: dict[str, int]
) -> None:
    inputs = {n: InputType("f32", d) for n, d in dims.items()}
    assert samples_of(inputs, bound, named).axes(inputs) == axes


@pytest.mark.parametrize(
    ("dims", "most", "leading"),
    [
        ({"x": ("N", "T"), "label": ("N", "T"), "positions": ("T",)}, "T", "N"),
        ({"x": ("T", "N", 5), "label": ("T", "N"), "lengths": ("N",)}, "N", "T"),
        ({"x": ("T", "N", 5), "label": ("T", "N"), "h": (2, "N", 8)}, "N", "T"),
    ],
)
def test_nothing_tells_which_dim_it_is(dims: dict[str, tuple[int | str, ...]], most: str, leading: str) -> None:
    inputs = {n: InputType("f32", d) for n, d in dims.items()}
    with pytest.raises(compiler.InputError, match=rf"'{most}', which the most .* or '{leading}', .* by batch_dim="):
        samples_of(inputs)
    for named in (most, leading):
        assert samples_of(inputs, named=named).dim == named


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_label_for_each_sequence(shuffle: bool) -> None:
    """The samples are sequences, not times: training as that of the same model with the samples at first."""
    arrays, other = {"x": X, "label": LABEL}, {"x": first(X), "label": LABEL}
    options: dict[str, Any] = {"batch": 8, "shuffle": shuffle}
    trainer = Trainer(model(LAST), arrays, arrays, **options)
    assert trainer.samples == N
    assert trainer.notes == [
        "samples are counted by dim 'N', axis 1 of 'x', axis 0 of 'label': another is named by batch_dim="
    ]
    turned = LAST.replace("[T,N,5] x", "[N,T,5] x").replace("[0]", "[1]")
    same = Trainer(model(turned), other, other, **options)
    assert same.notes == []
    for found, wanted in zip(trainer.run(3), same.run(3), strict=True):
        assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
        assert found.metrics == pytest.approx(wanted.metrics, rel=1e-5)
    scores = X.mean(0) @ trainer.step.state["w"]
    assert found.metrics["accuracy"] == pytest.approx(float((scores.argmax(1) == LABEL).mean()))


@pytest.mark.parametrize(("loss", "metric"), [("cross_entropy", "accuracy"), ("mse", "mae")])
@pytest.mark.parametrize("batch", [T, 8, 64])
def test_a_label_for_each_time(loss: str, metric: str, batch: int) -> None:
    """Metrics look at all times of all sequences, also of a last batch that is not full, and where T is its size."""
    classes = RANDOM.integers(0, C, (T, N))
    label: Array = classes if loss == "cross_entropy" else RANDOM.normal(size=(T, N, C)).astype(np.float32)
    arrays = {"x": X, "label": label}
    trainer = Trainer(model(EACH, loss=loss), arrays, arrays, batch=batch, batch_dim="N", metrics=[metric])
    (epoch,) = trainer.run(1)
    assert epoch.samples == N
    scores = X @ trainer.step.state["w"]
    right = (scores.argmax(2) == label).mean() if metric == "accuracy" else np.abs(scores - label).mean()
    assert epoch.metrics[metric] == pytest.approx(float(right), rel=1e-5)


def test_ctc() -> None:
    """Whose output is [T, N, C] by default, with targets and lengths [N, ...]."""
    arrays = {
        "x": X,
        "label": RANDOM.integers(1, C, (N, 2)),
        "input_lengths": RANDOM.integers(5, T + 1, N),
        "target_lengths": RANDOM.integers(1, 3, N),
    }
    trainer = Trainer(model(EACH, loss="ctc", lr=0.1), arrays, arrays, batch=8, shuffle=False)
    (epoch,) = trainer.run(1)
    by_hand = compiler.compile(model(EACH, loss="ctc", lr=0.1))
    for start in range(0, N, 8):
        rows = {n: a[start : start + 8] for n, a in arrays.items() if n != "x"}
        by_hand({**rows, "x": np.ascontiguousarray(X[:, start : start + 8])})
    assert bits(trainer.step.state) == bits(by_hand.state)
    assert epoch.samples == N
    assert epoch.loss is not None
    assert np.isfinite(epoch.loss)


def test_a_fixed_batch() -> None:
    """By a size for its symbol, or by a number in the file, which then has to be named."""
    arrays = {"x": X, "label": LABEL}
    bound = Trainer(model(LAST), arrays, dims={"N": 4})
    numbers = model(LAST.replace("[T,N,5]", f"[{T},4,5]").replace("[N,3]", "[4,3]"))
    named = Trainer(numbers, arrays, arrays, batch_dim=4)
    for trainer in (bound, named):
        assert (trainer.batch, trainer.samples) == (4, 20)
        assert next(trainer.run(1)).samples == 20
    assert bits(bound.step.state) == bits(named.step.state)
    with pytest.raises(
        compiler.InputError, match=r"different numbers of samples: .*, or name another dim that .*batch_dim="
    ):
        Trainer(numbers, arrays)
    with pytest.raises(
        compiler.InputError, match="no input has a dim 7: those that may count samples are '6', '4', '5'"
    ):
        Trainer(numbers, arrays, batch_dim=7)


def test_data_that_lies_otherwise() -> None:
    """The message says along which axes the model has samples."""
    with pytest.raises(compiler.InputError) as found:
        Trainer(model(LAST), {"x": first(X), "label": LABEL})
    assert str(found.value) == (
        "the data has arrays of different numbers of samples: {'x': 6, 'label': 22}; samples lie along axis 1 of 'x', "
        "axis 0 of 'label'; bind what is the same for all samples by static=, or name another dim that counts samples "
        "by batch_dim="
    )
    for x, message in (
        (X[0], r"array 'x' of the data has shape \[22, 5\]: the model takes f32\[T,N,5\], whose axis 1 counts samples"),
        (X[..., :4], r"with 4 at axis 2: the model takes f32\[T,N,5\]; its axis 1 counts samples"),
        (X[:, :0], "no samples in the data: .*; samples lie along axis 1 of 'x', axis 0 of 'label'"),
    ):
        with pytest.raises(compiler.InputError, match=message):
            Trainer(model(LAST), {"x": x, "label": LABEL})
    with pytest.raises(
        compiler.InputError, match="batch_dim: no input has a dim 'M': those that may count samples are 'T', 'N'"
    ):
        Trainer(model(LAST), {"x": X, "label": LABEL}, batch_dim="M")


def test_which_sample_is_wrong() -> None:
    label = RANDOM.integers(0, C, (T, N))
    wrong = label.copy()
    wrong[2, 13] = C
    with pytest.raises(compiler.InputError, match=r"'label'\[2, 13\] of the validation data is 3, out of range"):
        Trainer(model(EACH), {"x": X, "label": label}, {"x": X, "label": wrong}, batch_dim="N")
    with pytest.raises(compiler.InputError, match=r"^'label'\[2, 13\] of the data is 3, out of range"):
        Trainer(model(EACH), {"x": X, "label": wrong}, batch_dim="N")
    trainer = Trainer(model(EACH), {"x": X, "label": label}, batch=8, batch_dim="N", shuffle=False)
    label[:] = wrong
    with pytest.raises(compiler.RefusedError, match=r"^'label'\[2, 13\] of the data is 3: label out of range") as e:
        list(trainer.run(1))
    assert (e.value.index, e.value.sample) == ((2, 13), 13)


def test_mapped_arrays_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor read as a whole where their values have to be looked at."""
    x = RANDOM.integers(0, 9, (2, MAPPED // 16, 2)).astype(np.float64)
    labels = np.arange(x.shape[1])
    np.save(tmp_path / "x.npy", x)
    inputs = {"x": InputType("f32", ("T", "N", 2)), "label": InputType("i64", ("N",))}
    pieces: list[int] = []
    lost = data._lost

    def counted(array: Array, wanted: Any) -> Array:
        pieces.append(array.nbytes)
        return lost(array, wanted)

    monkeypatch.setattr(data, "_CHUNK", 1 << 16)
    monkeypatch.setattr(data, "_lost", counted)
    mapped = Dataset({"x": read_arrays(tmp_path)["x"], "label": labels}, inputs, (), "the data")
    assert sum(pieces) == x.nbytes
    assert max(pieces) <= 1 << 16
    for rows in (RANDOM.permutation(len(mapped))[:7], slice(3, 9)):
        taken = mapped.rows(rows)["x"]
        assert taken.dtype == np.float32
        np.testing.assert_array_equal(taken, x[:, rows])
    held = x.astype(np.float32)
    same = Dataset({"x": held, "label": labels}, inputs, (), "the data")
    assert np.shares_memory(same.rows(slice(3, 9))["x"], held)
    assert same.fingerprint() == mapped.fingerprint()
    held[1, -1] += 1
    assert same.fingerprint() != mapped.fingerprint()


def test_what_counts_samples_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    arrays = {"x": X[:, :T], "label": RANDOM.integers(0, C, (T, T))}
    path = tmp_path / "c"
    Trainer(model(EACH), arrays, batch=T, batch_dim="N").save(path)
    with pytest.raises(
        compiler.StateError, match="samples along was axis 1 of 'x' and 'label', now it is axis 0 of 'x'"
    ):
        Trainer(model(EACH), arrays, batch=T).resume(path)
    Trainer(model(EACH), arrays, batch=T, batch_dim="N").resume(path)
    Trainer(model(EACH), arrays, batch=T).save(path)
    Trainer(model(EACH), arrays, batch=T, batch_dim="T").resume(path)  # as without: nothing else is trained
