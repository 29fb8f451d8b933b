"""Optimizers in standard operators: the updates of all parameters of a training step.

Names without prefix mean PyTorch's optimizers (torch.optim; its documentation has the algorithms) and Lion (Chen et
al., Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2). They are arithmetic, not the standard's nodes:
those keep their attributes in float32, and stock runtimes lack them. `fuse_optimizer` makes a step node of it. Names
that begin with `onnx.` are the nodes of ai.onnx.preview.training.

With gradient accumulation, every state is bound to a choice: what the update gives it in steps that make one, else its
old value. `fuse_optimizer` makes the choice part of the step node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from compiler.errors import InputError, Problem, UnsupportedError
from compiler.frontend.making.emit import DOMAIN, Algorithm
from compiler.frontend.making.gradients import accumulated, clipped_by_norm, clipped_by_value
from compiler.frontend.making.optimizer_parts import Parameter, Setting, Update
from compiler.frontend.making.optimizer_spec import OptimizerSpec, Options, optimizer_spec
from compiler.frontend.making.scalars import Clock, Number, Scalars, need_opset

__all__ = ["Added", "OptimizerSpec", "Parameter", "add_optimizer", "optimizer_spec"]

Next = Mapping[str, str]
"""Parameter -> its next value."""


@dataclass(frozen=True)
class Added:
    """What `add_optimizer` made: the value of the rate (a scalar of the training float), the averages by parameter."""

    rate: str
    averages: Mapping[str, str]


def add_optimizer(
    a: Algorithm, parameters: Sequence[Parameter], gradients: Mapping[str, str], spec: OptimizerSpec
) -> Added:
    """Add the updates of all parameters, and bind them.

    gradients: parameter -> value of its gradient, of its type; if it is accumulated, of its part of the mean: that of
    loss / spec.accumulate. States are named after the parameter, as in PyTorch: `W.exp_avg`, `W.momentum_buffer`, ...
    The count of steps is the state `iteration`, if anything depends on it.
    InputError: a pattern of a group matches nothing. UnsupportedError: parameters in half precision, or the model's
    opset lacks an operator.
    """
    if not parameters:
        raise InputError("there are no parameters to train")
    _check_types(parameters)
    s = Scalars(a)
    clock = Clock(a, s, spec.accumulate)
    by_name = {p.name: p for p in parameters}
    ready = {p.name: gradients[p.name] for p in parameters}
    groups = spec.grouped(list(by_name))
    with a.scope("optimizer"):
        due = clock.due
    with a.scope("gradient"):
        if due is not None:
            ready = accumulated(a, s, clock, by_name, ready)
        if spec.clip_value is not None:
            ready = clipped_by_value(a, s, by_name, ready, spec.clip_value)
        if spec.clip_norm is not None:
            ready = clipped_by_norm(a, s, by_name, ready, spec.clip_norm)
    new: dict[str, str] = {}
    with a.scope("optimizer"):
        given = _rate_input(a, s, spec)
        for options, names in groups:
            setting = _setting(a, s, clock, spec, options, given)
            new.update(_RULES[spec.name](setting, [by_name[n] for n in names], ready))
        rate = _scheduled(s, clock, spec, _number(spec.options["lr"]) if given is None else given)
        reported = s.typed(rate, a.dtype, "learning_rate")
    averages: dict[str, str] = {}
    if spec.average is not None:
        with a.scope("average"):
            averages = {p.name: _average(a, s, clock, p, new[p.name], spec.average) for p in parameters}
    return Added(reported, averages)


def _check_types(parameters: Sequence[Parameter]) -> None:
    """UnsupportedError for parameters that are neither float32 nor float64."""
    name = TensorProto.DataType.Name
    problems = [
        Problem(
            f"parameter of type {name(p.elem_type).lower()}, in which small changes and an epsilon of 1e-8 are lost",
            p.name,
            "make a model with float32 weights, and convert it after training",
        )
        for p in parameters
        if p.elem_type not in (TensorProto.FLOAT, TensorProto.DOUBLE)
    ]
    if problems:
        raise UnsupportedError(problems)


def _number(option: object) -> float:
    assert isinstance(option, int | float)
    return float(option)


def _rate_input(a: Algorithm, s: Scalars, spec: OptimizerSpec) -> Number | None:
    """The rate as an input of the step, with the optimizer's as default; None if it is none."""
    if spec.lr_input is False:
        return None
    name = "learning_rate" if spec.lr_input is True else spec.lr_input
    if name in a.names and spec.lr_input is not True:
        raise InputError(f"lr_input: the model has a value {name!r} already, give another name")
    return s.wide(a.input(name, a.dtype, (), default=_number(spec.options["lr"])), a.dtype, "rate")


