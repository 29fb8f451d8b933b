"""Training over arrays: epochs of shuffled batches, a loss and a metric. What `onnxc train` does, without printing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave: the mean loss over its samples, and the metric on the evaluation data (or None)."""

    number: int
    loss: float | None
    metric: float | None


@dataclass(frozen=True)
class Dataset:
    """Named arrays with samples along their first axis, all as many."""

    arrays: Mapping[str, Array]

    def __post_init__(self) -> None:
        sizes = {name: a.shape[0] if a.ndim else 0 for name, a in self.arrays.items()}
        if not sizes or min(sizes.values()) == 0:
            raise InputError(f"no samples in the data: arrays need a first axis of samples, there are {sizes}")
        if len(set(sizes.values())) > 1:
            raise InputError(f"arrays of different numbers of samples: {sizes}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def only(self, names: set[str]) -> Dataset:
        """The arrays of these names. InputError names those that are missing or of no use."""
        missing, extra = sorted(names - set(self.arrays)), sorted(set(self.arrays) - names)
        if missing:
            unused = f" (unused: {', '.join(map(repr, extra))})" if extra else ""
            raise InputError(f"the data has no array {', '.join(map(repr, missing))}{unused}")
        return Dataset({n: a for n, a in self.arrays.items() if n in names})

    def batches(self, size: int, order: Array | None = None) -> Iterator[dict[str, Array]]:
        """Batches of `size` samples, in `order`; the last may be smaller."""
        for start in range(0, len(self), size):
            rows = slice(start, start + size) if order is None else order[start : start + size]
            yield {n: np.ascontiguousarray(a[rows]) for n, a in self.arrays.items()}


def train(
    step: StepFunction,
    data: Dataset,
    *,
    epochs: int,
    batch: int,
    seed: int = 0,
    whole_batches: bool = False,
    evaluate: Callable[[], float | None] | None = None,
    progress: Callable[[int, int, float | None], Any] | None = None,
) -> Iterator[Epoch]:
    """Train, and yield after each epoch.

    The order of samples is drawn anew for each epoch, from `seed`. whole_batches: leave out what does not fill a
    batch, for a model of fixed batch size. progress(epoch, samples done, loss) is called after each step.
    """
    if whole_batches and len(data) < batch:
        raise InputError(f"{len(data)} samples do not fill one batch of {batch}, the model's fixed batch size")
    random = np.random.default_rng(seed)
    for number in range(1, epochs + 1):
        order = random.permutation(len(data))
        if whole_batches:
            order = order[: len(data) // batch * batch]
        total, done = 0.0, 0
        loss: float | None = None
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            outputs = step({n: np.ascontiguousarray(a[rows]) for n, a in data.arrays.items()})
            loss = _loss(outputs)
            total += (loss if loss is not None else 0.0) * len(rows)
            done += len(rows)
            if progress is not None:
                progress(number, done, loss)
        yield Epoch(number, total / done if loss is not None else None, evaluate() if evaluate else None)


def _loss(outputs: Mapping[str, Array]) -> float | None:
    """The output called loss, else the first scalar one of floating point."""
    scalars = [n for n, a in outputs.items() if a.size == 1 and a.dtype.kind == "f"]
    name = "loss" if "loss" in scalars else next(iter(scalars), None)
    return None if name is None else float(outputs[name].reshape(()))


@dataclass(frozen=True)
class Metric:
    """Accuracy of integer labels against scores with one more axis (classes at axis 1), or mean absolute error."""

    label: str
    accuracy: bool

    @property
    def name(self) -> str:
        return "accuracy" if self.accuracy else "mean absolute error"

    def __call__(self, step: StepFunction, data: Dataset, inputs: set[str], batch: int) -> float:
        """The metric of the inference graph's first output, over all samples."""
        total = count = 0.0
        for rows in data.batches(batch):
            output = next(iter(step.infer({n: a for n, a in rows.items() if n in inputs}).values()))
            wanted = rows[self.label]
            if self.accuracy:
                total += float((output.argmax(1) == wanted).sum())
            else:
                total += float(np.abs(output.reshape(wanted.shape) - wanted).sum())
            count += wanted.size
        return total / count


def choose_metric(labels: set[str], data: Dataset) -> Metric | None:
    """A metric for the one label among the data's arrays; None if there is none, or more than one."""
    found = [n for n in data.arrays if n in labels]
    if len(found) != 1:
        return None
    return Metric(found[0], data.arrays[found[0]].dtype.kind in "iu")
