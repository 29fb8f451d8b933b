"""The log of a run: one row for each epoch, as CSV or as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compiler.errors import InputError, StateError, checked_path
from compiler.runtime.files import naming, replacing

Row = Mapping[str, int | float | None]
"""A record of an epoch (`Epoch.record`): numbers by column; None where there is none."""

SUFFIXES = (".csv", ".jsonl")


class Log:
    """A file of rows, which grows by one at a time; the end of the name decides how they are written.

    CSV has a line of names first; no number is an empty field, and what is not finite is `nan` or `inf`. JSON has no
    such numbers: they are null. InputError: a name with another end.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self._path, self._columns = Path(path), tuple(columns)
        self._csv = _is_csv(path)

    def begin(self, written: Sequence[int] = ()) -> None:
        """Make the file, or cut an old one back to the rows that were written, by their `mark`, one for each epoch.

        StateError: it has other columns, or other rows of these epochs; rows that it lacks are no error.
        """
        head = ",".join(map(_quoted, self._columns)) + "\n" if self._csv else ""
        kept = self._kept(head, written) if written and self._path.exists() else []
        with replacing(self._path) as part:
            part.write_text(head + "".join(kept), encoding="utf-8")

    def _kept(self, head: str, written: Sequence[int]) -> list[str]:
        text = self._path.read_text(encoding="utf-8", errors="replace")
        if text and not text.startswith(head):
            raise StateError(f"{str(self._path)!r} is a log with other columns than {', '.join(self._columns)}")
        lines = text[len(head) :].splitlines(keepends=True)
        kept, last = [], 0
        for number, line in enumerate(lines, 1):
            row = self._row(line)
            if number == len(lines) and not (line.endswith("\n") and line.strip()):
                break  # written only in part
            epoch = None if row is None else row["epoch"]
            if isinstance(epoch, int) and epoch > len(written):
                break  # written after the checkpoint
            if row is None or not isinstance(epoch, int) or epoch <= last or mark(row) != written[epoch - 1]:
                where = number + head.count("\n")
                raise StateError(
                    f"{str(self._path)!r} has in line {where} not what the run wrote: was it edited, or is it of "
                    "another run? Move it away, or give the log another name, and the run goes on with a new one"
                )
            kept.append(line)
            last = epoch
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
