"""`onnxc train` without its printing: a model, its data, and the epochs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from compiler.errors import InputError
from compiler.frontend import Source, load
from compiler.ir.types import numpy_dtype
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction
from compiler.specialize import Options, Specializations
from compiler.training import Dataset, Epoch, Metric, choose_metric, train


class Trainer:
    """A step function with the arrays that it trains on, `batch` samples at a time."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        data: Mapping[str, Array],
        evaluation: Mapping[str, Array] | None,
        batch: int,
        dims: Mapping[str, int],
        threads: int,
        seed: int,
        algorithm: int | None,
    ) -> None:
        source = load(model)
        self._inference = {v.name for v in source.model.graph.input} & set(source.inputs)
        needed = {n for n in source.inputs if n not in source.defaults}
        self.data = _converted(Dataset(data).only(needed | (set(data) & set(source.defaults))), source)
        self.batch, self._whole = batch, False
        fixed = {t.dims[0] for n, t in source.inputs.items() if n in self.data.arrays and t.dims}
        for size in fixed:
            if isinstance(size, int):
                if batch != size:
                    raise InputError(f"the model's batch size is fixed at {size}: train with --batch {size}")
                self._whole = True
        self._seed = seed
        bound = {s: n for s, n in dims.items() if s not in fixed}
        work = Specializations(source, Options(bound, {}, threads, seed, algorithm))
        self.step = StepFunction(work, work.initial())
        self._evaluation, self._metric = self._measured(source, evaluation)

    def _measured(self, source: Source, arrays: Mapping[str, Array] | None) -> tuple[Dataset | None, Metric | None]:
        if arrays is None:
            return None, None
        data = _converted(Dataset(arrays).only(self._inference | (set(arrays) & set(source.inputs))), source)
        metric = choose_metric(set(source.inputs) - self._inference, data)
        if metric is None:
            raise InputError("the evaluation data needs one label: an input of the training algorithm alone")
        if self._whole:
            whole = len(data) // self.batch * self.batch
            data = Dataset({n: a[:whole] for n, a in data.arrays.items()})
        return data, metric

    @property
    def metric_name(self) -> str:
        return self._metric.name if self._metric else "metric"

    def evaluate(self) -> float | None:
        """The metric on the evaluation data, or None without any."""
        if self._evaluation is None or self._metric is None:
            return None
        return self._metric(self.step, self._evaluation, self._inference, self.batch)

    def run(self, epochs: int, progress: Callable[[int, int, float | None], Any] | None = None) -> Iterator[Epoch]:
        """Train; see `training.train`."""
        return train(
            self.step,
            self.data,
            epochs=epochs,
            batch=self.batch,
            seed=self._seed,
            whole_batches=self._whole,
            evaluate=self.evaluate,
            progress=progress,
        )


def _converted(data: Dataset, source: Source) -> Dataset:
    """The arrays in the model's dtypes, where that loses no kind: float64 to float32, int32 to int64, ..."""
    arrays = {}
    for name, a in data.arrays.items():
        wanted = numpy_dtype(source.inputs[name].dtype)
        if a.dtype != wanted and not np.can_cast(a.dtype, wanted, "same_kind"):
            raise InputError(f"array {name!r} is {a.dtype}, the model takes {wanted}")
        arrays[name] = a.astype(wanted, copy=False)
    return Dataset(arrays)
