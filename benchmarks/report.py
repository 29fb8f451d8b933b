"""What was measured, as data and as tables."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from benchmarks.flops import ADAM_BYTES
from benchmarks.limits import Limits
from benchmarks.machine import processor
from benchmarks.race import Result
from benchmarks.workloads import SIX

OURS = "onnxc"


@dataclass(frozen=True)
class Outcome:
    """A workload at a number of threads. flops: of the products of a step; numbers: how many the optimizer updates."""

    workload: str
    threads: int
    flops: int
    numbers: int
    limits: Limits
    results: Sequence[Result]

    def medians(self) -> dict[str, float]:
        """Seconds of a step by side, of those that ran and did the same work."""
        return {r.side: r.median for r in self.results if r.medians and not r.error}

    def ratios(self) -> dict[str, float]:
        """How many times as long as onnxc's step that of each other side takes; none if onnxc failed."""
        medians = self.medians()
        ours = medians.pop(OURS, None)
        return {} if ours is None else {side: median / ours for side, median in medians.items()}

    def best(self) -> float | None:
        """The ratio of the quickest other side."""
        return min(self.ratios().values(), default=None)

    def floor(self, limits: Limits) -> float:
        """Seconds that the products take at the limit of multiply-adds."""
        return self.flops / (limits.gflops * 1e9)

    def traffic(self, limits: Limits) -> float:
        """Seconds that the optimizer's reads and writes take at the memory's bandwidth; less if they are in a cache."""
        return ADAM_BYTES * self.numbers / (limits.gbytes * 1e9)


@dataclass
class Report:
    """All outcomes, and why sides are absent."""

    outcomes: list[Outcome] = field(default_factory=list)
    absent: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Everything, times in seconds, memory in bytes."""
        versions = {r.side: r.version for o in self.outcomes for r in o.results if r.version}
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "processor": processor(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "versions": versions,
            "absent": dict(self.absent),
            "cases": [_case(o, self.limits(o.threads)) for o in self.outcomes],
            "means": {str(t): self.means(t) for t in self.threads()},
        }

    def threads(self) -> list[int]:
        """The numbers of threads that were measured."""
        return list(dict.fromkeys(o.threads for o in self.outcomes))

    def limits(self, threads: int) -> Limits:
        """The machine's limits: the best that was measured. A neighbour on the machine can slow one measurement."""
        found = [o.limits for o in self.outcomes if o.threads == threads]
        return Limits(threads, max(x.gflops for x in found), max(x.gbytes for x in found))

    def means(self, threads: int) -> dict[str, float]:
        """Geometric means of the ratios to the best other side: of the six workloads of the targets, and of all.

        A mean is left out unless every workload that it is over was measured without an error of onnxc.
        """
        best = {o.workload: o.best() for o in self.outcomes if o.threads == threads}
        found = {}
        for name, workloads in (("six", SIX), ("all", tuple(best))):
            ratios = [r for w in workloads if (r := best.get(w)) is not None]
            if ratios and len(ratios) == len(workloads):
                found[name] = geometric_mean(ratios)
        return found

    def errors(self) -> list[str]:
        """What went wrong: sides that failed, or did other work."""
        return [
            f"{o.workload}, {counted(o.threads)}, {r.side}: {r.error}"
            for o in self.outcomes
            for r in o.results
            if r.error
        ]

    def valid(self) -> bool:
        """Whether onnxc ran everything, and the others did the same work, as far as they could do it at all."""
        return not any(r.other_work or (r.error and r.side == OURS) for o in self.outcomes for r in o.results)


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers."""
    logarithms = [math.log(v) for v in values]
    return math.exp(sum(logarithms) / len(logarithms))


def _case(o: Outcome, limits: Limits) -> dict[str, Any]:
    medians = o.medians()
    return {
        "workload": o.workload,
        "threads": o.threads,
        "flops": o.flops,
        "trained_numbers": o.numbers,
        "limits": asdict(o.limits),
        "floor_seconds": o.floor(limits),
        "optimizer_traffic_seconds": o.traffic(limits),
        "sides": {r.side: asdict(r) | {"seconds": medians.get(r.side)} for r in o.results},
        "ratios": o.ratios(),
        "best_ratio": o.best(),
    }


def times_table(report: Report, threads: int) -> list[str]:
    """Milliseconds of a step by side; the ratio to the best other side; the products' speed and share of the limit."""
    outcomes = [o for o in report.outcomes if o.threads == threads]
    sides = list(dict.fromkeys(r.side for o in outcomes for r in o.results))
    header = ["workload", *sides, "best/onnxc", "GFLOP/s", "FMA limit ms", "of limit", "Adam traffic ms"]
    rows, limits = [header], report.limits(threads)
    for o in outcomes:
        medians, best = o.medians(), o.best()
        ours = medians.get(OURS)
        row = [o.workload, *(_number(medians[s] * 1e3 if s in medians else None) for s in sides)]
        floor, traffic = o.floor(limits), o.traffic(limits)
        row += [_number(best), _number(o.flops / ours / 1e9 if ours else None), _number(floor * 1e3)]
        row += [f"{floor / ours:.0%}" if ours else "-", _number(traffic * 1e3)]
        rows.append(row)
    lines = _aligned(rows)
    titles = {"six": "the six", "all": "all"}
    if means := report.means(threads):
        told = ", ".join(f"{value:.2f} over {titles[name]}" for name, value in means.items())
        lines.append(f"geometric mean of best/onnxc: {told}")
    return lines


