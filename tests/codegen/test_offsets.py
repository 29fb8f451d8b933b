"""Offsets of pieces: none meets another that lives at the same time, and they are as good as they can be told to be."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from compiler.codegen.offsets import Pieces


def filled(sizes: list[int], seed: int) -> tuple[Pieces, list[tuple[int, float]]]:
    """Pieces of these sizes, given back in a random order, some never; and their lives."""
    choices, pieces = random.Random(seed), Pieces()
    lives: list[tuple[int, float]] = []
    live: list[int] = []
    time = 0
    for size in sizes:
        while live and choices.random() < 0.4:
            gone = live.pop(choices.randrange(len(live)))
            pieces.give(gone)
            lives[gone] = lives[gone][0], time
            time += 1
        live.append(pieces.take(size))
        lives.append((time, float("inf")))
        time += 1
    return pieces, lives


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(0, 10**6), st.integers(0, 9))
def test_pieces_that_live_together_do_not_meet(sizes: list[int], seed: int, start: int) -> None:
    pieces, lives = filled(sizes, seed)
    offsets, top = pieces.offsets(start)
    for i, (at, size) in enumerate(zip(offsets, sizes, strict=True)):
        assert start <= at
        assert at + size <= top
        for j in range(i):
            together = lives[i][0] < lives[j][1] and lives[j][0] < lives[i][1]
            assert not together or at + size <= offsets[j] or offsets[j] + sizes[j] <= at
    assert start + pieces.least() <= top <= start + sum(sizes)


def test_largest_first_where_best_fit_splits_the_room_of_a_large_piece() -> None:
    pieces = Pieces()
    large = pieces.take(100)
    pieces.give(large)
    pieces.take(10)  # best fit puts it where the large one was, and the next one on top
    pieces.take(100)
    assert pieces.least() == 110
    assert pieces.offsets(0)[1] == 110
