"""Equations of Einsum: what each axis of each operand is called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Index = str | int
"""What an axis is called: a letter, or for one of those under an ellipsis its number, counted from the last (0)."""

_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


@dataclass(frozen=True)
class Equation:
    """The indices of each operand's axes, and of the output's."""

    terms: list[list[Index]]
    output: list[Index]


def malformed(equation: str) -> str:
    """What is wrong with an equation, whatever its operands are; '' if nothing is."""
    left, _, right = equation.replace(" ", "").partition("->")
    try:
        for term in (*left.split(","), right):
            _parts(term)
    except ValueError as e:
        return str(e)
    return ""


def _parts(term: str) -> tuple[str, bool, str]:
    """The letters before an ellipsis, whether there is one, and those behind it."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise ValueError(f"the term {term!r} of the equation is malformed")
    return match[1], bool(match[2]), match[3]


def parse(equation: str, ranks: Sequence[int]) -> Equation:
    """Read an equation for operands of these ranks. ValueError says what is wrong with it."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise ValueError(f"the equation has {len(texts)} terms for {len(ranks)} operands")
    terms = [_indices(text, rank) for text, rank in zip(texts, ranks, strict=True)]
    covered = max((sum(isinstance(i, int) for i in term) for term in terms), default=0)
    ellipsis: list[Index] = [*range(covered - 1, -1, -1)]
    if not arrow:
        counts = Counter(i for term in terms for i in term if isinstance(i, str))
        return Equation(terms, [*ellipsis, *sorted(i for i, n in counts.items() if n == 1)])
    before, dots, after = _parts(right)
    output: list[Index] = [*before, *(ellipsis if dots else []), *after]
    known = {i for term in terms for i in term}
    if unknown := [i for i in output if i not in known and isinstance(i, str)]:
        raise ValueError(f"the output index {unknown[0]!r} is in no term")
    if len(set(output)) < len(output):
        raise ValueError(f"the output term {right!r} repeats an index")
    return Equation(terms, output)


def _indices(text: str, rank: int) -> list[Index]:
    before, dots, after = _parts(text)
    covered = rank - len(before) - len(after)
    if covered < 0 or (covered and not dots):
        raise ValueError(f"the term {text!r} does not fit an operand of rank {rank}")
    return [*before, *range(covered - 1, -1, -1), *after]


def sizes_of(equation: Equation, shapes: Sequence[Sequence[int]]) -> dict[Index, int]:
    """What each index counts. ValueError where two axes disagree; those under an ellipsis may be 1."""
    sizes: dict[Index, int] = {}
    for term, shape in zip(equation.terms, shapes, strict=True):
        for i, d in zip(term, shape, strict=True):
            before = sizes.setdefault(i, d)
            if before == d or (isinstance(i, int) and d == 1):
                continue
            if not (isinstance(i, int) and before == 1):
                what = f"index {i!r}" if isinstance(i, str) else "ellipsis"
                raise ValueError(f"the {what} stands for {before} and for {d} elements")
            sizes[i] = d
    return sizes
