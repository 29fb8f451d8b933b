"""Definitions of ONNX's optimizers (ai.onnx.preview.training), which ONNX describes in words only.

Each is a few scalars, then a step of `optimizers` for all variables of one dtype. Scalars are computed in float64 and
rounded once, to the variables' dtype, so that a correction as 1 - beta^T is exact for small T as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from compiler.ir.builder import INTERNAL_OPS, Builder
from compiler.ir.definitions.optimizers import STEPS, Step
from compiler.ir.graph import Attr
from compiler.ir.infer import InferenceError
from compiler.ir.proto import TRAINING_DOMAIN, default
from compiler.ir.types import onnx_dtype

Attribute = Callable[[str], Attr]
Scalars = dict[str, str]
"""Operand of the step -> value of f64[]."""

_Formula = Callable[[Builder, str, str, Attribute], Scalars]


def _optimizer(name: str, step: str, roles: str) -> Callable[[_Formula], _Formula]:
    """Register an optimizer: its tensors in order, and the scalars of its step, made from R and T (both f64[])."""
    op = f"{TRAINING_DOMAIN}.{name}"

    def register(formula: _Formula) -> _Formula:
        def body(b: Builder, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> Sequence[str]:
            n, rest = divmod(len(inputs) - 2, len(roles))
            if n < 1 or rest:
                raise InferenceError(f"{name} takes R, T, then {len(roles)} tensors a variable")
            rate, time = (_wide(b, v) for v in inputs[:2])
            scalars = formula(b, rate, time, lambda a: attrs.get(a, default(op, a)))
            tensors = {role: inputs[2 + k * n : 2 + (k + 1) * n] for k, role in enumerate(roles)}
            return _steps(b, STEPS[f"onnxc.{step}"], scalars, tensors, n)

        INTERNAL_OPS[op] = body
        return formula

    return register


def _wide(b: Builder, v: str) -> str:
    """A scalar as f64[]."""
    if b.type(v).size != 1:
        raise InferenceError(f"R and T are scalars, not {b.type(v)}")
    v = b.op("Reshape", v, b.ints([])) if b.shape(v) else v
    return v if b.type(v).dtype == "f64" else b.op("Cast", v, to=onnx_dtype("f64"), name="wide")


def _steps(b: Builder, step: Step, scalars: Scalars, tensors: Mapping[str, Sequence[str]], n: int) -> Sequence[str]:
    """A step for the variables of each dtype; all results grouped by role, in the order of the variables."""
    results: dict[tuple[str, int], str] = {}
    by_dtype: dict[str, list[int]] = {}
    for i, x in enumerate(tensors["X"]):
        by_dtype.setdefault(b.type(x).dtype, []).append(i)
    for dtype, variables in by_dtype.items():
        operands = [_rounded(b, scalars[name], dtype, name) if name in scalars else "" for name in step.scalars]
        grouped = [tensors[role][i] for role in step.roles for i in variables]
        hints = [role.lower() for role in step.results for _ in variables]
        values = iter(b.add(step.op, [*operands, *grouped], outputs=hints))
        results.update({(role, i): next(values) for role in step.results for i in variables})
    return [results[role, i] for role in step.results for i in range(n)]


def _rounded(b: Builder, scalar: str, dtype: str, name: str) -> str:
    if dtype == "f64":
        return scalar
    known = b.known(scalar)
    return (
        b.const(known.astype(np.float32))
        if known is not None
        else b.op("Cast", scalar, to=onnx_dtype(dtype), name=name)
    )


def _number(b: Builder, x: float) -> str:
    return b.const(np.array(x, np.float64))


def _if_later(b: Builder, time: str, then: str, otherwise: str, name: str) -> str:
    """`then` if T > 0."""
    return b.op("Where", b.op("Greater", time, _number(b, 0), name="later"), then, otherwise, name=name)


def _decay(b: Builder, attr: Attribute) -> Scalars:
    """The term norm_coefficient*X of the gradient."""
    return {"decay": _number(b, attr("norm_coefficient"))} if attr("norm_coefficient") else {}


@_optimizer("Adam", "AdamStep", "XGVH")
def _adam(b: Builder, rate: str, time: str, attr: Attribute) -> Scalars:
    """R' = R*sqrt(1 - beta^T)/(1 - alpha^T) if T > 0, else R; X' is multiplied by 1 - norm_coefficient_post."""
    alpha, beta, one = _number(b, attr("alpha")), _number(b, attr("beta")), _number(b, 1)
    rest_v, rest_h = (b.op("Sub", one, b.op("Pow", base, time, name="power"), name="rest") for base in (alpha, beta))
    corrected = b.op("Div", b.op("Mul", rate, b.op("Sqrt", rest_h, name="root")), rest_v, name="corrected")
    post = attr("norm_coefficient_post")
    return {
        "rate": _if_later(b, time, corrected, rate, "rate"),
        "epsilon": _number(b, attr("epsilon")),
        "alpha": alpha,
        "gain_v": _number(b, 1 - attr("alpha")),
        "beta": beta,
        "gain_h": _number(b, 1 - attr("beta")),
        **_decay(b, attr),
        **({"keep": _number(b, 1 - post)} if post else {}),
    }


@_optimizer("Adagrad", "AdagradStep", "XGH")
def _adagrad(b: Builder, rate: str, time: str, attr: Attribute) -> Scalars:
    """R' = R/(1 + T*decay_factor)."""
    if factor := attr("decay_factor"):
        slower = b.op("Add", b.op("Mul", time, _number(b, factor)), _number(b, 1), name="slower")
        rate = b.op("Div", rate, slower, name="rate")
    return {"rate": rate, "epsilon": _number(b, attr("epsilon")), **_decay(b, attr)}


@_optimizer("Momentum", "MomentumStep", "XGV")
def _momentum(b: Builder, rate: str, time: str, attr: Attribute) -> Scalars:
    """V' = alpha*V + b*g with b = beta if T > 0, else 1. standard: X - R*V'; nesterov: X - R*(g + alpha*V')."""
    alpha, one = _number(b, attr("alpha")), _number(b, 1)
    beta = one if attr("beta") == 1 else _if_later(b, time, _number(b, attr("beta")), one, "beta")
    scalars = {"alpha": alpha, "beta": beta, "rate": rate, **_decay(b, attr)}
    if attr("mode") == "nesterov":
        return {**scalars, "rate": b.op("Mul", rate, alpha, name="rate"), "direct": rate}
    return scalars
