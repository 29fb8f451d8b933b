"""Learning-rate schedules: functions of the number of updates done so far, written in scalars of the algorithm.

The formulas are those of torch.optim.lr_scheduler of the same name, with `scheduler.step()` after each update; a
warm-up before another schedule is SequentialLR of LinearLR and that one. Past its last update a schedule stays where it
is. `rate(s, done, lr)` gives the rate of an update, where `lr` is the optimizer's (a number or an input of the step).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from compiler.errors import InputError, checked_flag, checked_integer, did_you_mean, shown
from compiler.frontend.making.arguments import SMALLEST, checked_choice, checked_list, checked_number
from compiler.frontend.making.scalars import Number, Scalars

LAST = 2**53
"""The last update that a schedule may name: doubles, in which it computes, tell no later ones apart."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The constant rate, and what all schedules have: a linear warm-up of `warmup` updates before.

    warmup_start: what the first update's rate is of the full one. (0.01 is the default of torchvision's recipes.)
    InputError: options out of their range.
    """

    warmup: int = 0
    warmup_start: float = 0.01

    @property
    def steady(self) -> bool:
        """Whether the rate is the same at all updates."""
        return type(self) is Schedule and not self.warmup

    def __post_init__(self) -> None:
        for f in fields(self):
            what = f"schedule {type(self).__name__}: {f.name}"
            object.__setattr__(self, f.name, _of_kind(what, getattr(self, f.name), str(f.type)))
        _check(0 <= self.warmup_start <= 1, self, "warmup_start", "from 0 to 1")

    def rate(self, s: Scalars, done: Number, lr: Number) -> Number:
        """The learning rate of the update behind `done` others."""
        if not self.warmup:
            return self._main(s, done, lr)
        after = s.op("Max", s.op("Sub", done, float(self.warmup), hint="schedule.at"), 0.0, hint="schedule.at")
        warm = s.op("Mul", lr, _ramp(s, done, self.warmup_start, 1.0, self.warmup), hint="rate.warmup")
        return s.where(s.less(done, float(self.warmup), "warming"), warm, self._main(s, after, lr), "rate")

    def _main(self, s: Scalars, done: Number, lr: Number) -> Number:
        """The rate behind the warm-up, as a function of the updates done since."""
        return lr

    def momentum(self, s: Scalars, done: Number) -> Number | None:
        """The momentum (Adam: beta1) of the update, if the schedule sets it."""
        return None


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """lr * gamma^floor(done / step_size)."""

    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.step_size > 0, self, "step_size", "positive")

    def _main(self, s: Scalars, done: Number, lr: Number) -> Number:
        drops = s.op("Floor", s.op("Div", done, float(self.step_size), hint="drops"), hint="drops")
        return s.op("Mul", lr, s.op("Pow", float(self.gamma), drops, hint="rate.factor"), hint="rate")


@dataclass(frozen=True, kw_only=True)
class MultiStep(Schedule):
    """lr * gamma^(how many milestones are at or before `done`)."""

    milestones: Sequence[int]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(len(self.milestones) > 0, self, "milestones", "numbers of updates, one at least")

    def _main(self, s: Scalars, done: Number, lr: Number) -> Number:
        drops: Number = 0.0
        for milestone in sorted(self.milestones):
            before = s.less(done, float(milestone), "before_milestone")
            drops = s.op("Add", s.where(before, 0.0, 1.0, "drop"), drops, hint="drops")
        return s.op("Mul", lr, s.op("Pow", float(self.gamma), drops, hint="rate.factor"), hint="rate")


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """lr * gamma^done."""

    gamma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.gamma > 0, self, "gamma", "positive")

    def _main(self, s: Scalars, done: Number, lr: Number) -> Number:
        return s.op("Mul", lr, s.op("Pow", float(self.gamma), done, hint="rate.factor"), hint="rate")


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """lr times a factor that goes from start_factor to end_factor in total_iters updates."""

    start_factor: float = 1 / 3
    end_factor: float = 1.0
    total_iters: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.total_iters > 0, self, "total_iters", "positive")
        _check(min(self.start_factor, self.end_factor) >= 0, self, "factors", "not negative")

    def _main(self, s: Scalars, done: Number, lr: Number) -> Number:
        return s.op("Mul", lr, _ramp(s, done, self.start_factor, self.end_factor, self.total_iters), hint="rate")


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """eta_min + (lr - eta_min) * (1 + cos(pi * done / n)) / 2, n = total_steps - warmup; then eta_min.

    (CosineAnnealingLR with T_max = n; that one would rise again.)
    """

    total_steps: int
    eta_min: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.total_steps > self.warmup, self, "total_steps", "more than those of the warm-up")

    def _main(self, s: Scalars, done: Number, lr: Number) -> Number:
        part = s.op("Div", done, float(self.total_steps - self.warmup), hint="schedule.part")
        return _cosine(s, lr, float(self.eta_min), s.op("Min", part, 1.0, hint="schedule.part"))


@dataclass(frozen=True, kw_only=True)
class OneCycle(Schedule):
    """Up from lr / div_factor to lr, and down to lr / (div_factor * final_div_factor): OneCycleLR, where lr is max_lr.

    cycle_momentum: the momentum goes from max_momentum to base_momentum and back meanwhile. None: if the optimizer has
    one. (PyTorch's default also gives one to an SGD without.)
    """

    total_steps: int
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    cycle_momentum: bool | None = None
    base_momentum: float = 0.85
    max_momentum: float = 0.95
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.warmup == 0, self, "warmup", "0, for one_cycle has its own")
        _check(self.total_steps > 1, self, "total_steps", "more than 1")
        _check(0 <= self.pct_start <= 1, self, "pct_start", "from 0 to 1")
        _check(self.pct_start <= 0.5 or not self.three_phase, self, "pct_start", "at most 0.5 with three phases")
        checked_choice("schedule OneCycle: anneal_strategy", self.anneal_strategy, ("cos", "linear"))
        for option in ("div_factor", "final_div_factor"):
            _check(getattr(self, option) >= SMALLEST, self, option, "positive")

    def _main(self, s: Scalars, done: Number, lr: Number) -> Number:
        low = s.op("Div", lr, float(self.div_factor), hint="rate.initial")
        final = s.op("Div", low, float(self.final_div_factor), hint="rate.final")
        return self._cycle(s, done, [low, lr, low, final] if self.three_phase else [low, lr, final])

    def momentum(self, s: Scalars, done: Number) -> Number | None:
        """From max_momentum to base_momentum and back."""
        high, low = float(self.max_momentum), float(self.base_momentum)
        return self._cycle(s, done, [high, low, high, high] if self.three_phase else [high, low, high])

    def _cycle(self, s: Scalars, done: Number, levels: Sequence[Number]) -> Number:
        """Through the levels, one phase between two of them."""
        ends = [0.0, self.pct_start * self.total_steps - 1, self.total_steps - 1.0]
        if self.three_phase:
            ends.insert(2, 2 * self.pct_start * self.total_steps - 2)
        done = s.op("Min", done, ends[-1], hint="schedule.at")
        value: Number | None = None
        for start, end, low, high in reversed(list(zip(ends, ends[1:], levels, levels[1:], strict=False))):
            part: Number = 1.0
            if end != start:
                part = s.op("Div", s.op("Sub", done, start, hint="schedule.at"), end - start, hint="schedule.part")
            moved = low if low == high else (_cosine if self.anneal_strategy == "cos" else _line)(s, low, high, part)
            value = moved if value is None else s.where(s.less(end, done, "phase_over"), value, moved, "cycle")
        assert value is not None
        return value


SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Schedule,
    "step": Step,
    "multistep": MultiStep,
    "exponential": Exponential,
    "linear": Linear,
    "cosine": Cosine,
    "one_cycle": OneCycle,
}


def schedule_of(given: Schedule | str | Mapping[str, Any] | None) -> Schedule:
    """A schedule from its name, or {"name": ..., option: value}. InputError: what there is not, or out of range."""
    if isinstance(given, Schedule):
        return given
    if not isinstance(given, str | Mapping | None):
        raise InputError(f"schedule must be a name, or a mapping of its name and options, not {shown(given)}")
    options = {"name": given} if isinstance(given, str) else dict(given or {"name": "constant"})
    said = options.pop("name", "constant")
    names = {_plain(name): name for name in SCHEDULES}
    if not isinstance(said, str) or _plain(said) not in names:
        raise InputError(f"no schedule {shown(said)}{did_you_mean(said, SCHEDULES)}: there are {', '.join(SCHEDULES)}")
    name = names[_plain(said)]
    known = {f.name: f for f in fields(SCHEDULES[name])}
    for option in options:
        if option not in known:
            near = did_you_mean(option, known)
            raise InputError(f"schedule {name} has no option {shown(option)}{near}: it has {', '.join(known)}")
    missing = [option for option, f in known.items() if f.default is MISSING and option not in options]
    if missing:
        raise InputError(f"schedule {name} needs its {', '.join(missing)}")
    return SCHEDULES[name](**options)


def _plain(name: str) -> str:
    """A name without what people write in different ways: OneCycle, one-cycle."""
    return name.lower().replace("_", "").replace("-", "")


def _of_kind(what: str, value: Any, kind: str) -> Any:
    """An option of the type that its field declares. InputError."""
    match kind:
        case "int":
            return checked_integer(what, value, 0, LAST)
        case "float":
            return checked_number(what, value)
        case "Sequence[int]":
            several = checked_list(what, value, "a list of integers")
            return tuple(checked_integer(f"{what}, each", x, 0, LAST) for x in several)
        case "bool" | "bool | None":
            return None if value is None and kind != "bool" else checked_flag(what, value)
    return value


def _check(good: bool, schedule: Schedule, option: str, what: str) -> None:
    if not good:
        raise InputError(f"schedule {type(schedule).__name__}: {option} must be {what}")


def _ramp(s: Scalars, done: Number, start: float, end: float, total: int) -> Number:
    """From start to end in a straight line, then end."""
    part = s.op("Div", s.op("Min", done, float(total), hint="schedule.at"), float(total), hint="schedule.part")
    return _line(s, float(start), float(end), part)


def _line(s: Scalars, start: Number, end: Number, part: Number) -> Number:
    span = s.op("Sub", end, start, hint="schedule.span")
    return s.op("Add", s.op("Mul", span, part, hint="schedule.moved"), start, hint="schedule.value")


def _cosine(s: Scalars, start: Number, end: Number, part: Number) -> Number:
    """From start to end in half a wave: end + (start - end) * (1 + cos(pi * part)) / 2."""
    angle = s.op("Mul", part, math.pi, hint="schedule.angle")
    wave = s.op("Div", s.op("Add", s.op("Cos", angle, hint="wave"), 1.0, hint="wave"), 2.0, hint="wave")
    span = s.op("Sub", start, end, hint="schedule.span")
    return s.op("Add", s.op("Mul", span, wave, hint="schedule.moved"), end, hint="schedule.value")
