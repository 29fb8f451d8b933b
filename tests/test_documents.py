"""The Python of README.md and docs/*.md runs as it is written, and gives what its comments show.

The blocks of a page run in order, in one namespace, in a folder with the files that `examples/` writes. A block that
cannot run there says so in the line above it, which readers of the page do not see: `<!-- not run: needs torch -->`.

A comment shows a result if it stands alone under a statement, or behind one and begins like a value: what the
statement printed, or else the value of the expression, or the exception, as `StateError: ...`. `...` stands for
anything, numbers agree to a thousandth, lines may break elsewhere; behind a statement, the result ends at `; `.
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import compiler
from examples import digits, linear

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"^ *<!-- not run: \S.* -->$")
OTHER_LANGUAGES = {"c"}

VALUE = re.compile(r"[-\d\[{<'\"]|\w+\(|\w+Error: ")
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
SHOWS_NOTHING = (ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef)


class Block(NamedTuple):
    """Python of a page: its first line there, and whether it runs."""

    line: int
    source: str
    runs: bool


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCED.finditer(text):
        indent, language, source = match.groups()
        above = text[: match.start()].splitlines()
        if language == "python":
            source = re.sub(f"^{indent}", "", source, flags=re.MULTILINE)
            found.append(Block(len(above) + 2, source, not (above and NOT_RUN.match(above[-1]))))
        else:
            assert language in OTHER_LANGUAGES, f"{page.name}:{len(above) + 1}: what is {language!r}?"
    assert len(FENCED.findall(text)) * 2 == text.count("```"), f"{page.name}: a block has no end"
    return found


PAGES = [page for page in (*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/*.md"))) if blocks(page)]


def shown(lines: list[str], statement: ast.stmt) -> str | None:
    """The result of a statement that ends its line, as the comments show it; None if they show none."""
    if isinstance(statement, SHOWS_NOTHING) or statement.end_lineno is None:
        return None
    behind = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode().strip(" #").split("; ")[0]
    below = []
    for line in lines[statement.end_lineno :]:
        if not line.startswith("# "):
            break
        below.append(line[2:])
    return "\n".join(below) or (behind if VALUE.match(behind) else None)


def plain(text: str) -> str:
    """On one line, without the spaces that align the rows of an array."""
    return re.sub(r"\[ ", "[", " ".join(text.split()))


def agree(expected: str, actual: str) -> bool:
    """Whether the texts are the same but for `...`, white space, and numbers by a thousandth."""
    pattern, numbers = "", []
    for piece in re.split(rf"(\.\.\.|{NUMBER})", plain(expected)):
        if re.fullmatch(NUMBER, piece):
            numbers.append(float(piece))
            pattern += f"({NUMBER})"
        else:
            pattern += ".*" if piece == "..." else re.escape(piece)
    found = re.fullmatch(pattern, plain(actual))
    return found is not None and all(
        math.isclose(float(a), n, rel_tol=1e-3) for a, n in zip(found.groups(), numbers, strict=True)
    )


def run(page: Path, block: Block, names: dict[str, object]) -> None:
    """Run a block statement by statement, and compare what they show."""
    lines = block.source.splitlines()
    for statement in ast.parse(block.source, page.name).body:
        expected, line = shown(lines, statement), block.line + statement.lineno - 1
        printed, value = io.StringIO(), None
        ast.increment_lineno(statement, block.line - 1)  # so a traceback tells the line of the page
        try:
            with contextlib.redirect_stdout(printed):
                if isinstance(statement, ast.Expr):
                    value = eval(compile(ast.Expression(statement.value), str(page), "eval"), names)
                else:
                    exec(compile(ast.Module([statement], []), str(page), "exec"), names)
        except Exception as e:
            actual = f"{type(e).__name__}: {e}"
            if expected is None or not agree(expected, actual):
                raise
        else:
            actual = printed.getvalue() or repr(value)
            assert expected is None or agree(expected, actual), f"{page.name}:{line}: {expected!r} is {actual!r}"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples write, and `trained.onnx`, with which `make demo` ends."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["", str(folder)])
        digits.main()
        linear.main()
    compiler.compile(folder / "digits.onnx").export(folder / "trained.onnx")
    return folder


@pytest.fixture
def here(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a copy of that folder; a page may say what an interrupt does."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        ast.parse(block.source)
        if block.runs:
            run(page, block, names)


def test_what_agrees() -> None:
    assert agree("array(2.838..., dtype=float32)", "array(2.8381, dtype=float32)")
    assert agree("{'a': array([[1.5], [2]]), ...}", "{'a': array([[1.5001],\n   [2]]), 'b': 3}")
    assert not agree("array(2.838)", "array(2.85)")
    assert not agree("1 49", "1 49 2")
