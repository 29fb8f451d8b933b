"""The layers: who imports whom, who prints, how long a module may be; read from the sources, not by running them."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "compiler"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 420  # a module should have one subject; 400 and a little slack

COMMAND = {"__main__", "command"}
"""The command: the only part that prints."""

MAY_IMPORT = {
    "errors": set(),
    "ir": {"errors"},
    "frontend": {"errors", "ir"},
    "passes": {"errors", "ir"},
    "codegen": {"errors", "ir", "runtime.layout"},
    "codegen.library_artifact": {"runtime.arguments", "runtime.artifact", "runtime.checkpoint"},
    "runtime": {"errors"},
}
"""Part of the package, or module -> the parts and modules it imports. Modules of the top (api, ..) may import all."""

ONLY_IN = {
    "numba": {"codegen"},
    "llvmlite": {"codegen"},
    "onnxruntime": set(),  # a user's program may have it; we never need it
    "networkx": {"ir"},
    "click": COMMAND,
    "rich": COMMAND,
}
"""Distribution -> the parts that may import it."""

RUNTIME_NEEDS = {"numpy", "safetensors", "compiler"}
"""What a machine has that only runs built artifacts; the rest of the runtime is Python's own library."""


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of the modules that a file imports anywhere in it, also for type checkers only, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "compiler" else [module]
            yield from ((name, node.lineno) for name in names)


def found_in(path: Path, complaints: list[str]) -> str:
    return "\n".join(f"{path.relative_to(PACKAGE.parent)}:{c}" for c in complaints)


def prefixes(name: str) -> set[str]:
    """The name of a module and of the packages that it is in."""
    words = name.split(".")
    return {".".join(words[:n]) for n in range(1, len(words) + 1)}


def others(path: Path) -> Iterator[tuple[str, int]]:
    """What a file imports from other parts of the package, if its own part has rules: names below `compiler`."""
    here = part(path)
    for name, line in imports(path):
        top, _, rest = name.partition(".")
        if top == "compiler" and rest and here in MAY_IMPORT and rest.split(".")[0] != here:
            yield rest, line


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_run_one_way(path: Path) -> None:
    here = part(path)
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    allowed = set().union(*(MAY_IMPORT.get(p, set()) for p in prefixes(module)))
    complaints = [f"{line}: {module} imports {name}" for name, line in others(path) if not prefixes(name) & allowed]
    for name, line in imports(path):
        top = name.split(".")[0]
        if top in ONLY_IN and here not in ONLY_IN[top]:
            complaints.append(f"{line}: {top} is for {sorted(ONLY_IN[top])} only")
        if here == "runtime" and top not in RUNTIME_NEEDS and top not in sys.stdlib_module_names:
            complaints.append(f"{line}: the runtime imports {top}")
    assert not complaints, found_in(path, complaints)


@pytest.mark.parametrize("module", MAY_IMPORT)
def test_no_permission_is_stale(module: str) -> None:
    path = PACKAGE.joinpath(*module.split("."))
    files = sorted(path.rglob("*.py")) or [path.with_suffix(".py")]
    found = set().union(*(prefixes(name) for file in files for name, _ in others(file)))
    assert MAY_IMPORT[module] <= found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_no_import_hides_in_a_function(path: Path) -> None:
    """An import inside a function is the usual way to hide a cycle."""
    if part(path) in COMMAND:
        return  # the command imports what a subcommand needs when it runs, so that it starts at once
    complaints = [
        f"{inner.lineno}: an import inside {node.name}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    ]
    assert not complaints, found_in(path, complaints)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_only_the_command_prints(path: Path) -> None:
    if part(path) in COMMAND:
        return
    complaints = [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Name) and node.id == "print")
        or (isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"))
    ]
    assert not complaints, found_in(path, complaints)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def name_of(path: Path) -> str:
    """The module of a file."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_at_once(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """What of the package a module imports as it is imported: not in functions, nor for type checkers only."""
    pending: list[ast.stmt] = list(tree.body)
    for node in pending:
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            pending += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            pending += [*node.body, *node.orelse, *(s for h in node.handlers for s in h.body), *node.finalbody]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else str(node.module) for name in inner)


def test_modules_can_be_imported_in_any_order() -> None:
    """No module needs another one, by whatever way, that needs it: a cycle would break for who imports the wrong first.

    With a module the packages that it is in are imported; for what is inside them, they only have to have begun.
    """
    modules = {name_of(path) for path in FILES}
    needs = {}
    for path in FILES:
        name = name_of(path)
        direct = set(imported_at_once(ast.parse(path.read_text(encoding="utf-8")), modules))
        needs[name] = set().union(*map(prefixes, direct)) - (prefixes(name) - direct) - {"compiler"}
    tuple(graphlib.TopologicalSorter(needs).static_order())  # CycleError: the cycle
    assert "compiler.frontend.making.model" in needs["compiler.frontend.making"]


def test_modules_are_imported_alone() -> None:
    """Each as the first one of the package, one after the other in one interpreter."""
    first = [
        "training",
        "onnx_backend",
        "api",
        "frontend.making",
        "passes.pipeline",
        "runtime.artifact",
        "command.entry",
    ]
    forget = "for m in [m for m in sys.modules if m.split('.')[0] == 'compiler']: del sys.modules[m]"
    assert "compiler" in loaded_by("\n".join(f"{forget}\nimport compiler.{name}" for name in first))


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after a statement."""
    program = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return set(run.stdout.split())


def test_importing_the_package_is_cheap() -> None:
    assert "compiler" in loaded_by("import compiler")
    assert not {"numba", "llvmlite", "onnx", "networkx", "numpy"} & loaded_by("import compiler")


def test_built_artifacts_load_without_the_compiler() -> None:
    if not (PACKAGE / "runtime" / "artifact.py").exists():
        pytest.skip("there is no loader of artifacts")
    assert not {"numba", "llvmlite", "onnx", "networkx"} & loaded_by("import compiler; compiler.load")


def test_the_ir_does_not_need_code_generation() -> None:
    assert not {"numba", "llvmlite"} & loaded_by("import compiler.ir.text, compiler.ir.interpret")
