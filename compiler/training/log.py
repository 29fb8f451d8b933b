"""The log of a run: one row for each epoch, as CSV or as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compiler.errors import InputError, StateError
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

    def begin(self, epochs: int = 0) -> None:
        """Make the file, or cut an old one back to the rows of its first `epochs` epochs. StateError: other columns."""
        head = ",".join(map(_quoted, self._columns)) + "\n" if self._csv else ""
        kept = self._kept(head, epochs) if epochs and self._path.exists() else []
        with replacing(self._path) as part:
            part.write_text(head + "".join(kept), encoding="utf-8")

    def _kept(self, head: str, epochs: int) -> list[str]:
        text = self._path.read_text(encoding="utf-8", errors="replace")
        if text and not text.startswith(head):
            raise StateError(f"{str(self._path)!r} is a log with other columns than {', '.join(self._columns)}")
        kept = []
        for line in text[len(head) :].splitlines(keepends=True):
            epoch = self._epoch(line)
            if epoch is None or epoch > epochs:
                break  # written after the checkpoint, or only in part
            kept.append(line)
        return kept

    def _epoch(self, line: str) -> int | None:
        """Of which epoch a whole line is."""
        try:
            first = line.partition(",")[0] if self._csv else json.loads(line)["epoch"]
            return int(first) if line.endswith("\n") else None
        except (ValueError, KeyError, TypeError):
            return None

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


def as_json(row: Row) -> str:
    """A row as a JSON object. JSON has no numbers that are not finite: they are null."""
    return json.dumps({c: v if v is not None and math.isfinite(v) else None for c, v in row.items()})


def read_log(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a log. InputError: there is no such file, or it is no log."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if not _is_csv(path):
            return [_row(json.loads(line).items()) for line in text.splitlines()]
        head, *lines = csv.reader(io.StringIO(text, newline=""))
        return [_row(zip(head, line, strict=True)) for line in lines]
    except FileNotFoundError as e:
        raise InputError(f"there is no log {os.fspath(path)!r}") from e
    except (ValueError, AttributeError) as e:
        raise InputError(f"{os.fspath(path)!r} is no log of a run: {e}") from e


def _row(items: Iterable[tuple[str, object]]) -> Row:
    row: dict[str, int | float | None] = {}
    for name, value in items:
        text = "" if value is None else str(value)
        row[name] = None if text == "" else int(text) if text.lstrip("-").isdigit() else float(text)
    return row


def _quoted(name: str) -> str:
    """A field of CSV, as RFC 4180 has it."""
    return '"' + name.replace('"', '""') + '"' if any(c in name for c in ',"\r\n') else name


def _is_csv(path: str | os.PathLike[str]) -> bool:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise InputError(f"the log {os.fspath(path)!r} must end with .csv or .jsonl")
    return suffix == ".csv"
