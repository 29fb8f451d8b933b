"""A picture of how losses and metrics went, drawn by matplotlib."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence

from compiler.errors import BuildError, InputError, checked_path, shown
from compiler.runtime.files import replacing
from compiler.training.log import Row

FORMATS = {".png": "png", ".svg": "svg"}

_NOT_DRAWN = ("epoch", "step", "samples", "seconds", "nan_step")
_LOSSES = ("loss", "validation_loss")


def check_plot(path: str | os.PathLike[str]) -> str:
    """The format of a picture, by the end of its name: png or svg. To be called before training.

    InputError: another end. BuildError: matplotlib is not installed.
    """
    suffix = os.path.splitext(checked_path("path", path))[1].lower()
    if suffix not in FORMATS:
        raise InputError(f"the picture {os.fspath(path)!r} must end with .png or .svg")
    if importlib.util.find_spec("matplotlib") is None:
        raise BuildError("a picture of the losses needs matplotlib, which is not installed: pip install matplotlib")
    return FORMATS[suffix]


def draw_curve(rows: Sequence[Row], path: str | os.PathLike[str], title: str = "") -> None:
    """Draw the rows of a log over the epochs: losses above, each metric in a field of its own below.

    Epochs whose value is not finite leave a gap. Errors as for `check_plot`; InputError: there are no rows; OSError.
    """
    kind = check_plot(path)
    if not isinstance(title, str):
        raise InputError(f"title must be a text, not {shown(title)}")
    if not isinstance(rows, Sequence) or not all(_is_row(r) and r.keys() == rows[0].keys() for r in rows):
        raise InputError(f"rows must be a list of rows of a log, as read_log gives it, not {shown(rows)}")
    if not rows:
        raise InputError("there are no epochs to draw")
    names = [n for n in rows[0] if n not in _NOT_DRAWN and any(r[n] is not None for r in rows)]
    losses = [n for n in names if n in _LOSSES]
    fields = [f for f in (losses, *([n] for n in names if n not in _LOSSES)) if f]
    # an object of its own, not pyplot, which would look for a display and keep every figure
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(7, 1 + 2.5 * max(1, len(fields))), layout="constrained"
    )
    axes = figure.subplots(max(1, len(fields)), 1, sharex=True, squeeze=False)[:, 0]
    epochs = [r["epoch"] for r in rows]
    for ax, drawn in zip(axes, fields, strict=False):
        for name in drawn:
            ax.plot(epochs, [_finite(r[name]) for r in rows], marker="o", markersize=3, label=name.replace("_", " "))
        ax.legend()
        ax.grid(alpha=0.3)
    axes[-1].set_xlabel("epoch")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    if title:
        figure.suptitle(title)
    about = {"Date": None} if kind == "svg" else {}  # the same rows, the same file; so are names of parts
    same_names = importlib.import_module("matplotlib").rc_context({"svg.hashsalt": "onnxc"})
    with replacing(path) as part, same_names:
        figure.savefig(part, format=kind, dpi=150, metadata=about)


def _is_row(row: object) -> bool:
    return isinstance(row, Mapping) and "epoch" in row and all(isinstance(v, int | float | None) for v in row.values())


def _finite(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else value
