"""What is wrong with a model: `load` raises it, `check` reports it, after trying sizes for symbols that have none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from compiler.errors import ModelError, Problem
from compiler.frontend.files import Model
from compiler.frontend.report import Report
from compiler.frontend.source import Attempt, Source, read
from compiler.ir.types import AnyArray

TRIED_SIZES = (2, 32, 224)
"""What `check` puts for a symbol: small ones are quick, images must not vanish between convolutions."""

_SHAPE = re.compile(r"\[[\d, ]*\]")


def load(model: Model) -> Source:
    """Read and check a model. TypeError for anything else; ModelError or UnsupportedError with all problems found."""
    return accepted(*read(model))


def accepted(
    source: Source | None,
    report: Report,
    dims: Mapping[str, int] | None = None,
    static: Mapping[str, AnyArray] | None = None,
) -> Source:
    """What `read` gave, if nothing is wrong with it; else the error tells what is wrong with its types as well.

    dims, static: of the program that is wanted. ModelError, UnsupportedError; InputError for dims or static.
    """
    if report and source is not None:
        report.merge(best_attempt(source, dims, static).report)
    report.raise_if_any()
    assert source is not None
    return source


def check(
    model: Model, dims: Mapping[str, int] | None = None, static: Mapping[str, AnyArray] | None = None
) -> list[Problem]:
    """Everything that is wrong with a model itself, in the order of the file; nothing is raised for it.

    Arguments as for `best_attempt`. Inputs whose values decide shapes are no problem, but what depends on them can be
    checked only if `static` has them. InputError for dims or static that do not fit the model.
    """
    try:
        source, report = read(model)
    except ModelError as e:
        return list(e.problems)
    if source is not None:
        report.merge(best_attempt(source, dims, static).report)
    return list(report.problems)


def best_attempt(
    source: Source, dims: Mapping[str, int] | None = None, static: Mapping[str, AnyArray] | None = None
) -> Attempt:
    """The attempt with the fewest problems, symbols that `dims` does not bind being tried as 2, 32 and 224.

    InputError for dims or static that do not fit the model.
    """
    tried: list[Attempt] = []
    for size in TRIED_SIZES:
        tried.append(source.attempt(trial_dims(source, size, dims or {}, static or {}), static))
        if not tried[-1].report or not set(source.symbols) - set(dims or {}):
            break
    best = min(tried, key=lambda a: len(a.report.problems))
    return replace(best, by_size=len({_whatever_the_shapes(a.report) for a in tried}) > 1)


def _whatever_the_shapes(report: Report) -> frozenset[Problem]:
    """The problems without the shapes that they tell, which are others at each size."""
    return frozenset(replace(p, what=_SHAPE.sub("[]", p.what)) for p in report.problems)


def trial_dims(source: Source, size: int, dims: Mapping[str, int], static: Mapping[str, AnyArray]) -> dict[str, int]:
    """`dims`, and a size for every other symbol that no static input decides."""
    decided = {d for name in static if name in source.inputs for d in source.inputs[name].symbols}
    return {s: size for s in source.symbols if s not in decided} | dict(dims)
