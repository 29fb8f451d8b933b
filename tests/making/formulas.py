"""Optimizers, schedules and what is done to gradients, in numpy and Python: the formulas of docs/optimizers.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
State = dict[str, Array]
Options = Mapping[str, Any]


def sgd(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    g = g + o.get("weight_decay", 0) * w
    if momentum := o.get("momentum", 0):
        first = "v" not in state
        state["v"] = g if first else momentum * state["v"] + (1 - o.get("dampening", 0)) * g
        g = g + momentum * state["v"] if o.get("nesterov") else state["v"]
    return w - lr * g


def adagrad(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    g = g + o.get("weight_decay", 0) * w
    state["h"] = state.get("h", o.get("initial_accumulator_value", 0.0) * np.ones_like(w)) + g * g
    return w - lr / (1 + (t - 1) * o.get("lr_decay", 0)) * g / (np.sqrt(state["h"]) + o.get("eps", 1e-10))


def rmsprop(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    g, alpha = g + o.get("weight_decay", 0) * w, o.get("alpha", 0.99)
    state["h"] = alpha * state.get("h", np.zeros_like(w)) + (1 - alpha) * g * g
    h = state["h"]
    if o.get("centered"):
        state["m"] = alpha * state.get("m", np.zeros_like(w)) + (1 - alpha) * g
        h = h - state["m"] ** 2
    d = g / (np.sqrt(h) + o.get("eps", 1e-8))
    if momentum := o.get("momentum", 0):
        d = state["b"] = momentum * state.get("b", np.zeros_like(w)) + d
    return w - lr * d


def adam(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    beta1, beta2 = o.get("betas", (0.9, 0.999))
    if o.get("decoupled"):
        w = w * (1 - lr * o.get("weight_decay", 0.01))
    else:
        g = g + o.get("weight_decay", 0) * w
    state["v"] = beta1 * state.get("v", np.zeros_like(w)) + (1 - beta1) * g
    state["h"] = beta2 * state.get("h", np.zeros_like(w)) + (1 - beta2) * g * g
    state["k"] = np.maximum(state.get("k", 0), state["h"])
    h = (state["k"] if o.get("amsgrad") else state["h"]) / (1 - beta2**t)
    return w - lr * state["v"] / (1 - beta1**t) / (np.sqrt(h) + o.get("eps", 1e-8))


def adamw(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    return adam(w, g, state, t, {**o, "decoupled": True}, lr)


def lion(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    beta1, beta2 = o.get("betas", (0.9, 0.99))
    v = state.get("v", np.zeros_like(w))
    state["v"] = beta2 * v + (1 - beta2) * g
    return w - lr * (np.sign(beta1 * v + (1 - beta1) * g) + o.get("weight_decay", 0) * w)


def onnx_adam(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    alpha, beta, epsilon = (
        float(np.float32(o.get(k, d))) for k, d in (("alpha", 0.9), ("beta", 0.999), ("epsilon", 1e-6))
    )
    g = g + float(np.float32(o.get("norm_coefficient", 0))) * w
    state["v"] = alpha * state.get("v", np.zeros_like(w)) + (1 - alpha) * g
    state["h"] = beta * state.get("h", np.zeros_like(w)) + (1 - beta) * g * g
    rate = lr * math.sqrt(1 - beta**t) / (1 - alpha**t)
    w = w - rate * state["v"] / (np.sqrt(state["h"]) + epsilon)
    return (1 - float(np.float32(o.get("norm_coefficient_post", 0)))) * w


def onnx_adagrad(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    g = g + float(np.float32(o.get("norm_coefficient", 0))) * w
    state["h"] = state.get("h", np.zeros_like(w)) + g * g
    r = lr / (1 + (t - 1) * float(np.float32(o.get("decay_factor", 0))))
    return w - r * g / (np.sqrt(state["h"]) + float(np.float32(1e-6)))


def onnx_momentum(w: Array, g: Array, state: State, t: int, o: Options, lr: float) -> Array:
    alpha, beta = (float(np.float32(o.get(k, d))) for k, d in (("alpha", 0.9), ("beta", 1.0)))
    state["v"] = alpha * state.get("v", np.zeros_like(w)) + (beta if t > 1 else 1.0) * g
    return w - lr * (g + alpha * state["v"] if o.get("mode") == "nesterov" else state["v"])


OPTIMIZERS: Mapping[str, Callable[[Array, Array, State, int, Options, float], Array]] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "adam": adam,
    "adamw": adamw,
    "lion": lion,
    "onnx.adam": onnx_adam,
    "onnx.adagrad": onnx_adagrad,
    "onnx.momentum": onnx_momentum,
}


def clip_norm(gradients: Mapping[str, Array], bound: float) -> dict[str, Array]:
    norm = math.sqrt(sum(float((g * g).sum()) for g in gradients.values()))
    return {name: g * min(1.0, bound / (norm + 1e-6)) for name, g in gradients.items()}


def trajectory(
    name: str,
    options: Options,
    lr: Callable[[int], float],
    weights: Mapping[str, Array],
    gradients: Sequence[Mapping[str, Array]],
    *,
    every: int = 1,
    value: float = math.inf,
    norm: float = math.inf,
    momentum: Callable[[int], float] | None = None,
) -> list[dict[str, Array]]:
    """The weights after each step. lr, momentum: functions of the updates done before."""
    current = {n: np.array(w) for n, w in weights.items()}
    states: dict[str, State] = {n: {} for n in weights}
    found, waiting = [], []
    for given in gradients:
        waiting.append(given)
        if len(waiting) == every:
            t = len(found) // every + 1
            mean = {n: sum((g[n] for g in waiting), np.zeros_like(current[n])) / every for n in current}
            ready = clip_norm({n: np.clip(g, -value, value) for n, g in mean.items()}, norm)
            o = dict(options)
            if momentum is not None:
                o |= {"betas": (momentum(t - 1), 0.999)} if "adam" in name else {"momentum": momentum(t - 1)}
            current = {n: OPTIMIZERS[name](w, ready[n], states[n], t, o, lr(t - 1)) for n, w in current.items()}
            waiting = []
        found.append(current)
    return found


def cosine(start: float, end: float, part: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(part, 1.0))) / 2


def one_cycle(high: float, total: int, done: int, low: float, final: float, pct: float = 0.3) -> float:
    turn = pct * total - 1
    done = min(done, total - 1)
    return cosine(low, high, done / turn) if done <= turn else cosine(high, final, (done - turn) / (total - 1 - turn))
