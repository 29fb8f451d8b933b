"""Arguments that several subcommands take, and what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

import compiler
from compiler.errors import did_you_mean


def _sizes(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for v in values:
        name, found, size = v.rpartition("=")
        if not found or not name or not (size.isascii() and size.isdigit()) or not 1 <= int(size) < 2**63:
            raise click.BadParameter(f"{v!r} is not NAME=SIZE, as in N=64.", context, parameter)
        if name in sizes:
            raise click.BadParameter(f"dim {name!r} is given twice.", context, parameter)
        sizes[name] = int(size)
    return sizes


path_type = click.Path(path_type=Path)
model_argument = click.argument("model", type=path_type)
dim_option = click.option(
    "--dim", "dims", multiple=True, callback=_sizes, metavar="N=64", help="Size of a symbolic dim."
)
static_option = click.option("--static", type=path_type, help=".npz: values of inputs that decide shapes, by name.")
max_trip_option = click.option(
    "--max-trip", type=click.IntRange(1), help="How often a Loop whose end is decided at run time runs at most."
)
straight_through_option = click.option(
    "--straight-through", is_flag=True, help="Gradients look through roundings (quantization-aware training)."
)
algorithm_option = click.option(
    "--algorithm", type=click.IntRange(0), help="Index of the one TrainingInfoProto to run."
)


def specializing(command: Callable[..., Any]) -> Callable[..., Any]:
    """MODEL, and the options that decide what its graphs are."""
    for option in (
        algorithm_option, straight_through_option, max_trip_option, static_option, dim_option, model_argument
    ):  # fmt: skip
        command = option(command)
    return command


threads_option = click.option(
    "--threads", type=click.IntRange(1, 256), help="By default as many as there are cores, or one if that is as fast."
)
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of random numbers."
)


def _bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A number of bytes, as 200MB: k, M, G and T are powers of 1000, Ki, Mi, Gi and Ti of 1024."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?) ?(?:([kmgt])(i?))?b?", value.strip().lower(), re.ASCII)
    size = 0
    if found is not None:
        number, letter, binary = found.groups()
        size = int(Fraction(number) * ((1024 if binary else 1000) ** (1 + "kmgt".index(letter)) if letter else 1))
    if size < 1:
        raise click.BadParameter(f"{value!r} is no number of bytes, as 200MB or 1.5GiB.", context, parameter)
    return size


memory_limit_option = click.option(
    "--memory-limit", callback=_bytes, metavar="SIZE",
    help="Most memory that a step may take, as 200MB or 1.5GiB; values are computed again until it fits.",
)  # fmt: skip


def arrays_of(path: Path | None) -> Mapping[str, Any] | None:
    """The arrays of a file, if there is one."""
    return None if path is None else compiler.training.read_arrays(path)


def check_pass(name: str) -> None:
    """UsageError: no pass has this name."""
    names = compiler.api.PASS_NAMES
    if name not in names:
        raise click.UsageError(f"There is no pass {name!r}{did_you_mean(name, names)}: there are {', '.join(names)}.")
