"""The gradient check itself: it passes what is right and catches what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from compiler.ir.builder import Builder
from compiler.ir.graph import Graph
from compiler.ir.types import TensorType
from compiler.passes.gradients import RULES
from compiler.passes.gradients.rule import Call
from tests.gradcheck import Mismatch, check, check_off_kinks


def graph(op: str, shapes: dict[str, tuple[int, ...]], **attrs: object) -> tuple[Graph, dict[str, np.ndarray]]:
    b = Builder()
    names = [b.input(k, TensorType("f64", s)) for k, s in shapes.items()]
    b.output("y", b.op(op, *names, **attrs))
    rng = np.random.default_rng(0)
    return b.build(), {k: rng.uniform(0.5, 2, s) for k, s in shapes.items()}


def scaled(r: Call) -> None:
    """Nearly right."""
    r.give(0, r.dy * r.x(1) * 1.001)
    r.give(1, r.dy * r.x(0))


def exchanged(r: Call) -> None:
    r.give(0, r.dy * r.x(0))
    r.give(1, r.dy * r.x(1))


def forgotten(r: Call) -> None:
    r.give(0, r.dy * r.x(1))


@pytest.mark.parametrize("wrong", [scaled, exchanged, forgotten])
def test_a_wrong_rule_is_caught(wrong: Callable[[Call], None]) -> None:
    g, feeds = graph("Mul", {"a": (3, 4), "b": (3, 4)})
    check(g, feeds, ["a", "b"], order=1)
    entry = replace(RULES["Mul"], rule=wrong)
    for checked in (check, check_off_kinks):
        with mock.patch.dict(RULES, {"Mul": entry}), pytest.raises(Mismatch):
            checked(g, feeds, ["a", "b"], order=1)


def test_a_rule_that_is_wrong_in_the_second_order_only() -> None:
    def frozen(r: Call) -> None:
        """Dy times y, but y as a constant: rounded, to nine digits."""
        r.give(0, r.dy * ((r.y() * 1e9).op("Round") / 1e9))

    g, feeds = graph("Exp", {"a": (3,)})
    check(g, feeds, ["a"], order=2)
    with mock.patch.dict(RULES, {"Exp": replace(RULES["Exp"], rule=frozen)}):
        check(g, feeds, ["a"], order=1)
        with pytest.raises(Mismatch):
            check(g, feeds, ["a"], order=2)


def test_a_rule_of_the_wrong_shape_is_caught() -> None:
    def transposed(r: Call) -> None:
        r.give(0, r.dy.op("MatMul", r.x(1).op("Transpose", perm=(1, 0))))
        r.give(1, r.dy.op("Transpose", perm=(1, 0)).op("MatMul", r.x(0)).op("Transpose", perm=(1, 0)) * -1.0)

    g, feeds = graph("MatMul", {"a": (2, 3), "b": (3, 4)})
    with mock.patch.dict(RULES, {"MatMul": replace(RULES["MatMul"], rule=transposed)}), pytest.raises(Mismatch):
        check(g, feeds, ["a", "b"], order=1)
