"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.covering import covering

# memory plans have room for each thread, and tests run side by side: one, unless a test asks for more
os.environ["ONNXC_THREADS"] = "1"

# in the background of a shell, interrupts are ignored, and some tests wait for what they do
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples in every run; what hypothesis finds out about the sources goes where pytest keeps its own files
set_hypothesis_home_dir(Path(__file__).parents[1] / ".pytest_cache" / "hypothesis")
settings.register_profile(
    "onnxc", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("onnxc")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what comes out into the golden files")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of each test marked as a sweep, mark those as exhaustive that the default run can do without."""
    sweeps: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sweep"):
            sweeps[item.nodeid.split("[")[0]].append(item)
    for sweep in sweeps.values():
        (size,) = sweep[0].get_closest_marker("sweep").args
        chosen = covering([[(name, id(value)) for name, value in i.callspec.params.items()] for i in sweep], size)
        for i, item in enumerate(sweep):
            if i not in chosen:
                item.add_marker("exhaustive")


@pytest.fixture(autouse=True, scope="session")
def _compiles_alone() -> Iterator[None]:
    """Tests that run side by side keep all cores busy: no process starts others that help it to compile.

    Starting one takes longer than compiling five kernels. tests/codegen/test_native_build.py asks for them itself.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "PYTEST_XDIST_WORKER" in os.environ:
            patch.setattr("compiler.codegen.native.workers._cpus", lambda: 1)
        yield


@pytest.fixture(autouse=True, scope="module")
def _generators(request: pytest.FixtureRequest) -> list[tuple[np.random.Generator, Mapping[str, Any]]]:
    """The random generators that a module of tests keeps, with the state that they begin in."""
    found = [value for value in vars(request.module).values() if isinstance(value, np.random.Generator)]
    return [(generator, generator.bit_generator.state) for generator in found]


@pytest.fixture(autouse=True)
def _begin_anew(_generators: list[tuple[np.random.Generator, Mapping[str, Any]]]) -> None:
    """A test draws the same numbers whatever tests ran before it."""
    for generator, state in _generators:
        generator.bit_generator.state = state


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with the contents of a file; with --update-golden, write the file instead."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == expected, f"{path.name} differs: look at it, then run pytest --update-golden"

    return compare