def _setting(
    a: Algorithm, s: Scalars, clock: Clock, spec: OptimizerSpec, options: Options, given: Number | None
) -> Setting:
    lr, base = _number(options["lr"]), _number(spec.options["lr"])
    if given is not None:
        if not base and lr:
            raise InputError("a group's lr is in proportion to the optimizer's where the rate is an input: give lr > 0")
        rate = s.op("Mul", given, lr / base if base else 1.0, hint="rate")
    else:
        rate = lr
    rate = _scheduled(s, clock, spec, rate)
    momentum = None
    cycles = getattr(spec.schedule, "cycle_momentum", False)
    has = bool(options.get("betas") or options.get("momentum"))
    if cycles and "betas" not in options and "momentum" not in options:
        raise InputError(f"optimizer {spec.name} has no momentum for the schedule to cycle: set cycle_momentum=False")
    if cycles or (cycles is None and has):
        momentum = spec.schedule.momentum(s, clock.done)
    return Setting(a, s, clock, options, rate, momentum)


def _scheduled(s: Scalars, clock: Clock, spec: OptimizerSpec, rate: Number) -> Number:
    return rate if spec.schedule.steady else spec.schedule.rate(s, clock.done, rate)


def _average(a: Algorithm, s: Scalars, clock: Clock, p: Parameter, new: str, decay: float) -> str:
    """A state that follows a parameter: decay*E + (1 - decay)*W', the first time W' (as torch's AveragedModel)."""
    state = a.state(f"{p.name}.average", np.zeros(p.shape) if p.value is None else p.value, p.elem_type)
    keep = s.where(s.less(clock.done, 1.0, "first_update"), 0.0, float(decay), "average.decay")
    parts = [
        a.node("Mul", [s.typed(keep, p.elem_type, "average.keep"), state], f"{state}.kept"),
        a.node(
            "Mul",
            [s.typed(s.op("Sub", 1.0, keep, hint="average.gain"), p.elem_type, "average.gain"), new],
            f"{state}.new",
        ),
    ]
    clock.update(state, a.node("Add", parts, clock.hint(state)), p.elem_type)
    return state


# --- the optimizers ------------------------------------------------------------------------------------------
Rule = Callable[[Setting, Sequence[Parameter], Mapping[str, str]], Next]
_RULES: dict[str, Rule] = {}


def _each(*names: str) -> Callable[[Callable[[Update], str]], Callable[[Update], str]]:
    """Register a formula for one parameter; it binds the parameter and its states, and gives the next value."""

    def register(formula: Callable[[Update], str]) -> Callable[[Update], str]:
        def rule(setting: Setting, parameters: Sequence[Parameter], gradients: Mapping[str, str]) -> Next:
            return {p.name: formula(Update(setting, p, gradients[p.name])) for p in parameters}

        _RULES.update(dict.fromkeys(names, rule))
        return formula

    return register


@_each("sgd", "momentum", "nesterov")
def _sgd(u: Update) -> str:
    """V' = momentum*V + (1 - dampening)*g, in the first update g; W' = W - lr*V', nesterov W - lr*(g + momentum*V')."""
    g, momentum, rate, s = u.decayed(), u.set.momentum(), u.set.rate, u.set.s
    if momentum == 0.0:
        return u.move(rate, g)
    gain: Number = 1.0
    if dampening := u.set.number("dampening"):
        gain = s.where(s.less(u.set.clock.done, 1.0, "first_update"), 1.0, 1 - dampening, "gain")
    v = u.state("momentum_buffer")
    new = u.mixed("momentum", v, momentum, g, gain)
    u.keep(v, new)
    if u.set.options["nesterov"]:
        return u.move(rate, u.op("Add", [g, u.scaled(momentum, new, "momentum")], "direction"))
    return u.move(rate, new)


@_each("adagrad")
def _adagrad(u: Update) -> str:
    """H' = H + g*g; W' = W - lr/(1 + done*lr_decay) * g/(sqrt(H') + eps)."""
    g, s, rate = u.decayed(), u.set.s, u.set.rate
    if decay := u.set.number("lr_decay"):
        slower = s.op("Add", s.op("Mul", u.set.clock.done, decay, hint="slower"), 1.0, hint="slower")
        rate = s.op("Div", rate, slower, hint="rate")
    h = u.state("sum", u.set.number("initial_accumulator_value"))
    new = u.next("Add", [h, u.op("Mul", [g, g], "square")], h)
    u.keep(h, new)
    return u.move(rate, g, u.root(new, u.set.number("eps")))


@_each("rmsprop")
def _rmsprop(u: Update) -> str:
    """H' = alpha*H + (1 - alpha)*g*g; d = g/(sqrt(H') + eps); W' = W - lr*d.

    With a momentum: B' = momentum*B + d; W' = W - lr*B'. centered: M' = alpha*M + (1 - alpha)*g, and d is over
    sqrt(H' - M'*M').
    """
    g, alpha, eps = u.decayed(), u.set.number("alpha"), u.set.number("eps")
    h = u.state("square_avg")
    square = new = u.mixed("square", h, alpha, u.op("Mul", [g, g], "square"), 1 - alpha)
    u.keep(h, new)
    if u.set.options["centered"]:
        m = u.state("grad_avg")
        mean = u.mixed("mean", m, alpha, g, 1 - alpha)
        u.keep(m, mean)
        square = u.op("Sub", [new, u.op("Mul", [mean, mean], "mean_square")], "variance")
    root = u.root(square, eps)
    momentum = u.set.momentum()
    if momentum == 0.0:
        return u.move(u.set.rate, g, root)
    b = u.state("momentum_buffer")
    buffer = u.mixed("momentum", b, momentum, u.op("Div", [g, root], "direction"), 1.0)
    u.keep(b, buffer)
    return u.move(u.set.rate, buffer)


