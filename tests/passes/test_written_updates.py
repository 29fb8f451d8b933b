"""fuse_optimizer on updates written out in arithmetic: each spelling becomes its step, with the same values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.ir.verify import verify
from compiler.passes.cse import cse
from compiler.passes.fold import fold_constants
from compiler.passes.fuse_optimizer import fuse_optimizer
from tests.passes.expressions import Value, state
from tests.validate import random_feeds, validate

SHAPE = (3, 4)
Next = dict[str, Value]
Spelling = Callable[..., Next]

SPELLINGS: dict[str, tuple[str, Spelling]] = {}


def spells(step: str) -> Callable[[Spelling], Spelling]:
    """The arguments of a spelling are values: x, v, h states; g, d gradients (inputs); lr, t scalar inputs."""

    def register(spelling: Spelling) -> Spelling:
        SPELLINGS[spelling.__name__] = (step, spelling)
        return spelling

    return register


@spells("SgdStep")
def sgd(x, g, lr):
    return {"x": x - lr * g}


@spells("SgdStep")
def sgd_constant_rate(x, g):
    return {"x": x - g * 0.1}


@spells("SgdStep")
def sgd_added(x, g, lr):
    return {"x": -(lr * g) + x}


@spells("SgdStep")
def sgd_negative_rate(x, g, lr):
    return {"x": x + (-lr) * g}


@spells("SgdStep")
def sgd_of_a_mean(x, g, d, lr):
    return {"x": x - lr * ((g + d) / 2.0)}


@spells("SgdStep")
def sgd_decay_in_the_gradient(x, g, lr):
    return {"x": x - lr * (g + 0.01 * x)}


@spells("SgdStep")
def sgd_decay_beside(x, g, lr):
    return {"x": x - lr * g - lr * 0.01 * x}


@spells("SgdStep")
def sgd_decoupled_decay(x, g, lr):
    return {"x": x * (1.0 - lr * 0.01) - lr * g}


@spells("SgdStep")
def sgd_sum(x, g, lr):
    return {"x": x.op("Sum", -(lr * g))}


@spells("MomentumStep")
def momentum(x, v, g, lr):
    new = 0.9 * v + g
    return {"v": new, "x": x - lr * new}


@spells("MomentumStep")
def momentum_dampened(x, v, g, lr):
    new = v * 0.9 + g * 0.1
    return {"v": new, "x": x - new * lr}


@spells("MomentumStep")
def momentum_with_the_rate_inside(x, v, g, lr):
    new = 0.9 * v - lr * g
    return {"v": new, "x": x + new}


@spells("MomentumStep")
def momentum_decay(x, v, g, lr):
    new = 0.9 * v + (g + 0.01 * x)
    return {"v": new, "x": x - lr * new}


@spells("MomentumStep")
def nesterov(x, v, g, lr):
    new = 0.9 * v + g
    return {"v": new, "x": x - lr * (g + 0.9 * new)}


@spells("MomentumStep")
def nesterov_decay(x, v, g, lr):
    d = g + 0.01 * x
    new = 0.9 * v + d
    return {"v": new, "x": x - lr * (d + 0.9 * new)}


@spells("MomentumStep")
def nesterov_with_the_rate_inside(x, v, g, lr):
    new = 0.9 * v - lr * g
    return {"v": new, "x": x + 0.9 * new - lr * g}


@spells("AdagradStep")
def adagrad(x, h, g, lr):
    new = h + g * g
    return {"h": new, "x": x - lr * g / (new.sqrt() + 1e-6)}


@spells("AdagradStep")
def adagrad_quotient_scaled(x, h, g, lr):
    new = h + g**2.0
    return {"h": new, "x": x - lr * (g / (1e-6 + new**0.5))}


@spells("AdagradStep")
def adagrad_decay(x, h, g, lr):
    d = 0.1 * x + g
    new = h + d * d
    return {"h": new, "x": x - lr * d / (new.sqrt() + 1e-6)}


@spells("RmsPropStep")
def rmsprop(x, h, g, lr):
    new = 0.9 * h + 0.1 * g * g
    return {"h": new, "x": x - lr * g / (new.sqrt() + 1e-6)}


@spells("RmsPropStep")
def rmsprop_epsilon_inside(x, h, g, lr):
    new = 0.9 * h + 0.1 * (g * g)
    return {"h": new, "x": x - lr * g / (new + 1e-6).sqrt()}


@spells("RmsPropStep")
def rmsprop_reciprocal(x, h, g, lr):
    new = h + 0.1 * (g * g - h)
    return {"h": new, "x": x - lr * g * (new.sqrt() + 1e-6).op("Reciprocal")}


def moments(v, h, g):
    return 0.9 * v + 0.1 * g, 0.999 * h + 0.001 * (g * g)


@spells("AdamStep")
def adam_uncorrected(x, v, h, g, lr):
    m, s = moments(v, h, g)
    return {"v": m, "h": s, "x": x - lr * m / (s.sqrt() + 1e-8)}


@spells("AdamStep")
def adam_rate_corrected(x, v, h, g, lr, t):
    m, s = moments(v, h, g)
    rate = lr * (1.0 - 0.999**t).sqrt() / (1.0 - 0.9**t)
    return {"v": m, "h": s, "x": x - rate * m / (s.sqrt() + 1e-8)}


@spells("AdamStep")
def adam_moments_corrected(x, v, h, g, lr, t):
    m, s = moments(v, h, g)
    mean, square = m / (1.0 - 0.9**t), s / (1.0 - 0.999**t)
    return {"v": m, "h": s, "x": x - lr * mean / (square.sqrt() + 1e-3)}


@spells("AdamStep")
def adam_root_corrected(x, v, h, g, lr, t):
    m, s = moments(v, h, g)
    root = s.sqrt() / (1.0 - 0.999**t).sqrt() + 1e-3
    return {"v": m, "h": s, "x": x - (lr / (1.0 - 0.9**t)) * (m / root)}


@spells("AdamStep")
def adam_decay(x, v, h, g, lr):
    m, s = moments(v, h, g + 0.01 * x)
    return {"v": m, "h": s, "x": x - lr * m / (s.sqrt() + 1e-8)}


@spells("AdamStep")
def adam_own_betas(x, v, h, g, lr, t):
    m, s = v + (g - v) * 0.1, h * 0.99 + (1.0 - 0.99) * g**2.0
    return {"v": m, "h": s, "x": x - lr * m / (s.sqrt() + 1e-8)}


@spells("AdamStep")
def adamw(x, v, h, g, lr, t):
    m, s = moments(v, h, g)
    mean, square = m / (1.0 - 0.9**t), s / (1.0 - 0.999**t)
    return {"v": m, "h": s, "x": x * (1.0 - lr * 0.01) - lr * (mean / (square.sqrt() + 1e-3))}


@spells("AdamStep")
def adamw_decay_beside(x, v, h, g, lr, t):
    m, s = moments(v, h, g)
    return {"v": m, "h": s, "x": x - lr * (m / (s.sqrt() + 1e-3) + 0.01 * x)}


@spells("AdamStep")
def adam_clipped(x, v, h, g, lr, t):
    """The gradient times a scalar t: squared as it is, since t*t and g*g may leave the range of numbers."""
    m, s = moments(v, h, t * g)
    return {"v": m, "h": s, "x": x - lr * m / (s.sqrt() + 1e-8)}


@spells("AdamStep")
def adam_clipped_decay(x, v, h, g, lr, t):
    m, s = moments(v, h, t * g + 0.01 * x)
    return {"v": m, "h": s, "x": x - lr * m / (s.sqrt() + 1e-8)}


@spells("RmsPropStep")
def rmsprop_clipped(x, h, g, lr, t):
    d = t * g
    new = 0.9 * h + 0.1 * (d * d)
    return {"h": new, "x": x - lr * d / (new.sqrt() + 1e-6)}


@spells("AdagradStep")
def adagrad_clipped_decay(x, h, g, lr, t):
    d = g * t + 0.01 * x
    new = h + d * d
    return {"h": new, "x": x - lr * (d / (new.sqrt() + 1e-6))}


@spells("LionStep")
def lion_clipped(x, v, g, lr, t):
    d = t * g
    return {"v": 0.99 * v + 0.01 * d, "x": x - lr * (0.9 * v + 0.1 * d).op("Sign")}


@spells("LionStep")
def lion(x, v, g, lr):
    return {"v": 0.99 * v + 0.01 * g, "x": x - lr * (0.9 * v + 0.1 * g).op("Sign")}


@spells("LionStep")
def lion_decay(x, v, g, lr):
    move = (g * 0.1 + v * 0.9).op("Sign")
    return {"v": v * 0.99 + g * 0.01, "x": x - lr * (move + 0.01 * x)}


@spells("LionStep")
def lion_decay_first(x, v, g, lr):
    return {"v": 0.01 * g + 0.99 * v, "x": (1.0 - lr * 0.01) * x + (-lr) * (0.9 * v + 0.1 * g).op("Sign")}


# What looks alike and is no step, or not the one it looks like.
@spells("")
def running_average(x, g):
    return {"x": 0.9 * x + 0.1 * g}


@spells("")
def running_average_of_the_difference(x, g):
    return {"x": x - 0.1 * (x - g)}


@spells("")
def total(x, g):
    return {"x": x + g}


@spells("SgdStep")
def amsgrad(x, v, h, g, lr):
    m, s = moments(v, h, g)
    return {"v": m, "h": s, "x": x - lr * (m / (s.op("Max", h).sqrt() + 1e-8))}


@spells("")
def trust_ratio(x, v, h, g, lr):
    """LAMB: the rate depends on a result of what would be the step."""
    m, s = moments(v, h, g)
    norm = Value(m.b, m.b.op("ReduceSum", (m * m).name, keepdims=0)).sqrt()
    return {"v": m, "h": s, "x": x - (lr / norm) * m / (s.sqrt() + 1e-8)}


def graph_of(spelling: Spelling, dtype: str, copies: int = 1, shape: tuple[int, ...] = SHAPE) -> Graph:
    b = Builder("step")
    names = spelling.__code__.co_varnames[: spelling.__code__.co_argcount]
    scalars = {n: Value(b, b.input(n, TensorType(dtype))) for n in names if n in ("lr", "t")}
    for i in range(copies):
        tensors = {n: state(b, f"{n}{i}", shape, dtype, 7 * i + ord(n)) for n in names if n in "xvh"}
        tensors |= {n: Value(b, b.input(f"{n}{i}", TensorType(dtype, shape))) for n in names if n in "gd"}
        for name, value in spelling(*({**tensors, **scalars}[n] for n in names)).items():
            b.update(f"{name}{i}", value.name)
    return cse(fold_constants(b.build()))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(name: str, dtype: str) -> None:
    step, spelling = SPELLINGS[name]
    before = graph_of(spelling, dtype, copies=2)
    after = fuse_optimizer(before)
    verify(after)
    tensor_ops = [n.op for n in after.nodes if after.type(n.results[0]).shape == SHAPE]
    steps = [op for op in tensor_ops if op.endswith("Step")]
    assert steps == ([f"onnxc.{step}"] if step else [])
    if step and name not in ("sgd_of_a_mean", "amsgrad"):
        assert tensor_ops == steps, "nothing is left of the arithmetic"
    feeds = {
        **random_feeds(before),
        "lr": np.asarray(0.1, before_dtype(dtype)),
        "t": np.asarray(3, before_dtype(dtype)),
    }
    rtol = 1e-5 if dtype == "f32" else 1e-12
    validate(before, after, feeds, rtol=rtol, atol=rtol)
    assert fuse_optimizer(after) == after


def before_dtype(dtype: str) -> type[np.floating]:
    return {"f32": np.float32, "f64": np.float64}[dtype]
