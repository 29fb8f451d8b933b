"""Arguments of a trainer and of a run that are of a wrong kind: an error of onnxc names each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.training import Run, Trainer, check_plot, draw_curve, read_arrays, read_log
from tests.models import tiny

RANDOM = np.random.default_rng(3)
DATA: dict[str, Any] = {"x": RANDOM.normal(size=(20, 4)).astype(np.float32), "label": RANDOM.integers(0, 3, 20)}


class Odd:
    """Nothing can be asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("it has no text")

    def __bool__(self) -> bool:
        raise RuntimeError("it is neither true nor false")


WRONG: tuple[Any, ...] = (
    True, 0, 3, -1, 2**63, 10**5000, 1.5, float("nan"), float("inf"), "", "a", "\0", "a\nb", b"a", (), [1], {"a": 1},
    {None: 3}, {"x": None}, {"x": Odd()}, {"N": float("nan")}, {"N": 10**5000}, {"x"}, object(), Odd(), iter([1]), int,
    np.int64(-2), np.float64("nan"), np.bool_(True), np.array(3), np.array([1, 2]), np.array([]), np.array(None),
    np.uint64(2**64 - 1), "x" * 5000, DATA | {"x": DATA["x"].astype("S3")}, DATA | {"label": np.full(20, 7)},
)  # fmt: skip
"""Wrong for most; some arguments take some of them."""


def refused(call: Callable[[Any], Any], name: str, fewest: int) -> None:
    """Each value either is taken, or gives an error of onnxc in one line; at least so many, which name the argument."""
    told = []
    for value in WRONG:
        try:
            call(value)
        except compiler.OnnxcError as e:
            told.append((str(e), isinstance(value, str)))
    assert all(text.isprintable() and (len(text) < 300 or has_path) for text, has_path in told)
    assert sum(name in text for text, _ in told) >= fewest


def keyword(name: str, call: Callable[..., Any], **others: Any) -> Callable[[Any], Any]:
    """The call as one of this argument alone."""
    return lambda value: call(**others | {name: value})


@pytest.mark.parametrize(
    ("name", "fewest"),
    [
        ("validation", 30), ("metrics", 20), ("batch", 25), ("dims", 20), ("threads", 30), ("seed", 25),
        ("algorithm", 30), ("straight_through", 30), ("static", 20), ("max_trip", 30), ("memory_limit", 25),
        ("initialize", 30), ("shuffle", 30), ("batch_dim", 30),
    ],
)  # fmt: skip
def test_of_a_trainer(name: str, fewest: int) -> None:
    given: dict[str, Any] = {"validation": DATA} if name == "metrics" else {}
    refused(keyword(name, Trainer, model=tiny(), data=DATA, compiling=_stop, **given), name, fewest)


def _stop(_: Trainer) -> None:
    raise compiler.InputError("it fits: there is nothing to compile")


def test_what_a_trainer_is_called_with(tmp_path: Path) -> None:
    refused(lambda value: Trainer(value, DATA), "model", 25)
    refused(lambda value: Trainer(tiny(), value, compiling=_stop), "data", 30)
    refused(lambda value: Trainer(tiny(), DATA, compiling=None if callable(value) else value), "compiling", 30)
    trainer = Trainer(tiny(), DATA, batch=20)
    refused(trainer.run, "epochs", 25)
    for name in ("progress", "stop", "stop_on_nan"):
        refused(keyword(name, trainer.run, epochs=1), name, 30)
    refused(trainer.resume, "path", 20)
    refused(
        lambda value: trainer.save(tmp_path / "c" if isinstance(value, str) and value >= "a" else value), "path", 20
    )


def test_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = Trainer(tiny(), DATA, batch=20)
    for name, fewest in (
        ("folder", 25), ("resume", 30), ("every", 25), ("log", 25), ("monitor", 25), ("monitor_max", 30),
        ("early_stop", 20), ("stop_on_nan", 30),
    ):  # fmt: skip
        refused(keyword(name, Run), name, fewest)
    refused(Run().check, "trainer", 30)
    refused(lambda value: Run().train(value, 1), "trainer", 30)
    for name, fewest in (("epochs", 25), ("progress", 30), ("stop", 30), ("note", 30)):
        refused(keyword(name, Run().train, trainer=trainer, epochs=1), name, fewest)
    assert trainer.position.step == 0


def test_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(read_log, "path", 25)
    refused(read_arrays, "path", 25)
    refused(check_plot, "path", 25)
    pytest.importorskip("matplotlib")
    refused(lambda value: draw_curve(value, "a.svg"), "rows", 25)
    refused(lambda value: draw_curve([], "a.svg", value), "title", 25)


def test_scalars_of_numpy_are_taken(tmp_path: Path) -> None:
    """And kept as numbers that a checkpoint can hold."""
    yes, no, one = np.bool_(True), np.bool_(False), np.int64(1)
    options: dict[str, Any] = {
        "batch": np.uint8(8), "dims": {}, "threads": one, "seed": one, "algorithm": np.int32(0), "max_trip": one,
        "straight_through": no, "initialize": no, "shuffle": yes, "memory_limit": np.int64(10**9),
    }  # fmt: skip
    run: dict[str, Any] = {"every": one, "monitor_max": yes, "early_stop": one, "stop_on_nan": no, "resume": no}
    epochs: Any = one
    list(Run(tmp_path, **run).train(Trainer(tiny(), DATA, **options), epochs))
    list(Run(tmp_path, **run | {"resume": yes}).train(Trainer(tiny(), DATA, **options), 2))
