"""A report as a picture: how many times as quick onnxc is as each other side. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.report import Report, counted

COLORS = {"torch": "#c44e52", "torch-compile": "#dd8452", "jax": "#4c72b0", "ort": "#55a868"}

TICKS = (0.1, 0.2, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500)


def draw(report: Report, path: Path) -> None:
    """Writes one panel for each number of threads; the format is that of the path's suffix."""
    counts = report.threads()
    figure = Figure(figsize=(6 * len(counts), 5), layout="tight")
    axes = figure.subplots(1, len(counts), squeeze=False, sharey=True)
    for axis, threads in zip(axes[0], counts, strict=True):
        outcomes = [o for o in report.outcomes if o.threads == threads and o.ratios()]
        sides = list(dict.fromkeys(s for o in outcomes for s in o.ratios()))
        height = 0.8 / max(1, len(sides))
        for number, side in enumerate(sides):
            places = [(i, o.ratios()[side]) for i, o in enumerate(outcomes) if side in o.ratios()]
            rows = [i + (number - (len(sides) - 1) / 2) * height for i, _ in places]
            lengths = [ratio - 1 for _, ratio in places]  # from 1: to the right onnxc is quicker, to the left slower
            axis.barh(rows, lengths, height, left=1, label=side, color=COLORS.get(side))
        axis.axvline(1, color="black", linewidth=1)
        axis.set_yticks(range(len(outcomes)), [o.workload for o in outcomes])
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        ticks = [tick for tick in TICKS if low <= tick <= high]
        axis.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.set_title(counted(threads))
        axis.set_xlabel("time of a step / that of onnxc")
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    axes[0][0].invert_yaxis()  # once: the axis is shared
    axes[0][-1].legend(loc="best")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
