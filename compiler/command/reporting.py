"""What the command says: errors in its own terms, one line each, and exit codes."""

from __future__ import annotations

import os
import re
import shlex
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

import compiler
from compiler.command.signals import Stopped
from compiler.errors import CompileError, OnnxcError, Problem, UnsupportedError

REFUSED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes: the model, data or machine will not do; the command was called wrongly; Ctrl-C."""

DEBUG = "ONNXC_DEBUG"
"""Environment variable: show the traceback of every exception."""

_OPTIONS: Mapping[str, str | tuple[str, ...]] = {
    "max_trip": "--max-trip N", "static": "--static FILE.npz", "dims": "--dim NAME=SIZE", "cc": "--cc COMMAND",
    "cpu": "--cpu NAME", "straight_through": "--straight-through", "name": "--name NAME", "loss": "--loss NAME",
    "output": "--output NAME", "outputs": ("--keep-output NAME", "--output NAME"), "target": "--target NAME",
    "loss_weights": "--loss-weight OUTPUT=W", "train": "--train PATTERN", "freeze": "--freeze PATTERN",
    "batch_norm": "--batch-norm HOW", "initialize": "--initialize HOW", "lr": "--lr", "seed": "--seed N",
    "batch": "--batch -", "validation": "--eval DATA", "resume": "--resume", "monitor": "--monitor METRIC",
    "memory_limit": "--memory-limit SIZE", "batch_dim": "--batch-dim N",
}  # fmt: skip
"""Argument in Python -> option; of several, the one that the command has."""

_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""

_ARGUMENT = re.compile(
    # names of the model are in quotes, and stay as they are (an apostrophe opens none); so does code, `name=array`
    rf"""(?<!\w){_TEXT}|\b(?P<key>{"|".join(_OPTIONS)})="""
    rf"""(?:(?P<value>\.\.\.|True|None|{{[^}}]*}}|\[(?:{_TEXT}|[^]'"])*\]|(?='))|(?!\w))"""
    rf"""|^(?P<first>{"|".join(_OPTIONS)})(?=: | must | is of )"""
)


def leave_output() -> None:
    """Nobody takes standard output any more, as behind `| head`: what is still in its buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def error(text: str) -> None:
    """Say what is wrong, on standard error."""
    click.echo(f"error: {text}", err=True)


def note(text: str) -> None:
    """Say what is allowed, but may not be meant, on standard error."""
    click.echo(f"note: {text}", err=True)


def reporting(f: Callable[..., int | None]) -> Callable[..., int]:
    """Turn what a command raises into messages and exit code 1."""

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        try:
            return f(*args, **kwargs) or 0
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Stopped as e:
            error(str(e))
            return e.code
        except BrokenPipeError:
            leave_output()
            return REFUSED
        except Exception as e:  # noqa: BLE001 - a traceback tells a user nothing
            if os.environ.get(DEBUG):
                traceback.print_exc()
            for line in _lines(e):
                error(shell(line))
            return REFUSED

    return wrapped


def shell(text: str) -> str:
    """A message about arguments in Python, as it is said on the command line: `max_trip=...` is `--max-trip N`."""

    def option(found: re.Match[str]) -> str:
        key = found["key"] or found["first"]
        if key is None:
            return found[0]
        whole = _option(key)
        name = whole.partition(" ")[0]
        if found["value"] == "True":  # a flag
            return name
        if found["value"] and found["value"][0] == "[":  # the option several times
            items = re.findall(rf"{_TEXT}|\.\.\.", found["value"])
            return " ".join(item if item == "..." else f"{name} {item}" for item in items)
        return whole if found["value"] else f"{name} " if found["value"] == "" else name

    return _ARGUMENT.sub(option, text)


def _option(argument: str) -> str:
    """The option for an argument, with what it takes, as the command that runs calls it."""
    known = _OPTIONS[argument]
    if isinstance(known, str):
        return known
    context = click.get_current_context(silent=True)
    there = [] if context is None else [option for p in context.command.params for option in p.opts]
    return next((k for k in known if k.partition(" ")[0] in there), known[0])


def _lines(e: Exception) -> list[str]:
    """What to say about an exception, one line for each problem."""
    match e:
        case UnsupportedError() if isinstance(e, compiler.NeedsDims):
            pairs = zip(e.problems, e.symbols, strict=True)
            return [str(Problem(p.what, p.where, f"give --dim {shlex.quote(s)}=...")) for p, s in pairs]
        case UnsupportedError() if isinstance(e, compiler.NeedsStatic):
            return [str(Problem(p.what, p.where, give_static(e.inputs, p))) for p in e.problems]
        case CompileError():
            return [str(p) for p in e.problems]
        case OnnxcError():
            return [str(e)]
        case MemoryError():
            return [str(e) or "out of memory"]
        case OSError():
            return [f"{e.filename!r}: {e.strerror}" if e.filename else e.strerror or str(e)]
    last = traceback.extract_tb(e.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return [
        f"a defect of onnxc, please report it: {type(e).__name__}: {' '.join(str(e).split())}, in {where}; "
        f"{DEBUG}=1 shows the traceback"
    ]


def give_static(inputs: Sequence[str], p: Problem) -> str:
    """What to do where the values of these inputs decide shapes."""
    arrays = f"{'an array' if len(inputs) == 1 else 'arrays'} {', '.join(map(repr, inputs))}"
    bound = ", or bound the Loop: --max-trip N" if "max_trip" in p.remedy else ""
    return f"give --static FILE.npz with {arrays}{bound}"
