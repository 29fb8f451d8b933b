"""Names of a model in C: identifiers that never meet, string literals and comments that cannot break out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count

LENGTH = 40
"""Characters of an identifier that come from the model's name; C99 tells 63 apart."""


class Identifiers:
    """Hands out identifiers for names, each once, in the order of the calls."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def take(self, name: str, *patterns: str) -> tuple[str, ...]:
        """The patterns, each with one identifier for a model's name in place of {}, so that all of them are new."""
        base = identifier(name)
        for n in count(1):
            found = tuple(p.format(base if n == 1 else f"{base}_{n}") for p in patterns)
            if self._taken.isdisjoint(found):
                break
        self._taken.update(found)
        return found


def identifier(name: str) -> str:
    """Letters, digits and single underscores of a name: "conv1.weight" gives conv1_weight, "" and "é" give array."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:LENGTH].strip("_") or "array"


def literal(text: str) -> str:
    """A C string literal of the UTF-8 bytes of `text`, in printable ASCII; without trigraphs."""
    return f'"{escaped(text)}"'


def literal_of_bytes(data: bytes, width: int = 100) -> str:
    """C string literals of any bytes, one a line; they concatenate."""
    pieces, line = [], ""
    for b in data:
        line += _escape(b)
        if len(line) >= width:
            pieces.append(line)
            line = ""
    return "\n".join(f'    "{p}"' for p in [*pieces, line])


def escaped(text: str) -> str:
    """What stands between the quotes of `literal`; inside a comment it cannot end it."""
    return "".join(map(_escape, text.encode()))


def _escape(b: int) -> str:
    # octal has at most three digits, so that a digit behind it is no part of it; * could end a comment
    return chr(b) if 0x20 <= b < 0x7F and b not in b'"\\?*' else f"\\{b:03o}"
