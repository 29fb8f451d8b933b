"""The finished model before our own check of types and shapes, so that none is made that cannot be compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnx import ModelProto

from compiler.errors import InputError, Problem
from compiler.frontend.attempts import TRIED_SIZES, accepted, trial_dims
from compiler.frontend.making.loss_options import Loss
from compiler.frontend.report import Report
from compiler.frontend.source import Source, read

_LOSS = "node 'loss/own/"
"""Where problems of a user's own loss are; what follows is the node as it is called there."""


def check_made(model: ModelProto, losses: Mapping[str, Loss]) -> None:
    """Refuse a training model that is wrong, or whose loss is, at each size that is tried for what is open.

    losses: what was asked for. InputError: a loss of the user's does not fit the network. ModelError,
    UnsupportedError: anything else.
    """
    source = accepted(*read(model))
    tried: list[tuple[int, Report]] = []
    for size in TRIED_SIZES:
        tried.append((size, source.attempt(trial_dims(source, size, {}, {})).report))
        if not tried[-1][1]:
            return
        if not source.symbols:
            break
    # a size at which the network itself is wrong tells nothing of the loss; whoever compiles may give another one
    own = [(size, of_loss) for size, report in tried if (of_loss := _of_the_loss(report))]
    if own and any(not loss.name for loss in losses.values()):
        raise InputError(_does_not_fit(source, *own[0]))
    first, *others = (report for _, report in tried)
    first.common(others).raise_if_any()


def _of_the_loss(report: Report) -> list[Problem]:
    """The problems, if all are in the nodes of a user's own loss; else none."""
    if not all(p.where.startswith(_LOSS) for p in report.problems):
        return []
    return [replace(p, where=f"node '{p.where.removeprefix(_LOSS)}", remedy="") for p in report.problems]


def _does_not_fit(source: Source, size: int, problems: list[Problem]) -> str:
    told = "; ".join(f"{p.what}, in its {p.where}" for p in problems)
    tried = f" (tried with {', '.join(f'{s} = {size}' for s in source.symbols)})" if source.symbols else ""
    return (
        f"your loss does not fit the network: {told}{tried}: correct it, or the types that it declares for its inputs; "
        "their dims may be the symbols that it declares for the output"
    )
