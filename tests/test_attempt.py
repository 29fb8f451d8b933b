"""The call that most calls are: what it takes, and what it leaves to the long way."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import numpy as np
import pytest

from compiler.runtime.attempt import Attempt, make_attempt, no_attempt

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.int64([5, 7])


class Machine:
    """Memory for x and y, from which a run computes their sums."""

    def __init__(self, status: bool = True) -> None:
        self.x, self.y, self.total = np.zeros((2, 3), np.float32), np.zeros(2, np.int64), np.zeros(())
        self.status, self.runs = ctypes.c_int64(0), 0
        inputs = [("x", self.x), ("in 'put'", self.y)]
        self.attempt: Attempt = make_attempt(inputs, [("a\nb", self.total)], self.run, self.status if status else None)

    def run(self) -> None:
        self.runs += 1
        self.total[...] = self.x.sum() + self.y.sum()


def feeds(**changed: Any) -> dict[str, Any]:
    return {"x": X, "in 'put'": Y} | changed


def test_outputs_are_copies() -> None:
    m = Machine()
    outputs = m.attempt(feeds())
    assert outputs is not None
    (total,) = outputs.values()
    assert list(outputs) == ["a\nb"]
    assert (total, total.shape, m.runs) == (27, (), 1)
    m.attempt(feeds(x=2 * X))
    assert (total, m.total) == (27, 42)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"x": X},
        {"x": X, "y": Y},
        feeds(more=X),
        feeds(x=X.tolist()),
        feeds(x=X.T),
        feeds(x=X[:, None]),
        feeds(x=X[0]),
        feeds(x=X.astype(np.float64)),
        feeds(x=X.astype(">f4")),
        feeds(x=X.view(np.recarray)),
        feeds(x=np.float32(1)),
    ],
)
def test_all_else_goes_the_long_way(given: dict[str, Any]) -> None:
    m = Machine()
    assert m.attempt(given) is None
    assert m.runs == 0


def test_an_equal_type_will_do() -> None:
    """As arrays have that come from another process; and strides do not matter."""
    x = np.asarray(np.repeat(X, 2, axis=1), pickle.loads(pickle.dumps(np.dtype(np.float32))))[:, ::2]
    assert Machine().attempt(feeds(x=x)) == {"a\nb": 27}


def test_a_refused_run_is_told() -> None:
    m = Machine()
    m.status.value = 7
    assert m.attempt(feeds()) is None
    assert (m.runs, m.status.value) == (1, 7)
    assert Machine(status=False).attempt(feeds()) == {"a\nb": 27}


def test_nothing_to_feed_or_to_return() -> None:
    runs = list[int]()
    attempt = make_attempt([], [], lambda: runs.append(1), None)
    assert attempt({}) == {}
    assert attempt({"x": X}) is None
    assert runs == [1]
    assert no_attempt({}) is None
