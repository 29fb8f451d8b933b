"""What to say about an option that a command has not: one that is like it, or where it is given instead."""

from __future__ import annotations

from collections.abc import Mapping

import click

from compiler.errors import did_you_mean

OF_OPTIMIZERS = frozenset((
    "accumulate", "alpha", "amsgrad", "average", "beta", "betas", "centered", "clip_norm", "clip_value", "dampening",
    "decay_factor", "eps", "epsilon", "groups", "initial_accumulator_value", "lr", "lr_decay", "lr_input", "mode",
    "momentum", "nesterov", "no_decay", "norm_coefficient", "norm_coefficient_post", "schedule", "weight_decay",
))  # fmt: skip
OF_LOSSES = frozenset((
    "axis", "beta", "blank", "delta", "from_logits", "ignore_index", "label_smoothing", "margin", "other", "pos_weight",
    "reduction", "soft_targets", "target", "time_axis", "weight", "zero_infinity",
))  # fmt: skip
"""Names that `--optimizer-option` and `--loss-option` take."""

_OTHERS = {"scheduler": "schedule", "lr_scheduler": "schedule", "learning_rate": "lr"}
"""What other libraries call them."""


def wrong_option(e: click.NoSuchOption, commands: Mapping[str, click.Command]) -> str:
    """The error's text."""
    return f"No such option {e.option_name!r}{_hint(e, commands)}."


def _hint(e: click.NoSuchOption, commands: Mapping[str, click.Command]) -> str:
    said = e.option_name.lstrip("-").replace("-", "_").lower()
    name = _OTHERS.get(said, said)
    option = f"--{name.replace('_', '-')}"
    here = _options(e.ctx.command) if e.ctx else []
    if option in here:
        return f": it is {option}"
    if near := did_you_mean(e.option_name, here):
        return near
    if having := [n for n, c in commands.items() if option in _options(c)]:
        return f": `onnxc {having[0]}` has {option}"
    for kind, names in (("optimizer", OF_OPTIMIZERS), ("loss", OF_LOSSES)):
        if name in names:
            return f": it is an option of the {kind}, `onnxc make-training --{kind}-option {name}=VALUE`"
    return ""


def _options(command: click.Command) -> list[str]:
    return [option for p in command.params for option in p.opts]
