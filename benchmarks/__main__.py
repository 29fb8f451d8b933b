"""The command: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.cases import write_case
from benchmarks.flops import step_flops, trained_numbers
from benchmarks.limits import Limits
from benchmarks.machine import cores, environment
from benchmarks.peers import PEERS, Case
from benchmarks.race import ROOT, lookup, race
from benchmarks.report import OURS, Outcome, Report, text
from benchmarks.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    """The options."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time, memory and start of a training step: onnxc beside PyTorch, JAX and ONNX Runtime.",
        epilog="The machine should do nothing else meanwhile. What the figures mean: docs/benchmarks.md.",
    )
    others = [name for name in PEERS if name != OURS]
    result.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    result.add_argument("--peers", nargs="*", choices=others, default=others, metavar="NAME", help="none: onnxc alone")
    result.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    result.add_argument("--rounds", type=int, default=7, help="turns of each side (default 7)")
    result.add_argument("--seconds", type=float, default=0.5, help="length of a turn (default 0.5)")
    result.add_argument(
        "--no-cold", action="store_true", help="no starts with empty caches: leave the frameworks their own"
    )
    result.add_argument("--python", action="append", default=[], metavar="FAMILY=PATH", help="torch, jax or ort")
    result.add_argument("--out", type=Path, default=RESULTS, help=f"folder of report.json and report.svg ({RESULTS})")
    return result


def interpreters(given: Sequence[str]) -> dict[str, str]:
    """FAMILY=PATH as a mapping. ValueError: another form, or no family of that name."""
    found = dict(pair.partition("=")[::2] for pair in given)
    families = {p.family for p in PEERS.values()}
    if wrong := [name for name, path in found.items() if name not in families or not path]:
        raise ValueError(f"--python takes FAMILY=PATH with a family of {', '.join(sorted(families))}, not {wrong[0]!r}")
    return found


def measured_limits(threads: int) -> Limits:
    """The machine's limits, measured by a process of its own."""
    command = [sys.executable, "-m", "benchmarks.limits", str(threads)]
    done = subprocess.run(command, env=environment(threads), cwd=ROOT, capture_output=True, text=True, check=True)
    return Limits(**json.loads(done.stdout))


def measure(workload: str, options: argparse.Namespace, pythons: Mapping[str, str]) -> Iterator[Outcome]:
    """One workload at each number of threads."""
    with tempfile.TemporaryDirectory(prefix="onnxc-bench-") as scratch:
        folder, cache = Path(scratch, "case"), Path(scratch, "cache")
        folder.mkdir()
        model = write_case(workload, folder)
        for threads in options.threads:
            case = Case(folder, threads)
            limits = measured_limits(threads)
            # what a first step costs is measured once, at the first number of threads
            cold = not options.no_cold and threads == options.threads[0]
            place = None if options.no_cold else cache
            results = race(pythons, case, options.rounds, options.seconds, cache=place, cold=cold)
            flops, numbers = step_flops(model, case.trainable), trained_numbers(model, case.trainable)
            yield Outcome(workload, threads, flops, numbers, limits, results)


def write(report: Report, folder: Path) -> list[Path]:
    """Writes report.json, and report.svg where matplotlib is; gives what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "report.json"]
    written[0].write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is not None and any(o.ratios() for o in report.outcomes):
        written.append(folder / "report.svg")
        importlib.import_module("benchmarks.picture").draw(report, written[-1])
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 1 if onnxc failed or a side did other work."""
    options_of = parser()
    options = options_of.parse_args(arguments)
    try:
        given = interpreters(options.python)
    except ValueError as e:
        options_of.error(str(e))
    if too_many := [t for t in options.threads if not 1 <= t <= len(cores())]:
        options_of.error(f"--threads {too_many[0]}: there are {len(cores())} CPUs here")
    pythons, absent = lookup([OURS, *options.peers], given)
    report = Report(absent=absent)
    for side, why in absent.items():
        print(f"skipped: {side}: {why}", flush=True)
    for workload in options.workloads:
        print(f"{workload}: {WORKLOADS[workload].about}", flush=True)
        for outcome in measure(workload, options, pythons):
            report.outcomes.append(outcome)
            told = [f"{side} {seconds * 1e3:.4g} ms" for side, seconds in outcome.medians().items()]
            told += [f"{r.side} failed" for r in outcome.results if r.error]
            print(f"    threads: {outcome.threads}: {', '.join(told)}", flush=True)
            write(report, options.out)
    print(f"\n{text(report)}\n")
    print(*write(report, options.out), sep="\n")
    return 0 if report.valid() else 1


if __name__ == "__main__":
    sys.exit(main())
