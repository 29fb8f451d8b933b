"""Golden files: `tests/golden/*.ir` hold IR text, the passes to run, and the IR text or the error that comes out.

    # passes: fold_constants, cse        (nothing behind the colon: the text is parsed, verified and printed)
    # kernels: Conv, MatMul              (optional: the ops that code generation has; by default all)
    graph g {
      ...
    }
    ---
    graph g {
      ...
    }

or, behind the line `---`, one line `# error: what, where, remedy` for each problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.errors import CompileError
from compiler.ir.graph import Graph
from compiler.ir.text import dump, parse, tensors_of
from compiler.passes.pipeline import passes

FILES = sorted((Path(__file__).parent / "golden").glob("*.ir"))


def header(text: str, name: str) -> list[str] | None:
    found = re.search(rf"^# {name}:(.*)$", text, re.MULTILINE)
    return None if found is None else [word.strip() for word in found[1].split(",") if word.strip()]


def outcome(text: str) -> str:
    """What comes out of the text above the line `---`."""
    kernels = header(text, "kernels")
    available = {p.name: p.run for p in passes(lambda node, types: kernels is None or node.op in kernels)}
    try:
        graph: Graph = parse(text)
        for name in header(text, "passes") or []:
            graph = available[name](graph)
    except CompileError as e:
        return "".join(f"# error: {line}\n" for problem in e.problems for line in str(problem).splitlines())
    result = dump(graph)
    assert parse(result, tensors_of(graph)) == graph
    return result


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path: Path, golden: Callable[[Path, str], None]) -> None:
    above, line, _below = path.read_text(encoding="utf-8").partition("\n---\n")
    assert header(above, "passes") is not None, "the file begins with `# passes: ...`"
    golden(path, above.rstrip("\n") + (line or "\n---\n") + outcome(above))
