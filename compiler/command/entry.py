"""Where the command starts: its subcommands, its exit codes."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

import compiler
from compiler.command.building import build, lower
from compiler.command.hints import wrong_option
from compiler.command.inspecting import check, dump_ir, operators
from compiler.command.making import make_training
from compiler.command.memory import memory
from compiler.command.reporting import INTERRUPTED, REFUSED, USAGE, error, leave_output
from compiler.command.training import train


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(compiler.__version__, prog_name="onnxc")
def command() -> None:
    """ONNX training model in, one compiled training step out."""


for _subcommand in (check, dump_ir, lower, operators, memory, make_training, build, train):
    command.add_command(_subcommand)


def main() -> NoReturn:
    """Entry point of the command. Exit code 0: done; 1: refused; 2: wrong usage; 130: interrupted; 143: terminated."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a model's names may not be in the terminal's encoding
    sys.exit(_run())


def _run() -> int:
    try:
        code = int(command(prog_name="onnxc", standalone_mode=False) or 0)
    except (click.Abort, KeyboardInterrupt):
        error("interrupted")
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
        return USAGE
    except click.UsageError as e:
        path = e.ctx.command_path if e.ctx else "onnxc"
        text = wrong_option(e, command.commands) if isinstance(e, click.NoSuchOption) else e.format_message()
        error(f"{text} See {path} --help")
        return USAGE
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as e:
        leave_output()
        if not code and not isinstance(e, BrokenPipeError):
            error(f"cannot write to standard output: {e.strerror}")
        return REFUSED
    return code
