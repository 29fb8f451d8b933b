"""The sides of the race. Each module makes a training step of a case's files, and is imported in its own process only.

A module has VERSION, and `make_step(case, **options) -> Made`. It imports its framework when it is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Peer:
    """How to start a side.

    module: in this package; family: whose interpreter runs it (`--python FAMILY=...`); package: what that must be able
    to import; remedy: how to get it; options: of `make_step`.
    """

    module: str
    family: str
    package: str
    remedy: str
    options: Mapping[str, Any] = field(default_factory=dict)


_BENCH = "pip install -e '.[bench]'"

PEERS = {
    "onnxc": Peer("onnxc", "onnxc", "compiler", _BENCH),
    "torch": Peer("torch", "torch", "torch", _BENCH),
    "torch-compile": Peer("torch", "torch", "torch", _BENCH, {"compiled": True}),
    "jax": Peer("jax", "jax", "jax", _BENCH),
    "ort": Peer(
        "ort",
        "ort",
        "onnxruntime.training",
        "it needs an environment of its own, see docs/benchmarks.md, and --python ort=ENVIRONMENT/bin/python",
    ),
}
"""Side by name; onnxc comes first, and its losses are what those of the others are compared with."""


@dataclass(frozen=True)
class Case:
    """The files of a workload (`benchmarks.cases`), and the number of threads."""

    folder: Path
    threads: int

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Contents of case.json: name, trainable, learning_rate."""
        facts: Mapping[str, Any] = json.loads((self.folder / "case.json").read_text(encoding="utf-8"))
        return facts

    @property
    def name(self) -> str:
        """Of the workload."""
        return str(self.facts["name"])

    @property
    def trainable(self) -> Sequence[str]:
        """Names of the weights that the step updates by Adam."""
        return list(self.facts["trainable"])

    @property
    def learning_rate(self) -> float:
        """Of Adam; betas are 0.9 and 0.999, epsilon 1e-8."""
        return float(self.facts["learning_rate"])

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """All initializers by name."""
        with np.load(self.folder / "weights.npz") as file:
            return {name: file[name] for name in file.files}

    def batch(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """`x` and `label`."""
        with np.load(self.folder / "batch.npz") as file:
            return file["x"], file["label"]


@dataclass(frozen=True)
class Made:
    """A step that is ready: `step()` trains once on the batch and gives the loss from before the update.

    details: further facts by name, asked for after the race.
    """

    step: Callable[[], float]
    details: Callable[[], dict[str, Any]] = dict
