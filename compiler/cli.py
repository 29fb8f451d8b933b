"""The command `onnxc`: with `progress` and `cli_making`, all that prints. Nothing is imported before it is needed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn

import click

import compiler
from compiler import cli_making
from compiler.errors import CompileError, InputError, OnnxcError, Problem, UnsupportedError, did_you_mean

REFUSED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes: the model, data or machine will not do; the command was called wrongly; Ctrl-C."""

DEBUG = "ONNXC_DEBUG"
"""Environment variable: show the traceback of every exception."""

_OPTIONS = {
    "max_trip": "--max-trip N", "static": "--static FILE.npz", "dims": "--dim NAME=SIZE", "cc": "--cc COMMAND",
    "cpu": "--cpu NAME", "straight_through": "--straight-through", "name": "--name NAME", "loss": "--loss NAME",
    "output": "--output NAME", "target": "--target NAME",
}  # fmt: skip
_ARGUMENT = re.compile(
    # names of the model are in quotes, and stay as they are (an apostrophe opens none); so does code, `name=array`
    rf"""(?<!\w)'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"|\b(?P<key>{"|".join(_OPTIONS)})="""
    rf"""(?:(?P<value>\.\.\.|True|{{[^}}]*}}|(?='))|(?!\w))|^(?P<first>{"|".join(_OPTIONS)})(?=: | must )"""
)


def main() -> NoReturn:
    """Entry point of the command. Exit code 0: done; 1: refused; 2: wrong usage; 130: interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a model's names may not be in the terminal's encoding
    sys.exit(_run())


def _run() -> int:
    try:
        code = int(command(prog_name="onnxc", standalone_mode=False) or 0)
    except (click.Abort, KeyboardInterrupt):
        _error("interrupted")
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
        return USAGE
    except click.UsageError as e:
        path = e.ctx.command_path if e.ctx else "onnxc"
        _error(f"{e.format_message()} See {path} --help")
        return USAGE
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as e:
        _leave_output()
        if not code and not isinstance(e, BrokenPipeError):
            _error(f"cannot write to standard output: {e.strerror}")
        return REFUSED
    return code


def _leave_output() -> None:
    """Nobody takes standard output any more, as behind `| head`: what is still in its buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _error(text: str) -> None:
    click.echo(f"error: {text}", err=True)


def _reporting(f: Callable[..., int | None]) -> Callable[..., int]:
    """Turn what a command raises into messages and exit code 1."""

    @wraps(f)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        try:
            return f(*args, **kwargs) or 0
        except (click.ClickException, click.exceptions.Exit):
            raise
        except BrokenPipeError:
            _leave_output()
            return REFUSED
        except Exception as e:  # noqa: BLE001 - a traceback tells a user nothing
            if os.environ.get(DEBUG):
                traceback.print_exc()
            for line in _lines(e):
                _error(_shell(line))
            return REFUSED

    return wrapped


def _shell(text: str) -> str:
    """A message about arguments in Python, as it is said on the command line: `max_trip=...` is `--max-trip N`."""

    def option(found: re.Match[str]) -> str:
        key = found["key"] or found["first"]
        if key is None:
            return found[0]
        name = _OPTIONS[key].partition(" ")[0]
        return _OPTIONS[key] if found["value"] else f"{name} " if found["value"] == "" else name

    return _ARGUMENT.sub(option, text)


def _lines(e: Exception) -> list[str]:
    """What to say about an exception, one line for each problem."""
    match e:
        case UnsupportedError() if isinstance(e, compiler.NeedsDims):
            pairs = zip(e.problems, e.symbols, strict=True)
            return [str(Problem(p.what, p.where, f"give --dim {shlex.quote(s)}=...")) for p, s in pairs]
        case UnsupportedError() if isinstance(e, compiler.NeedsStatic):
            return [str(Problem(p.what, p.where, _give_static(e.inputs, p))) for p in e.problems]
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


def _sizes(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for v in values:
        name, found, size = v.rpartition("=")
        if not found or not name or not (size.isascii() and size.isdigit()) or not 1 <= int(size) < 2**63:
            raise click.BadParameter(f"{v!r} is not NAME=SIZE, as in N=64.", context, parameter)
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
threads_option = click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True)
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of random numbers."
)


