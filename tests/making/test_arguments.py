"""Arguments of the wrong kind or size: each is refused by an error of ours, which names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from compiler import InputError, Loss, OnnxcError, make_training_model
from compiler.frontend.making.optimizer_spec import DEFAULTS
from compiler.frontend.making.schedules import SCHEDULES
from tests.making.loss_models import checked, linear

ODD: list[Any] = [
    None, True, "", "x", "y", "\0", "Ä", b"x", np.nan, np.inf, -np.inf, 10**400, -(10**400), 10**5000, 2**63, 2**70, -1,
    0, 3, 0.5, 1e-320, 1e39, 1e308, [], {}, (), set(), ["x"], [["x"]], [1, 2], [1, [2]], [None], [10**400] * 4,
    {"y": "x"}, {"y": None}, {"y": {}}, {"y": 10**400}, {1: 2}, {"name": ["x"]}, np.float32(0.1), np.int64(3),
    np.bool_(True), np.float32(np.nan), np.array(0.1), np.ones(2), np.ones((2, 2)), np.array(["a"]),
    np.array([], np.float64), object(), object, len, 1j, range(3), np.datetime64("2020-01-01"), "a" * 300, 10**20, 1e20,
]  # fmt: skip
"""Values of which each argument takes a few at most."""

REQUIRED: dict[str, dict[str, Any]] = {
    "step": {"step_size": 3},
    "multistep": {"milestones": [1]},
    "exponential": {"gamma": 0.9},
    "cosine": {"total_steps": 10},
    "one_cycle": {"total_steps": 10},
}
MODEL = linear(["N", 4], dtype=TensorProto.FLOAT)


def survives(make: Callable[[Any], object]) -> int:
    """How many odd values are refused; the others must give a valid model."""
    refused = []
    for value in ODD:
        try:
            made = make(value)
        except OnnxcError as e:
            refused.append(str(e))
        else:
            if isinstance(made, onnx.ModelProto):
                onnx.checker.check_model(made)
    assert max(map(len, refused)) < 700
    return len(refused)


ARGUMENTS = [
    "loss", "optimizer", "output", "outputs", "target", "loss_weights", "train", "freeze", "batch_norm", "batch",
    "initialize", "seed", "note", "schedule", "lr", "learning_rate", "lr_input", "groups", "no_decay", "clip_value",
    "clip_norm", "accumulate", "average", "betas", "amsgrad", "nothing",
]  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str) -> None:
    assert survives(lambda v: make_training_model(MODEL, **{name: v})) > len(ODD) // 2


CLASSES = ["axis", "weight", "ignore_index", "label_smoothing", "soft_targets", "from_logits", "target", "reduction"]


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *(("cross_entropy", option) for option in CLASSES),
        *(("huber", option) for option in Loss.__dataclass_fields__ if option != "kind"),
        *(("bce", option) for option in ("weight", "pos_weight", "label_smoothing", "from_logits")),
        *(("cosine_embedding", option) for option in ("axis", "margin", "other")),
        *(("ctc", option) for option in ("blank", "time_axis", "zero_infinity")),
        *(("smooth_l1", "beta"), ("nll", "ignore_index"), ("kl", "axis")),
    ],
)
def test_options_of_losses(kind: str, option: str) -> None:
    assert survives(lambda v: make_training_model(MODEL, loss=Loss(kind, **{option: v}))) > len(ODD) // 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("name", "option"), [(name, option) for name, known in DEFAULTS.items() for option in known])
def test_options_of_optimizers(name: str, option: str) -> None:
    spec = {"name": name, "lr": 0.1}
    assert survives(lambda v: make_training_model(MODEL, loss="mse", optimizer={**spec, option: v})) > len(ODD) // 2


def test_options_of_groups() -> None:
    assert survives(lambda v: make_training_model(MODEL, groups=[v])) == len(ODD)
    assert survives(lambda v: make_training_model(MODEL, groups=[{"match": v}])) > len(ODD) // 2
    assert survives(lambda v: make_training_model(MODEL, groups=[{"match": "w", "lr": v}])) > len(ODD) // 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, kind in SCHEDULES.items() for option in kind.__dataclass_fields__]
)
def test_options_of_schedules(name: str, option: str) -> None:
    given = REQUIRED.get(name, {})
    made = SCHEDULES[name]
    assert survives(lambda v: make_training_model(MODEL, schedule=made(**{**given, option: v}))) > len(ODD) // 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": "x"}, "lr must be a number from 0 on, not 'x'"),
        ({"lr": True}, "lr must be a number from 0 on, not True"),
        ({"lr": 10**400}, r"lr must be a number from 0 on \(the largest is 3.4e\+38\), not 10000"),
        ({"clip_norm": 1e39}, r"clip_norm must be a positive number \(the largest is 3.4e\+38\), not 1e\+39"),
        (
            {"optimizer": "adamw", "lr": 3e38, "weight_decay": 3e38},
            r"shrink comes to 9.0*1?e\+76, which float32 cannot hold",
        ),
        ({"lr_input": ""}, "lr_input must be True, False or the name of an input, not ''"),
        ({"optimizer": {"name": "sgd", "lr": -1, "momentum": "x"}}, "lr must be .*; momentum must be"),
        ({"accumulate": 2**63}, r"accumulate must be an integer from 1 to 2147483647, not 9223372036854775808"),
        ({"accumulate": 10**5000}, r"accumulate must be .*, not a value of type int"),
        ({"schedule": ["cosine"]}, r"schedule must be a name, or a mapping of its name and options, not \['cosine'\]"),
        ({"schedule": 3}, "schedule must be a name, or a mapping of its name and options, not 3"),
        ({"schedule": {"name": "step", "step_size": 2**60}}, "step_size must be an integer from 0 to"),
        ({"loss": Loss("ce"), "loss_weights": {"y": 10**400}}, "the weight of 'y' must be a number .*, not 1000"),
        ({"loss_weights": {"y": 0}}, "loss_weights: all are 0, so nothing would train"),
        ({"output": ["y"]}, r"output must be the name of an output, not \['y'\]"),
        ({"train": {"w": 1}}, "train must be a glob pattern of names, or a list of such, not {'w': 1}"),
        ({"note": 3}, "note must be a function that takes a text, as print, not 3"),
    ],
)
def test_messages(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_training_model(MODEL, **given)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("ce", {"ignore_index": 2**70}, r"ignore_index must be an integer \(of 64 bits\), not 1180591620717411303424"),
        ("huber", {"delta": 10**400}, "delta must be a number greater than 0 .*, not 1000"),
        ("smooth_l1", {"beta": 1e-320}, "beta must be a number greater than 0, not 1e-320"),
        ("ce", {"weight": [1.0, np.nan]}, "weight must be finite numbers"),
        ("ce", {"weight": [], "axis": "x"}, "weight must be finite numbers, not .*; axis must be an integer"),
        ("BCEWithLogitsLoss", {"from_logits": False}, "takes logits, but from_logits is False: the loss is called bce"),
    ],
)
def test_messages_of_losses(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Loss(kind, **options)


def test_numbers_of_other_libraries_and_names_in_any_case() -> None:
    plain = make_training_model(
        MODEL, optimizer="adam", lr=0.25, betas=(0.5, 0.75), schedule={"name": "one_cycle", "total_steps": 9},
        loss=Loss("ce", label_smoothing=0.5, weight=[1, 2, 3, 4]), initialize="kaiming", accumulate=2, amsgrad=True,
    )  # fmt: skip
    other = make_training_model(
        MODEL, optimizer="Adam", lr=np.float32(0.25), betas=np.array([0.5, 0.75]), accumulate=np.int8(2),
        schedule={"name": "OneCycle", "total_steps": np.int64(9)}, initialize="Kaiming", amsgrad=np.True_,
        loss=Loss("CE", label_smoothing=np.array(0.5), weight=np.arange(1, 5)),
    )  # fmt: skip
    assert checked(plain) == other


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": {"name": "sgd", "lr": 1.0}, "lr": 0.1}, "lr: given twice"),
        ({"optimizer": {"name": "sgd", "schedule": "constant"}, "schedule": "constant"}, "schedule: given twice"),
        ({"optimizer": {"name": "sgd", "learning_rate": 1.0}, "lr": 0.1}, "lr: given twice"),
        ({"lr": 0.1, "learning_rate": 0.1}, "lr and learning_rate are the same option"),
        ({"loss": Loss("mse", target="a"), "target": "b"}, "the target of 'y' is 'a' by its Loss, but 'b' by target="),
        *(
            ({"lr_input": name}, f"lr_input: the model has a value '{name}' already, give another name")
            for name in ("w", "x", "y", "label", "loss", "w.gradient")
        ),
    ],
)
def test_nothing_is_overridden_or_renamed_silently(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_training_model(MODEL, **given)