@_each("adam")
def _adam(u: Update) -> str:
    """Adam with weight decay in the gradient."""
    return _moments(u, u.decayed(), 0.0)


@_each("adamw")
def _adamw(u: Update) -> str:
    """Adam with decoupled weight decay: W shrinks by lr*weight_decay first."""
    return _moments(u, u.gradient, u.set.number("weight_decay"))


def _moments(u: Update, g: str, decay: float) -> str:
    """V' = beta1*V + (1 - beta1)*g; H' = beta2*H + (1 - beta2)*g*g; in update t = 1, 2, ...

    W' = W - lr*decay*W - lr/(1 - beta1^t) * V'/(sqrt(K)/sqrt(1 - beta2^t) + eps), K = H' (amsgrad: the largest so far).
    Here sqrt(1 - beta2^t) is in the scalars: the rate is lr*sqrt(1 - beta2^t)/(1 - beta1^t), and eps is multiplied.
    """
    s, t, (beta1, beta2) = u.set.s, u.set.clock.number, u.set.betas()
    v, h = u.state("exp_avg"), u.state("exp_avg_sq")
    mean = u.mixed("mean", v, beta1, g, s.op("Sub", 1.0, beta1, hint="mean.gain"))
    square = largest = u.mixed("square", h, beta2, u.op("Mul", [g, g], "square"), 1 - beta2)
    u.keep(v, mean)
    u.keep(h, square)
    if u.set.options["amsgrad"]:
        k = u.state("max_exp_avg_sq")
        largest = u.next("Max", [k, square], k)
        u.keep(k, largest)
    rest1, rest2 = (
        s.op("Sub", 1.0, s.op("Pow", beta, t, hint=f"{name}.power"), hint=f"{name}.correction")
        for name, beta in (("beta1", beta1), ("beta2", beta2))
    )
    root = s.op("Sqrt", rest2, hint="correction_root")
    rate = s.op("Div", s.op("Mul", u.set.rate, root, hint="rate"), rest1, hint="rate_corrected")
    return u.move(rate, mean, u.root(largest, s.op("Mul", root, u.set.number("eps"), hint="epsilon")), decay)


@_each("lion")
def _lion(u: Update) -> str:
    """W' = W - lr*weight_decay*W - lr*sign(beta1*V + (1 - beta1)*g); V' = beta2*V + (1 - beta2)*g."""
    need_opset(u.set.a, 9, "Lion", "Sign")
    g, v, s, (beta1, beta2) = u.gradient, u.state("exp_avg"), u.set.s, u.set.betas()
    rest = s.op("Sub", 1.0, beta1, hint="look.gain")
    look = u.op("Add", [u.scaled(beta1, v, "look.keep"), u.scaled(rest, g, "look.gain")], "look")
    u.keep(v, u.mixed("mean", v, beta2, g, 1 - beta2))
    return u.move(u.set.rate, u.op("Sign", [look], "direction"), decay=u.set.number("weight_decay"))


def _standard(op: str, kept: Sequence[str], first: int) -> Rule:
    """The rule of a node of ai.onnx.preview.training. kept: its states. first: T in the first update."""

    def rule(setting: Setting, parameters: Sequence[Parameter], gradients: Mapping[str, str]) -> Next:
        a, s, clock = setting.a, setting.s, setting.clock
        states = [[Update(setting, p, "").state(kind) for p in parameters] for kind in kept]
        time = clock.index
        if first:
            time = a.node("Add", [time, a.const(first, "one", TensorProto.INT64)], "update_number")
        rate = s.typed(setting.rate, a.dtype, "rate")
        variables = [p.name for p in parameters]
        olds = [*variables, *(v for kind in states for v in kind)]
        inputs = [rate, time, *variables, *(gradients[v] for v in variables), *olds[len(variables) :]]
        attributes = {k: v for k, v in setting.options.items() if k != "lr"}
        news = a.nodes_of(op, inputs, [clock.hint(v) for v in olds], DOMAIN, **attributes)
        if clock.due is not None:
            need_opset(a, 9, f"gradient accumulation with onnx.{op.lower()}", "Where")
        types = [p.elem_type for _ in range(1 + len(states)) for p in parameters]
        nexts = [clock.update(*bound) for bound in zip(olds, news, types, strict=True)]
        return dict(zip(variables, nexts, strict=False))

    return rule


_RULES["onnx.momentum"] = _standard("Momentum", ["momentum"], 0)
_RULES["onnx.adagrad"] = _standard("Adagrad", ["squares"], 0)
_RULES["onnx.adam"] = _standard("Adam", ["mean", "square"], 1)
