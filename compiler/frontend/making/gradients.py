"""What happens to gradients before the optimizer: they are summed over steps, bounded by value and by global norm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.frontend.making.emit import Algorithm
from compiler.frontend.making.optimizer_parts import Parameter
from compiler.frontend.making.scalars import Scalars

Gradients = dict[str, str]
"""Parameter -> the value of its gradient."""


def accumulated(
    a: Algorithm, s: Scalars, due: str, parameters: Mapping[str, Parameter], gradients: Gradients, steps: int
) -> Gradients:
    """The mean of the gradients of `steps` steps, in the step that makes an update; 0 in the others.

    due: whether this step makes one. The sum so far is a state `W.accumulated`, 0 again after an update.
    """
    result: Gradients = {}
    for name, gradient in gradients.items():
        p = parameters[name]
        zeros = np.zeros(p.shape)
        before = a.state(f"{name}.accumulated", zeros, p.elem_type)
        part = a.node("Mul", [gradient, s.typed(1 / steps, p.elem_type, "part")], f"{name}.gradient_part")
        total = a.node("Add", [before, part], f"{name}.gradient_sum")
        result[name] = masked(a, s, due, total, p.elem_type, True, f"{name}.gradient_mean")
        a.update(before, masked(a, s, due, total, p.elem_type, False, f"{before}.next"))
    return result


def masked(a: Algorithm, s: Scalars, condition: str, value: str, elem_type: int, keep: bool, hint: str) -> str:
    """The value where the condition is `keep`, else 0."""
    if a.opset >= 9:
        zero = s.typed(0.0, elem_type, "zero")
        return a.node("Where", [condition, value, zero] if keep else [condition, zero, value], hint)
    factor = s.where(condition, float(keep), float(not keep), "due" if keep else "waiting")
    return a.node("Mul", [value, s.typed(factor, elem_type, "due" if keep else "waiting")], hint)


def clipped_by_value(
    a: Algorithm, s: Scalars, parameters: Mapping[str, Parameter], gradients: Gradients, bound: float
) -> Gradients:
    """Each element between -bound and bound (torch.nn.utils.clip_grad_value_)."""
    result: Gradients = {}
    for name, gradient in gradients.items():
        hint = f"{name}.gradient_clipped"
        if a.opset >= 11:
            low, high = (s.typed(x, parameters[name].elem_type, "clip") for x in (-bound, bound))
            result[name] = a.node("Clip", [gradient, low, high], hint)
        else:
            result[name] = a.node("Clip", [gradient], hint, min=-bound, max=bound)
    return result


def clipped_by_norm(
    a: Algorithm, s: Scalars, parameters: Mapping[str, Parameter], gradients: Gradients, bound: float
) -> Gradients:
    """Each times min(1, bound / (norm + 1e-6)), with the norm of all together (torch.nn.utils.clip_grad_norm_).

    The norm is the value `gradient_norm`, a double.
    """
    squares = []
    for name, gradient in gradients.items():
        square = a.node("ReduceSumSquare", [gradient], f"{name}.gradient_square", keepdims=0)
        squares.append(s.wide(square, parameters[name].elem_type, "gradient_square"))
    total = squares[0] if len(squares) == 1 else a.node("Sum", squares, "gradient_square")
    norm = s.op("Sqrt", total, hint="gradient_norm")
    room = s.op("Div", float(bound), s.op("Add", norm, 1e-6, hint="gradient_norm_safe"), hint="clip_ratio")
    factor = s.op("Min", room, 1.0, hint="clip_factor")
    return {
        name: a.node("Mul", [s.typed(factor, parameters[name].elem_type, "clip_factor"), g], f"{name}.gradient_clipped")
        for name, g in gradients.items()
    }
