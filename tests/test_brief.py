"""Steps that are surely brief: which they are, and how they run."""

from __future__ import annotations

import _thread

import numpy as np
import pytest

import compiler
from compiler.codegen.brief import MOST, is_brief
from compiler.codegen.calls import Call, In, Listing, Out, Temp
from compiler.codegen.native import kernel
from compiler.codegen.units import Statement
from compiler.ir.types import TensorType
from tests.models import tiny
from tests.test_api import bits

FEEDS = {"x": np.ones((16, 4), np.float32), "label": np.arange(16) % 3}


def test_a_brief_step_runs_on_the_thread_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", lambda *args: pytest.fail("a thread for so little"))
    step = compiler.compile(tiny(), threads=2)
    step(FEEDS)
    layout = step._recent["step"].layout
    assert layout.brief
    assert layout.threads == 2


def test_a_larger_batch_is_not_brief() -> None:
    step = compiler.compile(tiny())
    step(x=np.ones((512, 4), np.float32), label=np.zeros(512, np.int64))
    assert not step._recent["step"].layout.brief


@kernel
def four(lo: int, hi: int, a: int, b: int, c: int, d: int) -> None:
    """Does nothing with four operands."""


def test_what_is_counted() -> None:
    types = {"a": TensorType("f32", (100,)), "b": TensorType("f64", (10, 5))}
    call = Call(four, 1, (In("a"), Listing((Out("b"), 7)), Temp("t", 200), 1_000_000))  # 1000 bytes
    at_most = MOST * 64 // 1000**2
    calls = [Statement("call", call=call), Statement("barrier")]
    assert is_brief(calls * at_most, types)
    assert not is_brief(calls * (2 * at_most), types)
    assert not is_brief([Statement("while"), *calls, Statement("end")], types)


def test_a_stale_status_makes_no_call_vain() -> None:
    """As an interrupt leaves it that comes after a refused run, before anyone looked; a refusal leaves none."""
    step, alone = compiler.compile(tiny()), compiler.compile(tiny())
    for f in (step, alone):
        f(FEEDS)
    found = step._recent["step"]
    wrong = FEEDS["label"].copy()
    wrong[3] = 9
    with pytest.raises(compiler.InputError, match=r"'label'\[3\] is 9"):
        step({**FEEDS, "label": wrong})
    assert found._status.value == 0
    for _ in range(2):
        found._status.value = 1
        assert bits(step(FEEDS)) == bits(alone(FEEDS))
    assert bits(step.state) == bits(alone.state)
