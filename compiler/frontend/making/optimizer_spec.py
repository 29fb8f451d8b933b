"""What a user says about the optimizer: its name and options, parameter groups, clipping, accumulation, averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from compiler.errors import InputError, checked_integer, did_you_mean
from compiler.frontend.making.schedules import Schedule, schedule_of
from compiler.frontend.making.select import listed

Option = float | bool | str | tuple[float, float]
Options = Mapping[str, Option]

_ADAM: Options = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
_SGD: Options = {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
_NONE = math.nan
"""Stands for a default that there is not: the option has to be given."""

DEFAULTS: Mapping[str, Options] = {
    "sgd": _SGD,
    "momentum": {**_SGD, "momentum": 0.9},
    "nesterov": {**_SGD, "momentum": 0.9, "nesterov": True},
    "adagrad": {"lr": 1e-2, "lr_decay": 0.0, "weight_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 1e-2},
    "rmsprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False},
    "lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0},
    "onnx.adam": {
        "lr": _NONE,
        "alpha": 0.9,
        "beta": 0.999,
        "epsilon": 1e-6,
        "norm_coefficient": 0.0,
        "norm_coefficient_post": 0.0,
    },
    "onnx.adagrad": {"lr": _NONE, "decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.0},
    "onnx.momentum": {"lr": _NONE, "alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"},
}
"""Optimizer -> its options and defaults: PyTorch's (Lion: its paper's), those of the schema after `onnx.` (ONNX has
none for Momentum: alpha and beta here are its usual heavy ball)."""

_BELOW_ONE = {"alpha", "beta"}


@dataclass(frozen=True)
class Group:
    """Parameters with options of their own: those that a glob pattern matches and that no earlier group has."""

    match: tuple[str, ...]
    options: Options


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer as `add_optimizer` makes it. `optimizer_spec` checks and completes what a user writes.

    options: all of the optimizer's. groups: parameters by pattern, with options that differ. schedule: of the rate.
    lr_input: name of a step's input (a scalar, with the default lr) that is the rate; "" for none. clip_value,
    clip_norm: bounds of the gradients, None for none. accumulate: how many steps an update takes its gradient from (the
    mean of theirs). average: decay of a running average of the parameters, None for none.
    """

    name: str
    options: Options
    groups: tuple[Group, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    lr_input: str = ""
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    average: float | None = None

    def grouped(self, names: Sequence[str]) -> list[tuple[Options, list[str]]]:
        """The parameters by group, those in none first: all options of each. InputError: a pattern without a match."""
        rest, found = list(names), []
        for group in self.groups:
            for pattern in group.match:
                if not any(fnmatchcase(name, pattern) for name in names):
                    near = did_you_mean(pattern, names)
                    known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                    raise InputError(f"no trained parameter matches {pattern!r}{near}: there are {known}")
            members = [name for name in rest if any(fnmatchcase(name, pattern) for pattern in group.match)]
            rest = [name for name in rest if name not in members]
            found.append(({**self.options, **group.options}, members))
        return [(options, members) for options, members in [(self.options, rest), *found] if members]


def optimizer_spec(
    optimizer: OptimizerSpec | str | Mapping[str, Any] = "adam",
    *,
    schedule: Schedule | str | Mapping[str, Any] | None = None,
    lr_input: str | bool = False,
    groups: Sequence[Mapping[str, Any]] = (),
    no_decay: str | Sequence[str] = (),
    clip_value: float | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    average: float | None = None,
    **options: Any,
) -> OptimizerSpec:
    """The optimizer that a user describes, as keywords or all in one mapping: {"name": "adamw", "lr": 0.01, ...}.

    optimizer: a name of DEFAULTS, in any case. schedule: docs/optimizers.md has the names. lr_input: make the rate an
    input of the step, called `learning_rate` or as this says. groups: mappings of `match` (a glob pattern or several)
    and options. no_decay: patterns of parameters without weight decay (the first group). options: of the optimizer.
    InputError: names and values there are not, or out of range.
    """
    if not isinstance(optimizer, str):
        given: dict[str, Any] = {
            "schedule": schedule,
            "lr_input": lr_input,
            "groups": groups,
            "no_decay": no_decay,
            "clip_value": clip_value,
            "clip_norm": clip_norm,
            "accumulate": accumulate,
            "average": average,
            **options,
        }
        return _described(optimizer, given)
    name = optimizer.lower()
    if name not in DEFAULTS:
        raise InputError(f"no optimizer {optimizer!r}{did_you_mean(name, DEFAULTS)}: there are {', '.join(DEFAULTS)}")
    complete = {**DEFAULTS[name], **_checked(name, options)}
    if complete["lr"] is _NONE:
        raise InputError(f"optimizer {name} has no default rate: give lr")
    _consistent(name, complete)
    chosen = []
    if no_decay:
        decay = "norm_coefficient" if name.startswith("onnx.") else "weight_decay"
        chosen.append(Group(listed("no_decay", no_decay), {decay: 0.0}))
    if not isinstance(groups, list | tuple):
        raise InputError(f"groups is a list of mappings, not {groups!r}")
    for entry in groups:
        if not isinstance(entry, Mapping) or "match" not in entry:
            raise InputError(f"a parameter group is a mapping of match and options, not {entry!r}")
        if not (patterns := listed("match", entry["match"])):
            raise InputError(f"match must be a glob pattern of names, or a list of such, not {entry['match']!r}")
        group = Group(patterns, _checked(name, {k: v for k, v in entry.items() if k != "match"}))
        _consistent(name, {**complete, **group.options})
        chosen.append(group)
    for what, bound in (("clip_value", clip_value), ("clip_norm", clip_norm)):
        if bound is not None:
            _number(what, bound, lambda x: x > 0, "a positive number")
    accumulate = checked_integer("accumulate", accumulate)
    if not isinstance(lr_input, bool | str):
        raise InputError(f"lr_input must be True, False or the name of an input, not {lr_input!r}")
    if average is not None:
        _number("average", average, lambda x: 0 <= x < 1, "a decay from 0 to less than 1")
    return OptimizerSpec(
        name,
        complete,
        tuple(chosen),
        schedule_of(schedule),
        ("learning_rate" if lr_input else "") if isinstance(lr_input, bool) else lr_input,
        clip_value,
        clip_norm,
        accumulate,
        average,
    )


def _described(optimizer: OptimizerSpec | Mapping[str, Any], given: Mapping[str, Any]) -> OptimizerSpec:
    """The optimizer of a finished description, or of a mapping, which goes before what is `given` beside it."""
    if isinstance(optimizer, OptimizerSpec):
        defaults = {"lr_input": False, "groups": (), "no_decay": (), "accumulate": 1}
        more = [k for k, v in given.items() if v != defaults.get(k)]
        if more:
            raise InputError(f"{more[0]} is given beside a finished OptimizerSpec: make it with this option")
        return optimizer
    if not isinstance(optimizer, Mapping) or not isinstance(optimizer.get("name"), str):
        raise InputError(f"an optimizer is a name, or a mapping with its name and options, not {optimizer!r}")
    options = {str(k): v for k, v in optimizer.items() if k != "name"}
    if "optimizer" in options:
        raise InputError("an optimizer has no option 'optimizer': its mapping has its name as 'name'")
    return optimizer_spec(optimizer["name"], **{**given, **options})


def _checked(name: str, options: Mapping[str, Any]) -> Options:
    """Options of an optimizer with values that they can have."""
    known = DEFAULTS[name]
    result: dict[str, Option] = {}
    for option, value in options.items():
        if option not in known:
            near = did_you_mean(option, known)
            raise InputError(f"optimizer {name} has no option {option!r}{near}: it has {', '.join(known)}")
        default = known[option]
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise InputError(f"{option} is True or False, not {value!r}")
            result[option] = value
        elif isinstance(default, tuple):
            if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
                raise InputError(f"{option} is a pair of numbers, not {value!r}")
            first, second = (_number(option, x, lambda x: 0 <= x < 1, "from 0 to less than 1") for x in value)
            result[option] = first, second
        elif isinstance(default, str):
            if value not in ("standard", "nesterov"):
                raise InputError(f"{option} is standard or nesterov, not {value!r}")
            result[option] = value
        elif name == "onnx.adam" and option in _BELOW_ONE:
            result[option] = _number(option, value, lambda x: 0 <= x < 1, "from 0 to less than 1")
        else:
            result[option] = _number(option, value, lambda x: x >= 0, "not negative")
    return result


def _consistent(name: str, options: Options) -> None:
    if options.get("nesterov") and (not options["momentum"] or options["dampening"]):
        raise InputError(f"optimizer {name}: nesterov needs a momentum and no dampening")


def _number(option: str, value: object, good: Callable[[float], bool], what: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int | float) or not number or not math.isfinite(value) or not good(value):
        raise InputError(f"{option} must be {what}, not {value!r}")
    return float(value)