def ratios_table(report: Report, threads: int) -> list[str]:
    """How many times as long as onnxc's step those of the others take."""
    outcomes = [o for o in report.outcomes if o.threads == threads and o.ratios()]
    sides = list(dict.fromkeys(s for o in outcomes for s in o.ratios()))
    rows = [["workload", *(f"{s}/onnxc" for s in sides)]]
    rows += [[o.workload, *(_number(o.ratios().get(s)) for s in sides)] for o in outcomes]
    means = ["geometric mean"]
    for side in sides:
        found = [o.ratios()[side] for o in outcomes if side in o.ratios()]
        means.append(_number(geometric_mean(found)) + ("" if len(found) == len(outcomes) else f" of {len(found)}"))
    return _aligned([*rows, means]) if sides else []


def starts_table(report: Report) -> list[str]:
    """Seconds until the first step was done, without the import; megabytes while starting and while running."""
    rows = [["workload", "threads", "side", "import s", "cold s", "warm s", "kernels", "start MB", "run MB", "plan MB"]]
    for o in report.outcomes:
        for r in (r for r in o.results if not r.error):
            f = r.facts
            seconds = [_number(f.get(key)) for key in ("import_seconds", "cold_seconds", "warm_seconds")]
            memory = [f.get(key) for key in ("start_rss_bytes", "run_rss_bytes", "plan_bytes")]
            kernels = str(f.get("kernels", "-"))
            megabytes = [_number(None if n is None else n / 1e6) for n in memory]
            rows.append([o.workload, str(o.threads), r.side, *seconds, kernels, *megabytes])
    return _aligned(rows)


def limits_table(report: Report) -> list[str]:
    """The least and the most that the limits were: how steady the machine's clock and memory were."""
    rows = [["", "GFLOP/s", "GB/s"]]
    for threads in report.threads():
        limits = [o.limits for o in report.outcomes if o.threads == threads]
        gflops, gbytes = [x.gflops for x in limits], [x.gbytes for x in limits]
        rows.append([counted(threads), *(f"{min(v):.3g} to {max(v):.3g}" for v in (gflops, gbytes))])
    return _aligned(rows)


def counted(threads: int) -> str:
    """So many threads, in words."""
    return f"{threads} thread{'s' * (threads != 1)}"


def text(report: Report) -> str:
    """The whole report."""
    parts: list[str] = []
    for threads in report.threads():
        parts += [f"Milliseconds of a step, {counted(threads)}:", "", *times_table(report, threads), ""]
        if ratios := ratios_table(report, threads):
            parts += [*ratios, ""]
    parts += ["First step and memory:", "", *starts_table(report)]
    if report.outcomes:
        parts += ["", "Limits, measured before each workload:", "", *limits_table(report)]
    parts += [f"skipped: {side}: {why}" for side, why in report.absent.items()]
    parts += [f"error: {e}" for e in report.errors()]
    return "\n".join(parts)


def _number(value: float | None) -> str:
    """Three or four significant digits."""
    if value is None:
        return "-"
    return f"{value:.{max(0, min(4, 2 - math.floor(math.log10(value))))}f}" if value > 0 else "0"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
