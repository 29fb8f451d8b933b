"""Which dim of a model counts samples, and so along which axis of an input they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.errors import InputError, did_you_mean, shown
from compiler.frontend.types import InputType


@dataclass(frozen=True)
class Samples:
    """The dims that count samples.

    dim: the one that does so on any axis, a symbol or a number; None: only first axes count. first: dims that count
    samples as a first axis.
    """

    dim: int | str | None
    first: frozenset[int | str]

    def axes(self, inputs: Mapping[str, InputType]) -> dict[str, int]:
        """Of each input that has samples, their axis."""
        found = {}
        for name, t in inputs.items():
            if self.dim is not None and self.dim in t.dims:
                found[name] = t.dims.index(self.dim)
            elif t.dims and t.dims[0] in self.first:
                found[name] = 0
        return found


def samples_of(
    inputs: Mapping[str, InputType], bound: Mapping[str, int] | None = None, named: int | str | None = None
) -> Samples:
    """What counts the samples of a step with these inputs.

    That is the symbol that the most inputs have, on any axis; of several, the one that is the first dim of the most;
    then the first one of the inputs. One that an input has twice, as a mask [T, T], comes last. named: the one that it
    is instead, or of a model without symbols the number. Another symbol counts the same samples if it is a first dim
    only, and of none of the inputs that have the other: as files have it whose dims are named for each input alone.

    What has a size in `bound` counts no samples, unless all of these have. Then their number is fixed, and inputs with
    that number at first have samples, too. If no input has a symbol at first, all first axes count samples. InputError:
    no input has the named dim, or none is named and another one than that of most inputs is first in more.
    """
    bound = bound or {}
    first = [t.dims[0] for t in inputs.values() if t.dims]
    symbols = list(dict.fromkeys(d for t in inputs.values() for d in t.dims if isinstance(d, str)))
    if named is None and not any(isinstance(d, str) for d in first):
        return Samples(None, frozenset(first))
    chosen = _preferred(inputs, symbols) if named is None else _named(inputs, symbols, named)
    if isinstance(chosen, int):
        return Samples(chosen, frozenset())
    behind = {d for t in inputs.values() if chosen in t.dims for d in t.dims}
    behind |= {d for t in inputs.values() for d in t.dims[1:]}
    alike = [chosen, *(s for s in symbols if s in first and s not in behind)]
    free = [s for s in alike if s not in bound]
    if chosen in bound and (named is not None or not free):
        return Samples(chosen, frozenset({*alike, *(bound[s] for s in alike if s in bound)}))
    return Samples(chosen if chosen in free else free[0], frozenset(free))


def _preferred(inputs: Mapping[str, InputType], symbols: list[str]) -> str:
    def leads(symbol: str) -> int:
        return sum(t.dims[:1] == (symbol,) for t in inputs.values())

    def rank(symbol: str) -> tuple[bool, int, int]:
        counts = [t.dims.count(symbol) for t in inputs.values()]
        return max(counts) == 1, sum(map(bool, counts)), leads(symbol)

    chosen = max(symbols, key=rank)  # the first one of the best
    first = max((s for s in symbols if rank(s)[0] == rank(chosen)[0]), key=leads)
    if leads(first) > leads(chosen):  # as of x [N, T], label [N, T] and positions [T], or lengths and the axes swapped
        raise InputError(
            f"it is not clear which dim counts samples: {chosen!r}, which the most inputs have, or {first!r}, which is "
            "the first dim of the most: name it by batch_dim="
        )
    return chosen


def _named(inputs: Mapping[str, InputType], symbols: list[str], named: int | str) -> int | str:
    if not isinstance(named, int | str) or isinstance(named, bool):
        raise InputError(f"batch_dim must be the name of a dim that counts samples, not {shown(named)}")
    there = symbols or dict.fromkeys(d for t in inputs.values() for d in t.dims)
    known: dict[str, int | str] = {str(d): d for d in there}
    name = shown(named) if isinstance(named, int) else named  # a number has no more digits than can be told
    if name not in known:
        are = ", ".join(map(repr, known)) or "none"
        raise InputError(
            f"batch_dim: no input has a dim {shown(named)}{did_you_mean(name, known)}: those that may count samples "
            f"are {are}"
        )
    return known[name]


def said(axes: Mapping[str, int]) -> str:
    """Where samples lie, in words: axis 1 of 'x', axis 0 of 'label'."""
    by_axis: dict[int, list[str]] = {}
    for name, axis in axes.items():
        by_axis.setdefault(axis, []).append(repr(name))
    return ", ".join(f"axis {axis} of {' and '.join(names)}" for axis, names in by_axis.items())
