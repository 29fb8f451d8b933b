"""onnxc: an ONNX training model in, one compiled training step out.

    step = compiler.compile("model.onnx", dims={"N": 64})
    outputs = step(x=images, label=labels)

Everything is imported when it is first used: `import compiler` alone loads neither onnx nor numba.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from compiler.errors import INSTALL as _INSTALL
from compiler.errors import BuildError as _BuildError

__version__ = "0.1.0"

if TYPE_CHECKING:
    from compiler import api as api
    from compiler import catalogue as catalogue
    from compiler import memory_report as memory_report
    from compiler import training as training
    from compiler.api import build as build
    from compiler.api import check as check
    from compiler.api import compile as compile
    from compiler.api import lower as lower
    from compiler.api import training_graph as training_graph
    from compiler.errors import ArtifactError as ArtifactError
    from compiler.errors import BuildError as BuildError
    from compiler.errors import CompileError as CompileError
    from compiler.errors import DivergedError as DivergedError
    from compiler.errors import InputError as InputError
    from compiler.errors import MemoryLimitError as MemoryLimitError
    from compiler.errors import ModelError as ModelError
    from compiler.errors import OnnxcError as OnnxcError
    from compiler.errors import RefusedError as RefusedError
    from compiler.errors import StateError as StateError
    from compiler.errors import UnsupportedError as UnsupportedError
    from compiler.frontend import NeedsDims as NeedsDims
    from compiler.frontend import NeedsStatic as NeedsStatic
    from compiler.frontend.making import Loss as Loss
    from compiler.frontend.making import make_training_model as make_training_model
    from compiler.onnx_backend import Backend as backend
    from compiler.runtime.artifact import load as load
    from compiler.runtime.step import StepFunction as StepFunction
    from compiler.training import Trainer as Trainer

_HOMES = {
    **dict.fromkeys(("build", "check", "compile", "lower", "training_graph"), "compiler.api"),
    **dict.fromkeys(
        (
            "ArtifactError",
            "BuildError",
            "CompileError",
            "DivergedError",
            "InputError",
            "MemoryLimitError",
            "ModelError",
            "OnnxcError",
            "RefusedError",
            "StateError",
            "UnsupportedError",
        ),
        "compiler.errors",
    ),
    **dict.fromkeys(("NeedsDims", "NeedsStatic"), "compiler.frontend"),
    **dict.fromkeys(("Loss", "make_training_model"), "compiler.frontend.making"),
    "load": "compiler.runtime.artifact",
    "StepFunction": "compiler.runtime.step",
    "Trainer": "compiler.training",
}

_MODULES = ("api", "catalogue", "memory_report", "training")

__all__ = [*_HOMES, "__version__", "backend"]


def _module(name: str, wanted: str) -> ModuleType:
    """Import a module. BuildError: where only built artifacts run, the packages that compile may be missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package in ("", "compiler"):
            raise
        who = "onnxc" if wanted in _MODULES else f"compiler.{wanted}"
        raise _BuildError(f"{who} needs the package {package!r}, which is not installed: {_INSTALL}") from None


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return _module(f"compiler.{name}", name)
    if name in _HOMES:
        return getattr(_module(_HOMES[name], name), name)
    if name == "backend":
        return _module("compiler.onnx_backend", name).Backend
    raise AttributeError(f"module 'compiler' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
