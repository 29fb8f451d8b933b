"""What happens to gradients before the optimizer: they are summed over steps, bounded by value and by global norm."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.frontend.making.emit import Algorithm
from compiler.frontend.making.optimizer_parts import Parameter
from compiler.frontend.making.scalars import Clock, Scalars

Gradients = dict[str, str]
"""Parameter -> the value of its gradient."""


def accumulated(
    a: Algorithm, s: Scalars, clock: Clock, parameters: Mapping[str, Parameter], gradients: Gradients
) -> Gradients:
    """The sums of the gradients since the last update, also the states `W.accumulated`.

    The first step after an update begins them anew. So a sum is the next value of its state, and can lie there at once.
    """
    result: Gradients = {}
    for name, gradient in gradients.items():
        p = parameters[name]
        before = a.state(f"{name}.accumulated", np.zeros(p.shape), p.elem_type)
        zero = s.typed(0.0, p.elem_type, "zero")
        kept = clock.choose(clock.first, zero, before, p.elem_type, f"{name}.gradient_before")
        result[name] = a.node("Add", [kept, gradient], f"{before}.next")
        a.update(before, result[name])
    return result


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
