"""Objects, their cache, loading, libraries, worker processes."""

import ctypes
import gc
import os
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.codegen.native import (
    Kernel,
    Target,
    cache,
    compile_objects,
    f32,
    kernel,
    load,
    native,
    shared_library,
    workers,
)
from compiler.errors import BuildError


def make_add(constant: float) -> Kernel:
    number = np.float32(constant)

    @kernel
    def add(lo: int, hi: int, x: int) -> None:
        p = f32(x + 4 * lo, 0)
        for i in range(hi - lo):
            p[i] += number

    return add


def make_caller(*callees: Kernel) -> Kernel:
    first, second = callees

    @kernel
    def both(lo: int, hi: int, x: int) -> None:
        first(lo, hi, x)
        second(lo, hi, x)

    return both


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNXC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that were compiled in this process."""
    names: list[str] = []
    original = workers.compile_one

    def compile_one(k: Kernel, target: Target) -> bytes:
        names.append(k.symbol)
        return original(k, target)

    monkeypatch.setattr(workers, "compile_one", compile_one)
    return names


def test_objects_come_callees_first_and_from_the_cache(directory: Path, compiled: list[str]) -> None:
    a, b = make_add(1), make_add(2)
    k = make_caller(a, b)
    paths = compile_objects([k, a])
    assert [p.name.split(".")[0] for p in paths] == [a.symbol, b.symbol, k.symbol]
    assert all(p.parent == directory for p in paths)
    assert len(compiled) == 3
    assert compile_objects([k]) == paths
    assert len(compiled) == 3
    assert sorted(p.name for p in directory.iterdir()) == sorted(p.name for p in paths)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_objects_are_made_again(directory: Path, compiled: list[str], damage: str) -> None:
    (path,) = compile_objects([make_add(3)])
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    path.write_bytes({"truncated": whole[:-100], "flipped": bytes(changed), "empty": b""}[damage])
    with pytest.raises(BuildError, match="damaged"):
        load([path])
    assert compile_objects([make_add(3)]) == [path]
    assert path.read_bytes() == whole
    assert len(compiled) == 2


def test_concurrent_writers(directory: Path) -> None:
    kernels = [make_add(c) for c in range(4, 8)]
    results: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: results.append(compile_objects(kernels, jobs=1))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 3
    assert all(cache.intact(p.read_bytes()) for paths in results for p in paths)
    assert not list(directory.glob("*.part"))


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("ONNXC_CACHE", str(blocked / "cache"))
    k = make_add(8)
    (path,) = compile_objects([k])
    assert tmp_path not in path.parents
    assert cache.intact(path.read_bytes())
    assert compile_objects([k]) == [path]
    x = np.zeros(3, np.float32)
    native(k)(0, 2, x.ctypes.data)
    assert x.tolist() == [8, 8, 0]


def test_a_read_only_cache_is_read(directory: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = compile_objects([make_add(9)])

    def refuse(*args: Any) -> Path:
        raise PermissionError

    monkeypatch.setattr(cache, "_publish", refuse)
    assert compile_objects([make_add(9)]) == [path]
    assert len(compiled) == 1


def test_eviction_takes_what_was_unused_for_longest(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [compile_objects([make_add(c)])[0] for c in range(10, 14)]
    for age, path in zip((30, 40, 10, 20), paths, strict=True):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age * 86400))
    compile_objects([make_add(11)])  # a hit refreshes it
    size = sum(p.stat().st_size for p in paths)
    monkeypatch.setattr(cache, "limit", lambda: size)
    (fresh,) = compile_objects([make_add(14)])
    assert [p.exists() for p in paths] == [False, True, True, False]
    assert fresh.exists()


def test_the_limit_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXC_CACHE_SIZE", "1.5")
    assert cache.limit() == 3 << 19
    monkeypatch.setenv("ONNXC_CACHE_SIZE", "")
    assert cache.limit() == cache.DEFAULT_LIMIT


def test_loading_is_once_per_process(directory: Path) -> None:
    a, b = make_add(15), make_add(16)
    first = load([a])
    k = make_caller(a, b)
    both = load([k])
    assert set(both) == {a.symbol, b.symbol, k.symbol}
    assert both[a.symbol] == first[a.symbol]
    assert load(compile_objects([k])) == both
    x = np.zeros(2, np.float32)
    native(k)(0, 2, x.ctypes.data)
    assert x.tolist() == [31, 31]


def test_objects_of_another_machine_are_refused(directory: Path) -> None:
    k = make_add(17)
    (foreign,) = compile_objects([k], Target("generic", "", "aarch64-unknown-linux-gnu"))
    (own,) = compile_objects([k])
    assert foreign.name != own.name
    assert foreign.read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(BuildError, match="another machine"):
        load([foreign])


def test_workers_make_the_same_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[str]) -> None:
    kernels = [make_add(c) for c in range(20, 44)]
    kernels.append(Kernel.from_source("text", "def text(lo, hi, x):\n    f32(x, 0)[lo] = 1\n", {"f32": f32}))
    monkeypatch.setenv("ONNXC_CACHE", str(tmp_path / "one"))
    alone = compile_objects(kernels, jobs=1)
    assert len(compiled) == len(kernels)
    compiled.clear()
    monkeypatch.setenv("ONNXC_CACHE", str(tmp_path / "many"))
    shared = compile_objects(kernels, jobs=3)
    assert [p.read_bytes() for p in alone] == [p.read_bytes() for p in shared]


def test_workers_start_ahead_where_nothing_is_compiled_yet(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = workers._Worker.start
    monkeypatch.setattr(workers, "_cpus", lambda: 2)
    monkeypatch.setattr(workers._Worker, "start", lambda target: started.append(start(target)) or started[-1])
    with workers.ahead():
        assert len(started) == 1
        select.select([started[0].process.stdout], [], [], 60)  # else this process may be done before it has begun
        compile_objects([make_add(c) for c in range(90, 106)])
    assert len(started) == 1  # it is the one that compiles
    assert started[0].ready
    assert started[0].process.poll() is not None
    with workers.ahead():  # the cache has something
        assert len(started) == 1
    monkeypatch.setenv("ONNXC_CACHE", str(directory / "other"))
    with pytest.raises(ValueError, match="stopped"), workers.ahead():  # not needed
        raise ValueError("stopped")
    assert len(started) == 2
    assert started[1].process.poll() is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_garbage_is_collected_again_afterwards_and_in_a_child() -> None:
    assert gc.isenabled()
    with workers.uncollected():
        with workers.uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert gc.isenabled()


def test_workers_that_fail_are_done_without(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [make_add(c) for c in range(50, 68)]
    for executable in ("", str(directory / "missing"), shutil.which("true") or ""):
        monkeypatch.setattr(sys, "executable", executable)
        monkeypatch.setenv("ONNXC_CACHE", str(directory / executable.replace("/", "_")))
        assert len(compile_objects(kernels, jobs=3)) == len(kernels)


def test_a_kernel_that_does_not_compile_is_named_with_workers(directory: Path) -> None:
    def wrong(lo: int, hi: int) -> None:
        f32(lo, hi)[0] = 1

    with pytest.raises(BuildError, match="kernel wrong"):
        compile_objects([*(make_add(c) for c in range(70, 86)), Kernel(wrong)], jobs=2)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_shared_library(directory: Path, tmp_path: Path) -> None:
    a, b = make_add(1), make_add(2)
    k = make_caller(a, b)
    path = shared_library(compile_objects([k]), {"onnxc_both": k.symbol, "one": a.symbol}, tmp_path / "lib.so")
    library = ctypes.CDLL(str(path))
    x = np.zeros(3, np.float32)
    library.onnxc_both(ctypes.c_int64(0), ctypes.c_int64(2), ctypes.c_int64(x.ctypes.data))
    library.one(ctypes.c_int64(2), ctypes.c_int64(3), ctypes.c_int64(x.ctypes.data))
    assert x.tolist() == [3, 3, 1]
    if nm := shutil.which("nm"):
        listing = subprocess.run([nm, "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
        assert sorted(line.split()[-1] for line in listing.splitlines()) == ["one", "onnxc_both"]


def test_linking_errors_say_what_to_do(directory: Path, tmp_path: Path) -> None:
    objects = compile_objects([make_add(1)])
    with pytest.raises(BuildError, match="no C compiler 'no-such-cc'"):
        shared_library(objects, {"a": make_add(1).symbol}, tmp_path / "lib.so", cc="no-such-cc")
    if shutil.which("cc"):
        with pytest.raises(BuildError, match="cannot link"):
            shared_library(objects, {"a": "missing"}, tmp_path / "lib.so")
        assert not list(tmp_path.glob("lib.so*"))


def test_platform_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ONNXC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.directory() == tmp_path / "onnxc"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.directory() == Path.home() / "Library" / "Caches" / "onnxc"
