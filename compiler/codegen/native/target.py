"""The machine that code is made for."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import llvmlite
import llvmlite.binding as ll


@dataclass(frozen=True)
class Target:
    """cpu: LLVM's name ("znver3", "x86-64-v3", "neoverse-n1"); features: LLVM's "+avx2,-avx512f,..."; triple."""

    cpu: str
    features: str
    triple: str

    @staticmethod
    @functools.cache
    def host() -> "Target":
        """This machine."""
        return Target(ll.get_host_cpu_name(), ll.get_host_cpu_features().flatten(), ll.get_process_triple())

    @staticmethod
    def current() -> "Target":
        """What code is made for: as `building` says, else this machine."""
        return _current.get() or Target.host()

    @functools.cached_property
    def digest(self) -> str:
        """Part of an object's file name: machines that share a cache must not run each other's code."""
        text = f"{self.cpu} {self.features} {self.triple} {llvmlite.__version__} {ll.llvm_version_info}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @functools.cached_property
    def vectors(self) -> str:
        """The vector unit, for the choice of tiles: "avx512", "avx2", "neon" or "generic" (128 bits)."""
        return vector_unit(self.cpu, self.features, self.triple)


_current: ContextVar[Target | None] = ContextVar("target", default=None)


@contextlib.contextmanager
def building(target: Target) -> Iterator[None]:
    """Plan, emit and compile for a target inside this block (in this thread)."""
    token = _current.set(target)
    try:
        yield
    finally:
        _current.reset(token)


P = ParamSpec("P")
R = TypeVar("R")


def per_target(make: Callable[P, R]) -> Callable[P, R]:
    """As `functools.cache`, apart for each vector unit: what kernels are made of depends on the tiles of its target."""
    made: Callable[..., R] = functools.cache(lambda unit, *args, **kwargs: make(*args, **kwargs))

    @functools.wraps(make)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        return made(Target.current().vectors, *args, **kwargs)

    return wrapped


# Vector units of CPUs that are named without a list of features (levels and the usual ones; others count as generic).
_NAMED = {
    "avx512": {"x86-64-v4", "skylake-avx512", "cascadelake", "icelake-server", "sapphirerapids", "znver4", "znver5"},
    "avx2": {"x86-64-v3", "haswell", "broadwell", "skylake", "alderlake", "znver1", "znver2", "znver3"},
}


@functools.cache
def vector_unit(cpu: str, features: str, triple: str) -> str:
    """See `Target.vectors`."""
    arch, have = triple.split("-")[0], set(features.split(","))
    if arch in ("aarch64", "arm64"):
        return "neon"
    if arch in ("x86_64", "amd64"):
        for unit, needed in (("avx512", {"avx512f"}), ("avx2", {"avx2", "fma"})):
            if any(f"-{f}" in have for f in needed):
                continue
            if cpu in _NAMED[unit] or all(f"+{f}" in have for f in needed):
                return unit
    return "generic"
