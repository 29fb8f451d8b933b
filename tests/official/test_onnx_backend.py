"""ONNX's own test suite through `compiler.backend`: the forward contract, and the official training tests."""

from __future__ import annotations

import re

import onnx.backend.test
from onnx import ModelProto
from onnx.backend.test.loader import load_model_tests

import compiler.backend
from tests.official.excluded import EXCLUDED
from tests.official.listed import OPS

TRAINING = frozenset(
    """
    test_adagrad test_adagrad_multiple test_adam test_adam_multiple test_momentum test_momentum_multiple
    test_nesterov_momentum test_gradient_of_add test_gradient_of_add_and_mul
    """.split()  # noqa: SIM905  (a table, not a list of strings)
)
"""The official tests of the training domain."""


def _wanted(name: str, model: ModelProto | None) -> bool:
    if name in TRAINING:
        return True
    return model is not None and any(n.op_type in OPS and not n.domain for n in model.graph.node)


def _names() -> list[str]:
    found = []
    for case in load_model_tests(kind="node"):
        base = re.sub(r"_expanded(_ver\d+)?$", "", case.name)
        if case.name == base and _wanted(case.name, case.model):
            found.append(case.name)
    return found


NODE_NAMES = _names()

suite = onnx.backend.test.BackendTest(compiler.backend.Backend, __name__)
names = [*NODE_NAMES, *TRAINING]
suite.include(rf"^({'|'.join(map(re.escape, names))})(_expanded(_ver\d+)?)?_cpu$")
for pattern, _reason in EXCLUDED:
    suite.exclude(pattern)
cases = suite.enable_report().test_cases
for case in cases.values():  # what is not ours to run would show as thousands of skipped tests
    for name in [n for n, method in vars(case).items() if getattr(method, "__unittest_skip__", False)]:
        delattr(case, name)
globals().update(cases)


def test_every_training_test_is_there() -> None:
    """The nine official tests of the training domain are collected, not excluded by accident."""
    collected = {name for case in cases.values() for name in vars(case) if name.startswith("test_")}
    assert {f"{n}_cpu" for n in TRAINING} <= collected


def test_exclusions_are_needed() -> None:
    """No pattern of the table matches nothing."""
    all_names = [c.name + "_cpu" for kind in ("node", "simple") for c in load_model_tests(kind=kind)]
    useless = [p for p, _ in EXCLUDED if not any(re.search(p, n) for n in all_names)]
    assert not useless