def _arrays(path: Path | None) -> dict[str, Any] | None:
    return None if path is None else compiler.training.read_arrays(path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(compiler.__version__, prog_name="onnxc")
def command() -> None:
    """ONNX training model in, one compiled training step out."""


@command.command()
@model_argument
@dim_option
@static_option
@max_trip_option
@click.option("--json", "as_json", is_flag=True, help="Print the problems as a JSON list.")
@_reporting
def check(model: Path, dims: dict[str, int], static: Path | None, max_trip: int | None, as_json: bool) -> int:
    """Tell everything that keeps MODEL from being compiled.

    Symbolic dims that --dim leaves open are tried as 2, 32 and 224.
    """
    found = compiler.api.examine(model, dims=dims, static=_arrays(static), max_trip=max_trip)
    problems = [*found.problems, *(_unchecked(p, found.inputs) for p in found.unchecked)]
    if as_json:
        shown = [{"what": _shell(p.what), "where": p.where, "remedy": _shell(p.remedy)} for p in problems]
        click.echo(json.dumps(shown, indent=2))
    else:
        for p in problems:
            _error(_shell(str(p)))
        if not problems:
            click.echo("ok: the model compiles")
    for note in found.notes:
        click.echo(f"note: {_shell(note)}", err=True)
    return REFUSED if problems else 0


def _unchecked(p: Problem, inputs: Sequence[str]) -> Problem:
    """Why the model could not be checked to its end, and what to do about it on the command line."""
    return Problem(f"not checked to the end: {p.what}", p.where, _give_static(inputs, p))


def _give_static(inputs: Sequence[str], p: Problem) -> str:
    arrays = f"{'an array' if len(inputs) == 1 else 'arrays'} {', '.join(map(repr, inputs))}"
    bound = ", or bound the Loop: --max-trip N" if "max_trip" in p.remedy else ""
    return f"give --static FILE.npz with {arrays}{bound}"


@command.command("dump-ir")
@model_argument
@dim_option
@static_option
@max_trip_option
@straight_through_option
@algorithm_option
@click.option("--after", metavar="PASS", help="Stop after this pass; `--after help` lists them.")
@click.option("--stage", type=click.Choice(["import", "final", "source"]), help="IR as imported, final IR, or code.")
@click.option("--graph", type=click.Choice(["step", "infer", "initialize", "all"]), default="step", show_default=True)
@_reporting
def dump_ir(
    model: Path,
    dims: dict[str, int],
    static: Path | None,
    algorithm: int | None,
    after: str | None,
    stage: str | None,
    graph: str,
    **options: Any,
) -> None:
    """Print the IR of MODEL at a stage of its way (by default the final one), or the generated code.

    The text parses again (`compiler.ir.text.parse`), given the tensors that it names by `sha256:` (docs/ir.md).
    """
    if after is not None:
        if after == "help":
            click.echo("\n".join(compiler.api.PASS_NAMES))
            return
        if stage is not None:
            raise click.UsageError("--after and --stage exclude each other.")
        _check_pass(after)
    until = after or ("import" if stage == "import" else None)
    program = compiler.api.program(
        model, dims=dims, static=_arrays(static), algorithm=algorithm, until=until, **options
    )
    chosen = program.graphs().values() if graph == "all" else [compiler.api.graph_of(program, graph)]
    for g in chosen:
        click.echo(compiler.api.emitted(g) if stage == "source" else compiler.api.dump(g), nl=False)


def _check_pass(name: str) -> None:
    names = compiler.api.PASS_NAMES
    if name not in names:
        raise click.UsageError(f"There is no pass {name!r}{did_you_mean(name, names)}: there are {', '.join(names)}.")


@command.command()
@model_argument
@dim_option
@static_option
@max_trip_option
@straight_through_option
@algorithm_option
@click.option("--after", metavar="PASS", help="Stop after this pass, or `import`; by default after all.")
@click.option("--graph", type=click.Choice(["step", "infer", "initialize"]), default="step", show_default=True)
@click.option("--out", "-o", required=True, type=path_type, help="File to write.")
@_reporting
def lower(
    model: Path,
    dims: dict[str, int],
    static: Path | None,
    algorithm: int | None,
    after: str | None,
    graph: str,
    out: Path,
    **options: Any,
) -> None:
    """Write the step of MODEL as plain ONNX, which any runtime can run: state are extra inputs and outputs."""
    if after not in (None, "import"):
        _check_pass(after)
    arrays = _arrays(static)
    lowered = compiler.lower(model, after, dims=dims, static=arrays, algorithm=algorithm, graph=graph, **options)
    compiler.api.save_model(lowered, out)
    click.echo(f"wrote {out}")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--markdown", is_flag=True, help="Print the page docs/operators.md.")
@_reporting
def operators(as_json: bool, markdown: bool) -> None:
    """List the operators: the opsets that are read, how each one runs, and how it is differentiated."""
    rows = compiler.catalogue.operators()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(r) for r in rows], indent=2))
    elif markdown:
        click.echo(compiler.catalogue.markdown(rows), nl=False)
    else:
        for r in rows:
            click.echo(f"{r.op:26} {r.forward:12} {r.gradient:12} {r.notes}".rstrip())


