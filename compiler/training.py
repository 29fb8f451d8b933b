"""Training over arrays: epochs of shuffled batches, a loss and a metric. What `onnxc train` does, without printing."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.api import loaded
from compiler.errors import InputError
from compiler.frontend import Source
from compiler.frontend.files import Model
from compiler.frontend.source import trial_dims
from compiler.frontend.types import InputType
from compiler.runtime.arguments import held
from compiler.runtime.layout import ML_DTYPES, NUMPY
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction
from compiler.specialize import Options, Specializations, as_typed
from compiler.trial import untrained

DEFAULT_BATCH = 32

Progress = Callable[[int, int, float | None], Any]
"""Called after each step with the epoch, the samples done in it, and the loss."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave: the mean loss over its samples, and the metric on the evaluation data (or None)."""

    number: int
    loss: float | None
    metric: float | None


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an .npz file. InputError for any other."""
    name = os.fspath(path)
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.lib.npyio.NpzFile):
            with found:
                if not found.files:
                    raise InputError(f"there are no arrays in {name!r}: {_MAKE_ONE}")
                return dict(found)
    except InputError:
        raise
    except FileNotFoundError as e:
        raise InputError(f"there is no file {name!r}") from e
    except IsADirectoryError as e:
        raise InputError(f"{name!r} is a folder, not an .npz file") from e
    except (ValueError, EOFError, KeyError, OSError, TypeError, zipfile.BadZipFile, zlib.error) as e:
        why = _why_not_read(path, e)
        raise InputError(f"{name!r} is no .npz file of numeric arrays: {why}; {_MAKE_ONE}") from e
    raise InputError(f"{name!r} holds one array without a name: {_MAKE_ONE}")


_MAKE_ONE = "make one with numpy.savez(path, name=array, ...), with the names of the model's inputs"


def _why_not_read(path: str | os.PathLike[str], e: Exception) -> str:
    """Of a file that numpy refused. What is neither an .npz nor an .npy file, numpy takes for a pickle."""
    if "pickle" not in str(e):
        return str(e) or "it is damaged"
    with open(path, "rb") as file:
        head = file.read(6)
    known = head.startswith(b"PK") or head == b"\x93NUMPY"
    return "it holds Python objects, which are not loaded" if known else "it is a file of another kind"


@dataclass(frozen=True)
class Dataset:
    """Named arrays with samples along their first axis, all as many. Arrays without axes belong to every sample."""

    arrays: Mapping[str, Array]

    def __post_init__(self) -> None:
        sizes = {name: len(a) for name, a in self.arrays.items() if a.ndim}
        if not sizes or min(sizes.values()) == 0:
            raise InputError(f"no samples in the data: arrays need a first axis of samples, there are {sizes}")
        if len(set(sizes.values())) > 1:
            raise InputError(f"arrays of different numbers of samples: {sizes}")

    def __len__(self) -> int:
        return next(len(a) for a in self.arrays.values() if a.ndim)

    def rows(self, rows: Array) -> dict[str, Array]:
        """Some of the samples."""
        return {n: a[rows] if a.ndim else a for n, a in self.arrays.items()}


class Trainer:
    """A step function with the arrays that it trains on, `batch` samples at a time.

    data: one array for each input of the step; arrays may be of another type that loses nothing of their kind.
    evaluation: the inputs of inference, and the label: one input of the algorithm alone. batch: by default the model's
    fixed size, or 32; the last batch of an epoch may be smaller where the size is not fixed, else it is left out.
    dims: of symbols that do not count samples. Other arguments as for `compiler.compile`. initialize: run the model's
    initialization first. compiling: called when the data is known to fit, before anything is compiled. unused: arrays
    of the data that the model does not take. notes: what is allowed, but may not be meant. InputError: data that does
    not fit the model, or no initialization. CompileError.
    """

    def __init__(
        self,
        model: Model,
        data: Mapping[str, Array],
        evaluation: Mapping[str, Array] | None = None,
        *,
        batch: int | None = None,
        dims: Mapping[str, int] | None = None,
        threads: int = 1,
        seed: int = 0,
        algorithm: int | None = None,
        straight_through: bool = False,
        static: Mapping[str, Any] | None = None,
        max_trip: int | None = None,
        initialize: bool = False,
        compiling: Callable[[], Any] | None = None,
    ) -> None:
        source, fixed = loaded(model, dims, static, max_trip)
        inputs = {n: t for n, t in source.inputs_of("step", algorithm).items() if n not in fixed}
        if not source.algorithms:
            raise InputError(
                "the model has no training_info, so there is nothing to train: `onnxc make-training` makes a training "
                "model of it, with a loss and an optimizer"
            )
        self._data = _dataset(data, inputs, source, "the data")
        self.unused = sorted(set(data) - set(inputs))
        self._seed = seed
        known = dict(dims or {})
        sizes = {
            d: k
            for n, a in fixed.items()
            for d, k in zip(source.inputs[n].dims, a.shape, strict=False)
            if isinstance(d, str)
        } | known
        self.batch, self._whole = _batch_size([inputs[n] for n in self._data.arrays], sizes, batch)
        if initialize and not source.initializes(algorithm):
            raise InputError("the model has no initialization graph to run: train without, from the values in the file")
        self.notes = [] if source.updated_by(algorithm) else ["the model updates nothing: there is no update_binding"]
        if self.samples == 0:
            raise InputError(
                f"{len(self._data)} samples do not fill one batch of {self.batch}, the model's fixed size: give more"
            )
        if compiling is not None:
            compiling()
        outputs = source.own_outputs(algorithm) or None  # those of inference, in training, are of use to nobody
        work = Specializations(source, Options(known, fixed, threads, seed, algorithm, straight_through, outputs))
        self.step = StepFunction(work, work.initial())
        arrays = {n: as_typed(source, n, a) for n, a in fixed.items()}
        attempt = source.attempt(trial_dims(source, self.batch, known, arrays), arrays, algorithm)
        if not attempt.report and attempt.needs is None:
            self.notes += untrained(attempt.graphs["step"], straight_through)
        if initialize:
            self.step.initialize(seed)
        self._evaluation: _Evaluation | None = None
        if evaluation is not None:
            self._evaluation = _Evaluation(self.step, evaluation, source, self.batch, algorithm, fixed)

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return len(self._data) // self.batch * self.batch if self._whole else len(self._data)

    @property
    def metric_name(self) -> str:
        """What `Epoch.metric` is."""
        return self._evaluation.name if self._evaluation else "metric"

    def run(self, epochs: int, progress: Progress | None = None) -> Iterator[Epoch]:
        """Train, and yield after each epoch. The order of samples is drawn anew for each, from the seed."""
        random = np.random.default_rng(self._seed)
        for number in range(1, epochs + 1):
            order = random.permutation(len(self._data))[: self.samples]
            total, done = 0.0, 0
            loss: float | None = None
            for start in range(0, len(order), self.batch):
                rows = order[start : start + self.batch]
                loss = _loss(self.step(self._data.rows(rows)))
                total += (loss if loss is not None else 0.0) * len(rows)
                done += len(rows)
                if progress is not None:
                    progress(number, done, loss)
            metric = self._evaluation() if self._evaluation else None
            yield Epoch(number, total / done if loss is not None else None, metric)


def _dataset(arrays: Mapping[str, Array], inputs: Mapping[str, InputType], source: Source, what: str) -> Dataset:
    """The arrays of these inputs, in the model's types. InputError: some are missing or do not fit."""
    missing = sorted(n for n in inputs if n not in arrays and n not in source.defaults)
    if missing:
        unused = sorted(set(arrays) - set(inputs))
        unused_text = f" (of no use are {', '.join(map(repr, unused))})" if unused else ""
        raise InputError(f"{what} has no array {', '.join(map(repr, missing))}{unused_text}")
    found = {}
    for name, t in inputs.items():
        if name not in arrays:
            continue
        a = held(arrays[name], t.dtype)
        if a is None:
            raise InputError(
                f"array {name!r} of {what} is {arrays[name].dtype}: the model takes "
                f"{ML_DTYPES.get(t.dtype, NUMPY[t.dtype])}, which cannot hold its values"
            )
        if a.ndim != len(t.dims):
            raise InputError(f"array {name!r} of {what} has shape {list(a.shape)}: the model takes {t}")
        found[name] = a
    return Dataset(found)


