"""The call that most calls are: what it takes, and what it leaves to the long way."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from compiler.runtime.attempt import SPAN, Attempt, Packed, make_attempt, no_attempt, packed
from compiler.runtime.layout import ARENA, STATE, Slot
from compiler.runtime.memory import Array, Block
from compiler.runtime.turn import Turn

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.int64([5, 7])


class Machine:
    """Memory for x and y, from which a run computes their sums."""

    def __init__(self, status: bool = True, together: bool = False) -> None:
        slots, arena = [Slot("x", "f32", (2, 3), ARENA, 64), Slot("y", "i64", (2,), ARENA, 0)], Block(128)
        self.x, self.y = (arena.view(s) for s in slots)
        self.total, self.status, self.runs, self.turn = np.zeros(()), np.zeros((), np.int64), 0, Turn()
        whole = packed(slots, arena) if together else None
        assert together == (whole is not None)
        inputs, outputs = [("x", self.x), ("in 'put'", self.y)], [("a\nb", self.total)]
        told = self.status if status else None
        self.attempt: Attempt = make_attempt(inputs, outputs, self.run, told, self.turn, whole)

    def run(self) -> None:
        self.runs += 1
        self.total[...] = self.x.sum() + self.y.sum()


def feeds(**changed: Any) -> dict[str, Any]:
    return {"x": X, "in 'put'": Y} | changed


@pytest.mark.parametrize("together", [False, True])
def test_outputs_are_copies(together: bool) -> None:
    m = Machine(together=together)
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
    for m in (Machine(), Machine(together=True)):
        assert m.attempt(given) is None
        assert m.runs == 0


@pytest.mark.parametrize("together", [False, True])
def test_an_equal_type_will_do(together: bool) -> None:
    """As arrays have that come from another process; and strides do not matter."""
    x = np.asarray(np.repeat(X, 2, axis=1), pickle.loads(pickle.dumps(np.dtype(np.float32))))[:, ::2]
    m = Machine(together=together)
    assert m.attempt(feeds(x=x)) == {"a\nb": 27}
    assert m.x.tolist() == X.tolist()


def test_a_refused_run_is_told() -> None:
    m = Machine()
    m.status[...] = 7
    assert m.attempt(feeds()) is None
    assert (m.runs, m.status) == (1, 0)  # cleared, for those who share the word
    assert Machine(status=False).attempt(feeds()) == {"a\nb": 27}


def test_nothing_to_feed_or_to_return() -> None:
    runs = list[int]()
    attempt = make_attempt([], [], lambda: runs.append(1), None, Turn())
    assert attempt({}) == {}
    assert attempt({"x": X}) is None
    assert runs == [1]
    assert no_attempt({}) is None


def test_it_does_not_run_within_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Machine()
    inner = list[Any]()
    monkeypatch.setattr(m, "run", lambda: inner.append(m.attempt(feeds())))
    outer = make_attempt([], [], lambda: m.run(), None, m.turn)
    assert outer({}) == {}
    assert (inner, m.turn.running) == ([None], False)
    assert m.attempt(feeds()) == {"a\nb": 27}


def test_an_interrupt_ends_the_turn() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    turn = Turn()
    with pytest.raises(KeyboardInterrupt):
        make_attempt([], [], interrupted, None, turn)({})
    assert not turn.running
    found = list[bool]()
    other = threading.Thread(target=lambda: found.append(turn.lock.acquire(timeout=10)))
    other.start()
    other.join()
    assert found == [True]


def test_memory_is_freed_with_it() -> None:
    """At once: an arena is too large to wait for the garbage collector."""
    view = np.zeros(3)
    attempt: Attempt | None = make_attempt([("x", view)], [], lambda: None, None, Turn())
    gone = weakref.ref(view)
    gc.disable()
    try:
        del view
        assert gone() is not None
        attempt = None
        assert gone() is None
    finally:
        gc.enable()
    assert attempt is None


def test_it_waits_for_its_turn() -> None:
    m = Machine()
    found = list[Any]()
    other = threading.Thread(target=lambda: found.append(m.attempt(feeds())))
    with m.turn.lock:
        other.start()
        other.join(0.05)
        assert (m.runs, found) == (0, [])
    other.join()
    assert found == [{"a\nb": 27}]


# --- packed ----------------------------------------------------------------------------------------------------------
def write(how: Packed, *contents: Array) -> None:
    how.pack(how.memory, 0, *(contents[i].tobytes() for i in how.order))


def test_packed_inputs_are_written_where_they_are() -> None:
    arena = Block(512)
    slots = [
        Slot("x", "f32", (2, 3), ARENA, 256),
        Slot("none", "f32", (0,), ARENA, 192),
        Slot("y", "i64", (2,), ARENA, 64),
    ]
    arena.bytes[:] = 1
    found = packed(slots, arena)
    assert found is not None
    write(found, X, np.zeros(0, np.float32), Y)
    assert arena.view(slots[0]).tolist() == X.tolist()
    assert arena.view(slots[2]).tolist() == Y.tolist()
    assert (arena.bytes[:64] == 1).all()
    assert (arena.bytes[256 + X.nbytes :] == 1).all()


@pytest.mark.parametrize(
    "slots",
    [
        [],
        [Slot("alone", "f32", (2,), ARENA, 0)],
        [Slot("x", "f32", (2,), ARENA, 0), Slot("state", "f32", (2,), STATE, 64)],
        [Slot("x", "f32", (2,), ARENA, 0), Slot("in one place", "f32", (2,), ARENA, 0)],
        [Slot("x", "f32", (2,), ARENA, 0), Slot("far", "f32", (2,), ARENA, SPAN)],
        [Slot("x", "f32", (2,), ARENA, 0), Slot("large", "f32", (SPAN // 4,), ARENA, 64)],
    ],
)
def test_others_are_written_one_by_one(slots: list[Slot]) -> None:
    assert packed(slots, Block(2 * SPAN)) is None