command.command("make-training")(_reporting(cli_making.make_training))


@command.command()
@model_argument
@click.argument("folder", type=path_type)
@dim_option
@static_option
@max_trip_option
@straight_through_option
@algorithm_option
@threads_option
@seed_option
@click.option("--name", default="onnxc", show_default=True, help="Prefix of all names in C.")
@click.option("--cpu", default="host", show_default=True, help="host, x86-64, x86-64-v2, x86-64-v3 or x86-64-v4.")
@click.option("--cc", default="cc", show_default=True, help="C compiler that links the library.")
@_reporting
def build(model: Path, folder: Path, static: Path | None, **options: Any) -> None:
    """Build MODEL ahead of time: a native library with a C header, weights and a manifest, in FOLDER."""
    compiler.build(model, folder, static=_arrays(static), **options)
    click.echo(f"wrote {folder}")


@command.command()
@model_argument
@click.option("--data", required=True, type=path_type, help=".npz: arrays by input name.")
@click.option("--eval", "evaluation", type=path_type, help=".npz to measure the metric on.")
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True)
@click.option("--batch", type=click.IntRange(1), help="Samples of a step; by default the model's fixed size, or 32.")
@click.option("--out", type=path_type, help="Where to write the trained inference model.")
@threads_option
@seed_option
@click.option("--initialize", is_flag=True, help="Run the model's initialization first.")
@dim_option
@static_option
@max_trip_option
@algorithm_option
@straight_through_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per epoch.")
@_reporting
def train(
    model: Path,
    data: Path,
    evaluation: Path | None,
    static: Path | None,
    epochs: int,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train MODEL on the arrays of a file, and write the trained model.

    The first axis of every array counts samples; they are shuffled anew for each epoch. The loss is the step's output
    of that name, or its first scalar; the metric is accuracy for integer labels, else the mean absolute error.
    """
    if out is not None:
        _check_writable(out)
    work = compiler.training
    say = None if as_json else partial(click.echo, "compiling...", err=True)
    arrays = (work.read_arrays(data), _arrays(evaluation))
    trainer = work.Trainer(model, *arrays, compiling=say, static=_arrays(static), **options)
    if trainer.unused:
        click.echo(f"note: the model has no use for {', '.join(map(repr, trainer.unused))} of the data", err=True)
    for note in trainer.notes:
        click.echo(f"note: {_shell(note)}", err=True)
    compiler.progress.follow(trainer, epochs, as_json)
    if out is not None:
        trainer.step.export(out)
        click.echo(f"wrote {out}", err=as_json)


def _check_writable(out: Path) -> None:
    """InputError now, rather than an error after hours of training."""
    folder = Path(os.path.realpath(out)).parent
    if out.is_dir():
        raise InputError(f"--out: {str(out)!r} is a folder: give the name of a file")
    if not folder.is_dir():
        raise InputError(f"--out: there is no folder {str(folder)!r}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"--out: the folder {str(folder)!r} cannot be written")
