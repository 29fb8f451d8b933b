"""`onnxc make-training`: the arguments of `compiler.make_training_model` on the command line."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import compiler
from compiler.command.options import model_argument, path_type
from compiler.command.outputs import check_outputs
from compiler.command.reporting import note, reporting, shell
from compiler.errors import InputError, shown

if TYPE_CHECKING:
    import onnx


_TARGET = "Name of the input for the targets; by default label or target."
_LOSS = "Loss, by default cross_entropy; or your own, as the .onnx file of a model."


@click.command("make-training")
@model_argument
@click.option("--out", "-o", required=True, type=path_type, help="File to write.")
@click.option("--loss", "losses", multiple=True, metavar="[OUTPUT=]NAME|FILE", help=_LOSS)
@click.option("--loss-option", "loss_options", multiple=True, metavar="NAME=VALUE", help="As label_smoothing=0.1.")
@click.option("--loss-weight", "weights", multiple=True, metavar="OUTPUT=W", help="Where there are several losses.")
@click.option("--output", help="What the loss is on; by default the first of floats.")
@click.option("--keep-output", "outputs", multiple=True, help="Outputs that the model keeps; by default all.")
@click.option("--target", "targets", multiple=True, metavar="[OUTPUT=]NAME", help=_TARGET)
@click.option("--optimizer", default="adam", show_default=True)
@click.option("--lr", type=float, help="Learning rate; by default the optimizer's.")
@click.option("--optimizer-option", "settings", multiple=True, metavar="NAME=VALUE", help="As weight_decay=0.01.")
@click.option("--train", multiple=True, metavar="PATTERN", help="Only these weights train.")
@click.option("--freeze", multiple=True, metavar="PATTERN", help="These weights do not train.")
@click.option("--batch-norm", default="auto", show_default=True, help="auto, train or frozen.")
@click.option("--batch", default="N", show_default=True, help="Symbol that a batch fixed at 1 becomes; - leaves it.")
@click.option("--initialize", metavar="HOW", help="Add an initialization graph: kaiming, xavier, normal, zeros, ...")
@click.option("--seed", type=click.IntRange(0), help="Of the initialization.")
@reporting
def make_training(
    model: Path,
    out: Path,
    losses: Sequence[str],
    loss_options: Sequence[str],
    weights: Sequence[str],
    targets: Sequence[str],
    settings: Sequence[str],
    lr: float | None,
    batch: str,
    **options: Any,
) -> None:
    """Make a training model of the inference model MODEL: a loss, its gradient, and an optimizer.

    Options of losses and optimizers are those of docs/make-training.md and docs/optimizers.md; values are numbers,
    lists in brackets, true, false, or text.
    """
    named = [_of_output(text) for text in losses or ["cross_entropy"]]
    check_outputs({"--out": out}, model, {})
    if any(os.path.isfile(kind) and os.path.realpath(kind) == os.path.realpath(out) for _, kind in named):
        raise InputError(f"--out: {str(out)!r} is a file of --loss, too: give another name")
    notes: list[str] = []
    given = _pairs("--loss-option", loss_options)
    arguments: dict[str, Any] = {n: v or None if isinstance(v, tuple) else v for n, v in options.items()}
    chosen = _pairs("--optimizer-option", settings)
    if lr is not None and "lr" in chosen:
        raise InputError("--optimizer-option: the rate is given by --lr already")
    if batch.isdigit():
        raise InputError(f"--batch: {batch!r} is no symbol, as N is: the size of a batch is for `onnxc train --batch`")
    if clash := sorted(chosen.keys() & inspect.signature(compiler.make_training_model).parameters):
        raise InputError(f"--optimizer-option: {clash[0]!r} is no option of an optimizer")
    arguments |= chosen | ({} if lr is None else {"lr": lr})
    if targets:
        single = len(targets) == 1 and "=" not in targets[0]
        arguments["target"] = targets[0] if single else _pairs("--target", targets, str)
    if weights:
        arguments["loss_weights"] = _pairs("--loss-weight", weights)
    training = compiler.make_training_model(
        model, loss=_losses(named, given), batch=None if batch == "-" else batch, note=notes.append, **arguments
    )
    compiler.api.save_model(training, out)
    for line in _summary(training):
        click.echo(line)
    for text in notes:
        note(shell(text))
    click.echo(f"wrote {out}")


def _of_output(text: str) -> tuple[str | None, str]:
    """The output of [OUTPUT=]NAME|FILE, if one is said, and the rest. Both outputs and paths may have a = in them."""
    parts = text.split("=")
    for i in range(len(parts)):
        if os.path.isfile(path := "=".join(parts[i:])):
            return "=".join(parts[:i]) if i else None, path
    output, found, kind = text.rpartition("=")
    return output if found else None, kind


def _losses(named: Sequence[tuple[str | None, str]], options: dict[str, Any]) -> Any:
    """One loss, or several by output. named: the output, if one is said, and the loss."""
    made = [compiler.Loss(kind, **options) for _, kind in named]
    if len(made) == 1 and named[0][0] is None:
        return made[0]
    outputs = [output for output, _ in named]
    if None in outputs:
        raise InputError("--loss: with several losses, each is OUTPUT=NAME")
    if twice := [output for i, output in enumerate(outputs) if output in outputs[:i]]:
        raise InputError(f"--loss: output {twice[0]!r} has two losses: leave out one")
    return dict(zip(outputs, made, strict=True))


def _value(text: str) -> Any:
    """The value that is meant: JSON, or as Python has it, else text. ValueError: a list that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        if text.startswith(("[", "{")):
            raise ValueError(f"{shown(text)} is no valid JSON {'list' if text[0] == '[' else 'object'}") from e
        return {"True": True, "False": False}.get(text, text)


def _pairs(option: str, texts: Sequence[str], value_of: Callable[[str], Any] = _value) -> dict[str, Any]:
    """NAME=VALUE, or OUTPUT=VALUE, whose output may have a = in it. InputError: another form, or a name twice."""
    found = {}
    for text in texts:
        of_output = option in ("--loss-weight", "--target")
        name, sign, value = text.rpartition("=") if of_output else text.partition("=")
        if not sign or not name:
            raise InputError(f"{option}: {text!r} is not {'OUTPUT' if of_output else 'NAME'}=VALUE")
        if name in found:
            raise InputError(f"{option}: {name!r} is given twice: leave out one")
        try:
            found[name] = value_of(value)
        except ValueError as e:
            raise InputError(f"{option}: {name}: {e}") from e
    return found


def _summary(model: onnx.ModelProto) -> list[str]:
    """What trains, what a step takes."""
    info = model.training_info[0]
    gradient = next(node for node in info.algorithm.node if node.op_type == "Gradient")
    xs = next(list(a.strings) for a in gradient.attribute if a.name == "xs")
    tensors = {t.name: t for t in model.graph.initializer}
    names = [x.decode() for x in xs]
    numbers = sum(prod(tensors[n].dims) for n in names)
    listed = ", ".join(map(repr, names[:6])) + (", ..." if len(names) > 6 else "")
    defaults = {t.name for t in (*model.graph.initializer, *info.algorithm.initializer)}
    inputs = [_shown(v) for v in (*model.graph.input, *info.algorithm.input) if v.name not in defaults]
    return [
        f"{len(names)} tensors train, {numbers} numbers: {listed}",
        f"a step takes {', '.join(inputs)}",
    ]


def _shown(value: onnx.ValueInfoProto) -> str:
    dims = [d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim]
    return f"{value.name!r} [{', '.join(dims)}]"
