"""Functions of one number: derivative times dy. Kinks: docs/ties.md."""

from __future__ import annotations

import math
from collections.abc import Callable

from compiler.passes.gradients.rule import Call, gradient
from compiler.passes.gradients.value import Value

DERIVATIVES: dict[str, Callable[[Value, Value], Value]] = {
    "Exp": lambda x, y: y,
    "Sigmoid": lambda x, y: y * (1.0 - y),
    "Softplus": lambda x, y: x.op("Sigmoid"),
    "Tanh": lambda x, y: 1.0 - y * y,
    "Erf": lambda x, y: (-(x * x)).op("Exp") * (2 / math.sqrt(math.pi)),
    "Abs": lambda x, y: x.op("Sign"),
    "Sin": lambda x, y: x.op("Cos"),
    "Cos": lambda x, y: -x.op("Sin"),
    "Tan": lambda x, y: y * y + 1.0,
    "Sinh": lambda x, y: x.op("Cosh"),
    "Cosh": lambda x, y: x.op("Sinh"),
}
"""op -> derivative, from x and y, where it is a factor of dy."""

DIVISORS: dict[str, Callable[[Value, Value], Value]] = {
    "Log": lambda x, y: x,
    "Sqrt": lambda x, y: y * 2.0,
    "Asin": lambda x, y: (1.0 - x * x).op("Sqrt"),
    "Acos": lambda x, y: -(1.0 - x * x).op("Sqrt"),
    "Atan": lambda x, y: x * x + 1.0,
    "Asinh": lambda x, y: (x * x + 1.0).op("Sqrt"),
    "Acosh": lambda x, y: (x * x - 1.0).op("Sqrt"),
    "Atanh": lambda x, y: 1.0 - x * x,
}
"""op -> reciprocal of the derivative."""


@gradient(*DERIVATIVES)
def by_factor(r: Call) -> None:
    """The product of dy and the derivative."""
    r.give(0, r.dy * DERIVATIVES[r.node.op](r.x(), r.y()))


@gradient(*DIVISORS)
def by_divisor(r: Call) -> None:
    """The quotient of dy and the reciprocal of the derivative."""
    r.give(0, r.dy / DIVISORS[r.node.op](r.x(), r.y()))


@gradient("Neg")
def neg(r: Call) -> None:
    """The derivative is -1."""
    r.give(0, -r.dy)


@gradient("Reciprocal")
def reciprocal(r: Call) -> None:
    """The derivative is -y^2."""
    r.give(0, -(r.dy * r.y() * r.y()))


@gradient("Identity")
def identity(r: Call) -> None:
    """The derivative is 1."""
    r.give(0, r.dy)


@gradient("Cast", "CastLike")
def cast(r: Call) -> None:
    """Between floating-point types, whose rounding it looks through."""
    r.give(0, r.dy.cast(r.x().type.slope.dtype))


@gradient("Relu")
def relu(r: Call) -> None:
    """The derivative at 0 is 0."""
    r.give(0, (r.y() > 0.0).where(r.dy, 0.0))


@gradient("LeakyRelu")
def leaky_relu(r: Call) -> None:
    """The derivative at 0 is alpha."""
    r.give(0, (r.x() > 0.0).where(r.dy, r.dy * r.attr("alpha")))


@gradient("ThresholdedRelu")
def thresholded_relu(r: Call) -> None:
    """The derivative at alpha is 0."""
    r.give(0, (r.x() > r.attr("alpha")).where(r.dy, 0.0))


@gradient("Shrink")
def shrink(r: Call) -> None:
    """The derivative is 0 from -lambd to lambd, both included."""
    r.give(0, (r.x().op("Abs") > r.attr("lambd")).where(r.dy, 0.0))


@gradient("HardSigmoid")
def hard_sigmoid(r: Call) -> None:
    """The derivative is 0 at both ends of the ramp."""
    y = r.y()
    r.give(0, ((y > 0.0) & (y < 1.0)).where(r.dy * r.attr("alpha"), 0.0))


@gradient("HardSwish")
def hard_swish(r: Call) -> None:
    """The derivative is 0 at -3 and 1 at 3."""
    x = r.x()
    slope = (x < 3.0).where(x / 3.0 + 0.5, 1.0)
    r.give(0, r.dy * (x > -3.0).where(slope, 0.0))


@gradient("Elu")
def elu(r: Call) -> None:
    """The derivative is alpha exp(x) = y + alpha at 0 and below."""
    r.give(0, (r.x() > 0.0).where(r.dy, r.dy * (r.y() + r.attr("alpha"))))


@gradient("Celu")
def celu(r: Call) -> None:
    """The derivative is exp(x / alpha) = y / alpha + 1 at 0 and below."""
    r.give(0, (r.x() > 0.0).where(r.dy, r.dy * (r.y() / r.attr("alpha") + 1.0)))


@gradient("Selu")
def selu(r: Call) -> None:
    """The derivative is gamma alpha exp(x) = y + gamma alpha at 0 and below."""
    alpha, gamma = r.attr("alpha"), r.attr("gamma")
    r.give(0, r.dy * (r.x() > 0.0).where(gamma, r.y() + alpha * gamma))


@gradient("Softsign")
def softsign(r: Call) -> None:
    """The derivative is 1 / (1 + |x|)^2."""
    d = r.x().op("Abs") + 1.0
    r.give(0, r.dy / (d * d))


@gradient("Gelu")
def gelu(r: Call) -> None:
    """Of x cdf(x): cdf + x pdf; of its approximation with tanh, exactly the derivative of that."""
    x = r.x()
    if r.attr("approximate") == "tanh":
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        square = x * x
        t = (x * (square * (scale * cubic) + scale)).op("Tanh")
        inner = square * (3 * scale * cubic) + scale
        r.give(0, r.dy * 0.5 * (t + 1.0 + x * (1.0 - t * t) * inner))
    else:
        cdf = (x * math.sqrt(0.5)).op("Erf") * 0.5 + 0.5
        pdf = (x * x * -0.5).op("Exp") * (1 / math.sqrt(2 * math.pi))
        r.give(0, r.dy * (cdf + x * pdf))


@gradient("Swish")
def swish(r: Call) -> None:
    """Of x s(alpha x): s + alpha y (1 - s)."""
    alpha = r.attr("alpha")
    s = (r.x() * alpha).op("Sigmoid")
    r.give(0, r.dy * (s + r.y() * (1.0 - s) * alpha))


@gradient("Mish")
def mish(r: Call) -> None:
    """Of x t, t = tanh(softplus(x)): t + x (1 - t^2) sigmoid(x)."""
    x = r.x()
    t = x.op("Softplus").op("Tanh")
    r.give(0, r.dy * (t + x * (1.0 - t * t) * x.op("Sigmoid")))
