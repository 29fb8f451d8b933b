"""A parameter, and the arithmetic of its update: what the formulas of all optimizers are put together from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.frontend.making.emit import Algorithm
from compiler.frontend.making.optimizer_spec import Options
from compiler.frontend.making.scalars import Clock, Number, Scalars


@dataclass(frozen=True)
class Parameter:
    """A tensor that trains: an initializer of the model. value: what it is now, if that is known."""

    name: str
    shape: tuple[int, ...]
    elem_type: int
    value: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Setting:
    """What the parameters of a group have in common.

    rate: of the update. scheduled_momentum: the momentum if a schedule sets it.
    """

    a: Algorithm
    s: Scalars
    clock: Clock
    options: Options
    rate: Number
    scheduled_momentum: Number | None

    def number(self, option: str) -> float:
        """An option that is a number."""
        value = self.options[option]
        assert isinstance(value, int | float)
        return float(value)

    def betas(self) -> tuple[Number, float]:
        """The pair of decays, the first one by the schedule if it sets one."""
        value = self.options["betas"]
        assert isinstance(value, tuple)
        return (value[0] if self.scheduled_momentum is None else self.scheduled_momentum), value[1]

    def momentum(self) -> Number:
        """The option momentum, by the schedule if it sets one."""
        return self.number("momentum") if self.scheduled_momentum is None else self.scheduled_momentum


class Update:
    """The update of one parameter in the making, from its gradient."""

    def __init__(self, setting: Setting, parameter: Parameter, gradient: str):
        self.set, self.parameter, self.gradient = setting, parameter, gradient
        self.name = parameter.name

    def state(self, kind: str, first: float = 0.0) -> str:
        """A state beside the parameter, `W.kind`, of its type."""
        value = np.full(self.parameter.shape, first)
        return self.set.a.state(f"{self.name}.{kind}", value, self.parameter.elem_type)

    def scaled(self, x: Number, value: str, hint: str) -> str:
        """A tensor times a number."""
        if x == 1.0:
            return value
        scalar = self.set.s.typed(x, self.parameter.elem_type, hint)
        return self.op("Mul", [scalar, value], f"{hint}_part")

    def op(self, op: str, inputs: Sequence[str], hint: str) -> str:
        """A node whose result is named `W.hint`."""
        return self.set.a.node(op, inputs, f"{self.name}.{hint}")

    def decayed(self) -> str:
        """The gradient of the loss with weight decay: G + weight_decay * W."""
        decay = self.set.number("weight_decay")
        if not decay:
            return self.gradient
        return self.op("Add", [self.gradient, self.scaled(decay, self.name, "decay")], "gradient_decayed")

    def mixed(self, kind: str, state: str, keep: Number, new: str, gain: Number) -> str:
        """The next value of a state, keep * state + gain * new."""
        parts = [self.scaled(keep, state, f"{kind}.keep"), self.scaled(gain, new, f"{kind}.gain")]
        return self.next("Add", parts, state)

    def next(self, op: str, inputs: Sequence[str], state: str) -> str:
        """A node whose result is the value that an update gives a state."""
        return self.set.a.node(op, inputs, self.set.clock.hint(state))

    def root(self, square: str, epsilon: Number) -> str:
        """sqrt(square) + epsilon."""
        root = self.op("Sqrt", [square], "root")
        return (
            root
            if epsilon == 0.0
            else self.op("Add", [root, self.set.s.typed(epsilon, self.parameter.elem_type, "epsilon")], "divisor")
        )

    def move(self, rate: Number, direction: str, over: str = "", decay: float = 0.0) -> str:
        """Binds the parameter to W - rate_of_the_group*decay*W - rate*direction/over; returns its next value."""
        moved = self.scaled(rate, direction, "rate")
        if over:
            moved = self.op("Div", [moved, over], "change")
        kept = self.name
        if decay:
            shrink = self.set.s.op("Mul", self.set.rate, decay, hint="shrink")
            kept = self.op("Sub", [kept, self.scaled(shrink, kept, "shrink")], "shrunk")
        return self.keep(self.name, self.next("Sub", [kept, moved], self.name))

    def keep(self, state: str, value: str) -> str:
        """Bind a state to what an update gives it; its next value."""
        return self.set.clock.update(state, value, self.parameter.elem_type)
