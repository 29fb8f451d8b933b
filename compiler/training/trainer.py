"""The loop: epochs of shuffled batches, from any position, with the same bits as without a break."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from compiler.api import checked_threads, loaded
from compiler.errors import (
    DivergedError,
    InputError,
    NoMemoryError,
    RefusedError,
    checked_call,
    checked_flag,
    checked_integer,
    checked_path,
    checked_seed,
    shown,
)
from compiler.fitting import checked_limit
from compiler.frontend import Source
from compiler.frontend.attempts import trial_dims
from compiler.frontend.files import Model
from compiler.ir.types import FLOATS
from compiler.runtime.memory import Array
from compiler.runtime.step import StepFunction
from compiler.specialize import Options, Specializations, as_typed
from compiler.training.data import Dataset
from compiler.training.measures import check_indices
from compiler.training.metrics import Metrics, losses_among
from compiler.training.position import (
    Identity,
    Position,
    check_checkpoint,
    hash_of_arrays,
    hash_of_model,
    hashed,
    load_checkpoint,
    save_checkpoint,
)
from compiler.training.samples import said, samples_of
from compiler.trial import untrained

DEFAULT_BATCH = 32

FROM_ZERO = (
    "the weights are all 0 and the model has an initialization graph, which was not run: give initialize=True to start "
    "from its values"
)

Progress = Callable[[int, int, float | None], Any]
"""Called after each step with the epoch, the samples done in it, and the loss."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch gave.

    number: from 1. step: steps done in all. samples: of this epoch. loss: mean over its samples of the loss at each
    step, None if the model has none. metrics: what was measured on the validation data after it. seconds: that it took,
    with validation. nan_step: its first step whose loss was not finite.
    """

    number: int
    step: int
    samples: int
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    nan_step: int | None = None

    def record(self) -> dict[str, int | float | None]:
        """All by name, as a row of a log. A metric with the name of another column is called `validation_...`."""
        own: dict[str, int | float | None] = {
            "epoch": self.number, "step": self.step, "samples": self.samples, "loss": self.loss
        }  # fmt: skip
        measured = {column(name): float(v) for name, v in self.metrics.items()}
        return own | measured | {"nan_step": self.nan_step, "seconds": round(self.seconds, 3)}


_OWN_COLUMNS = frozenset({"epoch", "step", "samples", "loss", "nan_step", "seconds"})


def column(metric: str) -> str:
    """What a metric is called in a record."""
    return f"validation_{metric}" if metric in _OWN_COLUMNS else metric


class Trainer:
    """A step function with the arrays that it trains on, `batch` samples at a time.

    data: one array for each input of the step, samples along the axis of the dim that counts them (inputs without it
    have one array for all samples); NumPy arrays, memory maps, or whatever offers its memory by array interface or
    DLPack: nothing is copied. Arrays may be of another type whose values the model's type holds exactly. batch_dim: the
    dim that counts samples, by default the one that `samples_of` chooses. validation: data for the metrics, measured
    after each epoch. metrics: their names; by default accuracy for integer labels, else mean absolute error. batch: by
    default the model's fixed size, or 32; the last batch of an epoch may be smaller where the size is not fixed, else
    it is left out. shuffle: whether each epoch has an order of its own, drawn from the seed; else samples come as they
    lie in memory. dims: of symbols that do not count samples. Other arguments as for `compiler.compile`. initialize:
    run the model's initialization first. compiling: called with the trainer when all is known to fit, before anything
    is compiled; if it gives False, nothing is compiled or initialized now, as for a run that is done.

    step: the StepFunction. position: where training stands. unused: arrays of the data that the model does not take.
    notes: what is allowed, but may not be meant. loss: the output that is its loss, "" if there is none, None while it
    is not known. InputError: data that does not fit the model, or no initialization.
    CompileError.
    """

    def __init__(
        self,
        model: Model,
        data: Mapping[str, Any],
        validation: Mapping[str, Any] | None = None,
        *,
        metrics: Sequence[str] | None = None,
        batch: int | None = None,
        batch_dim: int | str | None = None,
        dims: Mapping[str, int] | None = None,
        threads: int | None = None,
        seed: int = 0,
        algorithm: int | None = None,
        straight_through: bool = False,
        static: Mapping[str, Any] | None = None,
        max_trip: int | None = None,
        memory_limit: int | None = None,
        initialize: bool = False,
        shuffle: bool = True,
        compiling: Callable[[Trainer], Any] | None = None,
    ) -> None:
        seed, count, limit = checked_seed(seed), checked_threads(threads), checked_limit(memory_limit)
        batch = None if batch is None else checked_integer("batch", batch)
        checked_call("compiling", compiling)
        if not isinstance(model, onnx.ModelProto | bytes | bytearray | memoryview | str | os.PathLike):
            raise InputError(f"the model must be a path, the bytes of a file or a ModelProto, not {shown(model)}")
        straight_through = checked_flag("straight_through", straight_through)
        initialize, shuffle = checked_flag("initialize", initialize), checked_flag("shuffle", shuffle)
        source, fixed = loaded(model, dims, static, max_trip)
        if validation is not None and not isinstance(validation, Mapping):
            raise InputError(f"validation must be a mapping from names of inputs to arrays, not {shown(validation)}")
        inputs = {n: t for n, t in source.inputs_of("step", algorithm).items() if n not in fixed}
        algorithm = None if algorithm is None else int(algorithm)
        max_trip = source.max_trip
        if not source.algorithms:
            raise InputError(
                "the model has no training_info, so there is nothing to train: `onnxc make-training` makes a training "
                "model of it, with a loss and an optimizer"
            )
        if metrics is not None and validation is None:
            raise InputError("metrics are measured on validation data, and there is none: give validation=")
        self._seed, self._shuffle = seed, shuffle
        known = source.sizes(dims or {})
        sizes = {
            d: k
            for n, a in fixed.items()
            for d, k in zip(source.inputs[n].dims, a.shape, strict=False)
            if isinstance(d, str)
        } | known
        samples = samples_of(inputs, sizes, batch_dim)
        self._data = Dataset(data, inputs, source.defaults, "the data", samples.axes(inputs))
        if twice := [n for n in fixed if n in data or n in (validation or ())]:
            raise InputError(
                f"{', '.join(map(repr, twice))} is in static= and in the data: leave it out of the data, or, if it "
                "differs from sample to sample, out of static="
            )
        self.unused = sorted(set(data) - set(inputs), key=str)
        self.batch, self._whole = _batch_size(
            [inputs[n].dims[axis] for n, axis in self._data.axes.items()], sizes, batch
        )
        seen = self._data.sizes(sizes)
        if initialize and not source.initializes(algorithm):
            raise InputError("the model has no initialization graph to run: train without, from the values in the file")
        self.notes = [] if source.updated_by(algorithm) else ["the model updates nothing: there is no update_binding"]
        axes = said(self._data.axes)
        if any(self._data.axes.values()):
            self.notes.append(f"samples are counted by dim {samples.dim!r}, {axes}: another is named by batch_dim=")
        if source.initializes(algorithm) and not initialize and _all_zero(source, algorithm):
            self.notes.append(FROM_ZERO)
        if self.samples == 0:
            raise InputError(
                f"{len(self._data)} samples do not fill one batch of {self.batch}, the model's fixed size: give more"
            )
        outputs = source.own_outputs(algorithm) or None  # those of inference, in training, are of use to nobody
        options = Options(known, fixed, count, threads is None, seed, algorithm, straight_through, outputs, limit)
        work = Specializations(source, options)
        self.step = StepFunction(work, work.initial())
        arrays = {n: as_typed(source, n, a) for n, a in fixed.items()}
        some = self.batch if self._whole else min(self.batch, len(self._data))
        attempt = source.attempt(
            trial_dims(source, some, {s: seen[s] for s in seen if s in source.symbols}, arrays), arrays, algorithm
        )
        if attempt.report:
            work.warm_up()  # it raises, with all that is wrong, unless other sizes are right
        self.loss: str | None = None
        if not attempt.report and attempt.needs is None:
            graph = attempt.graphs["step"]
            self.notes += untrained(graph, straight_through)
            types = {n: graph.type(v) for n, v in graph.outputs.items() if outputs is None or n in outputs}
            scalars = [n for n, t in types.items() if t.size == 1 and t.dtype in FLOATS]
            self.loss = next(iter(losses_among(scalars, source, algorithm)), "")
            check_indices(self._data, graph, [*(graph.outputs[n] for n in types), *graph.updates.values()])
        self._metrics: Metrics | None = None
        if validation is not None:
            self._metrics = Metrics(
                metrics,
                validation,
                step=self.step,
                source=source,
                batch=self.batch,
                algorithm=algorithm,
                static=fixed,
                samples=samples,
            )
            self.notes += self._metrics.notes
        self.position = Position()
        self._about: dict[str, Any] = {
            "batch": self.batch, "seed": seed, "shuffling": shuffle, "algorithm": algorithm,
            "straight-through": straight_through, "max_trip": max_trip, "dims": known,
            "samples along": axes,
        }  # fmt: skip
        self._source, self._fixed, self._algorithm = source, fixed, algorithm
        self._identity: Identity | None = None
        if compiling is not None and compiling(self) is False:
            return
        work.warm_up()
        if initialize:
            self.step.initialize(seed)

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return len(self._data) // self.batch * self.batch if self._whole else len(self._data)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what is measured after each epoch, in order: the keys of `Epoch.metrics`."""
        return tuple(self._metrics.names) if self._metrics else ()

    def larger_is_better(self, metric: str) -> bool:
        """Whether it is so for a metric."""
        return self._metrics is not None and metric in self._metrics.larger

    def run(
        self,
        epochs: int,
        progress: Progress | None = None,
        *,
        stop: Callable[[], bool] | None = None,
        stop_on_nan: bool = False,
    ) -> Iterator[Epoch]:
        """Train until `epochs` epochs are done in all, and yield after each, from where training stands.

        progress: called after each step. stop: asked after each step; training ends there, in the middle of an epoch,
        once it is true, and another `run` goes on from there. stop_on_nan: end with a DivergedError if the loss is not
        finite, else it is noted in the epoch. InputError: an index out of range, say; the step then changed nothing.
        """
        checked_call("progress", progress)
        checked_call("stop", stop)
        return self._epochs(checked_integer("epochs", epochs), progress, stop, checked_flag("stop_on_nan", stop_on_nan))

    def _epochs(
        self, epochs: int, progress: Progress | None, stop: Callable[[], bool] | None, stop_on_nan: bool
    ) -> Iterator[Epoch]:
        at = self.position
        while at.epoch < epochs:
            began = time.monotonic() - at.seconds
            for rows, count in self._batches(at.epoch + 1, at.samples):
                with self._fitting("a step"):
                    loss = self._step(rows)
                at.samples += count
                at.step += 1
                at.seconds = time.monotonic() - began
                if loss is not None:
                    at.total = (at.total or 0.0) + loss * count
                    if not math.isfinite(loss):
                        at.nan_step = at.nan_step or at.step
                        if stop_on_nan:
                            raise DivergedError(loss, at.step, at.epoch + 1)
                if progress is not None:
                    progress(at.epoch + 1, at.samples, loss)
                if stop is not None and stop():
                    return
            with self._fitting("the validation"):
                measured = self._metrics() if self._metrics else {}
            seconds = time.monotonic() - began
            mean = None if at.total is None else at.total / at.samples
            epoch = Epoch(at.epoch + 1, at.step, at.samples, mean, measured, seconds, at.nan_step)
            at.epoch += 1
            at.samples, at.total, at.nan_step, at.seconds = 0, None, None, 0.0
            yield epoch

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[Array | slice, int]]:
        """Which samples the steps of an epoch take, from the given one on.

        The order depends on the seed and the epoch alone, so that no state of a generator has to be kept.
        """
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._data)) if self._shuffle else None
        for first in range(start, self.samples, self.batch):
            last = min(first + self.batch, self.samples)
            yield slice(first, last) if order is None else order[first:last], last - first

    def _step(self, rows: Array | slice) -> float | None:
        """One step. Gives its loss, if it has one: the first, of several algorithms."""
        try:
            outputs = self.step(self._data.rows(rows))
        except RefusedError as e:
            raise self._data.refused(e, rows) from None
        if self.loss is None:
            scalars = [n for n, a in outputs.items() if a.size == 1 and a.dtype.kind == "f"]
            self.loss = next(iter(losses_among(scalars, self._source, self._algorithm)), "")
        return float(outputs[self.loss].reshape(())) if self.loss else None

    @contextmanager
    def _fitting(self, what: str) -> Iterator[None]:
        """Say of memory that there is none of what takes less."""
        try:
            yield
        except MemoryError as e:
            less = "make the model with a smaller batch" if self._whole else "give a smaller batch="
            raise NoMemoryError(f"{what} of {self.batch} samples: {str(e) or 'out of memory'}; {less}") from e

    def identity(self) -> Identity:
        """What must be the same for a checkpoint to go on with the same bits: the model, the data, the options."""
        if self._identity is None:
            data = {"data": self._data} | ({"validation data": self._metrics.data} if self._metrics else {})
            about = {
                what: hashed(f"{len(d)} samples of {', '.join(d.names)}", d.fingerprint()) for what, d in data.items()
            }
            static = {"static inputs": hashed(", ".join(self._fixed) or "none", hash_of_arrays(self._fixed))}
            model = {"model": hashed("", hash_of_model(self._source.model))}
            self._identity = {**model, **about, **static, **self._about, "metrics": ", ".join(self.metrics)}
        return self._identity

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: all state and the position, one file, whole or not at all.

        It is a file of `step.save` as well. OSError.
        """
        save_checkpoint(checked_path("path", path), self.step.state, self.position, self.identity())

    def check(self, path: str | os.PathLike[str]) -> Position:
        """Where training would stand after `resume`. StateError if that would raise it."""
        state, path = self.step.state, checked_path("path", path)
        return check_checkpoint(path, state, self.identity(), self.samples, self.batch)

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, also in the middle of an epoch, with the same bits as without a break.

        threads may be others. StateError: it is damaged, or of a training with another model, data, batch, seed or
        other options: all differences are told, and nothing is changed.
        """
        path = checked_path("path", path)
        self.position = load_checkpoint(path, self.step.state, self.identity(), self.samples, self.batch)


def _batch_size(of_samples: Sequence[int | str], dims: dict[str, int], batch: int | None) -> tuple[int, bool]:
    """Samples of a step by the dims of samples, and whether that is fixed. InputError: they, or `batch`, differ."""
    fixed = {n for d in of_samples if (n := d if isinstance(d, int) else dims.get(d)) is not None}
    if len(fixed) > 1:
        raise InputError(
            f"the model takes different numbers of samples of its inputs: {sorted(fixed)}; bind what is the same for "
            "all samples by static=, or name the number that counts them by batch_dim="
        )
    for size in fixed:
        if batch not in (None, size):
            raise InputError(f"the model's batch size is fixed at {size}, so it cannot be {batch}: leave batch= out")
        return size, True
    return batch or DEFAULT_BATCH, False


def _all_zero(source: Source, algorithm: int | None) -> bool:
    """Whether all that training changes of the inference graph starts at 0, as a network that was never initialized."""
    weights = {t.name: t for t in source.model.graph.initializer}
    changed = [source.initializers[v] for v in source.updated_by(algorithm) if v in weights]
    return bool(changed) and not any(w.tensor.array.any() for w in changed)
