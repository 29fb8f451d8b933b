"""What a user says about the optimizer: its name and options, parameter groups, clipping, accumulation, averaging."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from compiler.errors import InputError, checked_flag, checked_integer, did_you_mean, shown
from compiler.frontend.making.arguments import checked_choice, checked_list, checked_number
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

_UNSAID: Mapping[str, Any] = {
    **dict.fromkeys(("schedule", "clip_value", "clip_norm", "average")),
    **dict.fromkeys(("groups", "no_decay"), ()),
    "lr_input": False,
    "accumulate": 1,
}
"""Arguments of `optimizer_spec` that are none of the optimizer's own, and their defaults."""

MOST_STEPS = 2**31 - 1
"""The largest `accumulate`: then no count of steps is too large for int64."""


@dataclass(frozen=True)
class Group:
    """Parameters with options of their own: those that a glob pattern matches and that no earlier group has."""

    match: tuple[str, ...]
    options: Options


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer as `add_optimizer` makes it. `optimizer_spec` checks and completes what a user writes.

    options: all of the optimizer's. groups: parameters by pattern, with options that differ. schedule: of the rate.
    lr_input: name of a step's input (a scalar, with the default lr) that is the rate; True: `learning_rate`, or that
    with a number; False: there is none. clip_value, clip_norm: bounds of the gradients, None for none. accumulate: how
    many steps an update takes its gradient from (the mean of theirs). average: decay of a running average of the
    parameters, None for none.
    """

    name: str
    options: Options
    groups: tuple[Group, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
    lr_input: str | bool = False
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
        near = did_you_mean(name, DEFAULTS)
        raise InputError(f"no optimizer {shown(optimizer)}{near}: there are {', '.join(DEFAULTS)}")
    complete = {**DEFAULTS[name], **_checked(name, options, _UNSAID)}
    if complete["lr"] is _NONE:
        raise InputError(f"optimizer {name} has no default rate: give lr")
    _consistent(name, complete)
    chosen = []
    if patterns := () if no_decay is None else listed("no_decay", no_decay):
        decay = "norm_coefficient" if name.startswith("onnx.") else "weight_decay"
        chosen.append(Group(patterns, {decay: 0.0}))
    if not isinstance(groups, list | tuple):
        raise InputError(f"groups is a list of mappings, not {shown(groups)}")
    for entry in groups:
        if not isinstance(entry, Mapping) or "match" not in entry:
            raise InputError(f"a parameter group is a mapping of match and options, not {shown(entry)}")
        if not (patterns := listed("match", entry["match"])):
            raise InputError(f"match must be a glob pattern of names, or a list of such, not {shown(entry['match'])}")
        group = Group(patterns, _checked(name, {k: v for k, v in entry.items() if k != "match"}))
        _consistent(name, {**complete, **group.options})
        chosen.append(group)
    if average is not None:
        average = checked_number("average", average, "a decay from 0 to less than 1", _is_decay)
    return OptimizerSpec(
        name,
        complete,
        tuple(chosen),
        schedule_of(schedule),
        _rate_input(lr_input),
        _bound("clip_value", clip_value),
        _bound("clip_norm", clip_norm),
        checked_integer("accumulate", accumulate, 1, MOST_STEPS),
        average,
    )


def _rate_input(lr_input: Any) -> str | bool:
    """What `lr_input` says. InputError."""
    if isinstance(lr_input, str) and lr_input:
        return lr_input
    if type(lr_input).__name__ != "bool":
        raise InputError(f"lr_input must be True, False or the name of an input, not {shown(lr_input)}")
    return bool(lr_input)


def _bound(what: str, bound: Any) -> float | None:
    return None if bound is None else checked_number(what, bound, "a positive number", lambda x: x > 0)


def _is_decay(x: float) -> bool:
    return 0 <= x < 1


def _described(optimizer: OptimizerSpec | Mapping[str, Any], given: Mapping[str, Any]) -> OptimizerSpec:
    """The optimizer of a finished description, or of a mapping, which goes before what is `given` beside it."""
    said = [k for k, v in given.items() if k not in _UNSAID or v is not _UNSAID[k]]
    if isinstance(optimizer, OptimizerSpec):
        if said:
            raise InputError(f"{', '.join(said)}: given beside a finished OptimizerSpec: make it with this")
        known = DEFAULTS.get(optimizer.name) if isinstance(optimizer.name, str) else None
        if known is None or known.keys() != optimizer.options.keys():
            raise InputError("an OptimizerSpec is made by optimizer_spec, which completes it")
        return optimizer
    if not isinstance(optimizer, Mapping) or not isinstance(optimizer.get("name"), str):
        raise InputError(f"an optimizer is a name, or a mapping with its name and options, not {shown(optimizer)}")
    options = {str(k): v for k, v in optimizer.items() if k != "name"}
    if "optimizer" in options:
        raise InputError("an optimizer has no option 'optimizer': its mapping has its name as 'name'")
    if twice := [k for k in said if k in options]:
        raise InputError(f"{', '.join(twice)}: given twice, in the optimizer's mapping and beside it: leave out one")
    return optimizer_spec(optimizer["name"], **{**given, **options})


def _checked(name: str, options: Mapping[str, Any], others: Iterable[str] = ()) -> Options:
    """Options of an optimizer with values that they can have. others: what could have been given as well."""
    known = DEFAULTS[name]
    there = [*known, *others]
    result: dict[str, Option] = {}
    wrong = []
    for option, value in options.items():
        try:
            if option not in known:
                near = did_you_mean(option, there)
                raise InputError(f"optimizer {name} has no option {shown(option)}{near}: it has {', '.join(there)}")
            result[option] = _option(name, option, value)
        except InputError as e:
            wrong.append(str(e))
    if wrong:
        raise InputError("; ".join(wrong))
    return result


def _option(name: str, option: str, value: Any) -> Option:
    """The value of an option, by the kind of its default. InputError."""
    default = DEFAULTS[name][option]
    if isinstance(default, bool):
        return checked_flag(option, value)
    if isinstance(default, str):
        return checked_choice(option, value, ("standard", "nesterov"))
    below_one = "from 0 to less than 1"
    if isinstance(default, tuple):
        pair = checked_list(option, value, "a pair of numbers", 2)
        first, second = (checked_number(option, x, f"numbers {below_one}", _is_decay) for x in pair)
        return first, second
    if name == "onnx.adam" and option in _BELOW_ONE:
        return checked_number(option, value, f"a number {below_one}", _is_decay)
    return checked_number(option, value, "a number from 0 on", lambda x: x >= 0)


def _consistent(name: str, options: Options) -> None:
    if options.get("nesterov") and (not options["momentum"] or options["dampening"]):
        raise InputError(f"optimizer {name}: nesterov needs a momentum and no dampening")
