"""Few cases of many: those that the default run takes of a sweep. The others are for `make test-all`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def covering(cases: Sequence[Sequence[object]], size: int) -> set[int]:
    """Numbers of few cases in which all `size` values that occur together do so again. Greedy, the first best."""
    together = [set(itertools.combinations(case, size)) for case in cases]
    left, chosen = set().union(*together), set()
    while left:
        best = max(range(len(cases)), key=lambda i: len(together[i] & left))
        chosen.add(best)
        left -= together[best]
    return chosen


def in_few_words(names: Sequence[str]) -> set[str]:
    """Names among these that have all the words (between underscores) of all: each form of an operator is in one."""
    words = [tuple(dict.fromkeys(name.split("_"))) for name in names]
    return {names[i] for i in covering(words, 1)}
