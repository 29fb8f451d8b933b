"""The log of a run: one row for each epoch, as CSV or as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import InputError, StateError, checked_path
from compiler.runtime.files import naming, replacing
from compiler.training.position import NO_ROW

Row = Mapping[str, int | float | None]
"""A record of an epoch (`Epoch.record`): numbers by column; None where there is none."""

SUFFIXES = (".csv", ".jsonl")


@dataclass(frozen=True)
class Written:
    """What a run wrote before a checkpoint.

    marks: of each epoch the `mark` of its row, or `NO_ROW`; the last ones may be missing. epochs: done in all. steps:
    of an epoch.
    """

    marks: Sequence[int]
    epochs: int
    steps: int

    def has(self, row: Row, epoch: int) -> bool:
        """Whether it is the row of this epoch."""
        return 0 < epoch <= len(self.marks) and mark(row) == self.marks[epoch - 1]

    def ends_with(self, epoch: int) -> bool:
        """Whether a run that is killed may write behind the row of this epoch (0: behind none)."""
        no_row = self.epochs > len(self.marks) or (self.epochs > 0 and self.marks[self.epochs - 1] == NO_ROW)
        return epoch in (0, self.epochs) or no_row


class Log:
    """A file of rows, which grows by one at a time; the end of the name decides how they are written.

    CSV has a line of names first; no number is an empty field, and what is not finite is `nan` or `inf`. JSON has no
    such numbers: they are null. InputError: a name with another end.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self._path, self._columns = Path(path), tuple(columns)
        self._csv = _is_csv(path)

    def begin(self, written: Written | None = None) -> None:
        """Make the file anew, or cut that of a run that goes on back to what was written before its checkpoint.

        Only what a killed process can have written behind is cut: the rows of the next epochs, in order, the last one
        perhaps in part. StateError: it has anything else, or other columns; rows that it lacks are no error.
        """
        head = ",".join(map(_quoted, self._columns)) + "\n" if self._csv else ""
        kept = self._kept(head, written) if written and self._path.exists() else []
        with replacing(self._path) as part:
            part.write_text(head + "".join(kept), encoding="utf-8")

    def _kept(self, head: str, written: Written) -> list[str]:
        text = self._path.read_text(encoding="utf-8", errors="replace")
        if not text.startswith(head) and not head.startswith(text):  # a killed process may have written less
            raise StateError(f"{str(self._path)!r} is a log with other columns than {', '.join(self._columns)}")
        lines = text[len(head) :].splitlines(keepends=True)
        kept, last, cut = [], 0, 0
        for number, line in enumerate(lines, 1):
            row = self._row(line)
            epoch = None if row is None else row["epoch"]
            if row is not None and isinstance(epoch, int) and epoch > last and not cut and written.has(row, epoch):
                kept.append(line.rstrip("\r\n") + "\n")
                last = epoch
                continue
            if written.ends_with(last):
                if number == len(lines) and not (line.endswith("\n") and line.strip()):
                    break  # written only in part
                behind = (cut or written.epochs) + 1
                if row is not None and (epoch, row["step"]) == (behind, behind * written.steps):
                    cut = behind  # written after the checkpoint
                    continue
            raise StateError(
                f"{str(self._path)!r} has in line {number + len(head.splitlines())} not what the run wrote: was it "
                "edited, or is it of another run? Move it away, or give the log another name, and the run goes on with "
                "a new one"
            )
        return kept

    def _row(self, line: str) -> Row | None:
        """The row of a line, if it is one."""
        try:
            if self._csv:
                row = _row(zip(self._columns, next(csv.reader([line])), strict=True))
            else:
                row = _row(json.loads(line).items())
        except (ValueError, AttributeError, StopIteration, csv.Error):
            return None
        return row if tuple(row) == self._columns else None

    def append(self, row: Row) -> None:
        """One row more, on disk when this returns. OSError."""
        fields = ("" if row[c] is None else repr(row[c]) for c in self._columns)
        line = ",".join(fields) if self._csv else as_json(row)
        with naming(self._path), open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def check_log(path: str | os.PathLike[str]) -> None:
    """InputError: a log cannot be put there, as its name does not tell how, or it would replace what is none."""
    begins = "epoch,step,samples,loss," if _is_csv(path) else '{"epoch": '
    try:
        if not os.path.exists(path):
            return
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                head = file.read(len(begins))
            if begins.startswith(head):  # a killed process may have written less
                return
    except OSError as e:
        raise InputError(f"the log {os.fspath(path)!r} cannot be written: {e.strerror}") from e
    raise InputError(f"{os.fspath(path)!r} is there, and no log of a run: give the log another name, or remove it")


def mark(row: Row) -> int:
    """What tells a row from another: CRC-32 of all its numbers but times, which differ in equal runs."""
    return zlib.crc32(as_json({name: value for name, value in row.items() if name != "seconds"}).encode())


def as_json(row: Row) -> str:
    """A row as a JSON object. JSON has no numbers that are not finite: they are null."""
    return json.dumps({c: v if v is not None and math.isfinite(v) else None for c, v in row.items()})


def read_log(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a log. InputError: there is no such file, or it is no log."""
    path = checked_path("path", path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        if not _is_csv(path):
            return [_row(json.loads(line).items()) for line in text.splitlines()]
        head, *lines = csv.reader(io.StringIO(text, newline=""))
        return [_row(zip(head, line, strict=True)) for line in lines]
    except FileNotFoundError as e:
        raise InputError(f"there is no log {path!r}") from e
    except OSError as e:
        raise InputError(f"{path!r} cannot be read: {e.strerror}") from e
    except (ValueError, AttributeError, csv.Error) as e:
        raise InputError(f"{path!r} is no log of a run: {e}") from e


def _row(items: Iterable[tuple[str, object]]) -> Row:
    row: dict[str, int | float | None] = {}
    for name, value in items:
        text = "" if value is None else str(value)
        whole = text.lstrip("-").isdigit() and len(text) < 20  # larger ones no run wrote, and JSON may not hold
        row[name] = None if text == "" else int(text) if whole else float(text)
    return row


def _quoted(name: str) -> str:
    """A field of CSV, as RFC 4180 has it."""
    return '"' + name.replace('"', '""') + '"' if any(c in name for c in ',"\r\n') else name


def _is_csv(path: str | os.PathLike[str]) -> bool:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise InputError(f"the log {os.fspath(path)!r} must end with .csv or .jsonl")
    return suffix == ".csv"