def _batch_size(types: Sequence[InputType], dims: dict[str, int], batch: int | None) -> tuple[int, bool]:
    """Samples of a step, and whether that is fixed. InputError: the model and the caller want different ones."""
    first = {d if isinstance(d, int) else dims.get(d) for t in types for d in t.dims[:1]}
    fixed = {n for n in first if n is not None}
    if len(fixed) > 1:
        raise InputError(f"the model takes different numbers of samples of its inputs: {sorted(fixed)}")
    for size in fixed:
        if batch not in (None, size):
            raise InputError(f"the model's batch size is fixed at {size}: train with --batch {size}")
        return size, True
    return batch or DEFAULT_BATCH, False


def _loss(outputs: Mapping[str, Array]) -> float | None:
    """The output called loss, else the first scalar one of floating point."""
    scalars = [n for n, a in outputs.items() if a.size == 1 and a.dtype.kind == "f"]
    name = "loss" if "loss" in scalars else next(iter(scalars), None)
    return None if name is None else float(outputs[name].reshape(()))


class _Evaluation:
    """Accuracy of integer labels against scores with one more axis (classes at axis 1), or mean absolute error.

    Of the first output of inference, over all samples.
    """

    def __init__(
        self,
        step: StepFunction,
        arrays: Mapping[str, Array],
        source: Source,
        batch: int,
        algorithm: int | None,
        fixed: Collection[str],
    ) -> None:
        what = "the evaluation data"
        inference = {n: t for n, t in source.inputs_of("infer", algorithm).items() if n not in fixed}
        labels = {n: t for n, t in source.inputs_of("step", algorithm).items() if n in arrays}
        labels = {n: t for n, t in labels.items() if n not in inference and n not in fixed}
        if len(labels) != 1:
            found = f"it has {', '.join(map(repr, labels))}" if labels else "it has none"
            raise InputError(f"{what} needs one label, an input of the training algorithm alone: {found}")
        self._label = next(iter(labels))
        self._data = _dataset(arrays, inference | labels, source, what)
        self._inference = sorted(set(inference) & set(self._data.arrays))
        self._step, self._batch = step, batch
        wanted, output = self._data.arrays[self._label], self._outputs(0)
        count = len(output)
        if wanted.dtype.kind in "iu" and output.ndim == wanted.ndim + 1 and output.shape[1] > 1:
            self.name = "accuracy"
        elif output.size == wanted[:count].size:
            self.name = "mean absolute error"
        else:
            raise InputError(
                f"{what}: label {self._label!r} of shape {list(wanted.shape)} cannot be compared with an output of "
                f"shape {list(output.shape)}"
            )

    def _outputs(self, start: int) -> Array:
        """First output of inference for a batch of samples. All batches are of one size: the last one is filled up."""
        rows = np.minimum(np.arange(start, start + self._batch), len(self._data) - 1)
        given = self._data.rows(rows)
        output = next(iter(self._step.infer({n: given[n] for n in self._inference}).values()))
        if output.ndim == 0 or len(output) != self._batch:
            raise InputError(
                f"the model's first output has shape {list(output.shape)} for {self._batch} samples: it cannot be "
                "compared with labels"
            )
        return output[: len(self._data) - start]

    def __call__(self) -> float:
        total = count = 0.0
        for start in range(0, len(self._data), self._batch):
            output, wanted = self._outputs(start), self._data.arrays[self._label][start : start + self._batch]
            if self.name == "accuracy":
                total += float((output.argmax(1) == wanted).sum())
            else:
                total += float(np.abs(output.reshape(wanted.shape).astype(np.float64) - wanted).sum())
            count += wanted.size
        return total / count
