"""Nodes: what makes two of them the same."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import VerifyError
from compiler.ir.builder import Builder
from compiler.ir.evaluate import evaluate
from compiler.ir.graph import Node
from compiler.ir.types import TensorType
from compiler.ir.verify import verify


def leaky(alpha: float | int) -> Node:
    return Node("LeakyRelu", ("x",), ("y",), {"alpha": alpha})


def test_attributes_compare_by_their_bits() -> None:
    assert leaky(0.0) == leaky(0.0)
    assert leaky(float("nan")) == leaky(float("nan"))
    assert len({leaky(a) for a in (0.0, -0.0, 1.0, 1)}) == 4
    assert Node("X", (), ("y",), {"a": (0.0, 1)}) != Node("X", (), ("y",), {"a": (-0.0, 1)})


def test_what_is_remembered_of_one_node_is_not_used_for_a_node_of_other_bits() -> None:
    zeros = [Node("Constant", (), ("y",), {"value_float": value}) for value in (0.0, -0.0)]
    assert [bool(np.signbit(evaluate(node, [])[0])) for node in zeros] == [False, True]
    for alpha in (1.0, 1):  # an integer is no float, though an equal float was fine before
        b = Builder()
        x = b.input("x", TensorType("f32", (2,)))
        b.add("LeakyRelu", [x], {"alpha": alpha}, ["y"], types=[b.type(x)])
        if isinstance(alpha, float):
            verify(b.build())
        else:
            with pytest.raises(VerifyError, match="not of the kind FLOAT"):
                verify(b.build())


def test_a_copy_shares_its_nodes() -> None:
    """What a node knows of itself lasts through the passes."""
    b = Builder()
    x = b.input("x", TensorType("f32", (2,)))
    b.output("y", b.op("Relu", b.op("Neg", x)))
    old, new = b.build(), Builder()
    names = new.sources_of(old)
    for node in old.nodes:
        new.copy(node, names, old)
    assert all(a is b for a, b in zip(old.nodes, new.nodes, strict=True))
